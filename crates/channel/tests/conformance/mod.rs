//! The tools of the conformance tests: bounded waits, wakers that count, and single polls of a
//! future. Nothing here sleeps: every wait is for a condition, and its failure names the condition.
#![allow(dead_code, reason = "each test file uses its part")]

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use marline_channel::{Builder, Overflow, Receiver, Sender};

/// Longer than any step here takes on a loaded machine. A wait that reaches it has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `condition` holds.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        thread::yield_now();
    }
}

/// Waits for a thread to end. Resumes its panic, if it had one.
#[track_caller]
pub fn join<T>(thread: JoinHandle<T>) -> T {
    until("the thread ended", || thread.is_finished());
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Runs a future to its end on this thread.
#[track_caller]
pub fn run<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Unpark>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let start = Instant::now();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = poll_with(future.as_mut(), &waker) {
            return output;
        }
        let left = PATIENCE.saturating_sub(start.elapsed());
        assert!(!left.is_zero(), "waited {PATIENCE:?} in vain for a future");
        thread::park_timeout(left);
    }
}

pub fn poll_with<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Polls a future once and asserts that it waits.
#[track_caller]
pub fn park<F: Future>(future: Pin<&mut F>) {
    let polled = poll_with(future, Waker::noop());
    assert!(polled.is_pending(), "expected to wait, but it ended");
}

/// Polls a future once and asserts that it ends.
#[track_caller]
pub fn ready<F: Future>(future: Pin<&mut F>) -> F::Output {
    match poll_with(future, Waker::noop()) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("expected to end, but it waits"),
    }
}

/// A waker's target, which counts the wake-ups.
#[derive(Default)]
pub struct Wakes(AtomicUsize);

impl Wakes {
    pub fn pair() -> (Arc<Wakes>, Waker) {
        let wakes = Arc::new(Wakes::default());
        (wakes.clone(), Waker::from(wakes))
    }

    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Wakes>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A log to which several callbacks write.
pub struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T> Log<T> {
    pub fn new() -> Log<T> {
        Log(Arc::default())
    }

    fn entries(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn push(&self, entry: T) {
        self.entries().push(entry);
    }

    /// Returns the entries since the last call.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.entries())
    }

    pub fn count(&self) -> usize {
        self.entries().len()
    }
}

impl<T> Clone for Log<T> {
    fn clone(&self) -> Log<T> {
        Log(self.0.clone())
    }
}

/// Runs `f`, asserts that it panics, and returns the panic's message.
#[track_caller]
pub fn panic_of<R>(f: impl FnOnce() -> R) -> String {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(_) => panic!("expected a panic"),
        Err(panic) => match panic.downcast::<String>() {
            Ok(message) => *message,
            Err(panic) => panic.downcast::<&str>().map_or(String::new(), |word| word.to_string()),
        },
    }
}

type Make<T> = fn() -> Builder<T>;

/// Returns every queue channel, with its name in docs/channels.md. A channel with a limit holds two
/// values (conflated: one).
pub fn queues<T>() -> [(&'static str, Make<T>); 6] {
    [
        ("rendezvous", Builder::rendezvous),
        ("bounded", || Builder::bounded(2)),
        ("unbounded", Builder::unbounded),
        ("drop-oldest", || Builder::bounded(2).overflow(Overflow::DropOldest)),
        ("drop-newest", || Builder::bounded(2).overflow(Overflow::DropNewest)),
        ("conflated", Builder::conflated),
    ]
}

/// Sends values, and asserts that there is room for them.
#[track_caller]
pub fn send_each<T>(tx: &Sender<T>, values: impl IntoIterator<Item = T>) {
    for value in values {
        assert!(tx.try_send(value).is_ok(), "there is room");
    }
}

/// Puts `value` inside, even in a channel that has no room: it is handed to a receive, which is
/// then dropped and gives it back.
pub fn put_inside<T>(tx: &Sender<T>, rx: &Receiver<T>, value: T) {
    let mut receive = pin!(rx.recv());
    park(receive.as_mut());
    assert!(tx.try_send(value).is_ok());
}
