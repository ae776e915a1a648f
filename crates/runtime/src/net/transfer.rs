//! Transfers of large values between nodes, and to clients without an object store. They use
//! connections of their own, so that data does not delay messages. They move data in pieces, so
//! that a broken connection costs at most the pieces that were under way.
//!
//! After the [handshake] the dialler sends requests for pieces:
//!
//! - the object: its task (16 bytes) and its index (4 bytes),
//! - the offset of the piece (8 bytes),
//! - the length of the piece (8 bytes).
//!
//! The answer to a request is either
//!
//! - a byte 0, the length of the whole data (8 bytes), its [`DataVersion`] (16 bytes), the length
//!   of the piece (8 bytes), the piece, and its checksum (xxh3, 8 bytes);
//! - or a byte 1, the length of an error (4 bytes), and the error.
//!
//! Each connection has a thread of its own, which blocks: a connection carries much data.
//!
//! Received pieces stay when a connection breaks, and when the rest comes from another node. A
//! value that was lost and recomputed may have other bytes of the same length, and a mix of pieces
//! from both would be neither value. So each answer names the version of the data, and only pieces
//! of one version are put together.

use super::address::short_path;
use super::credentials::Token;
use super::handshake::{self, AUTHENTICATE_WITHIN, ConnectionKind};
use super::upload;
use crate::object_store::{DataVersion, ObjectStore};
use bytes::{Buf, BufMut, BytesMut};
use marline_core::error::{Error, ErrorKind, Ran};
use marline_core::id::{ObjectId, TaskId};
use marline_core::message::CopyLocation;
use marline_objects::checksum;
use marline_wire::convert::{decode_error, encode_error};
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The length of a piece, in bytes. The last piece of a value may be shorter.
pub(super) const PIECE_BYTES: usize = 8 << 20;
/// How many bytes arrive before the receiver notes progress: small enough for a slow network.
const PART_BYTES: usize = 256 << 10;
/// The most connections that carry one value.
const MAX_CONNECTIONS: usize = 4;
/// The most connections that this process serves at a time. Each peer has proved that it knows the
/// token. A further connection is closed, and its peer tries again.
const MAX_SERVED: usize = 64;
/// A connection on which no byte moves for this long counts as broken.
pub(super) const STALLED: Duration = Duration::from_secs(20);
/// The first pause before another attempt to connect. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The receiver gives up a source from which no byte came for this long.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);
/// The longest error that the receiver reads, in bytes.
const MAX_ERROR_BYTES: usize = 1 << 20;

/// A blocking socket, TCP or Unix.
pub(crate) enum BlockingSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl BlockingSocket {
    /// Connects and does the handshake.
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

    /// Sets the socket so that every read and write ends within [`STALLED`].
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

    /// Sets how long a read waits for bytes.
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

/// A stream during the handshake: all reads together end by one deadline, however slowly the peer
/// sends.
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
        // Ignore how the connection ends: a peer that needs more connects again.
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

/// Sends an error as the answer.
pub(super) fn write_error(stream: &mut BlockingSocket, error: Error) -> io::Result<()> {
    let error = encode_error(&error.bounded());
    let mut answer = BytesMut::new();
    answer.put_u8(1);
    answer.put_u32(error.len() as u32);
    answer.put_slice(&error);
    stream.write_all(&answer)
}

/// Reads the error that follows a byte 1.
pub(super) fn read_error(stream: &mut BlockingSocket) -> io::Result<Error> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = (u32::from_be_bytes(len) as usize).min(MAX_ERROR_BYTES);
    let mut error = vec![0; len];
    stream.read_exact(&mut error)?;
    let error = decode_error(&error);
    Ok(error.unwrap_or_else(|_| Error::internal("received an error that cannot be decoded")))
}

