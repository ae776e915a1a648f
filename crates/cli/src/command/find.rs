//! Resolves what a user types for a task, an actor or a worker: a whole id, or the first characters
//! of exactly one known id.

use super::MAX_LISTED_ITEMS;
use crate::exit::{Failure, NOT_FOUND};
use marline_runtime::control::{Control, TaskState, TaskStatus};
use marline_runtime::core::error::{Error, ErrorKind};
use marline_runtime::core::id::{ActorId, SessionId, TaskId};
use std::str::FromStr;

/// How many digits an id has.
const DIGITS: usize = 32;
/// The fewest digits that may stand for an id. Ids of the same minute or so share their first
/// eight.
const FEWEST_DIGITS: usize = 8;
/// The most ids that an error lists.
const MAX_LISTED: usize = 10;

/// The known ids that a prefix may stand for.
struct Candidates {
    ids: Vec<String>,
    /// Further ids with the same prefix may exist.
    more: bool,
}

/// Resolves a task. If only an actor matches, the error says so.
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

/// Resolves an actor by its name in this namespace, or by its id. The controller knows the actor.
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
            "no actor named {text:?} is in namespace {namespace:?}: `marline actors --json` shows \
             namespaces; pass --namespace, or at least the first {FEWEST_DIGITS} characters of the id"
        );
        return Err(Failure::new(NOT_FOUND, "NotFound", words));
    }
    find_by_prefix(text, "actor", |digits| known_actors(control, digits))
}

/// Returns this id if an actor has it. If a task has it, the error says so.
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

/// Returns the error for an actor that the user took for a task.
pub fn actor_not_task(actor: ActorId) -> Failure {
    let words = format!("{actor} is an actor: `marline kill {actor}` ends it");
    Failure::new(NOT_FOUND, "NotFound", words)
}

/// Resolves a task or an actor, for commands that take both. Returns the id in either case.
pub fn task_or_actor(control: &Control, text: &str) -> Result<TaskId, Failure> {
    find_by_prefix(text, "task or actor", |digits| {
        let (mut known, actors) = (known_tasks(control, digits)?, known_actors(control, digits)?);
        known.ids.extend(actors.ids);
        known.more |= actors.more;
        Ok(known)
    })
}

/// Resolves a worker.
pub fn worker(control: &Control, text: &str) -> Result<SessionId, Failure> {
    find_by_prefix(text, "worker", |digits| {
        let (workers, more) = control.workers_beginning(digits, MAX_LISTED_ITEMS)?;
        Ok(Candidates { ids: workers.into_iter().map(|worker| worker.worker_id).collect(), more })
    })
}

/// Lists the tasks that a prefix may stand for. The controller lists unfinished tasks first: if the
/// list has an ended task, it has all unfinished ones. Of ended tasks the latest are enough.
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

/// Resolves the text to one of the `known` ids, or takes a whole id as it is, known or not.
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
            "{text:?} is not an id: expected an id from a list such as `marline tasks`, or at least its \
             first {FEWEST_DIGITS} characters"
        )));
    }
    let Candidates { ids, more } = known(&digits)?;
    let mut found: Vec<String> =
        ids.into_iter().filter(|id| self::digits(id).starts_with(&digits)).collect();
    match found.len() {
        0 | 1 if more => Err(Failure::usage(format!(
            "too many ids begin like {text} to tell which {what} is meant: give the whole id"
        ))),
        0 => {
            let words = format!(
                "no {what} is known whose id begins with {text}: `marline tasks`, `marline actors` and \
                 `marline workers` list ids"
            );
            Err(Failure::new(NOT_FOUND, "NotFound", words))
        }
        1 => Ok(found.remove(0).parse()?),
        count => {
            let others = if count > MAX_LISTED { ", …" } else { "" };
            found.truncate(MAX_LISTED);
            let found = found.join(", ");
            Err(Failure::usage(format!(
                "{count} ids begin with {text}: give more characters of the one you mean: {found}{others}"
            )))
        }
    }
}

/// Whether these digits can stand for an id: enough of them, and all hexadecimal.
fn is_prefix(digits: &str) -> bool {
    let is_short = (FEWEST_DIGITS..DIGITS).contains(&digits.len());
    is_short && digits.chars().all(|digit| digit.is_ascii_hexdigit())
}

/// Returns an id without its dashes, in lower case.
fn digits(text: &str) -> String {
    text.replace('-', "").to_ascii_lowercase()
}
