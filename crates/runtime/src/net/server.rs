//! The server of a node: joining, connections of links, data of large values, the unary operations,
//! and the reflection and health services that gRPC tools expect.
//!
//! A connection that starts with a [handshake] comes from a Marline process, and the handshake says
//! what the connection is for. Any other connection is gRPC. If the cluster has a token, each
//! request on it must carry a [ticket]; only the health service answers without one.

use super::address::short_path;
use super::control;
use super::credentials::Credentials;
use super::frame_connection::{self, FrameConnection, Socket};
use super::grpc_connection::{Authentication, GrpcConnection};
use super::handshake::{self, AUTHENTICATE_WITHIN, ConnectionKind};
use super::outbox::{Outbox, OutboxStream, SendPriority, outbox};
use super::peer_identity::PeerIdentity;
use super::reader::LinkReader;
use super::reserve::{DescriptorReserve, is_shortage};
use super::status::to_status;
use super::status_translator::StatusTranslator;
use super::ticket;
use super::transfer;
use super::unauthenticated::{PoolEntry, UnauthenticatedPool};
use super::{CONNECTION_WINDOW_BYTES, KEEP_ALIVE, MAX_MESSAGE_BYTES, STREAM_WINDOW_BYTES, io};
use crate::net::services::control_server::ControlServer;
use crate::net::services::links_server::{Links, LinksServer};
use crate::node::{AttachOutcome, LinkId, Node};
use crate::runtime_log::NET;
use marline_core::error::{Error, Ran};
use marline_wire::DESCRIPTORS;
use marline_wire::convert::{decode_join, encode_joined};
use marline_wire::frame::Frame;
use marline_wire::join::check_protocol;
use marline_wire::v1;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpSocket, UnixSocket};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status, Streaming};
use tracing::{debug, warn};

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

/// A socket that is bound to its address and does not listen yet: connections to it are refused.
pub(crate) struct BoundListener {
    socket: BoundSocket,
    /// The address as text.
    at: String,
}

enum BoundSocket {
    Tcp(TcpSocket),
    Unix(UnixSocket),
}

impl BoundListener {
    /// Binds a TCP socket. Returns the address with the port that it got.
    pub fn tcp(address: SocketAddr) -> Result<(BoundListener, SocketAddr), Error> {
        let at = address.to_string();
        // Do not use `TcpListener::bind`: it must be awaited, and a thread inside a user's own
        // runtime must not block on that.
        let bind = || {
            let socket =
                if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let bound = socket.local_addr()?;
            Ok((socket, bound))
        };
        let (socket, bound) = bind().map_err(|error| cannot_listen(&at, &error))?;
        Ok((BoundListener { socket: BoundSocket::Tcp(socket), at }, bound))
    }

    /// Binds a Unix socket to a path.
    pub fn unix(path: &Path) -> Result<BoundListener, Error> {
        let at = path.display().to_string();
        let bind = || {
            let (_folder, short) = short_path(path)?;
            let socket = UnixSocket::new_stream()?;
            socket.bind(short)?;
            Ok(socket)
        };
        let socket = bind().map_err(|error| cannot_listen(&at, &error))?;
        Ok(BoundListener { socket: BoundSocket::Unix(socket), at })
    }

    /// Starts to listen, and serves a node on this socket.
    pub fn listen(self, node: &Arc<Node>, secret: Credentials) -> Result<Server, Error> {
        let BoundListener { socket, at } = self;
        let cannot = |error| cannot_listen(&at, &error);
        let _guard = io().enter();
        Ok(match socket {
            BoundSocket::Tcp(socket) => {
                let incoming = TcpListenerStream::new(socket.listen(BACKLOG).map_err(cannot)?);
                serve_incoming(node, incoming.map(|came| came.map(Socket::tcp)), secret)
            }
            BoundSocket::Unix(socket) => {
                let incoming = UnixListenerStream::new(socket.listen(BACKLOG).map_err(cannot)?);
                serve_incoming(node, incoming.map(|came| came.map(Socket::Unix)), secret)
            }
        })
    }
}

fn cannot_listen(at: &str, error: &std::io::Error) -> Error {
    Error::invalid(format!("cannot listen on {at}: {error}"))
}

/// Serves incoming connections: those of Marline processes by the kind in their handshake, the
/// others as gRPC.
fn serve_incoming<S>(node: &Arc<Node>, incoming: S, secret: Credentials) -> Server
where
    S: Stream<Item = std::io::Result<Socket>> + Send + Unpin + 'static,
{
    let (streams, grpc) = mpsc::channel(1);
    let server = serve(node, ReceiverStream::new(grpc), secret.clone());
    let acceptor = Acceptor {
        node: Arc::downgrade(node),
        secret,
        streams,
        unauthenticated: UnauthenticatedPool::default(),
    };
    io().spawn(acceptor.accept_all(incoming));
    server
}

