//! The frames that wait to leave on one connection. A node pushes frames under its lock. All frames
//! that are queued at the time leave together, in one of two ways:
//!
//! - on a gRPC stream, which takes them when it is polled;
//! - on a [frame connection](super::frame_connection), to which the thread that pushed the frames
//!   writes them itself after it has released the node's lock, so that no other thread has to wake
//!   up.

use super::frame_connection::FrameWriter;
use marline_core::Error;
use marline_wire::frame::Frame;
use marline_wire::v1;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use tokio_stream::Stream;

/// The most frames in one message. More frames go into the next message.
const MAX_BATCH: usize = 1024;
/// The most payload bytes in one message, unless a single frame has more.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// See the [module](self). Cheap to clone. The connection ends when its outbox is closed.
#[derive(Clone)]
pub(crate) struct Outbox {
    shared: Arc<Shared>,
}

#[derive(Default)]
pub(super) struct Shared {
    queue: Mutex<Queue>,
    /// The writer of the frame connection. `None` for a gRPC stream.
    plain: Option<Arc<FrameWriter>>,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Frame>,
    waker: Option<Waker>,
    closed: bool,
    /// Why the outbox was closed, if the peer is to be told.
    error: Option<Error>,
}

/// How soon a frame must leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendPriority {
    /// Before all other frames, at once.
    Urgent,
    /// At once, in order.
    Now,
    /// With the next frame that leaves, or after a few milliseconds.
    Lazy,
}

/// The sending end of a gRPC stream.
pub(crate) struct OutboxStream {
    shared: Arc<Shared>,
}

/// Creates an outbox for a gRPC stream.
pub(crate) fn outbox() -> (Outbox, OutboxStream) {
    let shared = Arc::<Shared>::default();
    (Outbox { shared: shared.clone() }, OutboxStream { shared })
}

impl Outbox {
    /// Creates an outbox for a frame connection.
    pub fn plain(writer: Arc<FrameWriter>) -> Outbox {
        let plain = Some(writer);
        Outbox { shared: Arc::new(Shared { plain, ..Shared::default() }) }
    }

    /// Queues a frame. Returns whether the caller must call [`flush`](Outbox::flush), outside of
    /// any lock.
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
            // Lazy frames may be queued without a flush under way.
            Some(writer) => first || writer.is_lazy(),
            None => {
                if let Some(waker) = waker {
                    waker.wake();
                }
                false
            }
        }
    }

    /// Writes the queued frames to a frame connection. If `by_this_thread`, this thread writes as
    /// far as the socket takes them. The connection's own task writes the rest soon. Does nothing
    /// for a gRPC stream.
    pub fn flush(&self, by_this_thread: bool) {
        if let Some(writer) = &self.shared.plain
            && (!by_this_thread || !writer.write(&self.shared))
        {
            writer.wake();
        }
    }

    /// Closes the outbox. Queued frames still leave, then the connection ends.
    pub fn close(&self) {
        self.end(None);
    }

    /// Closes the outbox because of what the peer did wrong. Queued frames still leave, then the
    /// connection ends. A gRPC stream ends with the error.
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

    /// Takes the next frames that travel in one message.
    pub(super) fn take(&self) -> Option<v1::Frames> {
        self.lock().take()
    }

    /// Returns whether the outbox accepts no more frames.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Closes the outbox and drops its frames: nothing leaves any more.
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
    /// Returns what the peer did wrong, if the stream ended for that.
    pub fn error(&self) -> Option<Error> {
        self.shared.lock().error.take()
    }
}

impl Drop for OutboxStream {
    fn drop(&mut self) {
        self.shared.shut();
    }
}

/// The stream of messages as a client sends it.
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
