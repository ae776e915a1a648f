//! What waits to go out on a connection. A node puts frames in under its lock; they leave, all that are
//! there at once, by one of two roads:
//!
//! - a gRPC stream, which takes them when it is polled;
//! - a [plain](super::plain) connection, onto which whoever put them in writes them itself when it has
//!   released the lock, so that no other thread has to wake up for that.

use super::frame_connection::FrameWriter;
use crate::wire::frame::Frame;
use crate::wire::v1;
use marline_core::Error;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use tokio_stream::Stream;

/// Frames in one message at most; more go into the next.
const MAX_BATCH: usize = 1024;
/// Payload bytes in one message at most, unless a single frame has more.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// See the [module](self). Cheap to clone; the connection ends when it is closed.
#[derive(Clone)]
pub(crate) struct Outbox {
    shared: Arc<Shared>,
}

#[derive(Default)]
pub(super) struct Shared {
    queue: Mutex<Queue>,
    /// The plain connection, if it is one.
    plain: Option<Arc<FrameWriter>>,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Frame>,
    waker: Option<Waker>,
    closed: bool,
    /// Why it was closed, if the peer is to be told.
    error: Option<Error>,
}

/// How soon a frame is to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendPriority {
    /// Before everything else.
    Urgent,
    /// Now.
    Now,
    /// With the next that leaves, or after a few milliseconds.
    Lazy,
}

/// The end of a gRPC stream.
pub(crate) struct OutboxStream {
    shared: Arc<Shared>,
}

/// An outbox of a gRPC stream.
pub(crate) fn outbox() -> (Outbox, OutboxStream) {
    let shared = Arc::<Shared>::default();
    (Outbox { shared: shared.clone() }, OutboxStream { shared })
}

impl Outbox {
    /// An outbox of a plain connection.
    pub fn plain(writer: Arc<FrameWriter>) -> Outbox {
        let plain = Some(writer);
        Outbox { shared: Arc::new(Shared { plain, ..Shared::default() }) }
    }

    /// Puts a frame in. Says whether [`flush`](Outbox::flush) is to be called, outside of any lock.
    #[must_use]
    pub fn push(&self, frame: Frame, priority: SendPriority) -> bool {
        let mut queue = self.shared.lock();
        if queue.closed {
            return false;
        }
        let first = queue.frames.is_empty();
        match priority {
            SendPriority::Urgent => queue.frames.push_front(frame),
            SendPriority::Now | SendPriority::Lazy => queue.frames.push_back(frame),
        }
        let waker = queue.waker.take();
        drop(queue);
        match &self.shared.plain {
            Some(writer) if priority == SendPriority::Lazy => {
                writer.flush_soon();
                false
            }
            // Lazy ones may be there that nobody flushes yet.
            Some(writer) => first || writer.is_lazy(),
            None => {
                if let Some(waker) = waker {
                    waker.wake();
                }
                false
            }
        }
    }

    /// Has what is in written: by this thread, or soon by the connection's own.
    pub fn flush(&self, by_this_thread: bool) {
        if let Some(writer) = &self.shared.plain
            && (!by_this_thread || !writer.write(&self.shared))
        {
            writer.wake();
        }
    }

    /// What is in goes out, and then the connection ends.
    pub fn close(&self) {
        self.end(None);
    }

    /// What is in goes out, and then the connection ends; a gRPC stream ends with what the peer did wrong.
    pub fn fail(&self, error: Error) {
        self.end(Some(error));
    }

    fn end(&self, error: Option<Error>) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        queue.error = error;
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(writer) = &self.shared.plain {
            writer.wake();
        }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nothing panics under it")
    }

    /// The next frames that travel together.
    pub(super) fn take(&self) -> Option<v1::Frames> {
        self.lock().take()
    }

    /// Whether nothing more is put in.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Nothing goes out any more.
    pub(super) fn shut(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        queue.frames.clear();
    }
}

impl Queue {
    fn take(&mut self) -> Option<v1::Frames> {
        let mut bytes = 0;
        let fits = self.frames.iter().take(MAX_BATCH).take_while(|frame| {
            let first = bytes == 0;
            bytes += frame.size();
            first || bytes <= MAX_BATCH_BYTES
        });
        let count = fits.count();
        let frames = self.frames.drain(..count).map(Frame::into_wire).collect();
        (count > 0).then_some(v1::Frames { frames })
    }
}

impl OutboxStream {
    /// What the peer did wrong, if that is why the stream has ended.
    pub fn error(&self) -> Option<Error> {
        self.shared.lock().error.take()
    }
}

impl Drop for OutboxStream {
    fn drop(&mut self) {
        self.shared.shut();
    }
}

/// The stream of messages, as a client sends it.
impl Stream for OutboxStream {
    type Item = v1::Frames;
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<v1::Frames>> {
        let mut queue = self.shared.lock();
        if let Some(frames) = queue.take() {
            return Poll::Ready(Some(frames));
        }
        if queue.closed {
            return Poll::Ready(None);
        }
        queue.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
