//! The data of large values on its way between nodes, and to clients that have no store: over connections of
//! its own, so that it keeps nothing else waiting, in pieces, so that what breaks is not begun anew.
//!
//! Whoever connects says `DATA`, the cluster's token (four bytes of length, big-endian, and the text), and then asks for
//! pieces: an object (16 bytes and 4), where the piece begins and how long it is (8 bytes each). The answer is a
//! byte 0, how long all of it is, how long the piece is, the piece, and its checksum (xxh3); or a byte 1 and an error
//! with its length. These threads block: what they carry is worth one.

use super::address::short_path;
use super::plain::{MAX_TOKEN_BYTES, PATIENCE};
use super::server::{Token, same};
use super::upload;
use crate::store::Store;
use crate::wire::v1;
use bytes::{Buf, BufMut, BytesMut};
use marline_core::error::{Error, ErrorKind, Ran};
use marline_core::id::{ObjectId, TaskId};
use marline_core::message::CopyAt;
use marline_objects::checksum;
use prost::Message;
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What such a connection begins with.
const MAGIC: &[u8; 4] = b"DATA";
/// What one begins with by which a process of this machine uses the store itself.
const STORE: &[u8; 4] = b"STOR";
/// The first byte, by which it is known.
pub(super) const FIRST_BYTE: u8 = MAGIC[0];
pub(super) const STORE_FIRST_BYTE: u8 = STORE[0];
/// How long a piece is, unless there is less.
pub(super) const PIECE_BYTES: usize = 8 << 20;
/// So many connections carry one value.
const MAX_CONNECTIONS: usize = 4;
/// So many are served at a time; others are ended, and try again.
const MAX_SERVED: usize = 64;
/// A connection on which nothing moves for this long is broken.
pub(super) const STALLED: Duration = Duration::from_secs(20);
/// The pauses before a connection is made again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A source that gave nothing for this long is given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);
/// The longest error.
const MAX_ERROR_BYTES: usize = 1 << 20;