/// The pause after a connection could not be accepted, and between two attempts to refill the
/// reserve of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The first stage of every connection: authentication, then routing by its kind.
#[derive(Clone)]
struct Acceptor {
    node: Weak<Node>,
    secret: Credentials,
    /// Takes the connections that carry gRPC.
    streams: mpsc::Sender<std::io::Result<GrpcConnection>>,
    unauthenticated: UnauthenticatedPool,
}

impl Acceptor {
    async fn accept_all(
        self,
        mut incoming: impl Stream<Item = std::io::Result<Socket>> + Send + Unpin,
    ) {
        let mut reserve = DescriptorReserve::default();
        let mut is_lent = false;
        loop {
            // The descriptor that was just freed is for the connection that waits: do not put it
            // into the reserve.
            let is_full = !is_lent && reserve.fill();
            is_lent = false;
            let next = tokio::select! {
                next = incoming.next() => next,
                () = self.streams.closed() => return, // The server has ended.
                () = tokio::time::sleep(ACCEPT_PAUSE), if !is_full => continue,
            };
            match next {
                Some(Ok(socket)) => {
                    let peer = PeerIdentity::of(&socket);
                    let place = self.unauthenticated.enter(peer);
                    tokio::spawn(self.clone().authenticate_and_route(socket, peer, place));
                }
                Some(Err(error)) if is_shortage(&error) => {
                    is_lent = reserve.lend() || self.unauthenticated.close_one();
                    match is_lent {
                        true => tokio::task::yield_now().await, // The closed peer frees its socket.
                        false => tokio::time::sleep(ACCEPT_PAUSE).await,
                    }
                }
                Some(Err(_)) => tokio::time::sleep(ACCEPT_PAUSE).await,
                None => return,
            }
        }
    }

    /// Authenticates a connection and hands it to its service. Closes a connection that says it is
    /// a Marline process and does not prove it.
    async fn authenticate_and_route(
        self,
        mut socket: Socket,
        peer: PeerIdentity,
        mut place: PoolEntry,
    ) {
        let proves = async {
            let is_ours = first_byte(&socket).await? == handshake::FIRST_BYTE;
            if !is_ours {
                return Some(Ok(None));
            }
            Some(handshake::accept(&mut socket, &self.secret).await.map(Some))
        };
        let proves = async {
            tokio::select! {
                kind = proves => kind,
                _ = &mut place.pushed_out => None,
            }
        };
        let kind = match timeout(AUTHENTICATE_WITHIN, proves).await {
            Ok(Some(Ok(kind))) => kind,
            Ok(Some(Err(error))) => {
                let reason = handshake::reason(&error);
                return warn!(target: NET, %peer, "rejected a connection: {reason}");
            }
            Ok(None) | Err(_) => {
                return debug!(target: NET, %peer, "closed a connection that did not authenticate");
            }
        };
        match kind {
            Some(ConnectionKind::Link) => {
                drop(place);
                serve_link(self.node, socket).await;
            }
            Some(
                kind @ (ConnectionKind::Data | ConnectionKind::Store | ConnectionKind::Upload),
            ) => {
                let store = self.node.upgrade().and_then(|node| node.store());
                if let (Some(store), Ok(stream)) = (store, socket.into_std()) {
                    transfer::serve(store, stream, kind);
                }
            }
            Some(ConnectionKind::Grpc) => {
                drop(place);
                let _ = self.streams.send(Ok(GrpcConnection::proved(socket))).await;
            }
            None => {
                let _ = self.streams.send(Ok(GrpcConnection::unauthenticated(socket, place))).await;
            }
        }
    }
}

