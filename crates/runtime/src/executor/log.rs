//! What user code prints, kept by the worker: one log per attempt, or per life of an actor. A log keeps
//! its latest bytes, the worker its latest logs.

use marline_core::id::{ActorEpoch, ActorId, Attempt, TaskId};
use marline_core::message::{Instance, Try};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use tokio::sync::Notify;

/// The latest bytes of one log that are kept.
pub(crate) const MAX_LOG_BYTES: usize = 1 << 20;
/// The bytes of all logs of a worker that are kept; the oldest log goes first.
pub(crate) const MAX_LOGS_BYTES: usize = 64 << 20;
/// How much of the end of a log goes into the words about an executor's death.
const LAST_WORDS_BYTES: usize = 2 << 10;

/// Whose output it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Source {
    Task(Try),
    Actor(Instance),
}

/// A part of a log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Part {
    pub bytes: Vec<u8>,
    /// Where in the log it begins; more than was asked for if what was there is not kept any more.
    pub offset: u64,
    /// Which attempt, or which life of the actor.
    pub number: u64,
}

#[derive(Default)]
pub(crate) struct Logs {
    kept: Mutex<Kept>,
    grown: Notify,
}

#[derive(Default)]
struct Kept {
    logs: BTreeMap<Source, Log>,
    order: VecDeque<Source>,
    bytes: usize,
}

#[derive(Default)]
struct Log {
    bytes: VecDeque<u8>,
    /// How much of its beginning is not kept.
    dropped: u64,
}

impl Logs {
    fn with<R>(&self, what: impl FnOnce(&mut Kept) -> R) -> R {
        what(&mut self.kept.lock().expect("nothing panics under it"))
    }

    /// User code printed something.
    pub fn push(&self, source: Source, bytes: &[u8]) {
        self.with(|kept| kept.push(source, bytes));
        self.grown.notify_waiters();
    }

    /// The log of a task, from `offset` on: of the attempt that is named, or of the latest.
    pub fn of_task(&self, task: TaskId, attempt: Option<Attempt>, offset: u64) -> Option<Part> {
        let number = |attempt| Source::Task(Try { task, attempt });
        let range = match attempt {
            Some(attempt) => number(attempt)..=number(attempt),
            None => number(Attempt(0))..=number(Attempt(u64::MAX)),
        };
        self.with(|kept| kept.latest(range, offset))
    }

    /// The log of an actor's latest life.
    pub fn of_actor(&self, actor: ActorId, offset: u64) -> Option<Part> {
        let number = |epoch| Source::Actor(Instance { actor, epoch });
        let range = number(ActorEpoch(0))..=number(ActorEpoch(u64::MAX));
        self.with(|kept| kept.latest(range, offset))
    }

    /// The last lines, as text.
    pub fn last_words(&self, source: Source) -> Option<String> {
        self.with(|kept| {
            let log = kept.logs.get(&source)?;
            let from = log.bytes.len().saturating_sub(LAST_WORDS_BYTES);
            let bytes: Vec<u8> = log.bytes.range(from..).copied().collect();
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim();
            (!text.is_empty()).then(|| text.to_owned())
        })
    }

    /// Waits until some log has grown.
    pub async fn grown(&self) {
        self.grown.notified().await;
    }
}

impl Kept {
    fn push(&mut self, source: Source, bytes: &[u8]) {
        let log = self.logs.entry(source).or_insert_with(|| {
            self.order.push_back(source);
            Log::default()
        });
        log.bytes.extend(bytes);
        let over = log.bytes.len().saturating_sub(MAX_LOG_BYTES);
        log.bytes.drain(..over);
        log.dropped += over as u64;
        self.bytes = self.bytes + bytes.len() - over;
        while self.bytes > MAX_LOGS_BYTES && self.order.len() > 1 {
            let oldest = self.order.pop_front().expect("there are several");
            self.bytes -= self.logs.remove(&oldest).map_or(0, |log| log.bytes.len());
        }
    }

    fn latest(&self, range: std::ops::RangeInclusive<Source>, offset: u64) -> Option<Part> {
        let (source, log) = self.logs.range(range).next_back()?;
        let skip = usize::try_from(offset.saturating_sub(log.dropped)).unwrap_or(usize::MAX);
        let skip = skip.min(log.bytes.len());
        let bytes = log.bytes.range(skip..).copied().collect();
        let number = match source {
            Source::Task(attempt) => attempt.attempt.0,
            Source::Actor(instance) => instance.epoch.0,
        };
        Some(Part { bytes, offset: log.dropped + skip as u64, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(task: u128, attempt: u64) -> Source {
        Source::Task(Try { task: TaskId::from_u128(task), attempt: Attempt(attempt) })
    }

    #[test]
    fn a_log_is_read_from_where_the_reader_was() {
        let logs = Logs::default();
        logs.push(source(1, 1), b"first attempt\n");
        logs.push(source(1, 2), b"one\n");
        logs.push(source(2, 1), b"another task\n");
        logs.push(source(1, 2), b"two\n");
        let task = TaskId::from_u128(1);
        let part = |attempt, offset| logs.of_task(task, attempt, offset).unwrap();
        assert_eq!(part(None, 0), Part { bytes: b"one\ntwo\n".into(), offset: 0, number: 2 });
        assert_eq!(part(None, 4), Part { bytes: b"two\n".into(), offset: 4, number: 2 });
        assert_eq!(part(None, 99), Part { bytes: vec![], offset: 8, number: 2 });
        assert_eq!(part(Some(Attempt(1)), 0).bytes, b"first attempt\n");
        assert_eq!(logs.of_task(TaskId::from_u128(3), None, 0), None);
    }

    #[test]
    fn a_long_log_keeps_its_end_and_says_so() {
        let logs = Logs::default();
        logs.push(source(1, 1), &vec![b'a'; MAX_LOG_BYTES]);
        logs.push(source(1, 1), b"the end");
        let part = logs.of_task(TaskId::from_u128(1), None, 0).unwrap();
        assert_eq!((part.offset, part.bytes.len()), (7, MAX_LOG_BYTES));
        assert!(part.bytes.ends_with(b"the end"));
        assert!(logs.last_words(source(1, 1)).unwrap().ends_with("the end"));
    }

    #[test]
    fn the_oldest_logs_go_when_there_are_too_many() {
        let logs = Logs::default();
        for task in 0..100 {
            logs.push(source(task, 1), &vec![b'a'; MAX_LOG_BYTES]);
        }
        assert_eq!(logs.of_task(TaskId::from_u128(0), None, 0), None);
        assert!(logs.of_task(TaskId::from_u128(99), None, 0).is_some());
        assert!(logs.with(|kept| kept.bytes <= MAX_LOGS_BYTES));
    }
}
