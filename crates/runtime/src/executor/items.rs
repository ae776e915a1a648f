//! The items that user code yields while it runs, and when there is room for the next one.
//!
//! The producer asks for room before it makes an item, so no more items exist than may wait to be
//! consumed. Another thread receives how many were consumed, and wakes the producer. It also wakes
//! the producer when the task must stop.
//!
//! For the consumer's side see `stream.rs`.

use super::process::Waiter;
use super::run::{ReportFn, bounded_value};
use super::waiting::wait_lending_cpu;
use crate::object_store::ObjectStoreHandle;
use marline_core::error::{Error, Ran};
use marline_core::id::ObjectId;
use marline_core::message::AttemptId;
use marline_core::payload::{Payload, Value};
use marline_core::spec::MAX_ITEMS;
use marline_wire::executor::ExecutorReport;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a producer waits before it lends its CPU. Most waits are shorter, and work that took
/// the CPU would have to share it afterwards.
pub const LEND_AFTER: Duration = Duration::from_millis(20);
/// The longest wait: in practice, without a limit.
const LONGEST: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// The first byte of a stream's result, which is the count of its items: in MessagePack, an
/// unsigned integer of eight bytes follows.
pub(crate) const COUNT_MARK: u8 = 0xcf;

/// A callback for when there is room. The thread that learns of it calls the callback, which must
/// not block.
pub type WakeCallback = Box<dyn FnOnce() + Send>;

/// Where user code yields its items. User code must ask for room before it makes the next one.
#[derive(Clone)]
pub struct ItemProducer(Arc<ProducerShared>);

struct ProducerShared {
    attempt: AttemptId,
    /// The most items that may wait to be consumed.
    most: u32,
    /// How many items were yielded.
    given: AtomicU32,
    room: Arc<ItemWindow>,
    /// The object store for large items.
    objects: Option<ObjectStoreHandle>,
    /// Whether large items are saved where they outlive the node.
    durable: bool,
    report: ReportFn,
}

impl Drop for ProducerShared {
    fn drop(&mut self) {
        self.objects.iter().for_each(ObjectStoreHandle::pause);
    }
}

impl std::fmt::Debug for ItemProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Items").field("given", &self.given()).finish()
    }
}

/// How many items of a task or call were consumed. Exists for one that runs or is about to.
#[derive(Default)]
pub(super) struct ItemWindow(Mutex<WindowState>);

#[derive(Default)]
struct WindowState {
    count: u32,
    /// The task must stop, so waiting for room is useless.
    stopped: bool,
    rings: Vec<WakeCallback>,
}

impl ItemWindow {
    fn taken(&self) -> MutexGuard<'_, WindowState> {
        self.0.lock().expect("nothing panics under it")
    }

    /// Notes that `count` items were consumed in all, and wakes the producer.
    pub fn note_consumed(&self, count: u32) {
        let mut taken = self.taken();
        taken.count = taken.count.max(count);
        let rings = std::mem::take(&mut taken.rings);
        drop(taken);
        for ring in rings {
            ring();
        }
    }

    /// Notes that the task must stop, and wakes the producer.
    pub fn stop(&self) {
        self.taken().stopped = true;
        self.note_consumed(0);
    }
}

impl ItemProducer {
    pub(super) fn new(
        attempt: AttemptId,
        most: u32,
        room: Arc<ItemWindow>,
        objects: Option<ObjectStoreHandle>,
        durable: bool,
        report: ReportFn,
    ) -> ItemProducer {
        let (given, objects) =
            (AtomicU32::new(0), objects.map(ObjectStoreHandle::allocating_ahead));
        ItemProducer(Arc::new(ProducerShared {
            attempt,
            most,
            given,
            room,
            objects,
            durable,
            report,
        }))
    }

    /// Returns how many items were yielded.
    pub fn given(&self) -> u32 {
        self.0.given.load(Ordering::Relaxed)
    }

    /// Returns whether there is room for one more item. Fails if the task must stop.
    pub fn has_room(&self) -> Result<bool, Error> {
        self.look(&self.0.room.taken())
    }

    fn look(&self, taken: &WindowState) -> Result<bool, Error> {
        match taken.stopped {
            true => Err(Error::cancelled("it was asked to stop").ran(Ran::Maybe)),
            false => Ok(self.given() < taken.count.saturating_add(self.0.most)),
        }
    }

    /// Declares that the next item will not follow soon, so the store need not keep memory ready
    /// for it.
    pub fn pause(&self) {
        self.0.objects.iter().for_each(ObjectStoreHandle::pause);
    }

    /// Returns whether the task must stop.
    pub fn is_stopped(&self) -> bool {
        self.0.room.taken().stopped
    }

    /// Calls `ring` when there is room or the task must stop, which may be at once.
    pub fn when_room(&self, ring: WakeCallback) {
        let mut taken = self.0.room.taken();
        if let Ok(false) = self.look(&taken) {
            return taken.rings.push(ring);
        }
        drop(taken);
        ring();
    }

