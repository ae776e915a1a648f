//! Which task, actor or worker is meant: its whole id, or how no other one begins.

use super::MAX_LISTED_ITEMS;
use crate::exit::{Failure, NOT_FOUND};
use marline_runtime::control::{Control, TaskState, TaskStatus};
use marline_runtime::core::error::{Error, ErrorKind};
use marline_runtime::core::id::{ActorId, SessionId, TaskId};
use std::str::FromStr;

/// The digits of a whole id.
const DIGITS: usize = 32;
/// The fewest that can stand for it: all ids of the same minute or so have the same first eight.
const FEWEST_DIGITS: usize = 8;
/// The most ids that an error lists.
const MAX_LISTED: usize = 10;

/// What there is to choose from.
struct Candidates {
    ids: Vec<String>,
    /// There may be others that begin in the same way.
    more: bool,
}

/// A task.
pub fn task(control: &Control, text: &str) -> Result<TaskId, Failure> {
    let found = find_by_prefix(text, "task", |digits| known_tasks(control, digits));
    found.map_err(|failure| {
        let meant_actor = failure.code == NOT_FOUND;
        match meant_actor
            .then(|| find_by_prefix(text, "actor", |digits| known_actors(control, digits)))
        {
            Some(Ok(actor)) => actor_not_task(actor),
            Some(Err(_)) | None => failure,
        }
    })
}

/// An actor: by its name in this namespace, or by its id. It is known.
pub fn actor(control: &Control, namespace: &str, text: &str) -> Result<ActorId, Failure> {
    if digits(text).len() == DIGITS
        && let Ok(actor) = digits(text).parse()
    {
        return known_actor(control, actor);
    }
    match control.actor_named(namespace, text) {
        Ok(status) => return Ok(status.actor_id.parse()?),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    if !is_prefix(&digits(text)) {
        let words = format!(
            "no actor named {text:?} is in namespace {namespace:?}: `marline actors --json` says which is \
             where; give its --namespace, or at least the first {FEWEST_DIGITS} characters of its id"
        );
        return Err(Failure::new(NOT_FOUND, "NotFound", words));
    }
    find_by_prefix(text, "actor", |digits| known_actors(control, digits))
}

/// This one, unless nothing is known of it.
fn known_actor(control: &Control, actor: ActorId) -> Result<ActorId, Failure> {
    match control.actor(actor) {
        Ok(_) => Ok(actor),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let is_task = control.task(TaskId::from_u128(actor.as_u128())).is_ok();
            let task = format!("{actor} is a task: `marline cancel {actor}` stops it");
            let task = is_task.then(|| Failure::new(NOT_FOUND, "NotFound", task));
            Err(task.unwrap_or_else(|| error.into()))
        }
        Err(error) => Err(error.into()),
    }
}

/// What is said of an actor that was taken for a task.
pub fn actor_not_task(actor: ActorId) -> Failure {
    let words = format!("{actor} is an actor: `marline kill {actor}` ends it");
    Failure::new(NOT_FOUND, "NotFound", words)
}

/// A task or an actor, which have their logs in common; the id of either.
pub fn task_or_actor(control: &Control, text: &str) -> Result<TaskId, Failure> {
    find_by_prefix(text, "task or actor", |digits| {
        let (mut known, actors) = (known_tasks(control, digits)?, known_actors(control, digits)?);
        known.ids.extend(actors.ids);
        known.more |= actors.more;
        Ok(known)
    })
}

/// A worker.
pub fn worker(control: &Control, text: &str) -> Result<SessionId, Failure> {
    find_by_prefix(text, "worker", |digits| {
        let (workers, more) = control.workers_beginning(digits, MAX_LISTED_ITEMS)?;
        Ok(Candidates { ids: workers.into_iter().map(|worker| worker.worker_id).collect(), more })
    })
}

/// Those that have not ended come first: if one that has ended is listed, none of them is left out. Of
/// those that have, the latest are enough.
fn known_tasks(control: &Control, digits: &str) -> Result<Candidates, Error> {
    let (tasks, more) = control.tasks_beginning(digits, MAX_LISTED_ITEMS)?;
    let more = more && tasks.last().is_some_and(|task| !has_ended(task));
    Ok(Candidates { ids: tasks.into_iter().map(|task| task.task_id).collect(), more })
}

fn known_actors(control: &Control, digits: &str) -> Result<Candidates, Error> {
    let (actors, more) = control.actors_beginning(digits, MAX_LISTED_ITEMS)?;
    Ok(Candidates { ids: actors.into_iter().map(|actor| actor.actor_id).collect(), more })
}

fn has_ended(task: &TaskStatus) -> bool {
    matches!(task.state(), TaskState::Finished | TaskState::Failed | TaskState::Cancelled)
}

fn find_by_prefix<T: FromStr<Err = Error>>(
    text: &str,
    what: &str,
    known: impl FnOnce(&str) -> Result<Candidates, Error>,
) -> Result<T, Failure> {
    let digits = digits(text);
    if digits.len() == DIGITS {
        return Ok(digits.parse()?);
    }
    if !is_prefix(&digits) {
        return Err(Failure::usage(format!(
            "{text:?} is not an id: expected one as the lists of `marline` show it, or at least its \
             first {FEWEST_DIGITS} characters"
        )));
    }
    let Candidates { ids, more } = known(&digits)?;
    let mut found: Vec<String> =
        ids.into_iter().filter(|id| self::digits(id).starts_with(&digits)).collect();
    match found.len() {
        0 | 1 if more => Err(Failure::usage(format!(
            "there are too many to tell which {what} begins with {text}: name it by its whole id"
        ))),
        0 => {
            let words = format!("no {what} that begins with {text} is known");
            Err(Failure::new(NOT_FOUND, "NotFound", words))
        }
        1 => Ok(found.remove(0).parse()?),
        count => {
            let others = if count > MAX_LISTED { ", …" } else { "" };
            found.truncate(MAX_LISTED);
            let found = found.join(", ");
            Err(Failure::usage(format!(
                "{count} ids begin with {text}, give more of the one you mean: {found}{others}"
            )))
        }
    }
}

/// Whether an id can begin with these.
fn is_prefix(digits: &str) -> bool {
    let is_short = (FEWEST_DIGITS..DIGITS).contains(&digits.len());
    is_short && digits.chars().all(|digit| digit.is_ascii_hexdigit())
}

/// An id without what is only there for the eye.
fn digits(text: &str) -> String {
    text.replace('-', "").to_ascii_lowercase()
}