/// Fails if the peer runs as another user: shared memory is only for the user of this process.
fn is_this_users(socket: &UnixStream) -> io::Result<()> {
    match sockopt::socket_peercred(socket)?.uid == rustix::process::getuid() {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// The byte that the object store sends to a process that may use it.
const WELCOME: &[u8; 1] = b"+";

/// Connects to the object store of a worker of this machine that listens at this path.
pub(crate) fn connect_to_object_store(path: &str, token: &Token) -> io::Result<UnixStream> {
    let (_folder, short) = short_path(Path::new(path))?;
    let socket = UnixStream::connect(short)?;
    // Another user may have made the socket at a path that a worker of another machine reported.
    is_this_users(&socket)?;
    let mut stream = BlockingSocket::Unix(socket);
    stream.bounded()?;
    let mut bounded = Bounded::new(&mut stream);
    handshake::dial_blocking(&mut bounded, ConnectionKind::Store, token)?;
    let mut answer = [0];
    bounded.read_exact(&mut answer)?;
    let BlockingSocket::Unix(socket) = stream else { unreachable!("it was made as a Unix socket") };
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(None)?;
    if &answer == WELCOME { Ok(socket) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// A request for the data of an object.
pub(crate) struct TransferRequest<'a> {
    pub object: ObjectId,
    pub token: &'a Token,
    /// Returns whether the transfer should go on. It should not when its session has ended, for
    /// example.
    pub should_continue: &'a (dyn Fn() -> bool + Sync),
}

/// The length and the version of a value's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ValueIdentity {
    bytes: usize,
    making: DataVersion,
}

/// The received part of a value's data.
pub(crate) struct PartialTransfer<R> {
    whole: ValueIdentity,
    room: R,
    /// Which pieces have arrived.
    came: Vec<bool>,
}

impl<R> PartialTransfer<R> {
    fn new(whole: ValueIdentity, room: R) -> PartialTransfer<R> {
        let came = vec![false; whole.bytes.div_ceil(PIECE_BYTES)];
        PartialTransfer { whole, room, came }
    }

    /// Returns how many pieces have arrived.
    pub fn pieces(&self) -> usize {
        self.came.iter().filter(|came| **came).count()
    }

    /// Moves the transfer to another owner of its memory.
    pub fn map<S>(self, hand_over: impl FnOnce(R) -> S) -> PartialTransfer<S> {
        let PartialTransfer { whole, room, came } = self;
        PartialTransfer { whole, room: hand_over(room), came }
    }

    pub fn into_room(self) -> R {
        self.room
    }
}

/// A node that has the data.
struct Source<'a> {
    address: &'a str,
    wanted: &'a TransferRequest<'a>,
    began: Instant,
    /// When bytes arrived last on any connection, in milliseconds after `began`.
    moved: AtomicU64,
}

/// The reason why a piece did not arrive.
pub(super) enum Failure {
    /// The connection broke. Another connection may work.
    Broken(io::Error),
    /// The node refused the request.
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

    /// Notes that bytes arrived.
    fn moves(&self) {
        self.moved.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns for how long no bytes have arrived.
    fn quiet_for(&self) -> Duration {
        let moved = Duration::from_millis(self.moved.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(moved)
    }

    /// Requests the piece at `start` that is as long as `room`, and fills `room`. Returns the
    /// identity of the value. Fails if the identity is not `of`.
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
            let words = format!("value {object} was recomputed while it was pulled");
            return Err(Failure::Refused(Error::unavailable(Ran::No, words)));
        }
        if len != room.len() {
            return Err(io::Error::other("received a piece of another length").into());
        }
        for part in room.chunks_mut(PART_BYTES) {
            stream.read_exact(part)?;
            self.moves();
        }
        let mut sum = [0; 8];
        stream.read_exact(&mut sum)?;
        if u64::from_be_bytes(sum) != checksum(room) {
            return Err(io::Error::other("received a piece with a wrong checksum").into());
        }
        Ok(whole)
    }

    /// Requests a piece like [`piece`](Source::piece), over as many connections as it takes. Gives
    /// up when no process listens at the address, when no bytes came for a while, when `over` is
    /// set, or when the request should not continue.
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
            // If no process listens there now, none will later.
            let quiet_for = self.quiet_for();
            let nobody =
                failure.kind() == io::ErrorKind::ConnectionRefused && quiet_for > FIRST_PAUSE;
            let is_over = over.load(Ordering::Relaxed) || !(self.wanted.should_continue)();
            if nobody || quiet_for > GIVEN_UP_AFTER || is_over {
                let address = self.address;
                let words = format!("the data cannot be pulled from {address}: {failure}");
                return Err(Error::unavailable(Ran::No, words));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Fetches all pieces that have not arrived yet.
    fn rest<R: AsMut<[u8]>>(
        &self,
        coming: &mut Option<PartialTransfer<R>>,
        room_for: &impl Fn(usize) -> Result<R, Error>,
    ) -> Result<(), Error> {
        let over = AtomicBool::new(false);
        let mut stream = None;
        let whole = self.piece_again(&mut stream, None, 0, &mut [], &over)?;
        // Drop pieces of another version. Free their room before the next request for room.
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
                // The transfer works with fewer threads, and takes longer.
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
    Error::unavailable(Ran::No, "no process waits for the value any more")
}

/// Pulls the data of an object from the nodes that have a copy, one node after the other. Calls
/// `room_for` with the number of bytes to get memory. If the pull fails, the received pieces stay
/// in `coming`, and a later call does not request them again. Returns the memory and the version of
/// the data.
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
        Error::unavailable(Ran::No, format!("no node with value {object} accepts connections"))
    }))
}

/// Returns whether, after a pull that failed with this error, another node may have the data.
pub(crate) fn may_be_elsewhere(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NotFound)
}

#[cfg(test)]
pub(crate) mod tests;
