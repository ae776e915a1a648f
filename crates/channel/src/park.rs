//! How a thread waits: it spins a little where that can help, then sleeps until woken.
//!
//! A thread sleeps on its [`Parker`]. A [`Waker`] like any other ends the sleep, so channels know
//! only wakers and never ask whether a thread or a task is behind one. Wake-ups are hints: a parker
//! may return early, and its caller checks again.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Wake, Waker},
    thread,
    time::{Duration, Instant},
};

/// A number about the machine, determined once (or twice, if two threads ask at the same time).
/// Zero means not yet.
struct Figure(AtomicU32);

impl Figure {
    #[inline]
    fn get(&self, find_out: impl FnOnce() -> u32) -> u32 {
        match self.0.load(Ordering::Relaxed) {
            0 => {
                let figure = find_out();
                debug_assert!(figure > 0);
                self.0.store(figure, Ordering::Relaxed);
                figure
            }
            figure => figure,
        }
    }
}

/// Whether another CPU could run the peer while this thread spins.
#[inline]
pub(crate) fn other_cpus() -> bool {
    static CPUS: Figure = Figure(AtomicU32::new(0));
    CPUS.get(|| thread::available_parallelism().map_or(1, |count| count.get() as u32)) > 1
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// A wake-up came, the deadline passed, or the sleep ended for no reason: check again.
    Look,
    /// A signal handler ran on this thread.
    Signal,
}

/// Runs `f` with this thread's parker and the waker that ends its sleep.
pub(crate) fn with_parker<R>(f: impl FnOnce(&Parker, &Waker) -> R) -> R {
    thread_local! {
        static SPARE: RefCell<Option<(Arc<Parker>, Waker)>> = const { RefCell::new(None) };
    }
    // The spare is taken out while it is in use, so that a wait inside a wait (in a callback) gets
    // its own parker.
    let spare = SPARE.try_with(|spare| spare.borrow_mut().take()).ok().flatten();
    let (parker, waker) = spare.unwrap_or_else(|| {
        let parker = Arc::new(Parker::new());
        (parker.clone(), Waker::from(parker))
    });
    let result = f(&parker, &waker);
    // This fails only while the thread is torn down: then no later wait needs the parker.
    let _ = SPARE.try_with(|spare| *spare.borrow_mut() = Some((parker, waker)));
    result
}

const RESTING: u32 = 0;
const NOTIFIED: u32 = 1;
const ASLEEP: u32 = 2;

/// The word that one thread sleeps on. Its transitions:
/// - the thread: RESTING → ASLEEP, NOTIFIED → RESTING, and ASLEEP → RESTING if the sleep ends
///   without a wake-up;
/// - a waker: any → NOTIFIED.
///
/// Only the waker that finds ASLEEP pays for a system call.
pub(crate) struct Parker {
    word: AtomicU32,
    #[cfg(not(target_os = "linux"))]
    thread: thread::Thread,
}

impl Parker {
    fn new() -> Parker {
        Parker {
            word: AtomicU32::new(RESTING),
            #[cfg(not(target_os = "linux"))]
            thread: thread::current(),
        }
    }

    /// Sleeps until woken or until `deadline`. Returns at once if a wake-up came since the last
    /// call.
    pub(crate) fn park(&self, deadline: Option<Instant>, interruptible: bool) -> Woken {
        if self.word.swap(ASLEEP, Ordering::Acquire) == NOTIFIED {
            self.word.store(RESTING, Ordering::Relaxed);
            return Woken::Look;
        }
        let woken = self.sleep(deadline, interruptible);
        // Acquire: from here on this thread sees what the waker did before it woke the thread.
        self.word.swap(RESTING, Ordering::Acquire);
        woken
    }

