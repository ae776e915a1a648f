//! Deadlines of async operations, on any runtime: one thread, which the first alarm starts, wakes
//! tasks at their deadlines. Blocking operations do not need it: they sleep until their own
//! deadline.
//!
//! An alarm only wakes its task. The operation checks the deadline itself. An alarm that is no
//! longer needed is taken out at once (the heap is indexed), and slots are reused. So setting an
//! alarm allocates nothing once the heap has grown to its working size.

use std::{
    sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    task::Waker,
    thread,
    time::Instant,
};

use crate::panics::FirstPanic;

/// A wake-up at a given time. Dropping it cancels the wake-up.
pub(crate) struct Alarm {
    place: usize,
}

struct AlarmSlot {
    at: Instant,
    /// The position in the heap. None once the alarm rang, or while the slot is free.
    position: Option<usize>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Alarms {
    /// Indices of `places`, the earliest alarm on top.
    heap: Vec<usize>,
    places: Vec<AlarmSlot>,
    free: Vec<usize>,
}

struct Timer {
    alarms: Mutex<Alarms>,
    changed: Condvar,
}

fn timer() -> &'static Timer {
    static TIMER: OnceLock<Timer> = OnceLock::new();
    static STARTED: OnceLock<()> = OnceLock::new();
    let timer = TIMER
        .get_or_init(|| Timer { alarms: Mutex::new(Alarms::default()), changed: Condvar::new() });
    STARTED.get_or_init(|| {
        thread::Builder::new()
            .name("marline-timer".into())
            .spawn(|| timer.run())
            .expect("cannot start the timer thread: is the process out of threads?");
    });
    timer
}

impl Alarm {
    /// Sets an alarm that wakes `waker` at `at`.
    pub(crate) fn set(at: Instant, waker: &Waker) -> Alarm {
        let waker = waker.clone();
        let timer = timer();
        let mut alarms = timer.lock();
        let place = alarms.insert(at, waker);
        if alarms.heap[0] == place {
            timer.changed.notify_one();
        }
        Alarm { place }
    }

    /// Replaces the waker of the alarm.
    pub(crate) fn renew(&mut self, waker: &Waker) {
        let timer = timer();
        let held = |alarms: &Alarms| {
            let held = alarms.places[self.place].waker.as_ref();
            held.is_some_and(|held| held.will_wake(waker))
        };
        if held(&timer.lock()) {
            return;
        }
        let waker = waker.clone();
        let old = timer.lock().places[self.place].waker.replace(waker);
        drop(old);
    }
}

impl Drop for Alarm {
    #[cold]
    fn drop(&mut self) {
        let waker = timer().lock().remove(self.place);
        drop(waker);
    }
}

impl Timer {
    fn lock(&self) -> MutexGuard<'_, Alarms> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut alarms = self.lock();
        loop {
            let now = Instant::now();
            let next = alarms.heap.first().map(|&place| alarms.places[place].at);
            alarms = match next {
                None => self.changed.wait(alarms).unwrap_or_else(PoisonError::into_inner),
                Some(at) if at > now => {
                    let waited = self.changed.wait_timeout(alarms, at - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let waker = alarms.ring();
                    drop(alarms);
                    if let Some(waker) = waker {
                        // A waker that panics must not end the thread, and so all deadlines.
                        FirstPanic::default().run(|| waker.wake());
                    }
                    self.lock()
                }
            };
        }
    }
}

impl Alarms {
    fn insert(&mut self, at: Instant, waker: Waker) -> usize {
        let position = self.heap.len();
        let place = AlarmSlot { at, position: Some(position), waker: Some(waker) };
        let index = match self.free.pop() {
            Some(index) => {
                self.places[index] = place;
                index
            }
            None => {
                self.places.push(place);
                self.places.len() - 1
            }
        };
        self.heap.push(index);
        self.rise(position);
        index
    }

    /// Takes the first alarm off the heap and returns its waker. Its slot stays until the alarm is
    /// dropped.
    fn ring(&mut self) -> Option<Waker> {
        let index = *self.heap.first()?;
        self.unheap(0);
        self.places[index].waker.take()
    }

    fn remove(&mut self, index: usize) -> Option<Waker> {
        if let Some(position) = self.places[index].position {
            self.unheap(position);
        }
        self.free.push(index);
        self.places[index].waker.take()
    }

    fn unheap(&mut self, position: usize) {
        let index = self.heap.swap_remove(position);
        self.places[index].position = None;
        if position < self.heap.len() {
            self.places[self.heap[position]].position = Some(position);
            self.rise(position);
            self.sink(position);
        }
    }

    fn at(&self, position: usize) -> Instant {
        self.places[self.heap[position]].at
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a]].position = Some(a);
        self.places[self.heap[b]].position = Some(b);
    }

    fn rise(&mut self, mut position: usize) {
        while position > 0 && self.at(position) < self.at((position - 1) / 2) {
            self.swap(position, (position - 1) / 2);
            position = (position - 1) / 2;
        }
    }

    fn sink(&mut self, mut position: usize) {
        loop {
            let children = 2 * position + 1..(2 * position + 3).min(self.heap.len());
            match children.min_by_key(|&child| self.at(child)) {
                Some(child) if self.at(child) < self.at(position) => {
                    self.swap(position, child);
                    position = child;
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn alarms_ring_in_order_although_others_are_removed() {
        let start = Instant::now();
        let mut alarms = Alarms::default();
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let mut set = vec![];
        for _ in 0..2_000 {
            let at = start + Duration::from_nanos(random(1_000));
            set.push((alarms.insert(at, Waker::noop().clone()), at));
            if random(3) == 0 {
                let (place, _) = set.swap_remove(random(set.len() as u64) as usize);
                assert!(alarms.remove(place).is_some());
            }
        }
        let mut rung = vec![];
        while let Some(&place) = alarms.heap.first() {
            rung.push(alarms.places[place].at);
            assert!(alarms.ring().is_some());
        }
        let mut expected: Vec<Instant> = set.iter().map(|(_, at)| *at).collect();
        expected.sort();
        assert_eq!(rung, expected);
    }
}
