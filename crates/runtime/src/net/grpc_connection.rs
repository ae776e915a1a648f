//! Connections that carry gRPC. A Marline process has proved that it knows the token before its
//! first request. Any other client is a stranger until one of its requests carries a valid ticket.
//! A stranger's connection ends as described in [`unauthenticated`](super::unauthenticated).

use super::frame_connection::Socket;
use super::handshake::AUTHENTICATE_WITHIN;
use super::unauthenticated::PoolEntry;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// The proof that the peer of a connection has given.
#[derive(Clone)]
pub(super) enum Authentication {
    /// The peer proved in a handshake that it knows the token.
    Proved,
    /// Each request of the peer must carry a ticket. The peer has an entry in the pool of strangers
    /// until its first request with a valid ticket.
    Asks(Arc<Mutex<Option<PoolEntry>>>),
}

impl Authentication {
    /// Records that a request carried a valid ticket.
    pub fn admit(&self) {
        if let Authentication::Asks(place) = self {
            place.lock().expect("nothing panics under it").take();
        }
    }

    fn is_stranger(&self) -> bool {
        match self {
            Authentication::Proved => false,
            Authentication::Asks(place) => place.lock().expect("nothing panics under it").is_some(),
        }
    }
}

/// A connection that carries gRPC.
pub(super) struct GrpcConnection {
    socket: Socket,
    standing: Authentication,
    /// Ends when a stranger's time is over, or the pool pushes it out.
    goes: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    has_to_go: bool,
}

impl GrpcConnection {
    /// A connection whose peer proved that it knows the token.
    pub fn proved(socket: Socket) -> GrpcConnection {
        GrpcConnection { socket, standing: Authentication::Proved, goes: None, has_to_go: false }
    }

    /// Wraps a connection of a stranger. Must be called inside a tokio runtime with timers.
    pub fn unauthenticated(socket: Socket, mut place: PoolEntry) -> GrpcConnection {
        let (_, never) = tokio::sync::oneshot::channel();
        let pushed_out = std::mem::replace(&mut place.pushed_out, never);
        let goes = async move {
            let _ = tokio::time::timeout(AUTHENTICATE_WITHIN, pushed_out).await;
        };
        let standing = Authentication::Asks(Arc::new(Mutex::new(Some(place))));
        GrpcConnection { socket, standing, goes: Some(Box::pin(goes)), has_to_go: false }
    }
}

impl GrpcConnection {
    /// Fails if the peer is a stranger and its time is over. Every read, write and flush checks it:
    /// a stranger that does not read makes the server write and never read.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(goes) = &mut self.goes
            && goes.as_mut().poll(cx).is_ready()
        {
            self.goes = None;
            // A client with a valid request stays. It dropped its pool entry, which looks the same
            // as being pushed out.
            self.has_to_go = self.standing.is_stranger();
        }
        if self.has_to_go { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

impl Connected for GrpcConnection {
    type ConnectInfo = Authentication;
    fn connect_info(&self) -> Authentication {
        self.standing.clone()
    }
}

impl AsyncRead for GrpcConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        connection.check(cx)?;
        ready!(Pin::new(&mut connection.socket).poll_read(cx, buffer))?;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for GrpcConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let connection = self.get_mut();
        connection.check(cx)?;
        Pin::new(&mut connection.socket).poll_write(cx, bytes)
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        connection.check(cx)?;
        Pin::new(&mut connection.socket).poll_flush(cx)
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}
