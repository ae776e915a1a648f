//! What waits to go out on a connection. A node puts frames in under its lock; the connection takes all
//! that are there as one message.

use crate::wire::frame::Frame;
use crate::wire::v1;
use marline_core::Error;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tokio_stream::Stream;

/// Frames in one message at most; more go into the next.
const MAX_BATCH: usize = 1024;
/// Payload bytes in one message at most, unless a single frame has more.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// See the [module](self). Cheap to clone; the stream ends when it is closed.
#[derive(Clone)]
pub(crate) struct Outbox {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    frames: VecDeque<Frame>,
    waker: Option<Waker>,
    closed: bool,
    /// Why it was closed, if the peer is to be told.
    error: Option<Error>,
}

/// The connection's end.
pub(crate) struct Outgoing {
    shared: Arc<Mutex<Shared>>,
}

pub(crate) fn outbox() -> (Outbox, Outgoing) {
    let shared = Arc::<Mutex<Shared>>::default();
    (Outbox { shared: shared.clone() }, Outgoing { shared })
}

impl Outbox {
    /// Puts a frame behind the others.
    pub fn push(&self, frame: Frame) {
        self.put(|frames| frames.push_back(frame));
    }

    /// Puts a frame before the others: pings never queue behind data.
    pub fn push_urgent(&self, frame: Frame) {
        self.put(|frames| frames.push_front(frame));
    }

    fn put(&self, put: impl FnOnce(&mut VecDeque<Frame>)) {
        let mut shared = self.shared.lock().expect("nothing panics under it");
        if !shared.closed {
            put(&mut shared.frames);
            let waker = shared.waker.take();
            drop(shared);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// What is in goes out, and then the stream ends.
    pub fn close(&self) {
        self.end(None);
    }

    /// What is in goes out, and then the stream ends with what the peer did wrong.
    pub fn fail(&self, error: Error) {
        self.end(Some(error));
    }

    fn end(&self, error: Option<Error>) {
        let mut shared = self.shared.lock().expect("nothing panics under it");
        shared.closed = true;
        shared.error = error;
        let waker = shared.waker.take();
        drop(shared);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Outgoing {
    /// What the peer did wrong, if that is why the stream has ended.
    pub fn error(&self) -> Option<Error> {
        self.shared.lock().expect("nothing panics under it").error.take()
    }

    fn take(&self, cx: &Context<'_>) -> Poll<Option<Vec<Frame>>> {
        let mut shared = self.shared.lock().expect("nothing panics under it");
        if shared.frames.is_empty() {
            if shared.closed {
                return Poll::Ready(None);
            }
            shared.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut bytes = 0;
        let fits = shared.frames.iter().take(MAX_BATCH).take_while(|frame| {
            let first = bytes == 0;
            bytes += frame.size();
            first || bytes <= MAX_BATCH_BYTES
        });
        let count = fits.count();
        Poll::Ready(Some(shared.frames.drain(..count).collect()))
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        let mut shared = self.shared.lock().expect("nothing panics under it");
        shared.closed = true;
        shared.frames.clear();
    }
}

/// The stream of messages, as a client sends it.
impl Stream for Outgoing {
    type Item = v1::Frames;
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<v1::Frames>> {
        self.take(cx).map(|frames| {
            let frames = frames?.into_iter().map(Frame::into_wire).collect();
            Some(v1::Frames { frames })
        })
    }
}
