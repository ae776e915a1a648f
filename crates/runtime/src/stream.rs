//! The consumer's side of a stream: the items that have arrived, in order, and then its end.
//!
//! The node's thread puts items into an [`Inbox`] under the node's lock, in the order in which the
//! client's state machine yields them. It wakes the threads that wait after it has released that
//! lock. A consumer that takes an item needs only the lock of the inbox. It needs the node's lock
//! now and then to report how many items it has consumed, and to close the stream.
//!
//! For the producer's side see `executor/items.rs`.

use crate::client::Client;
use crate::executor::COUNT_MARK;
use marline_core::error::{Error, Ran};
use marline_core::id::{ObjectId, Referent, TaskId};
use marline_core::payload::{Encoding, Outcome, Payload, Value};
use marline_core::spec::{DEFAULT_MAX_UNCONSUMED, TaskSpec, consumed_report_step};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// A callback for when an item or the end has arrived. The thread that receives it calls the
/// callback, which must not block.
pub type Ring = Box<dyn FnOnce() + Send>;

/// The next thing in a stream.
pub enum StreamNext {
    /// An item, which this process holds until it [releases](Client::release) it.
    Item(ObjectId, Result<Value, Error>),
    /// Nothing has arrived yet.
    Pending,
    /// The stream has ended. Its error is returned once; later calls return `Ok`.
    End(Result<(), Error>),
}

/// The items of a stream that have arrived and were not taken.
#[derive(Default)]
struct Inbox(Mutex<ReceivedItems>);

#[derive(Default)]
struct ReceivedItems {
    items: VecDeque<Result<Value, Error>>,
    end: Option<Result<(), Error>>,
    /// How many items the consumer has taken.
    taken: u32,
    /// How many taken items were reported to the producer.
    told: u32,
    rings: Vec<Ring>,
}

impl Inbox {
    fn lock_items(&self) -> MutexGuard<'_, ReceivedItems> {
        self.0.lock().expect("nothing panics under it")
    }
}

/// The end of a stream into which the node puts items. Dropping it ends the stream with an error.
pub(crate) struct Feed(Arc<Inbox>);

impl Feed {
    /// Adds the next item. Returns the callbacks to call once the node's lock is released.
    pub fn item(&self, value: Result<Value, Error>) -> Vec<Ring> {
        let mut came = self.0.lock_items();
        came.items.push_back(value);
        std::mem::take(&mut came.rings)
    }

    /// Ends the stream with its outcome. Returns the callbacks to call once the node's lock is
    /// released.
    pub fn end(&self, outcome: &Outcome) -> Vec<Ring> {
        let mut came = self.0.lock_items();
        let end = outcome.as_ref().map_err(Clone::clone).and_then(|values| is_count(values));
        came.end.get_or_insert(end);
        std::mem::take(&mut came.rings)
    }
}

/// Checks that the result of a stream is a count of items. A worker that does not support streams
/// returns something else.
fn is_count(values: &[Value]) -> Result<(), Error> {
    let count = values.first().map(|value| &value.payload);
    let marks = |payload: &Payload| payload.inline.first().is_some_and(|mark| *mark == COUNT_MARK);
    if count.is_some_and(|count| count.encoding == Encoding::MessagePack && marks(count)) {
        return Ok(());
    }
    let words = "it returned a result and no items: its worker does not support streams";
    Err(Error::unsupported(words).ran(Ran::Maybe))
}

impl Drop for Feed {
    fn drop(&mut self) {
        let words = "the cluster was shut down while this was waited for";
        for ring in self.end(&Err(Error::unavailable(Ran::Maybe, words))) {
            ring();
        }
    }
}

/// A task or call whose items are taken one after the other. Dropping it closes the stream.
pub struct ItemStream {
    client: Client,
    task: TaskId,
    step: u32,
    inbox: Arc<Inbox>,
}

impl ItemStream {
    /// Creates the two ends of a stream.
    pub(crate) fn new(client: Client, spec: &TaskSpec) -> (ItemStream, Feed) {
        let inbox = Arc::<Inbox>::default();
        let step = consumed_report_step(spec.stream_window.unwrap_or(DEFAULT_MAX_UNCONSUMED));
        let feed = Feed(inbox.clone());
        (ItemStream { client, task: spec.id, step, inbox }, feed)
    }

    /// Returns the id of the task or call.
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// Takes the next item, if one has arrived, or the end.
    pub fn take(&self) -> StreamNext {
        let mut came = self.inbox.lock_items();
        let Some(value) = came.items.pop_front() else {
            return match &mut came.end {
                Some(end) => StreamNext::End(std::mem::replace(end, Ok(()))),
                None => StreamNext::Pending,
            };
        };
        let index = came.taken;
        came.taken += 1;
        let tell = came.taken - came.told >= self.step && came.end.is_none();
        if tell {
            came.told = came.taken;
        }
        let taken = came.taken;
        drop(came);
        if tell {
            self.client.took(self.task, taken);
        }
        StreamNext::Item(ObjectId::item(self.task, index), value)
    }

    /// Returns whether an item or the end has arrived.
    pub fn has_come(&self) -> bool {
        let came = self.inbox.lock_items();
        !came.items.is_empty() || came.end.is_some()
    }

    /// Calls `ring` when an item or the end has arrived, which may be at once.
    pub fn on_ready(&self, ring: Ring) {
        let mut came = self.inbox.lock_items();
        if came.items.is_empty() && came.end.is_none() {
            return came.rings.push(ring);
        }
        drop(came);
        ring();
    }

    /// Closes the stream: cancels the task or call that produces it, and releases the items that
    /// arrived and were not taken.
    pub fn close(&self) {
        // After this, no item arrives any more.
        self.client.close_stream(self.task);
        let mut came = self.inbox.lock_items();
        let first = came.taken;
        let left = std::mem::take(&mut came.items).len() as u32;
        came.end = Some(Ok(()));
        let rings = std::mem::take(&mut came.rings);
        drop(came);
        for index in first..first + left {
            self.client.release(Referent::Object(ObjectId::item(self.task, index)));
        }
        for ring in rings {
            ring();
        }
    }
}

impl Drop for ItemStream {
    fn drop(&mut self) {
        self.close();
    }
}
