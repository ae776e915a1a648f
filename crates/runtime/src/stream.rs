//! Streams, at whoever takes their items: what has come waits here, in order, and after it the end.
//!
//! Items are put here under the node's lock, in the order in which the client's machine gives them; those who wait
//! are woken outside of it. Whoever takes them does not need that lock, but to say every now and then how far it is.

use crate::client::Client;
use crate::executor::COUNT_MARK;
use marline_core::error::{Error, Ran};
use marline_core::id::{ObjectId, Referent, TaskId};
use marline_core::payload::{Encoding, Outcome, Payload, Value};
use marline_core::spec::{DEFAULT_MAX_UNCONSUMED, TaskSpec, consumed_report_step};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// What is done when something has come, by whichever thread hears of it. It must not block.
pub type Ring = Box<dyn FnOnce() + Send>;

/// What is next in a stream.
pub enum StreamNext {
    /// An item, which this process holds: to be [released](Client::release).
    Item(ObjectId, Result<Value, Error>),
    /// Nothing yet.
    Pending,
    /// Nothing any more. The error is said once.
    End(Result<(), Error>),
}

/// What has come of a stream and was not taken.
#[derive(Default)]
struct Inbox(Mutex<Came>);

#[derive(Default)]
struct Came {
    items: VecDeque<Result<Value, Error>>,
    end: Option<Result<(), Error>>,
    taken: u32,
    /// How many of those that were taken its producer was told of.
    told: u32,
    rings: Vec<Ring>,
}

impl Inbox {
    fn came(&self) -> MutexGuard<'_, Came> {
        self.0.lock().expect("nothing panics under it")
    }
}

/// The end of a stream at which its items come. If it is dropped, so is everything that could come.
pub(crate) struct Feed(Arc<Inbox>);

impl Feed {
    /// The next item. Says whom to tell.
    pub fn item(&self, value: Result<Value, Error>) -> Vec<Ring> {
        let mut came = self.0.came();
        came.items.push_back(value);
        std::mem::take(&mut came.rings)
    }

    /// How it ended. Says whom to tell.
    pub fn end(&self, outcome: &Outcome) -> Vec<Ring> {
        let mut came = self.0.came();
        let end = outcome.as_ref().map_err(Clone::clone).and_then(|values| is_count(values));
        came.end.get_or_insert(end);
        std::mem::take(&mut came.rings)
    }
}

/// The result of a stream is how many items it gave. Whatever does not know of streams gives something else.
fn is_count(values: &[Value]) -> Result<(), Error> {
    let count = values.first().map(|value| &value.payload);
    let marks = |payload: &Payload| payload.inline.first().is_some_and(|mark| *mark == COUNT_MARK);
    if count.is_some_and(|count| count.encoding == Encoding::MessagePack && marks(count)) {
        return Ok(());
    }
    let words = "it gave one result and no items: the worker that ran it does not know of streams";
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

/// A task or call whose items are taken one after the other. Dropping it closes it.
pub struct ItemStream {
    client: Client,
    task: TaskId,
    step: u32,
    inbox: Arc<Inbox>,
}

impl ItemStream {
    /// The two ends of a stream.
    pub(crate) fn new(client: Client, spec: &TaskSpec) -> (ItemStream, Feed) {
        let inbox = Arc::<Inbox>::default();
        let step = consumed_report_step(spec.stream_window.unwrap_or(DEFAULT_MAX_UNCONSUMED));
        let feed = Feed(inbox.clone());
        (ItemStream { client, task: spec.id, step, inbox }, feed)
    }

    /// The task, or call.
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// Takes what is next.
    pub fn take(&self) -> StreamNext {
        let mut came = self.inbox.came();
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

    /// Whether there is something to take, or the end.
    pub fn has_come(&self) -> bool {
        let came = self.inbox.came();
        !came.items.is_empty() || came.end.is_some()
    }

    /// Does this when there is something to take, or the end; at once if there is.
    pub fn on_ready(&self, ring: Ring) {
        let mut came = self.inbox.came();
        if came.items.is_empty() && came.end.is_none() {
            return came.rings.push(ring);
        }
        drop(came);
        ring();
    }

    /// Wants no more of it: whatever makes it is cancelled, and what came and was not taken is let go.
    pub fn close(&self) {
        // After this, nothing comes any more.
        self.client.close_stream(self.task);
        let mut came = self.inbox.came();
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
