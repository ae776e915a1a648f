//! A socket to an executor that buffers what it has no room for, in order. The buffered bytes are
//! sent when the [poller](mod@super::executor_poller) reports that there is room.

use super::executor_poller::executor_poller;
use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard};

/// See the [module](self).
pub(super) struct BufferedSocket {
    pub socket: UnixStream,
    /// The key of its executor at the poller.
    line: u64,
    backlog: Mutex<UnsentBytes>,
}

/// The bytes that a socket had no room for.
#[derive(Default)]
struct UnsentBytes {
    bytes: VecDeque<u8>,
    /// Whether the poller watches for room. It does not before the executor is up, nor after it is
    /// gone.
    heard: bool,
}

impl BufferedSocket {
    /// Wraps a non-blocking socket.
    pub fn new(socket: UnixStream, line: u64) -> BufferedSocket {
        BufferedSocket { socket, line, backlog: Mutex::default() }
    }

    fn backlog(&self) -> MutexGuard<'_, UnsentBytes> {
        self.backlog.lock().expect("nothing panics under it")
    }

    /// Sends a frame, now or when there is room. Fails if the poller cannot watch for room, since
    /// the rest would never be sent.
    pub fn write(&self, frame: &[u8]) -> rustix::io::Result<()> {
        let mut backlog = self.backlog();
        let mut rest = frame;
        while backlog.bytes.is_empty() && !rest.is_empty() {
            match (&self.socket).write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Ok(()), // The executor is gone, which its supervisor notices.
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        let begins = backlog.bytes.is_empty() && backlog.heard;
        backlog.bytes.extend(rest);
        if begins { executor_poller().poll_writable(self.line, &self.socket) } else { Ok(()) }
    }

    /// Sends buffered bytes: a socket of this executor has room.
    pub fn write_unsent(&self) {
        let mut backlog = self.backlog();
        if backlog.bytes.is_empty() {
            return;
        }
        while !backlog.bytes.is_empty() {
            match (&self.socket).write(backlog.bytes.as_slices().0) {
                Ok(count) => drop(backlog.bytes.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => backlog.bytes.clear(), // The executor is gone, which its supervisor notices.
            }
        }
        executor_poller().stop_polling_writable(&self.socket);
    }

    /// Starts to watch for room.
    pub fn add_line(&self) -> rustix::io::Result<()> {
        let mut backlog = self.backlog();
        backlog.heard = true;
        match backlog.bytes.is_empty() {
            true => Ok(()),
            false => executor_poller().poll_writable(self.line, &self.socket),
        }
    }

    /// Stops watching for room.
    pub fn remove_line(&self) {
        let mut backlog = self.backlog();
        if std::mem::take(&mut backlog.heard) && !backlog.bytes.is_empty() {
            executor_poller().stop_polling_writable(&self.socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn unsent_bytes_wait_in_order_while_the_socket_is_full() {
        let (socket, mut theirs) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let outgoing = BufferedSocket::new(socket, executor_poller().next_line());
        let frame = |number: u32| number.to_be_bytes();
        let mut count = 0;
        while outgoing.backlog().bytes.len() < 100_000 {
            outgoing.write(&frame(count)).unwrap();
            count += 1;
        }
        let mut bytes = [0; 4];
        for number in 0..count {
            outgoing.write_unsent();
            theirs.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, frame(number));
        }
        assert!(outgoing.backlog().bytes.is_empty());
    }
}
