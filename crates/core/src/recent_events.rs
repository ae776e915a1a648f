//! The last events of a state machine, for a person who wants to know what led to its state or to a
//! panic.
//!
//! Each machine notes an [`EventSummary`] of every event before it handles the event. A summary has
//! the name of the event and the ids that it is about, and none of its data: it costs a few
//! nanoseconds, and shows no user's values. The node writes the list to a file when a machine
//! panics, or when a person asks for it.

use crate::id::{ActorEpoch, ActorId, Attempt, ObjectId, Referent, Session, SessionId, TaskId};
use crate::message::{AttemptId, Instance};
use crate::time::Time;
use crate::worker::ExecutorId;
use std::fmt;

/// How many events a machine remembers.
pub const RECENT_EVENTS: usize = 2_048;

/// The name of an event, or of the message that it brings, and the ids that it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventSummary {
    /// The name of the event or message.
    pub name: &'static str,
    /// The session that the message came from, if it is a message of a session.
    pub from: Option<Session>,
    /// The thing that the event is about.
    pub subject: Subject,
}

/// The thing that an event is about, by its id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// Nothing that has an id.
    Nothing,
    /// A process that asks to join.
    Process(SessionId),
    /// A session.
    Session(Session),
    /// A task or a call.
    Task(TaskId),
    /// An attempt at a task or a call.
    Attempt(AttemptId),
    /// An actor.
    Actor(ActorId),
    /// An instance of an actor.
    Instance(Instance),
    /// An object.
    Object(ObjectId),
    /// An executor of the worker.
    Executor(ExecutorId),
    /// A task or call in an executor of the worker.
    TaskIn(ExecutorId, TaskId),
}

impl From<Referent> for Subject {
    fn from(referent: Referent) -> Subject {
        match referent {
            Referent::Object(object) => Subject::Object(object),
            Referent::Actor(actor) => Subject::Actor(actor),
        }
    }
}

impl EventSummary {
    /// Returns the summary of an event that no session sent.
    pub fn of(name: &'static str, subject: Subject) -> EventSummary {
        EventSummary { name, from: None, subject }
    }

    /// Returns the summary of a message that this session sent.
    pub fn from(self, session: Session) -> EventSummary {
        EventSummary { from: Some(session), ..self }
    }
}

impl fmt::Display for EventSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match self.subject {
            Subject::Nothing => {}
            Subject::Process(id) => write!(f, " process={id}")?,
            Subject::Session(session) => write!(f, " session={session}")?,
            Subject::Task(task) => write!(f, " task={task}")?,
            Subject::Attempt(AttemptId { task, attempt: Attempt(attempt) }) => {
                write!(f, " task={task} attempt={attempt}")?;
            }
            Subject::Actor(actor) => write!(f, " actor={actor}")?,
            Subject::Instance(Instance { actor, epoch: ActorEpoch(epoch) }) => {
                write!(f, " actor={actor} epoch={epoch}")?;
            }
            Subject::Object(object) => write!(f, " object={object}")?,
            Subject::Executor(ExecutorId(executor)) => write!(f, " executor={executor}")?,
            Subject::TaskIn(ExecutorId(executor), task) => {
                write!(f, " executor={executor} task={task}")?;
            }
        }
        self.from.map_or(Ok(()), |session| write!(f, " from={session}"))
    }
}

/// The last [`RECENT_EVENTS`] events of one machine.
#[derive(Default)]
pub(crate) struct RecentEvents {
    /// A ring, once it is full.
    events: Vec<(Time, EventSummary)>,
    /// Where the next event goes, once the ring is full.
    next: usize,
}

impl RecentEvents {
    pub fn note(&mut self, now: Time, event: EventSummary) {
        if self.events.len() < RECENT_EVENTS {
            return self.events.push((now, event));
        }
        self.events[self.next] = (now, event);
        self.next = (self.next + 1) % RECENT_EVENTS;
    }

    /// Returns the events, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (Time, EventSummary)> {
        let (newer, older) = self.events.split_at(self.next);
        older.iter().chain(newer).copied()
    }
}

impl fmt::Debug for RecentEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecentEvents({})", self.events.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_remembered_in_order() {
        let mut recent = RecentEvents::default();
        let event =
            |number: u64| EventSummary::of("ExecutorReady", Subject::Executor(ExecutorId(number)));
        for number in 0..RECENT_EVENTS as u64 + 3 {
            recent.note(Time::from_nanos(number), event(number));
        }
        let remembered: Vec<_> = recent.iter().collect();
        assert_eq!(remembered.len(), RECENT_EVENTS);
        assert_eq!(remembered[0], (Time::from_nanos(3), event(3)));
        assert!(remembered.is_sorted_by_key(|(time, _)| *time));
    }

    #[test]
    fn a_summary_reads_as_a_name_and_ids() {
        let attempt = AttemptId { task: TaskId::from_u128(7), attempt: Attempt(2) };
        let session = Session { id: SessionId::from_u128(8), epoch: crate::id::SessionEpoch(3) };
        let summary = EventSummary::of("Started", Subject::Attempt(attempt)).from(session);
        assert_eq!(
            summary.to_string(),
            "Started task=00000000-0000-0000-0000-000000000007 attempt=2 \
             from=00000000-0000-0000-0000-000000000008@3"
        );
    }
}
