//! Uploads: large values of clients without a worker on their machine, sent to the object store of
//! a worker elsewhere. An upload goes in the opposite direction to a [transfer], also in pieces,
//! over one connection.
//!
//! After the [handshake](super::handshake):
//!
//! 1. The dialler sends the object (16 bytes and 4) and the length of its data (8 bytes).
//! 2. The worker answers with a byte 0 when it has room.
//! 3. The dialler sends the pieces, each followed by its checksum (xxh3, 8 bytes). Every piece but
//!    the last has the full length.
//! 4. The worker answers with a byte 0 when it has all data, followed by its session (16 bytes and
//!    8).
//!
//! In place of a byte 0 the worker may send a byte 1 and an error, as in a transfer. After a broken
//! connection the dialler sends the value again under the same name; it replaces the earlier data.
//!
//! The worker holds the value until the controller tells it to retain the value. The client reports
//! the value to the controller next. If that word does not come within [`KEPT_WITHIN`], the worker
//! drops the value.

use super::credentials::Token;
use super::handshake::ConnectionKind;
use super::transfer::{self, BlockingSocket, Failure, PIECE_BYTES, STALLED};
use crate::object_store::ObjectStore;
use bytes::{Buf, BufMut, BytesMut};
use marline_core::error::{Error, Ran};
use marline_core::id::{ObjectId, Session, SessionEpoch, SessionId, TaskId};
use marline_objects::checksum;
use marline_objects::parts::Layout;
use std::io::{self, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

/// How long a worker may take to make room: it may write to its disk meanwhile.
const ROOM_WITHIN: Duration = Duration::from_secs(120);
/// How often the sender checks whether a caller still waits.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the worker holds a received value that the cluster has not told it to retain.
const KEPT_WITHIN: Duration = Duration::from_secs(60);
/// The sender gives up a worker that took no byte for this long, over any number of attempts.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);
/// The first pause before another attempt. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Receives an upload of a client that knows the token.
pub(super) fn receive(store: &ObjectStore, stream: &mut BlockingSocket) -> io::Result<()> {
    let mut header = [0; 28];
    stream.read_exact(&mut header)?;
    let mut words = &header[..];
    let object = ObjectId::of(TaskId::from_u128(words.get_u128()), words.get_u32());
    let bytes = usize::try_from(words.get_u64()).unwrap_or(usize::MAX);
    if bytes == 0 {
        return transfer::write_error(
            stream,
            Error::invalid(format!("the data of {object} is empty")),
        );
    }
    let mut room = match store.room(bytes) {
        Ok(room) => room,
        Err(error) => return transfer::write_error(stream, error),
    };
    stream.write_all(&[0])?;
    for piece in room.as_mut()[..bytes].chunks_mut(PIECE_BYTES) {
        stream.read_exact(piece)?;
        let mut sum = [0; 8];
        stream.read_exact(&mut sum)?;
        if u64::from_be_bytes(sum) != checksum(piece) {
            return Err(io::Error::other("received a piece with a wrong checksum"));
        }
    }
    if Layout::read(room.as_mut()).is_none() {
        drop(room); // Before the answer: a client that gets it can count on the free room.
        let words = format!("the data of {object} cannot be decoded");
        return transfer::write_error(stream, Error::invalid(words));
    }
    let taken = match store.take_in(object, room) {
        Ok(taken) => taken,
        Err(error) => return transfer::write_error(stream, error),
    };
    let mut answer = BytesMut::new();
    answer.put_u8(0);
    answer.put_u128(taken.worker.id.as_u128());
    answer.put_u64(taken.worker.epoch.0);
    // If the client does not get this answer, it sends the value again.
    let sent = stream.write_all(&answer);
    taken.wait_until_retained(KEPT_WITHIN);
    sent
}

/// A value to upload.
pub(crate) struct Upload<'a> {
    pub object: ObjectId,
    pub layout: Layout,
    pub parts: &'a [&'a [u8]],
    pub token: &'a Token,
}

