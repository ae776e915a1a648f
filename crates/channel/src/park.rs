//! How a thread waits: spin a little where that can help, then sleep until woken.
//!
//! A [`Parker`] is one thread's bed: waking it is a [`Waker`] like any other, so that channels
//! know only wakers and never ask whether a thread or a task is behind one. Wake-ups are hints: a
//! parker may return early, and callers look again.

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

/// A figure about the machine, found out once (or twice, when two threads ask at the same time).
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
    /// By a wake-up, by the deadline, or for no reason: look again.
    Look,
    /// By a signal handler that ran on this thread.
    Signal,
}

/// Runs `f` with this thread's parker and the waker that ends its sleep.
pub(crate) fn with_parker<R>(f: impl FnOnce(&Parker, &Waker) -> R) -> R {
    thread_local! {
        static SPARE: RefCell<Option<(Arc<Parker>, Waker)>> = const { RefCell::new(None) };
    }
    // Taken out while in use, so that a wait inside a wait (in a callback) gets its own.
    let spare = SPARE.try_with(|spare| spare.borrow_mut().take()).ok().flatten();
    let (parker, waker) = spare.unwrap_or_else(|| {
        let parker = Arc::new(Parker::new());
        (parker.clone(), Waker::from(parker))
    });
    let result = f(&parker, &waker);
    // Failing only while the thread is torn down, when there is nobody to keep it for.
    let _ = SPARE.try_with(|spare| *spare.borrow_mut() = Some((parker, waker)));
    result
}

const RESTING: u32 = 0;
const NOTIFIED: u32 = 1;
const ASLEEP: u32 = 2;

/// One thread's bed. RESTING → ASLEEP by the thread, any → NOTIFIED by a waker, NOTIFIED → RESTING
/// by the thread. Only the waker that finds ASLEEP pays for a system call.
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

    /// Sleeps until woken or until `deadline`. A wake-up since the last call counts.
    pub(crate) fn park(&self, deadline: Option<Instant>, interruptible: bool) -> Woken {
        if self.word.swap(ASLEEP, Ordering::Acquire) == NOTIFIED {
            self.word.store(RESTING, Ordering::Relaxed);
            return Woken::Look;
        }
        let woken = self.sleep(deadline, interruptible);
        // Acquire: what the waker did before waking is seen after this.
        self.word.swap(RESTING, Ordering::Acquire);
        woken
    }

    #[cfg(target_os = "linux")]
    fn sleep(&self, deadline: Option<Instant>, interruptible: bool) -> Woken {
        /// A sleep without a deadline ends in between: an interruptible one must have a time-out
        /// for the kernel to report signals whose handler asked for restarts.
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

/// How long the waits on a channel took lately, and so how to begin the next one.
///
/// Going to sleep and being woken costs tens of microseconds where a hand-off between two running
/// threads costs a tenth of one. So a wait first spins for about as long as a running peer takes
/// to answer ([`LONGEST_SPIN`]; never on one CPU), then lets others run for about as long as the
/// sleep would cost ([`LONGEST_YIELD`]), and then sleeps. A channel whose waits are longer than that
/// anyway goes to sleep at once: an idle receiver burns nothing. Sleeps shorter than that bring the
/// pair back to its feet.
pub struct WaitMemory {
    /// A running mean, in nanoseconds, that forgets an eighth with each wait. Races between
    /// threads only make it, and the next, a little less exact.
    mean_nanos: AtomicU32,
    /// Spins that were of no use, since the last that was (high half), and waits to begin without
    /// one because of that (low half): the peer has no CPU of its own just now.
    spins: AtomicU32,
}

/// The longest a thread spins: a little over the time a running peer on another CPU takes to answer.
const LONGEST_SPIN: Duration = Duration::from_micros(2);
/// The longest a thread gives way to others before it sleeps: about what the sleep would cost.
const LONGEST_YIELD: Duration = Duration::from_micros(50);
/// Pauses before a wait is announced: this many, the first of this many turns, each twice the last.
const PAUSES: u32 = 4;
const FIRST_PAUSE: u32 = 8;
/// How often others are let run before a wait is announced.
const YIELDS: u32 = 4;
/// At most 2^6 waits in a row begin without a spin.
const MOST_MISSES: u32 = 6;
/// No single wait counts for more than this, so that a pause does not make a busy pair forget.
const LONGEST_REMEMBERED: Duration = Duration::from_micros(200);

impl WaitMemory {
    pub(crate) const fn new() -> WaitMemory {
        WaitMemory { mean_nanos: AtomicU32::new(0), spins: AtomicU32::new(0) }
    }

    /// Whether waits have been short enough lately to be spent awake.
    pub(crate) fn is_short(&self) -> bool {
        u128::from(self.mean_nanos.load(Ordering::Relaxed)) <= LONGEST_YIELD.as_nanos()
    }

    /// Attempts, and again after growing pauses, without looking in between: the peer can fill or
    /// drain the buffer undisturbed, and is met again after a batch instead of after each value.
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

    /// Waits awake until `settled` or until it is no longer worth it; says whether it was settled.
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

    /// Whether to spin at all: not on one CPU, and not while it has been of no use.
    fn may_spin(&self) -> bool {
        let spins = self.spins.load(Ordering::Relaxed);
        if spins & 0xffff == 0 {
            return other_cpus();
        }
        self.spins.store(spins - 1, Ordering::Relaxed);
        false
    }

    /// After each spin in vain twice as many waits begin without one, up to 2^`MOST_MISSES`.
    fn spun(&self, useful: bool) {
        let misses = self.spins.load(Ordering::Relaxed) >> 16;
        if useful && misses > 0 {
            self.spins.store(0, Ordering::Relaxed);
        } else if !useful {
            let misses = (misses + 1).min(MOST_MISSES);
            self.spins.store((misses << 16) | (1 << misses), Ordering::Relaxed);
        }
    }

    /// Takes note of a wait that has ended.
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
        // The quickest of a few: the others were interrupted.
        let time = || {
            let start = Instant::now();
            (0..TURNS).for_each(|_| std::hint::spin_loop());
            start.elapsed()
        };
        let quickest = (0..5).map(|_| time()).min().unwrap_or_default().as_nanos().max(1);
        (LONGEST_SPIN.as_nanos() * u128::from(TURNS) / quickest).clamp(1, 10_000) as u32
    })
}
