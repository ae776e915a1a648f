//! Which task, actor or worker is meant: its whole id, or how no other one begins.

use super::PAGE;
use crate::exit::{Failure, NOT_FOUND};
use marline_runtime::control::{Control, TaskState, TaskStatus};
use marline_runtime::core::error::Error;
use marline_runtime::core::id::{SessionId, TaskId};
use std::str::FromStr;

/// The digits of a whole id.
const DIGITS: usize = 32;
/// The fewest that can stand for it: all ids of the same minute or so have the same first eight.
const FEWEST_DIGITS: usize = 8;
/// The most ids that an error lists.
const MAX_LISTED: usize = 10;

/// What there is to choose from.
struct Known {
    ids: Vec<String>,
    /// There may be others that begin in the same way.
    more: bool,
}

/// A task.
pub fn task(control: &Control, text: &str) -> Result<TaskId, Failure> {
    meant(text, "task", || known_tasks(control))
}

/// A task or an actor, which have their logs in common; the id of either.
pub fn task_or_actor(control: &Control, text: &str) -> Result<TaskId, Failure> {
    meant(text, "task or actor", || {
        let mut known = known_tasks(control)?;
        let (actors, more) = control.actors(PAGE)?;
        known.ids.extend(actors.into_iter().map(|actor| actor.actor_id));
        known.more |= more;
        Ok(known)
    })
}

/// A worker.
pub fn worker(control: &Control, text: &str) -> Result<SessionId, Failure> {
    meant(text, "worker", || {
        let (workers, more) = control.workers(PAGE)?;
        Ok(Known { ids: workers.into_iter().map(|worker| worker.worker_id).collect(), more })
    })
}

/// Those that have not ended come first: if one that has ended is listed, none of them is left out. Of
/// those that have, the latest are enough.
fn known_tasks(control: &Control) -> Result<Known, Error> {
    let (tasks, more) = control.tasks(PAGE, &[])?;
    let more = more && tasks.last().is_some_and(|task| !has_ended(task));
    Ok(Known { ids: tasks.into_iter().map(|task| task.task_id).collect(), more })
}

fn has_ended(task: &TaskStatus) -> bool {
    matches!(task.state(), TaskState::Finished | TaskState::Failed | TaskState::Cancelled)
}

fn meant<T: FromStr<Err = Error>>(
    text: &str,
    what: &str,
    known: impl FnOnce() -> Result<Known, Error>,
) -> Result<T, Failure> {
    let digits = digits(text);
    if digits.len() == DIGITS {
        return Ok(digits.parse()?);
    }
    let is_prefix = (FEWEST_DIGITS..DIGITS).contains(&digits.len());
    if !is_prefix || !digits.chars().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(Failure::usage(format!(
            "{text:?} is not an id: expected one as the lists of `marline` show it, or at least its \
             first {FEWEST_DIGITS} characters"
        )));
    }
    let Known { ids, more } = known()?;
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

/// An id without what is only there for the eye.
fn digits(text: &str) -> String {
    text.replace('-', "").to_ascii_lowercase()
}
