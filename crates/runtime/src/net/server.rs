//! What a node serves: joining and connections of links; the unary operations; and what tools ask every
//! gRPC server. Only health is told to those who have no token.

use super::address::short_path;
use super::control;
use super::data;
use super::explain::Explained;
use super::outbox::{Haste, Outbox, Outgoing, outbox};
use super::plain::{self, Connection, FIRST_BYTE, PATIENCE, Socket};
use super::reader::Reader;
use super::upload;
use super::{CONNECTION_WINDOW_BYTES, KEEP_ALIVE, MAX_MESSAGE_BYTES, STREAM_WINDOW_BYTES, io};
use crate::node::{Attached, Node, Which};
use crate::wire::DESCRIPTORS;
use crate::wire::convert::{decode_join, encode_joined, to_status};
use crate::wire::frame::Frame;
use crate::wire::join::check_protocol;
use crate::wire::v1;
use crate::wire::v1::control_server::ControlServer;
use crate::wire::v1::links_server::{Links, LinksServer};
use marline_core::error::{Error, Ran};
use rustix::net::{RecvFlags, sockopt};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpSocket, TcpStream, UnixSocket, UnixStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

/// The secret that every request carries, if there is one.
pub(crate) type Token = Option<Arc<str>>;

/// The token that those who connect must say. It changes when a worker joins another cluster.
#[derive(Clone, Default)]
pub(crate) struct Secret(Arc<Mutex<Token>>);

impl Secret {
    pub fn new(token: Token) -> Secret {
        Secret(Arc::new(Mutex::new(token)))
    }

    pub fn set(&self, token: Token) {
        *self.0.lock().expect("nothing panics under it") = token;
    }

    pub fn get(&self) -> Token {
        self.0.lock().expect("nothing panics under it").clone()
    }
}

/// A server that ends when it is dropped.
pub(crate) struct Server {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;

/// A socket that has its address and does not listen yet: connections to it are refused.
pub(crate) struct Bound {
    socket: BoundSocket,
    /// Its address in words.
    at: String,
}

enum BoundSocket {
    Tcp(TcpSocket),
    Unix(UnixSocket),
}

impl Bound {
    /// Takes a port; says which one.
    pub fn tcp(address: SocketAddr) -> Result<(Bound, SocketAddr), Error> {
        let at = address.to_string();
        // `TcpListener::bind` would have to be awaited, and nobody may block on that inside a user's own
        // runtime.
        let bind = || {
            let socket =
                if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let bound = socket.local_addr()?;
            Ok((socket, bound))
        };
        let (socket, bound) = bind().map_err(|error| cannot_listen(&at, &error))?;
        Ok((Bound { socket: BoundSocket::Tcp(socket), at }, bound))
    }

    /// Takes a path.
    pub fn unix(path: &Path) -> Result<Bound, Error> {
        let at = path.display().to_string();
        let bind = || {
            let (_folder, short) = short_path(path)?;
            let socket = UnixSocket::new_stream()?;
            socket.bind(short)?;
            Ok(socket)
        };
        let socket = bind().map_err(|error| cannot_listen(&at, &error))?;
        Ok(Bound { socket: BoundSocket::Unix(socket), at })
    }

    /// Serves a node there.
    pub fn listen(self, node: &Arc<Node>, secret: Secret) -> Result<Server, Error> {
        let Bound { socket, at } = self;
        let cannot = |error| cannot_listen(&at, &error);
        let _guard = io().enter();
        Ok(match socket {
            BoundSocket::Tcp(socket) => {
                let incoming = TcpListenerStream::new(socket.listen(BACKLOG).map_err(cannot)?);
                sorted(node, incoming, secret, Socket::tcp)
            }
            BoundSocket::Unix(socket) => {
                let incoming = UnixListenerStream::new(socket.listen(BACKLOG).map_err(cannot)?);
                sorted(node, incoming, secret, Socket::Unix)
            }
        })
    }
}

fn cannot_listen(at: &str, error: &std::io::Error) -> Error {
    Error::invalid(format!("cannot listen on {at}: {error}"))
}

/// Serves what comes: plain connections here, the others as gRPC.
fn sorted<S, IO>(node: &Arc<Node>, incoming: S, secret: Secret, plain: fn(IO) -> Socket) -> Server
where
    S: Stream<Item = std::io::Result<IO>> + Send + Unpin + 'static,
    IO: Stranger,
{
    let (streams, grpc) = mpsc::channel(1);
    let server = serve(node, ReceiverStream::new(grpc), secret.clone());
    let node = Arc::downgrade(node);
    let mut incoming = incoming;
    io().spawn(async move {
        loop {
            let next = tokio::select! {
                next = incoming.next() => next,
                () = streams.closed() => return, // The server has ended.
            };
            match next {
                Some(Ok(stranger)) => {
                    let sorting =
                        sort(node.clone(), secret.get(), stranger, plain, streams.clone());
                    tokio::spawn(sorting);
                }
                // Out of descriptors, perhaps: others go away, and then there are some.
                Some(Err(_)) => tokio::time::sleep(ACCEPT_PAUSE).await,
                None => return,
            }
        }
    });
    server
}

/// The pause after a connection could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A connection of which nothing is known yet.
trait Stranger: AsyncRead + AsyncWrite + Connected + AsFd + Unpin + Send + Sync + 'static {
    fn readable(&self) -> impl Future<Output = std::io::Result<()>> + Send;
    /// Looks at what has come and leaves it there.
    fn peek(&self, into: &mut [u8]) -> std::io::Result<usize>;
}