    /// Blocks this thread until there is room. A task lends its CPU if that takes long.
    pub fn wait(&self) -> Result<(), Error> {
        let doze = |waiter: &Arc<Waiter>, time| {
            let ring = waiter.clone();
            self.when_room(Box::new(move || ring.notify()));
            waiter.wait(Instant::now() + time);
            self.has_room()
        };
        if self.has_room()? || doze(&Arc::default(), LEND_AFTER)? {
            return Ok(());
        }
        self.pause();
        // If the worker has as many waiting tasks as it may have, this task keeps its CPU.
        if wait_lending_cpu(|wait| doze(wait.waiter(), LONGEST))? {
            return Ok(());
        }
        while !doze(&Arc::default(), LONGEST)? {}
        Ok(())
    }

    /// Yields the next item. The caller has asked for room before.
    pub fn yield_item(&self, value: Value) -> Result<(), Error> {
        let ProducerShared { attempt, given, objects, durable, report, .. } = &*self.0;
        self.has_room()?;
        let index = given.load(Ordering::Relaxed);
        if index == MAX_ITEMS {
            return Err(Error::exhausted(format!(
                "a stream can have at most {MAX_ITEMS} items (MAX_ITEMS): split it into several"
            )));
        }
        let value = match objects {
            None => bounded_value(value)?,
            Some(objects) => kept(objects, ObjectId::item(attempt.task, index), *durable, value)?,
        };
        given.store(index + 1, Ordering::Relaxed);
        report(ExecutorReport::Yielded { task: attempt.task, index, value });
        Ok(())
    }

    /// Returns the result of a stream: the count of its items.
    pub(super) fn count(&self) -> Value {
        let mut bytes = vec![COUNT_MARK];
        bytes.extend(u64::from(self.given()).to_be_bytes());
        Payload::message_pack(bytes).into()
    }
}

/// Returns an item as it travels: a large one goes to the node's object store. If that fails,
/// discards the data.
fn kept(
    objects: &ObjectStoreHandle,
    object: ObjectId,
    durable: bool,
    value: Value,
) -> Result<Value, Error> {
    let Value { payload, referents: contains } = value;
    let (mut payload, _) = objects.write_if_large(object, payload)?;
    let stored = payload.stored_object();
    let saved = if durable { objects.make_durable(&mut payload) } else { Ok(()) };
    saved.and_then(|()| bounded_value(Value { payload, referents: contains })).inspect_err(|_| {
        stored.inspect(|object| objects.discard(*object));
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::credentials::Credentials;
    use crate::object_store::{ObjectStore, StoreOptions};
    use marline_core::error::ErrorKind;
    use marline_core::id::{Attempt, TaskId};
    use marline_core::payload::MAX_INLINE_BYTES;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    fn items(most: u32) -> (ItemProducer, Arc<ItemWindow>, Arc<AtomicUsize>) {
        let (room, said) = (Arc::<ItemWindow>::default(), Arc::<AtomicUsize>::default());
        let count = said.clone();
        let report: ReportFn = Arc::new(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let attempt = AttemptId { task: TaskId::from_u128(1), attempt: Attempt(1) };
        (ItemProducer::new(attempt, most, room.clone(), None, false, report), room, said)
    }

    #[test]
    fn a_producer_waits_until_its_window_has_room_and_no_longer() {
        let (items, room, said) = items(2);
        let producer = {
            let items = items.clone();
            thread::spawn(move || {
                for _ in 0..5 {
                    items.wait().unwrap();
                    items.yield_item(Value::default()).unwrap();
                }
            })
        };
        for taken in 0..4 {
            let given = 2 + taken.min(3);
            while said.load(Ordering::Relaxed) < given as usize {
                thread::yield_now();
            }
            assert_eq!(items.given(), given);
            room.note_consumed(taken + 1);
        }
        producer.join().unwrap();
        assert_eq!(items.given(), 5);
        assert_eq!(&items.count().payload.inline[..], [0xcf, 0, 0, 0, 0, 0, 0, 0, 5]);
    }

    #[test]
    fn an_item_that_cannot_be_saved_leaves_nothing_in_the_store() {
        let store = ObjectStore::new(&StoreOptions::default(), Credentials::new(None));
        let objects = Some(ObjectStoreHandle::here(store.clone()));
        let attempt = AttemptId { task: TaskId::from_u128(1), attempt: Attempt(1) };
        let items = ItemProducer::new(attempt, 1, Arc::default(), objects, true, Arc::new(|_| ()));
        let large = Payload::raw(vec![0; 2 * MAX_INLINE_BYTES]);
        assert_eq!(items.yield_item(large.into()).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!((items.given(), store.usage().used), (0, 0));
    }

    #[test]
    fn stopping_a_stream_cancels_its_waiting_producer() {
        let (items, room, _) = items(1);
        items.yield_item(Value::default()).unwrap();
        let waiting = {
            let items = items.clone();
            thread::spawn(move || items.wait().unwrap_err())
        };
        room.stop();
        assert_eq!(waiting.join().unwrap().kind(), ErrorKind::Cancelled);
        assert_eq!(items.yield_item(Value::default()).unwrap_err().kind(), ErrorKind::Cancelled);
    }
}
