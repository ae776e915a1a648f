//! What user code gives while it runs, item by item, and when there is room for the next.
//!
//! Whoever produces asks for room before it makes the item that needs it, so that no more are made than may wait to
//! be taken. How many were taken is heard by another thread, which rings for who waits; also when it is to stop.

use super::process::Waiter;
use super::run::{ExecutorReport, ReportFn, bounded_value};
use super::waiting::wait_lending_cpu;
use crate::object_store::ObjectStoreHandle;
use marline_core::error::{Error, Ran};
use marline_core::id::ObjectId;
use marline_core::message::AttemptId;
use marline_core::payload::{Payload, Value};
use marline_core::spec::MAX_ITEMS;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A producer that waits for longer than this gives up its CPU meanwhile: most waits are shorter, and whoever took
/// the CPU would have to share it.
pub const LEND_AFTER: Duration = Duration::from_millis(20);
/// A wait without a limit, as far as anybody can tell.
const LONGEST: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// What the result of a stream begins with: in MessagePack, an unsigned number of eight bytes follows.
pub(crate) const COUNT_MARK: u8 = 0xcf;

/// What is done when there is room, by whichever thread hears of it. It must not block.
pub type WakeCallback = Box<dyn FnOnce() + Send>;

/// Where user code gives its items. It asks for room before it makes the next one.
#[derive(Clone)]
pub struct ItemProducer(Arc<Giving>);

struct Giving {
    attempt: AttemptId,
    /// So many may be there that were not taken.
    most: u32,
    given: AtomicU32,
    room: Arc<ItemWindow>,
    /// Where large ones go.
    objects: Option<ObjectStoreHandle>,
    /// Whether large ones are saved where they outlive the node.
    durable: bool,
    tell: ReportFn,
}

impl Drop for Giving {
    fn drop(&mut self) {
        self.objects.iter().for_each(ObjectStoreHandle::pause);
    }
}

impl std::fmt::Debug for ItemProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Items").field("given", &self.given()).finish()
    }
}

/// How far the items of something that runs, or is about to, were taken.
#[derive(Default)]
pub(super) struct ItemWindow(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    count: u32,
    /// It is to stop: there is nothing to wait for.
    stopped: bool,
    rings: Vec<WakeCallback>,
}

impl ItemWindow {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().expect("nothing panics under it")
    }

    /// So many were taken in all.
    pub fn took(&self, count: u32) {
        let mut taken = self.taken();
        taken.count = taken.count.max(count);
        let rings = std::mem::take(&mut taken.rings);
        drop(taken);
        for ring in rings {
            ring();
        }
    }

    /// It is to stop.
    pub fn stop(&self) {
        self.taken().stopped = true;
        self.took(0);
    }
}

impl ItemProducer {
    pub(super) fn new(
        attempt: AttemptId,
        most: u32,
        room: Arc<ItemWindow>,
        objects: Option<ObjectStoreHandle>,
        durable: bool,
        tell: ReportFn,
    ) -> ItemProducer {
        let (given, objects) =
            (AtomicU32::new(0), objects.map(ObjectStoreHandle::allocating_ahead));
        ItemProducer(Arc::new(Giving { attempt, most, given, room, objects, durable, tell }))
    }

    /// How many were given.
    pub fn given(&self) -> u32 {
        self.0.given.load(Ordering::Relaxed)
    }

    /// Whether there is room for one more; an error if it is to stop.
    pub fn has_room(&self) -> Result<bool, Error> {
        self.look(&self.0.room.taken())
    }

    fn look(&self, taken: &Taken) -> Result<bool, Error> {
        match taken.stopped {
            true => Err(Error::cancelled("it was asked to stop").ran(Ran::Maybe)),
            false => Ok(self.given() < taken.count.saturating_add(self.0.most)),
        }
    }

    /// The next item does not follow soon.
    pub fn pause(&self) {
        self.0.objects.iter().for_each(ObjectStoreHandle::pause);
    }

    /// Whether it is to stop.
    pub fn is_stopped(&self) -> bool {
        self.0.room.taken().stopped
    }

    /// Does this when there is room, or when it is to stop; at once if that is so.
    pub fn when_room(&self, ring: WakeCallback) {
        let mut taken = self.0.room.taken();
        if let Ok(false) = self.look(&taken) {
            return taken.rings.push(ring);
        }
        drop(taken);
        ring();
    }

    /// Blocks this thread until there is room. A task gives up its CPU if that takes long.
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
        // If as many tasks wait as may, this one keeps its CPU.
        if wait_lending_cpu(|wait| doze(wait.waiter(), LONGEST))? {
            return Ok(());
        }
        while !doze(&Arc::default(), LONGEST)? {}
        Ok(())
    }

    /// Gives the next item. Room for it was asked for before.
    pub fn yield_item(&self, value: Value) -> Result<(), Error> {
        let Giving { attempt, given, objects, durable, tell, .. } = &*self.0;
        self.has_room()?;
        let index = given.load(Ordering::Relaxed);
        if index == MAX_ITEMS {
            return Err(Error::exhausted(format!("{MAX_ITEMS} items were given (MAX_ITEMS)")));
        }
        let value = match objects {
            None => bounded_value(value)?,
            Some(objects) => kept(objects, ObjectId::item(attempt.task, index), *durable, value)?,
        };
        given.store(index + 1, Ordering::Relaxed);
        tell(ExecutorReport::Yielded { attempt: *attempt, index, value });
        Ok(())
    }

    /// The result of a stream: how many items there were.
    pub(super) fn count(&self) -> Value {
        let mut bytes = vec![COUNT_MARK];
        bytes.extend(u64::from(self.given()).to_be_bytes());
        Payload::message_pack(bytes).into()
    }
}

/// An item as it is passed on: in the node's store if it is large. Of one that cannot be passed on, nothing stays there.
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
        let tell: ReportFn = Arc::new(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let attempt = AttemptId { task: TaskId::from_u128(1), attempt: Attempt(1) };
        (ItemProducer::new(attempt, most, room.clone(), None, false, tell), room, said)
    }

    #[test]
    fn who_produces_waits_until_there_is_room_and_no_longer() {
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
            room.took(taken + 1);
        }
        producer.join().unwrap();
        assert_eq!(items.given(), 5);
        assert_eq!(&items.count().payload.inline[..], [0xcf, 0, 0, 0, 0, 0, 0, 0, 5]);
    }

    #[test]
    fn of_an_item_that_cannot_be_saved_nothing_stays_in_the_store() {
        let store = ObjectStore::new(&StoreOptions::default(), Credentials::new(None));
        let objects = Some(ObjectStoreHandle::here(store.clone()));
        let attempt = AttemptId { task: TaskId::from_u128(1), attempt: Attempt(1) };
        let items = ItemProducer::new(attempt, 1, Arc::default(), objects, true, Arc::new(|_| ()));
        let large = Payload::raw(vec![0; 2 * MAX_INLINE_BYTES]);
        assert_eq!(items.yield_item(large.into()).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!((items.given(), store.figures().used), (0, 0));
    }

    #[test]
    fn who_waits_for_room_hears_that_it_is_to_stop() {
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
