//! The data of large values on its way between nodes, and to clients that have no store: over connections of
//! its own, so that it keeps nothing else waiting, in pieces, so that what breaks is not begun anew.
//!
//! After the [handshake](super::handshake) the dialler asks for pieces: an object (16 bytes and 4), where the piece begins and how long it is (8 bytes each). The answer is a
//! byte 0, how long all of it is, of which making it is (16 bytes), how long the piece is, the piece, and its checksum
//! (xxh3); or a byte 1 and an error with its length. These threads block: what they carry is worth one.
//!
//! What has come stays when a connection breaks, and when the rest comes from somebody else. A value that was lost and
//! made anew may have other bytes than it had, and as many of them: pieces of two makings would be neither value. So
//! each answer says of which making it is, and only pieces of one are put together.

use super::address::short_path;
use super::credentials::Token;
use super::handshake::{self, AUTHENTICATE_WITHIN, ConnectionKind};
use super::upload;
use crate::object_store::{DataVersion, ObjectStore};
use crate::wire::v1;
use bytes::{Buf, BufMut, BytesMut};
use marline_core::error::{Error, ErrorKind, Ran};
use marline_core::id::{ObjectId, TaskId};
use marline_core::message::CopyLocation;
use marline_objects::checksum;
use prost::Message;
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a piece is, unless there is less.
pub(super) const PIECE_BYTES: usize = 8 << 20;
/// So much of a piece comes before it is noted that something has: often enough for a slow network.
const PART_BYTES: usize = 256 << 10;
/// So many connections carry one value.
const MAX_CONNECTIONS: usize = 4;
/// At most this many connections are served at a time, all of processes that know the token; others are ended, and try
/// again.
const MAX_SERVED: usize = 64;
/// A connection on which nothing moves for this long is broken.
pub(super) const STALLED: Duration = Duration::from_secs(20);
/// The pauses before a connection is made again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A source from which nothing came for this long is given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);
/// The longest error.
const MAX_ERROR_BYTES: usize = 1 << 20;

/// A socket of either kind.
pub(crate) enum BlockingSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl BlockingSocket {
    /// Connects, and proves both ways.
    pub(super) fn dial(
        address: &str,
        kind: ConnectionKind,
        token: &Token,
    ) -> io::Result<BlockingSocket> {
        let mut stream = BlockingSocket::connect(address)?;
        handshake::dial_blocking(&mut Bounded::new(&mut stream), kind, token)?;
        stream.read_within(STALLED)?;
        Ok(stream)
    }

    fn connect(address: &str) -> io::Result<BlockingSocket> {
        let stream = match address.strip_prefix("unix:") {
            Some(path) => BlockingSocket::Unix(UnixStream::connect(path.trim_start_matches("//"))?),
            None => {
                let address = address.trim_start_matches("http://");
                let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
                let addresses = std::net::ToSocketAddrs::to_socket_addrs(address)?;
                let connected = addresses.into_iter().find_map(|one| {
                    TcpStream::connect_timeout(&one, AUTHENTICATE_WITHIN)
                        .inspect_err(|e| last = e.kind().into())
                        .ok()
                });
                BlockingSocket::Tcp(connected.ok_or(last)?)
            }
        };
        stream.bounded()?;
        Ok(stream)
    }

    /// Every wait on it ends.
    fn bounded(&self) -> io::Result<()> {
        match self {
            BlockingSocket::Tcp(socket) => {
                socket.set_nodelay(true)?;
                socket.set_nonblocking(false)?;
                socket.set_write_timeout(Some(STALLED))?;
            }
            BlockingSocket::Unix(socket) => {
                socket.set_nonblocking(false)?;
                socket.set_write_timeout(Some(STALLED))?;
            }
        }
        self.read_within(STALLED)
    }

    /// How long it is waited for something to read.
    pub(super) fn read_within(&self, time: Duration) -> io::Result<()> {
        match self {
            BlockingSocket::Tcp(socket) => socket.set_read_timeout(Some(time)),
            BlockingSocket::Unix(socket) => socket.set_read_timeout(Some(time)),
        }
    }
}

impl Read for BlockingSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            BlockingSocket::Tcp(socket) => socket.read(buffer),
            BlockingSocket::Unix(socket) => socket.read(buffer),
        }
    }
}