impl Upload<'_> {
    /// Sends the value to the worker at this address, over as many connections as it takes. Returns
    /// the session of the worker that has it. Calls `go_on` now and then, and stops when that
    /// returns false.
    pub fn send_to(
        &self,
        address: &str,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Session, Error> {
        let (mut began, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let mut sent = 0;
            let failure = match self.once(address, &mut sent, go_on) {
                Ok(session) => return Ok(session),
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Broken(error)) => error,
            };
            if sent > 0 {
                (began, pause) = (Instant::now(), FIRST_PAUSE); // The worker took some bytes.
            }
            let nobody = failure.kind() == io::ErrorKind::ConnectionRefused;
            if nobody || began.elapsed() > GIVEN_UP_AFTER {
                let words = format!("a large value cannot be sent to {address}: {failure}");
                return Err(Error::unavailable(Ran::No, words));
            }
            if !go_on() {
                return Err(given_up());
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn once(
        &self,
        address: &str,
        sent: &mut usize,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Session, Failure> {
        let mut stream = BlockingSocket::dial(address, ConnectionKind::Upload, self.token)?;
        let mut header = BytesMut::new();
        header.put_u128(self.object.origin.as_u128());
        header.put_u32(self.object.index);
        header.put_u64(self.layout.bytes() as u64);
        stream.write_all(&header)?;
        answered(&mut stream, go_on)?;
        let mut piece = vec![0; PIECE_BYTES.min(self.layout.bytes())];
        while *sent < self.layout.bytes() {
            let len = piece.len().min(self.layout.bytes() - *sent);
            let piece = &mut piece[..len];
            self.layout.fill_piece(*sent, piece, self.parts);
            stream.write_all(piece)?;
            stream.write_all(&checksum(piece).to_be_bytes())?;
            *sent += len;
            if !go_on() {
                return Err(Failure::Refused(given_up()));
            }
        }
        answered(&mut stream, go_on)?;
        let mut session = [0; 24];
        stream.read_exact(&mut session)?;
        let mut words = &session[..];
        let id = SessionId::from_u128(words.get_u128());
        Ok(Session { id, epoch: SessionEpoch(words.get_u64()) })
    }
}

/// Waits for a byte 0. Fails with the error that comes in its place.
fn answered(stream: &mut BlockingSocket, go_on: &mut dyn FnMut() -> bool) -> Result<(), Failure> {
    let until = Instant::now() + ROOM_WITHIN;
    stream.read_within(LOOK_EVERY)?;
    let mut kind = [0];
    loop {
        match stream.read_exact(&mut kind) {
            Ok(()) => break,
            Err(error) if is_early(&error) && Instant::now() < until => {}
            Err(error) => return Err(error.into()),
        }
        if !go_on() {
            return Err(Failure::Refused(given_up()));
        }
    }
    stream.read_within(STALLED)?;
    if kind == [0] { Ok(()) } else { Err(Failure::Refused(transfer::read_error(stream)?)) }
}

fn is_early(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

fn given_up() -> Error {
    Error::cancelled("no caller waits for the upload of a large value any more")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::credentials::{Credentials, test_secret};
    use crate::object_store::StoreOptions;
    use marline_core::error::ErrorKind;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::sync::Arc;

    const LIMIT: u64 = 64 << 20;

    fn object() -> ObjectId {
        ObjectId::of(TaskId::from_u128(7), 0)
    }

    fn token(words: &str) -> Token {
        Some(Arc::from(words))
    }

    fn session() -> Session {
        Session { id: SessionId::from_u128(3), epoch: SessionEpoch(5) }
    }

    /// Starts a worker's object store behind a proxy. Returns the store and the address of the
    /// proxy. The proxy calls `carry` with the number of the connection, the bytes it has carried
    /// to the store, and the next bytes. It closes the connection when `carry` returns false.
    fn serves(carry: fn(usize, usize, &mut [u8]) -> bool) -> (ObjectStore, String) {
        let options = StoreOptions { limit: LIMIT, spill: None, ..StoreOptions::default() };
        let store = ObjectStore::new(&options, Credentials::new(None));
        store.set_session(Some(session()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (served, address) = (store.clone(), listener.local_addr().unwrap().to_string());
        thread::spawn(move || {
            for (number, theirs) in listener.incoming().flatten().enumerate() {
                let inner = TcpListener::bind("127.0.0.1:0").unwrap();
                let ours = TcpStream::connect(inner.local_addr().unwrap()).unwrap();
                let came = inner.accept().unwrap().0;
                transfer::tests::serve_proved(served.clone(), came, test_secret("a"));
                let (mut answers, mut to_them) =
                    (ours.try_clone().unwrap(), theirs.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = io::copy(&mut answers, &mut to_them);
                    let _ = to_them.shutdown(Shutdown::Write); // A sender waits for this.
                });
                thread::spawn(move || {
                    let (mut ours, mut theirs, mut carried) = (ours, theirs, 0);
                    let mut part = vec![0; 64 << 10];
                    while let Ok(count @ 1..) = theirs.read(&mut part) {
                        let goes_on = carry(number, carried, &mut part[..count]);
                        carried += count;
                        if !goes_on || ours.write_all(&part[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = theirs.shutdown(Shutdown::Both);
                    let _ = ours.shutdown(Shutdown::Both);
                });
            }
        });
        (store, address)
    }

    fn send(address: &str, token: &Token, parts: &[&[u8]]) -> Result<Session, Error> {
        let layout = Layout::of(parts.iter().map(|part| part.len())).unwrap();
        Upload { object: object(), layout, parts, token }.send_to(address, &mut || true)
    }

    /// Returns whether the store has exactly these parts.
    fn has(store: &ObjectStore, parts: &[&[u8]]) -> bool {
        let view = store.read_here(object()).unwrap();
        let layout = Layout::read(&view).unwrap();
        let there = layout.parts().iter().map(|part| &view[part.clone()]);
        layout.parts().len() == parts.len() && there.zip(parts).all(|(there, part)| there == *part)
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|index| (index % 251) as u8).collect()
    }

    #[test]
    fn an_upload_arrives_whole_over_broken_and_corrupting_connections() {
        let (large, parts_end) = (bytes(2 * PIECE_BYTES + 12_345), bytes(1_000));
        let parts: [&[u8]; 3] = [b"head", &large, &parts_end];
        let (store, address) = serves(|number, carried, part| {
            if number == 2 && carried > PIECE_BYTES {
                part[0] ^= 1;
            }
            number >= 2 || carried < (number + 1) * PIECE_BYTES
        });
        assert_eq!(send(&address, &token("a"), &parts).unwrap(), session());
        assert!(has(&store, &parts));
        store.retain(object());
        assert!(has(&store, &parts));
        // Only the last upload takes room.
        let layout = Layout::of(parts.map(<[u8]>::len)).unwrap();
        assert_eq!(store.usage().used, layout.bytes() as u64);
    }

    #[test]
    fn an_upload_that_is_too_large_or_malformed_is_rejected() {
        let (store, address) = serves(|_, _, _| true);
        let error = send(&address, &token("a"), &[&bytes(LIMIT as usize + 1)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!(error.message().contains("do not fit into this node's store"), "{error}");
        // The layout is that of a shorter value: the data that arrives has the layout of a longer
        // one.
        let (short, long) = (Layout::of([100]).unwrap(), [&bytes(200)[..]]);
        let upload = Upload { object: object(), layout: short, parts: &long, token: &token("a") };
        let error = upload.send_to(&address, &mut || true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(store.usage().used, 0);
    }

    #[test]
    fn an_upload_with_another_token_sends_nothing_and_stops_on_request() {
        let (store, address) = serves(|_, _, _| true);
        let (layout, parts) = (Layout::of([10]).unwrap(), [&b"0123456789"[..]]);
        let guess = token("a guess");
        let upload = Upload { object: object(), layout, parts: &parts, token: &guess };
        let mut looks = 0;
        let stopped = upload.send_to(&address, &mut || {
            looks += 1;
            looks < 3
        });
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(store.usage().used, 0);
    }

    #[test]
    fn an_upload_is_dropped_unless_the_cluster_retains_it() {
        let (store, _) = serves(|_, _, _| true);
        let fill = || {
            let layout = Layout::of([1_000]).unwrap();
            let mut room = store.room(layout.bytes()).unwrap();
            layout.fill_piece(0, room.as_mut(), &[&bytes(1_000)]);
            store.take_in(object(), room).unwrap()
        };
        let taken = fill();
        assert_eq!(taken.worker, session());
        drop(taken);
        assert_eq!(store.usage().used, 0, "the client did not put it");
        let (first, second) = (fill(), fill());
        drop(first);
        assert!(has(&store, &[&bytes(1_000)]), "the second upload has the name now");
        store.retain(object());
        second.wait_until_retained(Duration::from_secs(60));
        assert!(has(&store, &[&bytes(1_000)]));
        store.set_session(None);
        let room = store.room(1_000).unwrap();
        assert_eq!(store.take_in(object(), room).err().unwrap().kind(), ErrorKind::Unavailable);
        store.evict(object());
        assert_eq!(store.usage().used, 0);
    }
}
