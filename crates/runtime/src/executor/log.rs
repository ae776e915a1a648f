//! The output of user code, which the worker keeps: one log for each attempt, or for each instance
//! of an actor. A log keeps its latest bytes. The worker keeps its latest logs.
//!
//! A reader that follows a log misses nothing: while it is behind, the worker does not read the
//! executor's output ([`Logs::room`]), so the executor must wait. A task that no reader follows yet
//! waits once, for a short time, before its log drops anything.

use crate::terminal::escaped_lines;
use marline_core::id::{ActorEpoch, ActorId, Attempt, TaskId};
use marline_core::message::{AttemptId, Instance};
pub(crate) use marline_core::output::{OutputSource, StdStream};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The most bytes of one log. The latest stay.
pub(crate) const MAX_LOG_BYTES: usize = 1 << 20;
/// The most bytes of all logs of a worker. The oldest log goes first.
pub(crate) const MAX_LOGS_BYTES: usize = 64 << 20;
/// The most bytes of a log that one read returns, about.
pub(crate) const MAX_PART_BYTES: usize = 256 << 10;
/// The size of the pieces in which a log is kept, about.
const CHUNK_BYTES: usize = 16 << 10;
/// About how many bytes a log, and a chunk of it, cost besides their text. These costs count too:
/// they bound many small logs as they bound a few large ones.
const LOG_COST: usize = 256;
const CHUNK_COST: usize = 64;
/// How many bytes of the end of a log go into the message about an executor's death.
const LAST_WORDS_BYTES: usize = 2 << 10;

/// How many bytes a log may be ahead of a reader that follows it.
const MAX_UNREAD_BYTES: u64 = MAX_LOG_BYTES as u64 / 2;
/// A reader that has not read for this long no longer follows the log.
const FOLLOWS_FOR: Duration = Duration::from_secs(5);
/// How long a task that prints much waits for a first reader.
const FIRST_READER_PATIENCE: Duration = Duration::from_millis(500);

/// Bytes that were printed to one stream, one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    pub stream: StdStream,
    pub bytes: Vec<u8>,
}

/// A part of a log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LogSlice {
    pub chunks: Vec<Chunk>,
    /// Where this part begins in the log, in bytes. Larger than requested if the log has dropped
    /// what was there.
    pub offset: u64,
    /// The number of the attempt, or the epoch of the actor.
    pub number: u64,
}

impl LogSlice {
    fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes.len()).sum()
    }

    /// Returns where the next part begins.
    pub fn next(&self) -> u64 {
        self.offset + self.bytes() as u64
    }
}

#[derive(Default)]
pub(crate) struct Logs {
    kept: Mutex<LogTable>,
    /// Notified when a log has grown.
    grown: Notify,
    /// Notified when a reader has read on.
    read: Notify,
}

#[derive(Default)]
struct LogTable {
    logs: BTreeMap<OutputSource, Log>,
    order: VecDeque<OutputSource>,
    /// The cost of all logs.
    cost: usize,
}

#[derive(Default)]
struct Log {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// How many bytes of its beginning were dropped.
    dropped: u64,
    /// How far it was read, and when a reader last read.
    read: u64,
    read_at: Option<Instant>,
    /// When it was first too far ahead of every reader.
    ahead_since: Option<Instant>,
}

impl Log {
    /// Returns until when nothing may be added, for the sake of readers.
    fn is_full_until(&mut self, source: OutputSource, now: Instant) -> Option<Instant> {
        let end = self.dropped + self.bytes as u64;
        if end.saturating_sub(self.read) < MAX_UNREAD_BYTES {
            return None;
        }
        let until = match (self.read_at, source) {
            (Some(read), _) => read + FOLLOWS_FOR,
            (None, OutputSource::Task(_)) => {
                *self.ahead_since.get_or_insert(now) + FIRST_READER_PATIENCE
            }
            (None, OutputSource::Actor(_)) => return None,
        };
        (now < until).then_some(until)
    }

    fn push(&mut self, stream: StdStream, bytes: &[u8]) {
        match self.chunks.back_mut() {
            Some(last) if last.stream == stream && last.bytes.len() < CHUNK_BYTES => {
                last.bytes.extend(bytes);
            }
            Some(_) | None => self.chunks.push_back(Chunk { stream, bytes: bytes.into() }),
        }
        self.bytes += bytes.len();
        while self.bytes + self.chunks.len() * CHUNK_COST > MAX_LOG_BYTES && self.chunks.len() > 1 {
            let first = self.chunks.pop_front().expect("there are several");
            self.bytes -= first.bytes.len();
            self.dropped += first.bytes.len() as u64;
        }
    }

    /// Returns its cost.
    fn cost(&self) -> usize {
        LOG_COST + self.chunks.len() * CHUNK_COST + self.bytes
    }