    #[cfg(target_os = "linux")]
    fn sleep(&self, deadline: Option<Instant>, interruptible: bool) -> Woken {
        /// The longest single sleep, also without a deadline. An interruptible sleep needs a
        /// time-out: only then does the kernel report signals whose handler asked for restarts.
        const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
        while self.word.load(Ordering::Acquire) == ASLEEP {
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => LONGEST_SLEEP,
            };
            if left.is_zero() {
                return Woken::Look;
            }
            let left = left.min(LONGEST_SLEEP);
            let time = libc::timespec {
                tv_sec: left.as_secs() as libc::time_t,
                tv_nsec: left.subsec_nanos() as _,
            };
            // SAFETY: the word outlives the call and the time is a valid timespec.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.word.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    ASLEEP,
                    &time,
                )
            };
            let interrupted =
                result < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
            if interrupted && interruptible {
                return Woken::Signal;
            }
        }
        Woken::Look
    }

    #[cfg(not(target_os = "linux"))]
    fn sleep(&self, deadline: Option<Instant>, _interruptible: bool) -> Woken {
        while self.word.load(Ordering::Acquire) == ASLEEP {
            match deadline {
                None => thread::park(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    thread::park_timeout(left);
                }
            }
        }
        Woken::Look
    }

    fn notify(&self) {
        if self.word.swap(NOTIFIED, Ordering::Release) != ASLEEP {
            return;
        }
        #[cfg(target_os = "linux")]
        // SAFETY: waking a futex word reads nothing but its address.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                1,
            );
        }
        #[cfg(not(target_os = "linux"))]
        self.thread.unpark();
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Parker>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Parker>) {
        self.notify();
    }
}

/// How long the waits on a channel took lately, and so how the next wait begins.
///
/// Going to sleep and being woken costs tens of microseconds. A hand-off between two running
/// threads costs a tenth of one. So a wait has three phases:
/// 1. It spins for about as long as a running peer takes to answer ([`LONGEST_SPIN`]; never on a
///    machine with one CPU).
/// 2. It yields to other threads for about as long as the sleep would cost ([`LONGEST_YIELD`]).
/// 3. It sleeps.
///
/// If waits on the channel are longer than that anyway, the next wait sleeps at once: an idle
/// receiver burns no CPU. Sleeps that turn out shorter bring the pair back to waiting awake.
pub struct WaitMemory {
    /// A running mean of the waits, in nanoseconds. Each wait replaces an eighth of it. Races
    /// between threads only make this field and `spins` a little less exact.
    mean_nanos: AtomicU32,
    /// High half: how many spins in a row were useless. Low half: how many of the next waits skip
    /// the spin because of that. A useless spin means that the peer has no CPU of its own just now.
    spins: AtomicU32,
}

/// The longest a thread spins: a little over the time that a running peer on another CPU takes to
/// answer.
const LONGEST_SPIN: Duration = Duration::from_micros(2);
/// The longest a thread yields to others before it sleeps: about what the sleep would cost.
const LONGEST_YIELD: Duration = Duration::from_micros(50);
/// How many pauses [`WaitMemory::attempt_again`] makes before the operation parks. Each is twice as
/// long as the one before.
const PAUSES: u32 = 4;
/// The length of the first pause, in turns of a spin loop.
const FIRST_PAUSE: u32 = 8;
/// How often [`WaitMemory::attempt_again`] yields to other threads before the operation parks.
const YIELDS: u32 = 4;
/// The most useless spins in a row that count: at most 2^6 waits in a row skip the spin.
const MOST_MISSES: u32 = 6;
/// The most that a single wait counts for, so that one long pause does not erase the memory of a
/// busy pair.
const LONGEST_REMEMBERED: Duration = Duration::from_micros(200);

impl WaitMemory {
    pub(crate) const fn new() -> WaitMemory {
        WaitMemory { mean_nanos: AtomicU32::new(0), spins: AtomicU32::new(0) }
    }

    /// Whether waits have been short enough lately to be spent awake.
    pub(crate) fn is_short(&self) -> bool {
        u128::from(self.mean_nanos.load(Ordering::Relaxed)) <= LONGEST_YIELD.as_nanos()
    }