/// A socket of either kind.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(super) fn connect(address: &str) -> io::Result<Stream> {
        let stream = match address.strip_prefix("unix:") {
            Some(path) => Stream::Unix(UnixStream::connect(path.trim_start_matches("//"))?),
            None => {
                let address = address.trim_start_matches("http://");
                let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
                let addresses = std::net::ToSocketAddrs::to_socket_addrs(address)?;
                let connected = addresses.into_iter().find_map(|one| {
                    TcpStream::connect_timeout(&one, PATIENCE)
                        .inspect_err(|e| last = e.kind().into())
                        .ok()
                });
                Stream::Tcp(connected.ok_or(last)?)
            }
        };
        stream.bounded()?;
        Ok(stream)
    }

    /// Every wait on it ends.
    fn bounded(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(socket) => {
                socket.set_nodelay(true)?;
                socket.set_nonblocking(false)?;
                socket.set_write_timeout(Some(STALLED))?;
            }
            Stream::Unix(socket) => {
                socket.set_nonblocking(false)?;
                socket.set_write_timeout(Some(STALLED))?;
            }
        }
        self.read_within(STALLED)
    }

    /// How long it is waited for something to read.
    pub(super) fn read_within(&self, time: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(socket) => socket.set_read_timeout(Some(time)),
            Stream::Unix(socket) => socket.set_read_timeout(Some(time)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(socket) => socket.read(buffer),
            Stream::Unix(socket) => socket.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(socket) => socket.write(bytes),
            Stream::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves a connection that came, on a thread of its own, until it ends.
pub(super) fn serve(store: Store, stream: Stream, token: Token) {
    static SERVED: AtomicUsize = AtomicUsize::new(0);
    if SERVED.fetch_add(1, Ordering::Relaxed) >= MAX_SERVED {
        SERVED.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let run = move || {
        // However it ends: whoever wants more connects again.
        let _ = introduced(&store, stream, &token);
        SERVED.fetch_sub(1, Ordering::Relaxed);
    };
    if thread::Builder::new().name("marline-data".into()).spawn(run).is_err() {
        SERVED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sees to one that says who it is.
fn introduced(store: &Store, mut stream: Stream, token: &Token) -> io::Result<()> {
    stream.bounded()?;
    let mut begin = [0; 8];
    stream.read_exact(&mut begin)?;
    let len = u32::from_be_bytes(begin[4..].try_into().expect("four bytes")) as usize;
    let (is_data, is_upload) = (&begin[..4] == MAGIC, &begin[..4] == upload::MAGIC);
    let is_known = is_data || is_upload || &begin[..4] == STORE;
    if !is_known || len > MAX_TOKEN_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut given = vec![0; len];
    stream.read_exact(&mut given)?;
    if token.as_ref().is_some_and(|token| !same(&given, token.as_bytes())) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    if is_data {
        return answer_all(store, &mut stream);
    }
    if is_upload {
        return upload::receive(store, &mut stream);
    }
    let Stream::Unix(mut socket) = stream else { return Err(io::ErrorKind::InvalidInput.into()) };
    is_this_users(&socket)?;
    socket.write_all(WELCOME)?;
    store.add_stranger(socket)
}

fn answer_all(store: &Store, stream: &mut Stream) -> io::Result<()> {
    let mut ask = [0; 36];
    loop {
        stream.read_exact(&mut ask)?;
        let mut words = &ask[..];
        let object = ObjectId::of(TaskId::from_u128(words.get_u128()), words.get_u32());
        let (start, len) = (words.get_u64(), words.get_u64());
        let mut answer = BytesMut::new();
        match store.read_here(object) {
            Ok(view) => {
                let start = usize::try_from(start).unwrap_or(usize::MAX).min(view.len());
                let len = usize::try_from(len).unwrap_or(usize::MAX).min(view.len() - start);
                let piece = &view[start..start + len];
                answer.put_u8(0);
                answer.put_u64(view.len() as u64);
                answer.put_u64(len as u64);
                stream.write_all(&answer)?;
                stream.write_all(piece)?;
                stream.write_all(&checksum(piece).to_be_bytes())?;
            }
            Err(error) => refuse(stream, error)?,
        }
    }
}

/// Says why not.
pub(super) fn refuse(stream: &mut Stream, error: Error) -> io::Result<()> {
    let error = v1::Error::from(error.bounded()).encode_to_vec();
    let mut answer = BytesMut::new();
    answer.put_u8(1);
    answer.put_u32(error.len() as u32);
    answer.put_slice(&error);
    stream.write_all(&answer)
}

/// Why not: what follows a byte 1.
pub(super) fn refusal(stream: &mut Stream) -> io::Result<Error> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = (u32::from_be_bytes(len) as usize).min(MAX_ERROR_BYTES);
    let mut error = vec![0; len];
    stream.read_exact(&mut error)?;
    let error = v1::Error::decode(&error[..]).ok().and_then(|error| error.try_into().ok());
    Ok(error.unwrap_or_else(|| Error::internal("an error that makes no sense")))
}

/// Memory is one user's alone.
fn is_this_users(socket: &UnixStream) -> io::Result<()> {
    match sockopt::socket_peercred(socket)?.uid == rustix::process::getuid() {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// What a process is told that may use the store.
const WELCOME: &[u8; 1] = b"+";

/// Connects to the store of a worker of this machine, which listens at this path.
pub(crate) fn reach_store(path: &str, token: &Token) -> io::Result<UnixStream> {
    let (_folder, short) = short_path(Path::new(path))?;
    let mut socket = UnixStream::connect(short)?;
    // What a worker of another machine calls its own, anybody may have made here: he is not told the token.
    is_this_users(&socket)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    introduce(&mut socket, STORE, token)?;
    let mut answer = [0];
    socket.read_exact(&mut answer)?;
    socket.set_read_timeout(None)?;
    if &answer == WELCOME { Ok(socket) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Says what is wanted, and the token.
pub(super) fn introduce(to: &mut impl Write, what: &[u8; 4], token: &Token) -> io::Result<()> {
    let token = token.as_deref().unwrap_or_default();
    let mut first = BytesMut::new();
    first.put_slice(what);
    first.put_u32(u32::try_from(token.len()).expect("a token is short"));
    first.put_slice(token.as_bytes());
    to.write_all(&first)
}

/// Somebody who has the data.
struct Source<'a> {
    address: &'a str,
    token: &'a Token,
    object: ObjectId,
}

/// Why a piece did not come.
pub(super) enum Failure {
    /// The connection broke: the next may not.
    Broken(io::Error),
    /// It was refused.
    Refused(Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Broken(error)
    }
}

impl Source<'_> {
    fn connect(&self) -> io::Result<Stream> {
        let mut stream = Stream::connect(self.address)?;
        introduce(&mut stream, MAGIC, self.token)?;
        Ok(stream)
    }

    /// Gets a piece that is as long as there is room; says how long all of it is.
    fn piece(&self, stream: &mut Stream, start: usize, room: &mut [u8]) -> Result<usize, Failure> {
        let mut ask = BytesMut::new();
        ask.put_u128(self.object.origin.as_u128());
        ask.put_u32(self.object.index);
        ask.put_u64(start as u64);
        ask.put_u64(room.len() as u64);
        stream.write_all(&ask)?;
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        if kind != [0] {
            return Err(Failure::Refused(refusal(stream)?));
        }
        let mut lens = [0; 16];
        stream.read_exact(&mut lens)?;
        let mut words = &lens[..];
        let (all, len) = (words.get_u64() as usize, words.get_u64() as usize);
        if len != room.len() {
            return Err(io::Error::other("another piece than was asked for").into());
        }
        stream.read_exact(room)?;
        let mut sum = [0; 8];
        stream.read_exact(&mut sum)?;
        if u64::from_be_bytes(sum) != checksum(room) {
            return Err(io::Error::other("a piece that changed on its way").into());
        }
        Ok(all)
    }

    /// The same, over as many connections as it takes; gives up when nothing came for long, or when it is to.
    fn piece_again(
        &self,
        stream: &mut Option<Stream>,
        start: usize,
        room: &mut [u8],
        over: &AtomicBool,
    ) -> Result<usize, Error> {
        let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let connected = match stream.take() {
                Some(stream) => Ok(stream),
                None => self.connect(),
            };
            let failure = match connected {
                Ok(mut connected) => match self.piece(&mut connected, start, room) {
                    Ok(all) => {
                        *stream = Some(connected);
                        return Ok(all);
                    }
                    Err(Failure::Refused(error)) => return Err(error),
                    Err(Failure::Broken(error)) => error,
                },
                Err(error) => error,
            };
            // Where nobody listens, nobody will.
            let nobody =
                failure.kind() == io::ErrorKind::ConnectionRefused && began.elapsed() > FIRST_PAUSE;
            if nobody || began.elapsed() > GIVEN_UP_AFTER || over.load(Ordering::Relaxed) {
                let address = self.address;
                let words = format!("its data cannot be got from {address}: {failure}");
                return Err(Error::unavailable(Ran::No, words));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Gets the data of an object from one of those who have it. `room_for` is asked for as much room as it takes.
pub(crate) fn fetch<R: AsMut<[u8]>>(
    copies: &[CopyAt],
    token: &Token,
    object: ObjectId,
    room_for: impl Fn(usize) -> Result<R, Error>,
) -> Result<R, Error> {
    let mut last = None;
    for copy in copies {
        let Some(address) = &copy.address else { continue };
        let source = Source { address, token, object };
        match fetch_from(&source, &room_for) {
            Ok(room) => return Ok(room),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| {
        Error::unavailable(Ran::No, format!("nobody who has value {object} listens anywhere"))
    }))
}

/// Whether what could not be got may be somewhere else by now.
pub(crate) fn may_be_elsewhere(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NotFound)
}

fn fetch_from<R: AsMut<[u8]>>(
    source: &Source<'_>,
    room_for: &impl Fn(usize) -> Result<R, Error>,
) -> Result<R, Error> {
    let over = AtomicBool::new(false);
    let mut stream = None;
    let all = source.piece_again(&mut stream, 0, &mut [], &over)?;
    let mut room = room_for(all)?;
    let pieces = room.as_mut()[..all].chunks_mut(PIECE_BYTES).enumerate();
    let connections = all.div_ceil(PIECE_BYTES).clamp(1, MAX_CONNECTIONS);
    let (pieces, failed) = (Mutex::new(pieces), Mutex::new(None));
    let carry = |mut stream: Option<Stream>| {
        loop {
            let Some((index, piece)) = pieces.lock().expect("nothing panics under it").next()
            else {
                return;
            };
            if let Err(error) = source.piece_again(&mut stream, index * PIECE_BYTES, piece, &over) {
                over.store(true, Ordering::Relaxed);
                *failed.lock().expect("nothing panics under it") = Some(error);
                return;
            }
        }
    };
    thread::scope(|threads| {
        for _ in 1..connections {
            // With fewer threads it takes longer.
            let _ = thread::Builder::new().spawn_scoped(threads, || carry(None));
        }
        carry(stream);
    });
    let failed = failed.into_inner().expect("nothing panics under it");
    match failed {
        Some(error) => Err(error),
        None => Ok(room),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::server::Secret;
    use crate::store::{Objects, StoreOptions};
    use marline_core::error::ErrorKind;
    use marline_core::id::{Session, SessionEpoch, SessionId};
    use std::net::{Shutdown, TcpListener};
    use std::sync::Arc;

    const TOKEN: &str = "a secret";

    fn object() -> ObjectId {
        ObjectId::of(TaskId::from_u128(7), 1)
    }

    fn token(words: &str) -> Token {
        Some(Arc::from(words))
    }

    /// A store that has so many bytes under a name, behind a socket; says where that is. `carry` sees each
    /// connection, by its number, and what comes from the store.
    fn serves(bytes: &[u8], carry: fn(usize, &mut Vec<u8>) -> bool) -> String {
        let options = StoreOptions { limit: 1 << 30, spill: None, ..StoreOptions::default() };
        let store = Store::new(&options, Secret::new(None));
        Objects::here(store.clone()).write(object(), &[bytes], || true).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for (number, theirs) in listener.incoming().flatten().enumerate() {
                let inner = TcpListener::bind("127.0.0.1:0").unwrap();
                let ours = TcpStream::connect(inner.local_addr().unwrap()).unwrap();
                serve(store.clone(), Stream::Tcp(inner.accept().unwrap().0), token(TOKEN));
                let (mut asks, mut to_store) =
                    (theirs.try_clone().unwrap(), ours.try_clone().unwrap());
                thread::spawn(move || drop(io::copy(&mut asks, &mut to_store)));
                thread::spawn(move || {
                    let (mut ours, mut theirs) = (ours, theirs);
                    let mut piece = vec![0; 64 << 10];
                    while let Ok(count @ 1..) = ours.read(&mut piece) {
                        let mut part = piece[..count].to_vec();
                        let goes_on = carry(number, &mut part);
                        if theirs.write_all(&part).is_err() || !goes_on {
                            break;
                        }
                    }
                    let _ = theirs.shutdown(Shutdown::Both);
                    let _ = ours.shutdown(Shutdown::Both);
                });
            }
        });
        address
    }

    fn fetched(address: &str, token: &Token) -> Result<Vec<u8>, Error> {
        let worker = Session { id: SessionId::from_u128(1), epoch: SessionEpoch(1) };
        let copies = [CopyAt { worker, address: Some(address.into()) }];
        let whole = fetch(&copies, token, object(), |bytes| Ok(vec![0; bytes]))?;
        let layout = marline_objects::parts::Layout::read(&whole).expect("it says what it is");
        Ok(whole[layout.parts()[0].clone()].to_vec())
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|index| (index % 251) as u8).collect()
    }

    #[test]
    fn what_is_brought_arrives_whole_however_often_connections_break() {
        let large = bytes(3 * PIECE_BYTES + 12_345);
        // The first ones break in the middle of what they carry.
        let address = serves(&large, |number, part| number >= 6 || part.len() < 30_000);
        assert!(fetched(&address, &token(TOKEN)).unwrap() == large);
    }

    #[test]
    fn a_piece_that_changed_on_its_way_is_not_taken() {
        let small = bytes(200_000);
        let address = serves(&small, |number, part| {
            if number < 2 && part.len() > 1_000 {
                part[500] ^= 1;
            }
            true
        });
        assert!(fetched(&address, &token(TOKEN)).unwrap() == small);
    }

    #[test]
    fn whoever_has_another_token_or_asks_for_what_is_not_there_gets_nothing() {
        let address = serves(&bytes(200_000), |_, _| true);
        let other = Source { address: &address, token: &token("a guess"), object: object() };
        let mut stream = other.connect().unwrap();
        assert!(matches!(other.piece(&mut stream, 0, &mut []), Err(Failure::Broken(_))));
        let gone = ObjectId::of(TaskId::from_u128(8), 0);
        let nobody = Source { address: &address, token: &token(TOKEN), object: gone };
        let mut stream = nobody.connect().unwrap();
        let Err(Failure::Refused(error)) = nobody.piece(&mut stream, 0, &mut []) else {
            panic!("it is not there")
        };
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn where_another_user_listens_nobody_says_the_token() {
        use rustix::process::{Uid, getuid};
        if !getuid().is_root() {
            return; // Nobody else can become another.
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(
            folder.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o777),
        )
        .unwrap();
        let path = folder.path().join("store");
        let (is_there, listens) = std::sync::mpsc::channel();
        let there = path.clone();
        let other = thread::spawn(move || {
            // This thread alone; who is asked about is who was there when it began to listen.
            let nobody = Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let listener = std::os::unix::net::UnixListener::bind(there).unwrap();
            is_there.send(()).unwrap();
            let mut heard = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut heard).unwrap();
            heard
        });
        listens.recv().unwrap();
        let error = reach_store(path.to_str().unwrap(), &token(TOKEN)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(other.join().unwrap().is_empty());
    }
}
