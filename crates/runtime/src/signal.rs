//! Signals that ask the process to end: SIGTERM, SIGINT, and SIGHUP unless the process was started
//! with SIGHUP ignored, as under `nohup`. The first signal asks the process to finish its work. The
//! second ends it at once.

use crate::net::io;
use marline_channel::oneshot;
use marline_core::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask this process to end. From the creation of this value on, they do not end
/// the process by themselves.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Option<Signal>,
}

impl Signals {
    fn new() -> Result<Signals, Error> {
        let _guard = io().enter();
        let cannot = |error| Error::internal(format!("signals cannot be handled: {error}"));
        let terminate = signal(SignalKind::terminate()).map_err(cannot)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
        let hang_up = if ignores_hang_up() {
            None
        } else {
            Some(signal(SignalKind::hangup()).map_err(cannot)?)
        };
        Ok(Signals { terminate, interrupt, hang_up })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            Some(()) = async { self.hang_up.as_mut()?.recv().await } => {}
        }
    }
}

/// Returns whether this process was started with SIGHUP ignored, so that it outlives its terminal.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    ignored.is_some_and(|bits| bits & 1 != 0)
}

/// Calls `asked` at each signal that asks the process to end. The signals do not end the process
/// any more.
pub fn on_signal(mut asked: impl FnMut() + Send + 'static) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    io().spawn(async move {
        loop {
            signals.next().await;
            asked();
        }
    });
    Ok(())
}

/// Calls `asked` at each SIGUSR1, until it returns `false`. The signal does not end the process any
/// more.
pub(crate) fn on_user_signal(asked: impl Fn() -> bool + Send + 'static) -> Result<(), Error> {
    let _guard = io().enter();
    let cannot = |error| Error::internal(format!("signals cannot be handled: {error}"));
    let mut signals = signal(SignalKind::user_defined1()).map_err(cannot)?;
    io().spawn(async move { while signals.recv().await.is_some() && asked() {} });
    Ok(())
}

/// Blocks until `left` settles. At the first signal it calls `leave`, and blocks until the receiver
/// that `leave` returns settles, or until the second signal.
///
/// Calls `ready` when signals are handled: no signal after that is missed. Returns at once if
/// `ready` returns `false`.
pub(crate) fn run_until_left(
    ready: impl FnOnce() -> bool,
    left: oneshot::Receiver<()>,
    leave: impl FnOnce() -> oneshot::Receiver<()>,
) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    if !ready() {
        return Ok(());
    }
    block_on(async {
        tokio::select! {
            _ = left => return,
            () = signals.next() => {}
        }
        tokio::select! {
            _ = leave() => {}
            () = signals.next() => {}
        }
    });
    Ok(())
}

/// Blocks this thread until the future is ready. `Runtime::block_on` would panic on a thread of a
/// user's own runtime; this does not.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Wakes the thread that blocks in [`block_on`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, getpid, kill_process};

    #[test]
    fn a_signal_as_soon_as_the_process_is_ready_is_not_lost() {
        let (_never, left) = oneshot();
        let (leaving, gone) = oneshot();
        let ready = || kill_process(getpid(), Signal::TERM).is_ok();
        let leave = || {
            leaving.send(()).expect("run_until_left waits for it");
            gone
        };
        run_until_left(ready, left, leave).expect("run_until_left returns");
    }
}
