//! The replies of the store to one process, over a socket that may be full. Replies that do not fit
//! wait, in order, until the socket has room. A descriptor travels with the first byte of its
//! reply.

use bytes::{Buf, BytesMut};
use marline_objects::segment::Segment;
use marline_objects::{Access, descriptor_passing};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The most bytes that may wait for one process: the replies to 200,000 requests. A process that
/// sends more requests than that and reads no reply does not listen.
pub(super) const MAX_UNSENT_BYTES: usize = 16 << 20;

/// See the [module](self).
pub(super) struct ReplyQueue {
    socket: Arc<UnixStream>,
    unsent: VecDeque<Unsent>,
    /// The bytes of all unsent replies.
    bytes: usize,
}

/// Bytes that did not fit into the socket.
struct Unsent {
    bytes: BytesMut,
    /// The descriptor that travels with the first of the bytes.
    passed: Option<Passed>,
}

/// A segment to pass to another process.
pub(super) type Passed = (Arc<Segment>, Access);

/// The code that writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteCaller {
    /// The flushing task. tokio tells it when the socket has room, and must learn that it is full
    /// again.
    Flusher,
    /// Other code, which only tries.
    Anybody,
}

impl ReplyQueue {
    /// Creates a queue for a socket that does not block.
    pub fn new(socket: Arc<UnixStream>) -> ReplyQueue {
        ReplyQueue { socket, unsent: VecDeque::new(), bytes: 0 }
    }

    /// Sends a reply now, or queues it. Returns `true` when the queue has just become non-empty:
    /// then the caller must [write](ReplyQueue::write) when the socket has room. Fails if the
    /// process will never read it.
    pub fn send(&mut self, bytes: BytesMut, passed: Option<Passed>) -> io::Result<bool> {
        if self.bytes + bytes.len() > MAX_UNSENT_BYTES {
            return Err(ErrorKind::StorageFull.into());
        }
        self.bytes += bytes.len();
        let begins = self.unsent.is_empty();
        match self.unsent.back_mut().filter(|_| passed.is_none()) {
            // Bytes in one buffer take less of the socket's room than many small ones.
            Some(last) => last.bytes.extend_from_slice(&bytes),
            None => self.unsent.push_back(Unsent { bytes, passed }),
        }
        Ok(begins && self.write(WriteCaller::Anybody)?)
    }

    /// Writes as much as the socket takes. Returns whether something is left.
    pub fn write(&mut self, writer: WriteCaller) -> io::Result<bool> {
        while let Some(next) = self.unsent.front_mut() {
            let passed: Option<BorrowedFd<'_>> =
                next.passed.as_ref().map(|(segment, access)| segment.descriptor(*access));
            let send = || descriptor_passing::send(&*self.socket, &next.bytes, passed.as_slice());
            let sent = match writer {
                WriteCaller::Flusher => self.socket.try_io(Interest::WRITABLE, send),
                WriteCaller::Anybody => send(),
            };
            match sent {
                Ok(count) => {
                    self.bytes -= count;
                    next.bytes.advance(count);
                    next.passed = None;
                    if next.bytes.is_empty() {
                        self.unsent.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Closes the writing direction and drops the unsent replies.
    pub fn end(&mut self) {
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Write);
        self.unsent.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net;

    fn pair() -> (ReplyQueue, net::UnixStream) {
        let (ours, theirs) = net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let _guard = crate::net::io().enter();
        (ReplyQueue::new(Arc::new(UnixStream::from_std(ours).unwrap())), theirs)
    }

    #[test]
    fn replies_wait_in_order_while_the_socket_is_full() {
        let (mut outgoing, mut theirs) = pair();
        let word = |number: u32| BytesMut::from(&number.to_be_bytes()[..]);
        let (mut count, mut flushes) = (0, 0);
        while outgoing.bytes < 100_000 {
            flushes += u32::from(outgoing.send(word(count), None).unwrap());
            count += 1;
        }
        assert_eq!(flushes, 1, "only the reply that makes the queue non-empty asks for a flush");
        let mut bytes = [0; 4];
        for number in 0..count {
            outgoing.write(WriteCaller::Anybody).unwrap();
            theirs.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, number.to_be_bytes());
        }
        assert!(!outgoing.write(WriteCaller::Anybody).unwrap());
        assert_eq!(outgoing.bytes, 0);
    }

    #[test]
    fn the_replies_to_a_process_that_never_reads_are_bounded() {
        let (mut outgoing, _theirs) = pair();
        let word = || BytesMut::from(&vec![0; 1 << 20][..]);
        let sent = (0..100).take_while(|_| outgoing.send(word(), None).is_ok()).count();
        assert!((MAX_UNSENT_BYTES >> 20..100).contains(&sent), "{sent}");
        outgoing.end();
        assert!(outgoing.send(word(), None).is_err(), "the queue has ended");
    }
}
