//! Frame connections: links between Marline processes without gRPC around them. They arrive at the
//! same address as gRPC connections; the first byte tells them apart.
//!
//! After the [handshake] come messages of type `Frames`, each after its length in
//! four bytes. The first frame is `Attach`, as on a gRPC stream, and the rest is the same as there.
//!
//! *Why not gRPC.* The thread that has a message writes it with one system call, instead of waking
//! a thread that writes. One read hands over all bytes that have arrived. Acknowledgements, and
//! messages that no process waits for, leave with the next message, or after [`LAZY`].

use super::KEEP_ALIVE;
use super::credentials::{ClusterIdentity, Token};
use super::handshake::{self, AUTHENTICATE_WITHIN, ConnectionKind};
use super::outbox::{Outbox, Shared};
use super::transfer;
use bytes::{Buf, BytesMut};
use marline_wire::length_prefix::{next_frames, put_frames};
use marline_wire::v1;
use rustix::net::{RecvFlags, Shutdown, shutdown, sockopt};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

/// The longest delay of a frame that no process waits for.
const LAZY: Duration = Duration::from_millis(5);
/// The time limit for the first frame of a connection, and for writing the last frames at its end.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The longest token, in bytes.
pub(crate) const MAX_TOKEN_BYTES: usize = 4 << 10;
/// The least free space in the buffer before a read, in bytes.
const READ_BYTES: usize = 64 << 10;

/// A connected socket, TCP or Unix.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects to `host:port` or `unix:/path`.
    async fn connect(address: &str) -> io::Result<Socket> {
        match address.strip_prefix("unix:") {
            Some(path) => {
                UnixStream::connect(path.trim_start_matches("//")).await.map(Socket::Unix)
            }
            None => {
                let socket = TcpStream::connect(address.trim_start_matches("http://")).await?;
                Ok(Socket::tcp(socket))
            }
        }
    }

    /// Connects and does the handshake: both processes prove that they know the token. Returns the
    /// cluster that the other process belongs to.
    pub async fn dial(
        address: &str,
        kind: ConnectionKind,
        token: &Token,
    ) -> io::Result<(Socket, ClusterIdentity)> {
        let socket = timeout(AUTHENTICATE_WITHIN, Socket::connect(address));
        let mut socket = socket.await.map_err(|_| io::ErrorKind::TimedOut)??;
        let incarnation = handshake::dial(&mut socket, kind, token).await?;
        Ok((socket, incarnation))
    }

    /// Wraps a TCP socket. Sets it to send small messages at once, and to notice a peer that has
    /// vanished.
    pub fn tcp(socket: TcpStream) -> Socket {
        let _ = socket.set_nodelay(true);
        let _ = sockopt::set_socket_keepalive(&socket, true);
        let _ = sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE);
        let _ = sockopt::set_tcp_keepintvl(&socket, KEEP_ALIVE / 2);
        let _ = sockopt::set_tcp_keepcnt(&socket, 2);
        let _ = sockopt::set_tcp_user_timeout(&socket, 2 * KEEP_ALIVE.as_millis() as u32);
        Socket::Tcp(socket)
    }

    /// Converts the socket for a thread that blocks.
    pub(super) fn into_std(self) -> io::Result<transfer::BlockingSocket> {
        match self {
            Socket::Tcp(socket) => socket.into_std().map(transfer::BlockingSocket::Tcp),
            Socket::Unix(socket) => socket.into_std().map(transfer::BlockingSocket::Unix),
        }
    }

    /// Copies received bytes without removing them from the socket.
    pub(super) fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        let peek = || Ok(rustix::net::recv(self, into, RecvFlags::PEEK)?.0);
        match self {
            Socket::Tcp(socket) => socket.try_io(Interest::READABLE, peek),
            Socket::Unix(socket) => socket.try_io(Interest::READABLE, peek),
        }
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.readable().await,
            Socket::Unix(socket) => socket.readable().await,
        }
    }

    async fn writable(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.writable().await,
            Socket::Unix(socket) => socket.writable().await,
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.try_write(bytes),
            Socket::Unix(socket) => socket.try_write(bytes),
        }
    }

    fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.try_read_buf(buffer),
            Socket::Unix(socket) => socket.try_read_buf(buffer),
        }
    }

    /// Ends both directions. Bytes that have arrived can still be read.
    fn end(&self) {
        let _ = match self {
            Socket::Tcp(socket) => shutdown(socket, Shutdown::Both),
            Socket::Unix(socket) => shutdown(socket, Shutdown::Both),
        };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(socket) => Pin::new(socket).poll_read(cx, buffer),
            Socket::Unix(socket) => Pin::new(socket).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Tcp(socket) => Pin::new(socket).poll_write(cx, bytes),
            Socket::Unix(socket) => Pin::new(socket).poll_write(cx, bytes),
        }
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // A socket has no buffer to flush.
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(socket) => Pin::new(socket).poll_shutdown(cx),
            Socket::Unix(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}

/// The writing side of a connection. Any thread may write, one at a time.
pub(crate) struct FrameWriter {
    socket: Socket,
    /// Encoded bytes that the socket has not taken yet.
    rest: Mutex<BytesMut>,
    /// Wakes the connection's own task, to write or to end.
    woken: Notify,
    /// Whether a lazy frame waits.
    lazy: AtomicBool,
    /// Tells the connection's own task that a lazy frame waits.
    lazily: Notify,
}