/// Returns the first byte of a connection, and leaves it in the socket. `None` if the connection
/// ends without a byte.
async fn first_byte(socket: &Socket) -> Option<u8> {
    let mut first = [0];
    loop {
        socket.readable().await.ok()?;
        match socket.peek(&mut first) {
            Ok(count) => return (count > 0).then_some(first[0]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}

/// Serves a frame connection of a link.
async fn serve_link(node: Weak<Node>, socket: Socket) {
    let Some((connection, frames)) = FrameConnection::accept(socket).await else { return };
    let outbox = connection.outbox();
    let Some(attached) = attach(&node, frames, &outbox) else {
        // If the session is over, the outbox has the last frame for the peer (`Over`). After any
        // other failure the outbox is empty: frame connections carry no errors.
        return connection.run(&outbox, HangUp).await;
    };
    let reader = LinkReader::new(node, attached.which, attached.connection);
    reader.carry(connection, outbox, attached.frames).await;
}

/// Ends a connection at the first frames that it brings.
struct HangUp;

impl frame_connection::FrameHandler for HangUp {
    fn received(&mut self, _: Vec<v1::Frame>) -> bool {
        false
    }
    fn acknowledge(&mut self) {}
}

/// A connection that was attached to a link.
struct AttachedConnection {
    which: LinkId,
    connection: u64,
    /// The frames that came in one message with `Attach`.
    frames: Vec<v1::Frame>,
}

/// Attaches a connection to the link that its first frame names. If no link takes the connection,
/// puts the reason into the outbox, closes it, and returns `None`.
fn attach(
    node: &Weak<Node>,
    frames: Vec<v1::Frame>,
    outbox: &Outbox,
) -> Option<AttachedConnection> {
    let mut frames = frames.into_iter();
    let first = frames.next().map(Frame::attach);
    let Some(Ok(Frame::Attach { session, connection, host })) = first else {
        outbox.fail(Error::invalid("the first frame of a connection must be Attach"));
        return None;
    };
    let Some(node) = node.upgrade() else {
        outbox.fail(Error::unavailable(Ran::No, "this process is shutting down"));
        return None;
    };
    match node.attach(session, connection, host, outbox.clone()) {
        AttachOutcome::To(which) => {
            Some(AttachedConnection { which, connection, frames: frames.collect() })
        }
        AttachOutcome::Late => {
            let words =
                format!("a later connection of this link arrived before connection {connection}");
            outbox.fail(Error::unavailable(Ran::No, words));
            None
        }
        AttachOutcome::Over => {
            let over = host.unwrap_or(session);
            if outbox.push(Frame::Over { session: over, error: None }, SendPriority::Now) {
                outbox.flush(true);
            }
            outbox.close();
            None
        }
    }
}

fn serve(
    node: &Arc<Node>,
    incoming: ReceiverStream<std::io::Result<GrpcConnection>>,
    secret: Credentials,
) -> Server {
    let links = LinksServer::new(LinksService { node: Arc::downgrade(node) })
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let control = ControlServer::new(control::ControlService::new(node))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let reflection_v1 = reflection().build_v1().expect("the build script made the descriptors");
    let reflection_v1alpha =
        reflection().build_v1alpha().expect("the build script made the descriptors");
    let (health, health_server) = tonic_health::server::health_reporter();
    let token = check_token(secret);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .add_service(InterceptedService::new(links, token.clone()))
        .add_service(InterceptedService::new(StatusTranslator(control), token.clone()))
        .add_service(InterceptedService::new(reflection_v1, token.clone()))
        .add_service(InterceptedService::new(reflection_v1alpha, token))
        .add_service(health_server)
        .serve_with_incoming_shutdown(incoming, async {
            let _ = stopped.await;
        });
    io().spawn(async move {
        health.set_serving::<LinksServer<LinksService>>().await;
        health.set_serving::<ControlServer<control::ControlService>>().await;
        server.await
    });
    Server { stop: Some(stop) }
}

/// Returns an interceptor that accepts a request if its connection proved that it knows the token,
/// or if the request carries a valid ticket.
fn check_token(
    secret: Credentials,
) -> impl FnMut(Request<()>) -> Result<Request<()>, Status> + Clone {
    move |request| {
        let authentication = request.extensions().get::<Authentication>().cloned();
        let authentication = authentication.expect("every connection has an `Authentication`");
        if let Authentication::Proved = authentication {
            return Ok(request);
        }
        let Some((token, incarnation)) = secret.required_from_peers() else {
            let words = "this process belongs to no cluster yet: ask again";
            return Err(to_status(Error::unavailable(Ran::No, words)));
        };
        if token.is_some() {
            let given = request.metadata().get("authorization").map(|value| value.as_bytes());
            ticket::check(given, &token, incarnation, ticket::now()).map_err(to_status)?;
        }
        authentication.admit();
        Ok(request)
    }
}

struct LinksService {
    node: Weak<Node>,
}

impl LinksService {
    fn node(&self) -> Result<Arc<Node>, Status> {
        self.node.upgrade().ok_or_else(|| Status::unavailable("this process is shutting down"))
    }
}

#[tonic::async_trait]
impl Links for LinksService {
    async fn join(
        &self,
        request: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinReply>, Status> {
        let request = request.into_inner();
        // Check this first: other fields of another version may be unreadable.
        check_protocol(&request.protocol).map_err(to_status)?;
        let join = decode_join(request).map_err(to_status)?;
        let joined = self.node()?.join(join).map_err(to_status)?;
        Ok(Response::new(encode_joined(joined)))
    }

    type AttachStream = FrameStream;

    async fn attach(
        &self,
        request: Request<Streaming<v1::Frames>>,
    ) -> Result<Response<FrameStream>, Status> {
        let (outbox, outgoing) = outbox();
        let mut incoming = request.into_inner();
        let node = self.node.clone();
        tokio::spawn(async move {
            let Some(Ok(first)) = incoming.next().await else { return };
            if let Some(attached) = attach(&node, first.frames, &outbox) {
                let reader = LinkReader::new(node, attached.which, attached.connection);
                match reader.read(attached.frames, incoming).await {
                    Ok(()) => outbox.close(),
                    Err(error) => outbox.fail(error),
                }
            }
        });
        Ok(Response::new(FrameStream(outgoing)))
    }
}

/// The stream of messages as a server sends it.
pub(crate) struct FrameStream(OutboxStream);

impl Stream for FrameStream {
    type Item = Result<v1::Frames, Status>;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = Pin::new(&mut self.0).poll_next(cx);
        next.map(|frames| {
            frames.map(Ok).or_else(|| self.0.error().map(|error| Err(to_status(error))))
        })
    }
}