impl Stranger for TcpStream {
    async fn readable(&self) -> std::io::Result<()> {
        TcpStream::readable(self).await
    }
    fn peek(&self, into: &mut [u8]) -> std::io::Result<usize> {
        self.try_io(Interest::READABLE, || peek(self, into))
    }
}

impl Stranger for UnixStream {
    async fn readable(&self) -> std::io::Result<()> {
        UnixStream::readable(self).await
    }
    fn peek(&self, into: &mut [u8]) -> std::io::Result<usize> {
        self.try_io(Interest::READABLE, || peek(self, into))
    }
}

fn peek(socket: impl AsFd, into: &mut [u8]) -> std::io::Result<usize> {
    Ok(rustix::net::recv(socket, into, RecvFlags::PEEK)?.0)
}

/// The first byte of a connection; nothing if it ends without one.
async fn first_byte(stranger: &impl Stranger) -> Option<u8> {
    let mut first = [0];
    loop {
        stranger.readable().await.ok()?;
        match stranger.peek(&mut first) {
            Ok(count) => return (count > 0).then_some(first[0]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}

/// Looks at the first byte of a connection.
async fn sort<IO: Stranger>(
    node: Weak<Node>,
    token: Token,
    stranger: IO,
    plain: fn(IO) -> Socket,
    streams: mpsc::Sender<std::io::Result<IO>>,
) {
    let Ok(Some(first)) = timeout(PATIENCE, first_byte(&stranger)).await else { return };
    if first == FIRST_BYTE {
        serve_plain(node, plain(stranger), &token).await;
    } else if [data::FIRST_BYTE, data::STORE_FIRST_BYTE, upload::FIRST_BYTE].contains(&first) {
        let store = node.upgrade().and_then(|node| node.store());
        if let (Some(store), Ok(stream)) = (store, plain(stranger).into_std()) {
            data::serve(store, stream, token);
        }
    } else {
        let _ = sockopt::set_tcp_nodelay(&stranger, true);
        let _ = streams.send(Ok(stranger)).await;
    }
}

/// Serves one plain connection.
async fn serve_plain(node: Weak<Node>, socket: Socket, token: &Token) {
    let Some((connection, frames)) = Connection::accept(socket, token).await else { return };
    let outbox = connection.outbox();
    let Some(attached) = attach(&node, frames, &outbox) else {
        // It is told that a session is over, or it said nothing that makes sense.
        return connection.carry(&outbox, Deaf).await;
    };
    let reader = Reader::new(node, attached.which, attached.connection);
    reader.carry(connection, outbox, attached.frames).await;
}

/// Nothing is heard on a connection that ends.
struct Deaf;

impl plain::Listener for Deaf {
    fn received(&mut self, _: Vec<v1::Frame>) -> bool {
        false
    }
    fn acknowledge(&mut self) {}
}

/// A connection that belongs to a link.
struct Carried {
    which: Which,
    connection: u64,
    /// What came with the first frame.
    frames: Vec<v1::Frame>,
}

/// The first frame says whose link this connection carries. If nobody wants it, it is told so, and closed.
fn attach(node: &Weak<Node>, frames: Vec<v1::Frame>, outbox: &Outbox) -> Option<Carried> {
    let mut frames = frames.into_iter();
    let first = frames.next().map(Frame::attach);
    let Some(Ok(Frame::Attach { session, connection, host })) = first else {
        outbox.fail(Error::invalid("the first frame of a connection is Attach"));
        return None;
    };
    let Some(node) = node.upgrade() else {
        outbox.fail(Error::unavailable(Ran::No, "this process is shutting down"));
        return None;
    };
    match node.attach(session, connection, host, outbox.clone()) {
        Attached::To(which) => Some(Carried { which, connection, frames: frames.collect() }),
        Attached::Late => {
            let words = format!("connection {connection} is not later than those before it");
            outbox.fail(Error::unavailable(Ran::No, words));
            None
        }
        Attached::Over => {
            let over = host.unwrap_or(session);
            if outbox.push(Frame::Over { session: over, error: None }, Haste::Now) {
                outbox.flush(true);
            }
            outbox.close();
            None
        }
    }
}

fn serve<S, IO>(node: &Arc<Node>, incoming: S, secret: Secret) -> Server
where
    S: Stream<Item = std::io::Result<IO>> + Send + 'static,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let links = LinksServer::new(Service { node: Arc::downgrade(node) })
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let control = ControlServer::new(control::Service::new(node))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let reflection_v1 = reflection().build_v1().expect("the descriptors are those that we made");
    let reflection_v1alpha =
        reflection().build_v1alpha().expect("the descriptors are those that we made");
    let (health, health_server) = tonic_health::server::health_reporter();
    let token = check_token(secret);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .add_service(InterceptedService::new(links, token.clone()))
        .add_service(InterceptedService::new(Explained(control), token.clone()))
        .add_service(InterceptedService::new(reflection_v1, token.clone()))
        .add_service(InterceptedService::new(reflection_v1alpha, token))
        .add_service(health_server)
        .serve_with_incoming_shutdown(incoming, async {
            let _ = stopped.await;
        });
    io().spawn(async move {
        health.set_serving::<LinksServer<Service>>().await;
        health.set_serving::<ControlServer<control::Service>>().await;
        server.await
    });
    Server { stop: Some(stop) }
}

/// Lets through what carries the token.
fn check_token(secret: Secret) -> impl FnMut(Request<()>) -> Result<Request<()>, Status> + Clone {
    move |request| {
        let Some(token) = secret.get() else { return Ok(request) };
        let given = request.metadata().get("authorization").map(|value| value.as_bytes());
        let wanted = format!("Bearer {token}");
        if given.is_some_and(|given| same(given, wanted.as_bytes())) {
            return Ok(request);
        }
        Err(to_status(Error::denied(
            "the cluster's token is missing or wrong: pass the one of `marline up`",
        )))
    }
}

/// Compares in a time that does not depend on where they differ.
pub(super) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

struct Service {
    node: Weak<Node>,
}

impl Service {
    fn node(&self) -> Result<Arc<Node>, Status> {
        self.node.upgrade().ok_or_else(|| Status::unavailable("this process is shutting down"))
    }
}

#[tonic::async_trait]
impl Links for Service {
    async fn join(
        &self,
        request: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinReply>, Status> {
        let request = request.into_inner();
        // First of all: what else another version says may not make sense here.
        check_protocol(&request.protocol).map_err(to_status)?;
        let join = decode_join(request).map_err(to_status)?;
        let joined = self.node()?.join(join).map_err(to_status)?;
        Ok(Response::new(encode_joined(joined)))
    }

    type AttachStream = Answers;

    async fn attach(
        &self,
        request: Request<Streaming<v1::Frames>>,
    ) -> Result<Response<Answers>, Status> {
        let (outbox, outgoing) = outbox();
        let mut incoming = request.into_inner();
        let node = self.node.clone();
        tokio::spawn(async move {
            let Some(Ok(first)) = incoming.next().await else { return };
            if let Some(attached) = attach(&node, first.frames, &outbox) {
                let reader = Reader::new(node, attached.which, attached.connection);
                match reader.read(attached.frames, incoming).await {
                    Ok(()) => outbox.close(),
                    Err(error) => outbox.fail(error),
                }
            }
        });
        Ok(Response::new(Answers(outgoing)))
    }
}

/// The stream of messages, as a server sends it.
pub(crate) struct Answers(Outgoing);

impl Stream for Answers {
    type Item = Result<v1::Frames, Status>;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = Pin::new(&mut self.0).poll_next(cx);
        next.map(|frames| {
            frames.map(Ok).or_else(|| self.0.error().map(|error| Err(to_status(error))))
        })
    }
}