impl FrameWriter {
    fn new(socket: Socket) -> Arc<FrameWriter> {
        Arc::new(FrameWriter {
            socket,
            rest: Mutex::new(BytesMut::new()),
            woken: Notify::new(),
            lazy: AtomicBool::new(false),
            lazily: Notify::new(),
        })
    }

    /// Writes the outbox to the socket as far as the socket takes it. Returns whether nothing is
    /// left.
    pub(super) fn write(&self, outbox: &Shared) -> bool {
        let mut rest = self.rest.lock().expect("nothing panics under it");
        loop {
            while !rest.is_empty() {
                match self.socket.try_write(&rest) {
                    Ok(count) => rest.advance(count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                    Err(_) => {
                        // The connection is broken. The reader still reads the bytes that have
                        // arrived, and then sees the end. The link sends lost messages again.
                        self.socket.end();
                        rest.clear();
                        while outbox.take().is_some() {}
                        return true;
                    }
                }
            }
            match outbox.take() {
                Some(frames) => put_frames(&frames, &mut rest),
                None => return true,
            }
        }
    }

    pub(super) fn wake(&self) {
        self.woken.notify_one();
    }

    /// Has the connection's own task flush the outbox within [`LAZY`].
    pub(super) fn flush_soon(&self) {
        if !self.lazy.swap(true, Ordering::AcqRel) {
            self.lazily.notify_one();
        }
    }

    pub(super) fn is_lazy(&self) -> bool {
        self.lazy.load(Ordering::Acquire)
    }
}

/// One connection, with its writer and its read buffer.
pub(super) struct FrameConnection {
    writer: Arc<FrameWriter>,
    read: BytesMut,
}

/// The receiver of the frames of one connection.
pub(super) trait FrameHandler {
    /// Handles received frames. Returns whether the connection goes on.
    fn received(&mut self, frames: Vec<v1::Frame>) -> bool;
    /// Sends the acknowledgements that are due. Called at most [`LAZY`] after frames arrived.
    fn acknowledge(&mut self);
}

impl FrameConnection {
    fn new(socket: Socket) -> FrameConnection {
        FrameConnection { writer: FrameWriter::new(socket), read: BytesMut::new() }
    }

    /// Makes a connection for a link.
    pub async fn dial(address: &str, token: &Token) -> io::Result<FrameConnection> {
        let (socket, _) = Socket::dial(address, ConnectionKind::Link, token).await?;
        Ok(FrameConnection::new(socket))
    }

    /// Takes over an accepted connection, once its first frames have arrived.
    pub async fn accept(socket: Socket) -> Option<(FrameConnection, Vec<v1::Frame>)> {
        let mut connection = FrameConnection::new(socket);
        let frames = timeout(PATIENCE, connection.first_message()).await.ok()??;
        Some((connection, frames))
    }

    async fn first_message(&mut self) -> Option<Vec<v1::Frame>> {
        loop {
            if let Some(frames) = next_frames(&mut self.read).ok()? {
                return Some(frames);
            }
            self.read_more().await?;
        }
    }

    async fn read_more(&mut self) -> Option<()> {
        loop {
            self.writer.socket.readable().await.ok()?;
            self.read.reserve(READ_BYTES);
            match self.writer.socket.try_read(&mut self.read) {
                Ok(0) => return None,
                Ok(_) => return Some(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
    }

    pub fn outbox(&self) -> Outbox {
        Outbox::plain(self.writer.clone())
    }

    /// Reads and writes frames until one side ends the connection, or the peer breaks the protocol.
    pub async fn run(mut self, outbox: &Outbox, mut listener: impl FrameHandler) {
        self.talk(outbox.shared(), &mut listener).await;
        // Write the last frames, such as `Over`.
        let writer = self.writer.clone();
        let rest = async {
            while !writer.write(outbox.shared()) && writer.socket.writable().await.is_ok() {}
        };
        let _ = timeout(PATIENCE, rest).await;
        outbox.shared().shut();
    }

    async fn talk(&mut self, outbox: &Shared, listener: &mut impl FrameHandler) {
        let writer = self.writer.clone();
        let mut blocked = false;
        let mut due: Option<Instant> = None;
        loop {
            // `select!` picks a ready branch at random: a peer that never pauses does not delay the
            // writes.
            tokio::select! {
                more = self.read_more() => {
                    if more.is_none() {
                        return;
                    }
                    loop {
                        match next_frames(&mut self.read) {
                            Ok(Some(frames)) => {
                                if !listener.received(frames) {
                                    return;
                                }
                            }
                            Ok(None) => break,
                            Err(_) => return,
                        }
                    }
                    due.get_or_insert_with(|| Instant::now() + LAZY);
                }
                _ = writer.socket.writable(), if blocked => blocked = !writer.write(outbox),
                () = writer.woken.notified() => blocked = !writer.write(outbox),
                () = writer.lazily.notified() => {
                    due.get_or_insert_with(|| Instant::now() + LAZY);
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    due = None;
                    writer.lazy.store(false, Ordering::Release);
                    listener.acknowledge();
                    blocked = !writer.write(outbox);
                }
            }
            if outbox.is_closed() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
