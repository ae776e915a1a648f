//! What the store says to another process, over a socket that may have no room for it: then it waits, in order, and goes
//! when there is room. Descriptors go with the first byte of what they belong to.

use bytes::{Buf, BytesMut};
use marline_objects::segment::Segment;
use marline_objects::{Access, descriptor_passing};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// So much may wait to be read by a process: the answers to 200,000 questions. One that asks more than that and
/// reads none of them does not listen.
pub(super) const MAX_UNSENT_BYTES: usize = 16 << 20;

/// See the [module](self).
pub(super) struct ReplyQueue {
    socket: Arc<UnixStream>,
    unsent: VecDeque<Unsent>,
    /// All of it.
    bytes: usize,
}

/// What there was no room for.
struct Unsent {
    bytes: BytesMut,
    /// Goes with the first of them.
    passed: Option<Passed>,
}

/// A segment that another process is to have.
pub(super) type Passed = (Arc<Segment>, Access);

/// Who writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteCaller {
    /// The one that is told when there is room, and has to say that there is none left.
    Flusher,
    /// Somebody who tries.
    Anybody,
}

impl ReplyQueue {
    /// Over a socket that does not block.
    pub fn new(socket: Arc<UnixStream>) -> ReplyQueue {
        ReplyQueue { socket, unsent: VecDeque::new(), bytes: 0 }
    }

    /// Says this, now or when there is room: then somebody is to [write](Outgoing::write) when there is, which this
    /// says the first time. Fails if nobody will ever hear it.
    pub fn say(&mut self, bytes: BytesMut, passed: Option<Passed>) -> io::Result<bool> {
        if self.bytes + bytes.len() > MAX_UNSENT_BYTES {
            return Err(ErrorKind::StorageFull.into());
        }
        self.bytes += bytes.len();
        let begins = self.unsent.is_empty();
        match self.unsent.back_mut().filter(|_| passed.is_none()) {
            // Together they take less of the socket's room than one by one.
            Some(last) => last.bytes.extend_from_slice(&bytes),
            None => self.unsent.push_back(Unsent { bytes, passed }),
        }
        Ok(begins && self.write(WriteCaller::Anybody)?)
    }

    /// Writes what there is room for. Says whether something is left.
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

    /// Nobody hears it any more.
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
    fn what_there_is_no_room_for_is_said_later_and_in_order() {
        let (mut outgoing, mut theirs) = pair();
        let word = |number: u32| BytesMut::from(&number.to_be_bytes()[..]);
        let (mut count, mut told) = (0, 0);
        while outgoing.bytes < 100_000 {
            told += u32::from(outgoing.say(word(count), None).unwrap());
            count += 1;
        }
        assert_eq!(told, 1, "somebody is told once that there is something to write");
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
    fn who_never_reads_is_told_only_so_much() {
        let (mut outgoing, _theirs) = pair();
        let word = || BytesMut::from(&vec![0; 1 << 20][..]);
        let said = (0..100).take_while(|_| outgoing.say(word(), None).is_ok()).count();
        assert!((MAX_UNSENT_BYTES >> 20..100).contains(&said), "{said}");
        outgoing.end();
        assert!(outgoing.say(word(), None).is_err(), "it is not spoken to any more");
    }
}
