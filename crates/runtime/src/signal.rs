//! Being asked to end (SIGTERM, SIGINT): the first signal is a request, the second an order.

use crate::net::io;
use marline_channel::oneshot;
use marline_core::error::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask this process to end. From when this is made, they do not end it by themselves.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Error> {
        let _guard = io().enter();
        let cannot = |error| Error::internal(format!("signals cannot be waited for: {error}"));
        let terminate = signal(SignalKind::terminate()).map_err(cannot)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
        Ok(Signals { terminate, interrupt })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Calls this whenever the process is asked to end, instead of ending it.
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

/// Blocks until `left` says so. The first signal has `leave` begin; the second is not waited out.
pub(crate) fn run_until_left(
    left: oneshot::Receiver<()>,
    leave: impl FnOnce() -> oneshot::Receiver<()>,
) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    io().block_on(async {
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
