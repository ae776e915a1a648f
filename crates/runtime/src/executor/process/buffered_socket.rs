//! What an executor is told, over a socket that may have no room for it: then it waits, in order, and goes when the
//! [switchboard] says that there is room.

use super::executor_poller::executor_poller;
use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard};

/// See the [module](self).
pub(super) struct BufferedSocket {
    pub socket: UnixStream,
    /// Its executor's number at the switchboard.
    line: u64,
    backlog: Mutex<UnsentBytes>,
}

/// What a socket had no room for.
#[derive(Default)]
struct UnsentBytes {
    bytes: VecDeque<u8>,
    /// It is said when there is room. Before the executor is up, and when it is gone, it is not.
    heard: bool,
}

impl BufferedSocket {
    /// Over a socket that does not block.
    pub fn new(socket: UnixStream, line: u64) -> BufferedSocket {
        BufferedSocket { socket, line, backlog: Mutex::default() }
    }

    fn backlog(&self) -> MutexGuard<'_, UnsentBytes> {
        self.backlog.lock().expect("nothing panics under it")
    }

    /// Says this, now or when there is room. Fails if that would never be heard of.
    pub fn write(&self, frame: &[u8]) -> rustix::io::Result<()> {
        let mut backlog = self.backlog();
        let mut rest = frame;
        while backlog.bytes.is_empty() && !rest.is_empty() {
            match (&self.socket).write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Ok(()), // It is gone; that is seen elsewhere.
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        let begins = backlog.bytes.is_empty() && backlog.heard;
        backlog.bytes.extend(rest);
        if begins { executor_poller().poll_writable(self.line, &self.socket) } else { Ok(()) }
    }

    /// There is room in a socket of this executor's: writes what there was none for.
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
                Err(_) => backlog.bytes.clear(), // It is gone; that is seen elsewhere.
            }
        }
        executor_poller().stop_polling_writable(&self.socket);
    }

    /// From now on it is heard when there is room.
    pub fn add_line(&self) -> rustix::io::Result<()> {
        let mut backlog = self.backlog();
        backlog.heard = true;
        match backlog.bytes.is_empty() {
            true => Ok(()),
            false => executor_poller().poll_writable(self.line, &self.socket),
        }
    }

    /// It is not heard any more.
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
    fn what_there_is_no_room_for_is_said_later_and_in_order() {
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
