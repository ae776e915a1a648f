//! Connections that carry gRPC. A Marline process has proved before its first request that it knows the token. Any other
//! client is a stranger until one of its requests carried a good ticket; a stranger's connection ends as others do that
//! prove nothing.

use super::frame_connection::Socket;
use super::handshake::AUTHENTICATE_WITHIN;
use super::unauthenticated::PoolEntry;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// What is known of the peer of a connection.
#[derive(Clone)]
pub(super) enum Authentication {
    /// It proved that it knows the token.
    Proved,
    /// Each of its requests carries a ticket. It has a place among the strangers until the first of them that is good.
    Asks(Arc<Mutex<Option<PoolEntry>>>),
}

impl Authentication {
    /// A request carried a good ticket.
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
    /// Ends when a stranger has to go.
    goes: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    has_to_go: bool,
}

impl GrpcConnection {
    /// A connection whose peer proved that it knows the token.
    pub fn proved(socket: Socket) -> GrpcConnection {
        GrpcConnection { socket, standing: Authentication::Proved, goes: None, has_to_go: false }
    }

    /// A connection of a stranger. To be called where there is a clock.
    pub fn stranger(socket: Socket, mut place: PoolEntry) -> GrpcConnection {
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
    /// Fails if this is a stranger that has to go. Asked whenever anything is done with the connection: a stranger that does
    /// not read keeps the server from reading.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(goes) = &mut self.goes
            && goes.as_mut().poll(cx).is_ready()
        {
            self.goes = None;
            // A client whose request was good stays. It has given its place back, which looks like being pushed out.
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
