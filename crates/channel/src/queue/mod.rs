//! Queue channels: rendezvous, bounded, unbounded and conflated share one algorithm.
//!
//! [`state`] decides, under one short lock. [`node`] is a parked operation. [`waiting`] is how an
//! operation attempts, parks and leaves. The other modules are the operations and the ends that
//! users hold.

use std::{
    fmt,
    mem::{self, MaybeUninit},
    task::Waker,
    time::Instant,
};

pub(crate) mod buffer;
pub(crate) mod node;
pub(crate) mod state;

mod batch;
mod builder;
mod clause;
mod ends;
mod iter;
mod permit;
mod recv;
mod send;
#[cfg(feature = "stream")]
mod stream;
mod waiting;

#[cfg(test)]
mod reference;

pub use batch::{Receiving as ReceivingMany, RecvMany, SendAll, Sending as SendingAll};
pub use builder::{Builder, MAX_CAPACITY, bounded, conflated, rendezvous, unbounded};
pub use ends::{Receiver, Sender, WeakReceiver, WeakSender};
pub use iter::{IntoIter, Iter, TryIter};
pub use permit::{Permit, Reserve, Reserving};
pub use recv::{Receiving, Recv};
pub use send::{SendValue, Sending, Sent};
#[cfg(feature = "stream")]
pub use stream::ReceiverStream;

use crate::{
    lock::{Guard, Lock, Pause},
    metrics::{Kind, Snapshot},
    panics::FirstPanic,
    park::WaitMemory,
    sync::broken,
};
use state::{Effects, State, WAKES_PER_ROUND};

/// How a bounded channel treats a value that it has no room for.
///
/// ```
/// use marline_channel::{Builder, Overflow};
/// let (tx, rx) = Builder::bounded(2).overflow(Overflow::DropOldest).build().unwrap();
/// (1..=5).for_each(|n| drop(tx.try_send(n).unwrap()));
/// assert_eq!(rx.try_iter().collect::<Vec<_>>(), [4, 5]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// The send waits.
    #[default]
    Block,
    /// The oldest value inside is discarded to make room.
    DropOldest,
    /// The new value is discarded. The send succeeds with [`Sent::Dropped`].
    DropNewest,
}

type OnDrop<T> = Box<dyn Fn(T) + Send + Sync>;

/// The part that all ends of a channel share. It begins with the lock and the state, at the start
/// of a cache line.
#[repr(C, align(64))]
pub(crate) struct Channel<T> {
    pub(crate) state: Lock<State<T>>,
    pub(crate) wait_memory: WaitMemory,
    kind: Kind,
    /// Whether the buffer is large enough for the two sides to work in turns, a batch each.
    pub(crate) holds_a_batch: bool,
    /// None for most channels.
    extras: Option<Box<Extras<T>>>,
}

/// The options of a channel that few channels have and few operations need.
struct Extras<T> {
    name: Option<std::sync::Arc<str>>,
    on_drop: Option<OnDrop<T>>,
}

