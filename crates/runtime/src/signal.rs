//! Being asked to end: the first signal is a request, the second an order.

use crate::net::io;
use marline_channel::oneshot;
use marline_core::error::Error;
use tokio::signal::unix::{SignalKind, signal};

/// Waits for a signal to this process that asks it to end: SIGTERM or SIGINT.
pub async fn asked_to_end() -> Result<(), Error> {
    let cannot = |error| Error::internal(format!("signals cannot be waited for: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Blocks until `left` says so. The first signal has `leave` begin; the second is not waited out.
pub(crate) fn run_until_left(
    left: oneshot::Receiver<()>,
    leave: impl FnOnce() -> oneshot::Receiver<()>,
) -> Result<(), Error> {
    io().block_on(async {
        tokio::select! {
            _ = left => return Ok(()),
            asked = asked_to_end() => asked?,
        }
        tokio::select! {
            _ = leave() => Ok(()),
            asked = asked_to_end() => asked,
        }
    })
}