    /// Returns the part from `offset` on, at most about [`MAX_PART_BYTES`].
    fn from(&self, offset: u64, number: u64) -> LogSlice {
        let mut part = LogSlice { chunks: Vec::new(), offset: offset.max(self.dropped), number };
        let (mut at, mut taken) = (self.dropped, 0);
        for chunk in &self.chunks {
            let end = at + chunk.bytes.len() as u64;
            if end > offset && taken < MAX_PART_BYTES {
                let skip = offset.saturating_sub(at) as usize;
                let bytes: Vec<u8> = chunk.bytes[skip..].into();
                taken += bytes.len();
                part.chunks.push(Chunk { stream: chunk.stream, bytes });
            }
            at = end;
        }
        part.offset = part.offset.min(at);
        part
    }
}

impl Logs {
    fn with<R>(&self, what: impl FnOnce(&mut LogTable) -> R) -> R {
        what(&mut self.kept.lock().expect("nothing panics under it"))
    }

    /// Adds bytes that user code printed.
    pub fn push(&self, source: OutputSource, stream: StdStream, bytes: &[u8]) {
        self.with(|kept| kept.push(source, stream, bytes));
        self.grown.notify_waiters();
    }

    /// Reads the log of a task from `offset` on: of this attempt, or of the latest.
    pub fn of_task(&self, task: TaskId, attempt: Option<Attempt>, offset: u64) -> Option<LogSlice> {
        let number = |attempt| OutputSource::Task(AttemptId { task, attempt });
        let range = match attempt {
            Some(attempt) => number(attempt)..=number(attempt),
            None => number(Attempt(0))..=number(Attempt(u64::MAX)),
        };
        let part = self.with(|kept| kept.latest(range, offset));
        self.read.notify_waiters();
        part
    }

    /// Reads the log of an actor's latest instance from `offset` on.
    pub fn of_actor(&self, actor: ActorId, offset: u64) -> Option<LogSlice> {
        let number = |epoch| OutputSource::Actor(Instance { actor, epoch });
        let range = number(ActorEpoch(0))..=number(ActorEpoch(u64::MAX));
        let part = self.with(|kept| kept.latest(range, offset));
        self.read.notify_waiters();
        part
    }

    /// Waits until a log can grow without a follower missing anything.
    pub async fn room(&self, source: OutputSource) {
        loop {
            let read = self.read.notified();
            let until = self.with(|kept| {
                let log = kept.logs.get_mut(&source)?;
                log.is_full_until(source, Instant::now())
            });
            let Some(until) = until else { return };
            // After either, the loop checks again.
            let _ = tokio::time::timeout_at(until.into(), read).await;
        }
    }

    /// Returns the end of a log as text.
    pub fn last_words(&self, source: OutputSource) -> Option<String> {
        self.with(|kept| {
            let log = kept.logs.get(&source)?;
            let from = (log.dropped + log.bytes as u64).saturating_sub(LAST_WORDS_BYTES as u64);
            let chunks = log.from(from, 0).chunks;
            let bytes = chunks.into_iter().flat_map(|chunk| chunk.bytes).collect::<Vec<u8>>();
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim();
            (!text.is_empty()).then(|| escaped_lines(text).into_owned())
        })
    }

    /// Waits until any log grows after this call.
    pub fn grown(&self) -> Notified<'_> {
        self.grown.notified()
    }
}

impl LogTable {
    fn push(&mut self, source: OutputSource, stream: StdStream, bytes: &[u8]) {
        let log = self.logs.entry(source).or_insert_with(|| {
            self.order.push_back(source);
            self.cost += LOG_COST;
            Log::default()
        });
        self.cost -= log.cost();
        log.push(stream, bytes);
        self.cost += log.cost();
        while self.cost > MAX_LOGS_BYTES && self.order.len() > 1 {
            let oldest = self.order.pop_front().expect("there are several");
            self.cost -= self.logs.remove(&oldest).map_or(0, |log| log.cost());
        }
    }

