//! How a thread waits: spin a little where that can help, then sleep until woken.
//!
//! A [`Parker`] is one thread's bed: waking it is a [`Waker`] like any other, so that channels
//! know only wakers and never ask whether a thread or a task is behind one. Wake-ups are hints: a
//! parker may return early, and callers look again.

use std::{
    cell::RefCell,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    task::{Wake, Waker},
    thread,
    time::{Duration, Instant},
};

/// The longest a thread spins before it sleeps: a little over the time a running peer on another
/// CPU takes to answer, far below the cost of a sleep and a wake-up.
pub(crate) const LONGEST_SPIN: Duration = Duration::from_micros(2);

/// Whether another CPU could run the peer while this thread spins.
#[inline]
pub(crate) fn other_cpus() -> bool {
    static CPUS: OnceLock<bool> = OnceLock::new();
    *CPUS.get_or_init(|| thread::available_parallelism().is_ok_and(|count| count.get() > 1))
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

/// What a channel remembers about spinning: after waits that outlasted the spin, the next few go
/// to sleep at once (1, 3, 7 … up to 2^`MOST_MISSES` − 1 of them), and one success makes it eager
/// again. So a busy pair of threads never sleeps and an idle one hardly spins.
pub struct SpinMemory {
    /// Waits still to go without spinning (low byte), consecutive misses (next byte).
    word: AtomicU32,
}

/// At most 2^5 − 1 = 31 waits go by without a spin.
const MOST_MISSES: u32 = 5;

impl SpinMemory {
    pub(crate) const fn new() -> SpinMemory {
        SpinMemory { word: AtomicU32::new(0) }
    }

    /// Spins until `settled` or until it is no longer worth it; says whether it was settled.
    pub(crate) fn spin(&self, settled: impl Fn() -> bool) -> bool {
        if !other_cpus() {
            return false;
        }
        // Races between threads only make the memory a little less exact.
        let word = self.word.load(Ordering::Relaxed);
        let (rest, misses) = (word & 0xff, word >> 8);
        if rest > 0 {
            self.word.store((misses << 8) | (rest - 1), Ordering::Relaxed);
            return false;
        }
        let start = Instant::now();
        loop {
            for _ in 0..8 {
                if settled() {
                    if word != 0 {
                        self.word.store(0, Ordering::Relaxed);
                    }
                    return true;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= LONGEST_SPIN {
                let misses = (misses + 1).min(MOST_MISSES);
                self.word.store((misses << 8) | ((1 << misses) - 1), Ordering::Relaxed);
                return false;
            }
        }
    }
}