impl<T> Channel<T> {
    /// Locks, on the path of every message.
    #[inline(always)]
    fn lock(&self, is_task: bool) -> Guard<'_, State<T>> {
        self.state.lock_after(match self.holds_a_batch {
            _ if is_task => Pause::Task,
            true => Pause::Batch,
            false => Pause::Short,
        })
    }

    /// Does the work that an operation left for outside the lock.
    #[inline(always)]
    pub(crate) fn carry_out(&self, effects: &mut Effects<T>) {
        if effects.any {
            self.carry_out_some(effects);
        }
    }

    #[inline(never)]
    fn carry_out_some(&self, effects: &mut Effects<T>) {
        let wake = effects.wake.take();
        // Nearly always there is only one thing to do, which needs no `FirstPanic`.
        match (&wake, &effects.discard, &effects.spare, effects.sampled) {
            (_, None, None, false) => return wake.into_iter().for_each(Waker::wake),
            (None, Some(_), None, false) => {
                return effects.discard.take().into_iter().for_each(|value| self.discard(value));
            }
            (None, None, None, true) => return self.sample(),
            _ => {}
        }
        let mut panics = FirstPanic::default();
        if let Some(waker) = wake {
            panics.run(|| waker.wake());
        }
        if let Some(value) = effects.discard.take() {
            panics.run(|| self.discard(value));
        }
        if let Some(waker) = effects.spare.take() {
            panics.run(|| drop(waker));
        }
        if effects.sampled {
            panics.run(|| self.sample());
        }
        panics.resume();
    }

    /// Carries out the effects of taking the value at `place`. If one of them panics, the value
    /// goes back to the channel first: the panic reaches the receiver, and so the value cannot.
    ///
    /// # Safety
    /// The place holds a value. It still does afterwards, unless this unwinds.
    #[inline(always)]
    pub(crate) unsafe fn deliver(&self, effects: &mut Effects<T>, place: &mut MaybeUninit<T>) {
        if effects.any {
            let guard = Undelivered { channel: self, place, ticket: effects.ticket };
            self.carry_out_some(effects);
            mem::forget(guard);
        }
    }

    pub(crate) fn discard(&self, value: T) {
        match self.extras.as_ref().and_then(|extras| extras.on_drop.as_ref()) {
            Some(on_drop) => on_drop(value),
            None => drop(value),
        }
    }

    /// Closes the channel for all ends. Returns whether this call closed it.
    pub(crate) fn close(&self) -> bool {
        self.close_with(|state| state.close())
    }

    /// Applies `change`. If it returns true, ends all parked operations and discards the values
    /// that no receiver can take any more.
    fn close_with(&self, change: impl FnOnce(&mut State<T>) -> bool) -> bool {
        let mut state = self.state.lock();
        if !change(&mut state) {
            return false;
        }
        let nobody_left = state.receivers == 0 && !broken("last-receiver-discards");
        let undelivered = nobody_left.then(|| state.take_undelivered());
        let observers = state.counters.observers();
        let mut panics = FirstPanic::default();
        let mut wakes = Vec::new();
        loop {
            let (parked_senders, parked_receivers) = state.waiting();
            if parked_senders + parked_receivers > wakes.capacity() {
                // The vector grows outside the lock.
                drop(state);
                wakes.reserve(WAKES_PER_ROUND);
                state = self.state.lock();
            }
            let finished = broken("close-ends-waiting") || state.end_waiting(&mut wakes);
            drop(state);
            for waker in wakes.drain(..) {
                panics.run(|| waker.wake());
            }
            if finished {
                break;
            }
            state = self.state.lock();
        }
        for value in undelivered.into_iter().flatten() {
            panics.run(|| self.discard(value));
        }
        if let Some(observers) = observers {
            panics.run(|| observers.push(&self.snapshot(), true));
        }
        panics.resume();
        true
    }

    pub(crate) fn capacity(&self) -> Option<usize> {
        Some(self.state.lock().capacity() as usize).filter(|_| self.kind != Kind::Unbounded)
    }

    /// Records the time for the metrics. Returns true if the channel has observers.
    #[cold]
    fn note_time(&self) -> bool {
        let now = Instant::now();
        self.state.lock().counters.sample(now)
    }

    /// Records the time for the metrics, and pushes a snapshot to the observers.
    #[cold]
    fn sample(&self) {
        if self.note_time() {
            let observers = self.state.lock().counters.observers();
            observers.inspect(|observers| observers.push(&self.snapshot(), false));
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let at = Instant::now();
        let state = self.state.lock();
        let (waiting_send, waiting_recv) = state.waiting();
        Snapshot {
            name: self.extras.as_ref().and_then(|extras| extras.name.clone()),
            capacity: Some(state.capacity() as usize).filter(|_| self.kind != Kind::Unbounded),
            len: state.len() as usize,
            high_water: state.high_water.get(),
            senders: state.senders as usize,
            receivers: state.receivers as usize,
            waiting_send,
            waiting_recv,
            totals: state.totals(),
            closed: state.is_closed(),
            ..Snapshot::counted(self.kind, at, &state.counters)
        }
    }
}

/// A taken value whose receive is unwinding. Dropping this puts the value back to the front.
struct Undelivered<'a, T> {
    channel: &'a Channel<T>,
    place: &'a mut MaybeUninit<T>,
    ticket: u64,
}

impl<T> Drop for Undelivered<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the place holds a value, and nothing else takes it.
        let value = unsafe { self.place.assume_init_read() };
        let mut effects = Effects::none();
        self.channel.state.lock().give_back(self.ticket, value, &mut effects);
        FirstPanic::default().run(|| self.channel.carry_out(&mut effects));
    }
}

impl<T> fmt::Debug for Channel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot = self.snapshot();
        f.debug_struct("Channel")
            .field("kind", &snapshot.kind)
            .field("name", &snapshot.name)
            .field("len", &snapshot.len)
            .field("capacity", &snapshot.capacity)
            .field("closed", &snapshot.closed)
            .finish_non_exhaustive()
    }
}