    /// Reads the latest log of a range. A reader that asks from `offset` on has read what is before
    /// it.
    fn latest(
        &mut self,
        range: std::ops::RangeInclusive<OutputSource>,
        offset: u64,
    ) -> Option<LogSlice> {
        let (source, log) = self.logs.range_mut(range).next_back()?;
        log.read = log.read.max(offset);
        log.read_at = Some(Instant::now());
        let number = match source {
            OutputSource::Task(attempt) => attempt.attempt.0,
            OutputSource::Actor(instance) => instance.epoch.0,
        };
        Some(log.from(offset, number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(task: u128, attempt: u64) -> OutputSource {
        OutputSource::Task(AttemptId { task: TaskId::from_u128(task), attempt: Attempt(attempt) })
    }

    fn text(part: &LogSlice) -> String {
        let bytes = part.chunks.iter().flat_map(|chunk| chunk.bytes.clone()).collect();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_log_is_read_from_the_offset_of_the_reader() {
        let logs = Logs::default();
        logs.push(source(1, 1), StdStream::Out, b"first attempt\n");
        logs.push(source(1, 2), StdStream::Out, b"one\n");
        logs.push(source(2, 1), StdStream::Out, b"another task\n");
        logs.push(source(1, 2), StdStream::Out, b"two\n");
        logs.push(source(1, 2), StdStream::Err, b"oops\n");
        let task = TaskId::from_u128(1);
        let part = |attempt, offset| logs.of_task(task, attempt, offset).unwrap();
        let whole = part(None, 0);
        let streams: Vec<StdStream> = whole.chunks.iter().map(|chunk| chunk.stream).collect();
        assert_eq!(streams, [StdStream::Out, StdStream::Err]);
        assert_eq!(
            (text(&whole).as_str(), whole.next(), whole.number),
            ("one\ntwo\noops\n", 13, 2)
        );
        assert_eq!((text(&part(None, 4)).as_str(), part(None, 4).offset), ("two\noops\n", 4));
        assert_eq!((text(&part(None, 9)).as_str(), part(None, 9).offset), ("ops\n", 9));
        assert_eq!(part(None, 99), LogSlice { chunks: vec![], offset: 13, number: 2 });
        assert_eq!(text(&part(Some(Attempt(1)), 0)), "first attempt\n");
        assert_eq!(logs.of_task(TaskId::from_u128(3), None, 0), None);
    }

    #[test]
    fn a_long_log_keeps_its_end_and_is_read_in_parts() {
        let logs = Logs::default();
        let line = "a line of some length\n";
        let lines = 2 * MAX_LOG_BYTES / line.len();
        for _ in 0..lines {
            logs.push(source(1, 1), StdStream::Out, line.as_bytes());
        }
        logs.push(source(1, 1), StdStream::Err, b"the end");
        let task = TaskId::from_u128(1);
        let (mut offset, mut read) = (0, String::new());
        loop {
            let part = logs.of_task(task, None, offset).unwrap();
            if part.chunks.is_empty() {
                break;
            }
            offset = part.next();
            read += &text(&part);
        }
        assert_eq!(offset, (lines * line.len() + 7) as u64);
        assert!(read.len() > MAX_LOG_BYTES - CHUNK_BYTES * 2 && read.len() <= MAX_LOG_BYTES);
        assert!(read.ends_with("length\nthe end"));
        assert!(logs.last_words(source(1, 1)).unwrap().ends_with("the end"));
    }

    #[test]
    fn a_full_log_waits_for_its_reader_for_a_limited_time() {
        let logs = Logs::default();
        let much = vec![b'a'; MAX_UNREAD_BYTES as usize];
        let full = |source, now| {
            logs.with(|kept| kept.logs.get_mut(&source).unwrap().is_full_until(source, now))
        };
        let (task, began) = (source(1, 1), Instant::now());
        logs.push(task, StdStream::Out, b"a little");
        assert_eq!(full(task, began), None);
        logs.push(task, StdStream::Out, &much);
        let patience = began + FIRST_READER_PATIENCE;
        assert_eq!(full(task, began), Some(patience), "a reader may come");
        assert_eq!(full(task, patience), None, "no reader came");
        // A reader comes, and reads everything.
        let end = logs.of_task(TaskId::from_u128(1), None, 0).unwrap().next();
        logs.of_task(TaskId::from_u128(1), None, end);
        assert_eq!(full(task, began), None);
        logs.push(task, StdStream::Out, &much);
        assert!(full(task, Instant::now()).is_some(), "it is behind");
        assert_eq!(full(task, Instant::now() + FOLLOWS_FOR), None, "it is gone");
        let actor = Instance { actor: ActorId::from_u128(1), epoch: ActorEpoch(1) };
        logs.push(OutputSource::Actor(actor), StdStream::Out, &much);
        assert_eq!(
            full(OutputSource::Actor(actor), began),
            None,
            "an actor does not wait for a first reader"
        );
    }

    #[test]
    fn the_oldest_logs_are_dropped_when_there_are_too_many() {
        let logs = Logs::default();
        for task in 0..100 {
            logs.push(source(task, 1), StdStream::Out, &vec![b'a'; MAX_LOG_BYTES]);
        }
        assert_eq!(logs.of_task(TaskId::from_u128(0), None, 0), None);
        assert!(logs.of_task(TaskId::from_u128(99), None, 0).is_some());
        assert!(logs.with(|kept| kept.cost <= MAX_LOGS_BYTES));
    }

    #[test]
    fn many_small_logs_and_pieces_are_bounded_too() {
        let logs = Logs::default();
        for task in 0..1_000_000 {
            logs.push(source(task, 1), StdStream::Out, b".");
        }
        let kept = logs.with(|kept| kept.logs.len());
        assert!(kept * 256 <= MAX_LOGS_BYTES, "{kept} logs of a byte are kept");
        for _ in 0..200_000 {
            logs.push(source(0, 2), StdStream::Out, b".");
            logs.push(source(0, 2), StdStream::Err, b"!");
        }
        let pieces = logs.with(|kept| kept.logs[&source(0, 2)].chunks.len());
        assert!(pieces * 64 <= MAX_LOG_BYTES, "{pieces} pieces of a byte are kept");
    }
}