impl Write for BlockingSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            BlockingSocket::Tcp(socket) => socket.write(bytes),
            BlockingSocket::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A stream during the handshake: all that is read then comes within one time, however slowly the peer sends.
struct Bounded<'a> {
    stream: &'a mut BlockingSocket,
    until: Instant,
}

impl Bounded<'_> {
    fn new(stream: &mut BlockingSocket) -> Bounded<'_> {
        Bounded { stream, until: Instant::now() + AUTHENTICATE_WITHIN }
    }
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.read_within(left)?;
        self.stream.read(buffer)
    }
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves a connection of a process that knows the token, on a thread of its own, until it ends.
pub(crate) fn serve(store: ObjectStore, stream: BlockingSocket, kind: ConnectionKind) {
    static SERVED: AtomicUsize = AtomicUsize::new(0);
    if SERVED.fetch_add(1, Ordering::Relaxed) >= MAX_SERVED {
        SERVED.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let run = move || {
        // However it ends: whoever wants more connects again.
        let _ = serve_here(&store, stream, kind);
        SERVED.fetch_sub(1, Ordering::Relaxed);
    };
    if thread::Builder::new().name("marline-data".into()).spawn(run).is_err() {
        SERVED.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve_here(store: &ObjectStore, stream: BlockingSocket, kind: ConnectionKind) -> io::Result<()> {
    stream.bounded()?;
    match (kind, stream) {
        (ConnectionKind::Data, mut stream) => answer_all(store, &mut stream),
        (ConnectionKind::Upload, mut stream) => upload::receive(store, &mut stream),
        (ConnectionKind::Store, BlockingSocket::Unix(mut socket)) => {
            is_this_users(&socket)?;
            socket.write_all(WELCOME)?;
            store.add_unsupervised_process(socket)
        }
        (ConnectionKind::Store, BlockingSocket::Tcp(_))
        | (ConnectionKind::Link | ConnectionKind::Grpc, _) => {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }
}

fn answer_all(store: &ObjectStore, stream: &mut BlockingSocket) -> io::Result<()> {
    let mut ask = [0; 36];
    loop {
        stream.read_exact(&mut ask)?;
        let mut words = &ask[..];
        let object = ObjectId::of(TaskId::from_u128(words.get_u128()), words.get_u32());
        let (start, len) = (words.get_u64(), words.get_u64());
        let mut answer = BytesMut::new();
        match store.read_to_send(object) {
            Ok((view, making)) => {
                let start = usize::try_from(start).unwrap_or(usize::MAX).min(view.len());
                let len = usize::try_from(len).unwrap_or(usize::MAX).min(view.len() - start);
                let piece = &view[start..start + len];
                answer.put_u8(0);
                answer.put_u64(view.len() as u64);
                answer.put_u128(making.0);
                answer.put_u64(len as u64);
                stream.write_all(&answer)?;
                stream.write_all(piece)?;
                stream.write_all(&checksum(piece).to_be_bytes())?;
            }
            Err(error) => write_error(stream, error)?,
        }
    }
}

/// Says why not.
pub(super) fn write_error(stream: &mut BlockingSocket, error: Error) -> io::Result<()> {
    let error = v1::Error::from(error.bounded()).encode_to_vec();
    let mut answer = BytesMut::new();
    answer.put_u8(1);
    answer.put_u32(error.len() as u32);
    answer.put_slice(&error);
    stream.write_all(&answer)
}

/// Why not: what follows a byte 1.
pub(super) fn read_error(stream: &mut BlockingSocket) -> io::Result<Error> {
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
pub(crate) fn connect_to_object_store(path: &str, token: &Token) -> io::Result<UnixStream> {
    let (_folder, short) = short_path(Path::new(path))?;
    let socket = UnixStream::connect(short)?;
    // Another user may have made what a worker of another machine calls its own.
    is_this_users(&socket)?;
    let mut stream = BlockingSocket::Unix(socket);
    stream.bounded()?;
    let mut bounded = Bounded::new(&mut stream);
    handshake::dial_blocking(&mut bounded, ConnectionKind::Store, token)?;
    let mut answer = [0];
    bounded.read_exact(&mut answer)?;
    let BlockingSocket::Unix(socket) = stream else { unreachable!("it was one just now") };
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(None)?;
    if &answer == WELCOME { Ok(socket) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Data that is wanted.
pub(crate) struct TransferRequest<'a> {
    pub object: ObjectId,
    pub token: &'a Token,
    /// Whether anybody wants it still.
    pub should_continue: &'a (dyn Fn() -> bool + Sync),
}

/// What all of it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ValueIdentity {
    bytes: usize,
    making: DataVersion,
}

/// What has come of it so far.
pub(crate) struct PartialTransfer<R> {
    whole: ValueIdentity,
    room: R,
    /// Which pieces have come.
    came: Vec<bool>,
}

impl<R> PartialTransfer<R> {
    fn new(whole: ValueIdentity, room: R) -> PartialTransfer<R> {
        let came = vec![false; whole.bytes.div_ceil(PIECE_BYTES)];
        PartialTransfer { whole, room, came }
    }

    /// How many pieces have come.
    pub fn pieces(&self) -> usize {
        self.came.iter().filter(|came| **came).count()
    }

    /// The same, in other hands.
    pub fn map<S>(self, hand_over: impl FnOnce(R) -> S) -> PartialTransfer<S> {
        let PartialTransfer { whole, room, came } = self;
        PartialTransfer { whole, room: hand_over(room), came }
    }

    pub fn into_room(self) -> R {
        self.room
    }
}

/// Somebody who has the data.
struct Source<'a> {
    address: &'a str,
    wanted: &'a TransferRequest<'a>,
    began: Instant,
    /// When something came last, over any connection: so many milliseconds after it began.
    moved: AtomicU64,
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

impl<'a> Source<'a> {
    fn new(address: &'a str, wanted: &'a TransferRequest<'a>) -> Source<'a> {
        Source { address, wanted, began: Instant::now(), moved: AtomicU64::new(0) }
    }

    fn connect(&self) -> io::Result<BlockingSocket> {
        BlockingSocket::dial(self.address, ConnectionKind::Data, self.wanted.token)
    }

    /// Something came.
    fn moves(&self) {
        self.moved.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// For how long nothing has come.
    fn quiet_for(&self) -> Duration {
        let moved = Duration::from_millis(self.moved.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(moved)
    }

    /// Gets a piece that is as long as there is room, of this if it is known; says what all of it is.
    fn piece(
        &self,
        stream: &mut BlockingSocket,
        of: Option<ValueIdentity>,
        start: usize,
        room: &mut [u8],
    ) -> Result<ValueIdentity, Failure> {
        let mut ask = BytesMut::new();
        ask.put_u128(self.wanted.object.origin.as_u128());
        ask.put_u32(self.wanted.object.index);
        ask.put_u64(start as u64);
        ask.put_u64(room.len() as u64);
        stream.write_all(&ask)?;
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        if kind != [0] {
            return Err(Failure::Refused(read_error(stream)?));
        }
        let mut head = [0; 32];
        stream.read_exact(&mut head)?;
        let mut words = &head[..];
        let (bytes, making) = (words.get_u64() as usize, DataVersion(words.get_u128()));
        let (whole, len) = (ValueIdentity { bytes, making }, words.get_u64() as usize);
        if of.is_some_and(|of| of != whole) {
            let object = self.wanted.object;
            let words = format!("value {object} was made anew while it was brought");
            return Err(Failure::Refused(Error::unavailable(Ran::No, words)));
        }
        if len != room.len() {
            return Err(io::Error::other("another piece than was asked for").into());
        }
        for part in room.chunks_mut(PART_BYTES) {
            stream.read_exact(part)?;
            self.moves();
        }
        let mut sum = [0; 8];
        stream.read_exact(&mut sum)?;
        if u64::from_be_bytes(sum) != checksum(room) {
            return Err(io::Error::other("a piece that changed on its way").into());
        }
        Ok(whole)
    }

    /// The same, over as many connections as it takes; gives up when nothing came for long, or when it is to.
    fn piece_again(
        &self,
        stream: &mut Option<BlockingSocket>,
        of: Option<ValueIdentity>,
        start: usize,
        room: &mut [u8],
        over: &AtomicBool,
    ) -> Result<ValueIdentity, Error> {
        let mut pause = FIRST_PAUSE;
        loop {
            let connected = match stream.take() {
                Some(stream) => Ok(stream),
                None => self.connect(),
            };
            let failure = match connected {
                Ok(mut connected) => match self.piece(&mut connected, of, start, room) {
                    Ok(whole) => {
                        *stream = Some(connected);
                        return Ok(whole);
                    }
                    Err(Failure::Refused(error)) => return Err(error),
                    Err(Failure::Broken(error)) => error,
                },
                Err(error) => error,
            };
            // Where nobody listens, nobody will.
            let quiet_for = self.quiet_for();
            let nobody =
                failure.kind() == io::ErrorKind::ConnectionRefused && quiet_for > FIRST_PAUSE;
            let is_over = over.load(Ordering::Relaxed) || !(self.wanted.should_continue)();
            if nobody || quiet_for > GIVEN_UP_AFTER || is_over {
                let address = self.address;
                let words = format!("its data cannot be got from {address}: {failure}");
                return Err(Error::unavailable(Ran::No, words));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Gets what has not come yet.
    fn rest<R: AsMut<[u8]>>(
        &self,
        coming: &mut Option<PartialTransfer<R>>,
        room_for: &impl Fn(usize) -> Result<R, Error>,
    ) -> Result<(), Error> {
        let over = AtomicBool::new(false);
        let mut stream = None;
        let whole = self.piece_again(&mut stream, None, 0, &mut [], &over)?;
        // What came of another making is of no use any more; its room is free before other is asked for.
        if coming.as_ref().is_some_and(|coming| coming.whole != whole) {
            *coming = None;
        }
        let coming = match coming {
            Some(coming) => coming,
            None => coming.insert(PartialTransfer::new(whole, room_for(whole.bytes)?)),
        };
        let left = coming.came.len() - coming.pieces();
        let room = coming.room.as_mut()[..whole.bytes].chunks_mut(PIECE_BYTES);
        let pieces = room.zip(&mut coming.came).enumerate().filter(|(_, (_, came))| !**came);
        let (pieces, failed) = (Mutex::new(pieces), Mutex::new(None));
        let carry = |mut stream: Option<BlockingSocket>| {
            while !over.load(Ordering::Relaxed) && (self.wanted.should_continue)() {
                let next = pieces.lock().expect("nothing panics under it").next();
                let Some((index, (piece, came))) = next else { return };
                let start = index * PIECE_BYTES;
                match self.piece_again(&mut stream, Some(whole), start, piece, &over) {
                    Ok(_) => *came = true,
                    Err(error) => {
                        over.store(true, Ordering::Relaxed);
                        failed.lock().expect("nothing panics under it").get_or_insert(error);
                    }
                }
            }
        };
        thread::scope(|threads| {
            for _ in 1..left.clamp(1, MAX_CONNECTIONS) {
                // With fewer threads it takes longer.
                let _ = thread::Builder::new().spawn_scoped(threads, || carry(None));
            }
            carry(stream);
        });
        let failed = failed.into_inner().expect("nothing panics under it");
        match failed {
            Some(error) => Err(error),
            None if coming.pieces() < coming.came.len() => Err(not_wanted()),
            None => Ok(()),
        }
    }
}

fn not_wanted() -> Error {
    Error::unavailable(Ran::No, "nobody wants it here any more")
}

/// Gets the data of an object from those who have it, one after the other. `room_for` is asked for as much room as it
/// takes. What has come of it when it fails is left in `coming`, and what is there is not asked for again. Says of which
/// making it is.
pub(crate) fn pull<R: AsMut<[u8]>>(
    copies: &[CopyLocation],
    wanted: &TransferRequest<'_>,
    coming: &mut Option<PartialTransfer<R>>,
    room_for: impl Fn(usize) -> Result<R, Error>,
) -> Result<(R, DataVersion), Error> {
    let mut last = None;
    for address in copies.iter().filter_map(|copy| copy.address.as_deref()) {
        if !(wanted.should_continue)() {
            return Err(not_wanted());
        }
        match Source::new(address, wanted).rest(coming, &room_for) {
            Ok(()) => {
                let PartialTransfer { whole, room, .. } = coming.take().expect("all of it came");
                return Ok((room, whole.making));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| {
        let object = wanted.object;
        Error::unavailable(Ran::No, format!("nobody who has value {object} listens anywhere"))
    }))
}

/// Whether what could not be got may be somewhere else by now.
pub(crate) fn may_be_elsewhere(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NotFound)
}

#[cfg(test)]
pub(crate) mod tests;