    /// Attempts at once, and again after each of several growing pauses. A pause does not touch the
    /// channel: the peer can fill or drain the buffer undisturbed, and the two sides meet once a
    /// batch instead of once a value.
    pub(crate) fn attempt_again<A, R>(
        action: &mut A,
        memory: fn(&A) -> Option<&WaitMemory>,
        mut attempt: impl FnMut(&mut A) -> Option<R>,
    ) -> Option<R> {
        if let Some(result) = attempt(action) {
            return Some(result);
        }
        if memory(action).is_some_and(WaitMemory::may_spin) {
            for pause in 0..PAUSES {
                (0..FIRST_PAUSE << pause).for_each(|_| std::hint::spin_loop());
                if let Some(result) = attempt(action) {
                    memory(action).inspect(|memory| memory.spun(true));
                    return Some(result);
                }
            }
            memory(action).inspect(|memory| memory.spun(false));
        }
        (0..YIELDS).find_map(|_| {
            thread::yield_now();
            attempt(action)
        })
    }

    /// Waits awake until `settled` returns true, or until waiting awake is no longer worth it.
    /// Returns whether `settled` returned true.
    pub(crate) fn wait_awake(&self, settled: impl Fn() -> bool) -> bool {
        if !self.is_short() {
            return false;
        }
        if self.may_spin() {
            for _ in 0..spins() {
                if settled() {
                    self.spun(true);
                    self.remember(LONGEST_SPIN / 2);
                    return true;
                }
                std::hint::spin_loop();
            }
            self.spun(false);
        }
        let start = Instant::now();
        loop {
            thread::yield_now();
            let waited = start.elapsed();
            if settled() {
                self.remember(waited);
                return true;
            }
            if waited > LONGEST_YIELD {
                return false;
            }
        }
    }

    /// Whether to spin at all: not on a machine with one CPU, and not for some waits after a
    /// useless spin.
    fn may_spin(&self) -> bool {
        let spins = self.spins.load(Ordering::Relaxed);
        if spins & 0xffff == 0 {
            return other_cpus();
        }
        self.spins.store(spins - 1, Ordering::Relaxed);
        false
    }

    /// Notes whether a spin was useful. After each useless spin in a row twice as many waits skip
    /// the spin, up to 2^`MOST_MISSES`.
    fn spun(&self, useful: bool) {
        let misses = self.spins.load(Ordering::Relaxed) >> 16;
        if useful && misses > 0 {
            self.spins.store(0, Ordering::Relaxed);
        } else if !useful {
            let misses = (misses + 1).min(MOST_MISSES);
            self.spins.store((misses << 16) | (1 << misses), Ordering::Relaxed);
        }
    }

    /// Adds a wait that has ended to the mean.
    pub(crate) fn remember(&self, waited: Duration) {
        let waited = waited.min(LONGEST_REMEMBERED).as_nanos() as u32;
        let mean = self.mean_nanos.load(Ordering::Relaxed);
        let new = mean - mean / 8 + waited / 8;
        if new != mean {
            self.mean_nanos.store(new, Ordering::Relaxed);
        }
    }
}

/// How many turns of a spin loop take [`LONGEST_SPIN`] on this machine.
fn spins() -> u32 {
    static SPINS: Figure = Figure(AtomicU32::new(0));
    SPINS.get(|| {
        const TURNS: u32 = 200;
        // The quickest of a few measurements counts: the others were interrupted.
        let time = || {
            let start = Instant::now();
            (0..TURNS).for_each(|_| std::hint::spin_loop());
            start.elapsed()
        };
        let quickest = (0..5).map(|_| time()).min().unwrap_or_default().as_nanos().max(1);
        (LONGEST_SPIN.as_nanos() * u128::from(TURNS) / quickest).clamp(1, 10_000) as u32
    })
}
