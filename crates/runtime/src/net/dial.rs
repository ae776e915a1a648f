//! The connections that a node makes: to the controller that it joins, and to the workers that its
//! clients call. A broken connection is made again until its link is gone.

use super::address::{ConnectError, check_address, nobody_answers};
use super::credentials::{ClusterIdentity, Token};
use super::frame_connection::{FrameConnection, Socket};
use super::handshake::ConnectionKind;
use super::outbox::SendPriority;
use super::reader::LinkReader;
use super::status::from_status;
use super::{CONNECTION_WINDOW_BYTES, KEEP_ALIVE, MAX_MESSAGE_BYTES, STREAM_WINDOW_BYTES, io};
use crate::net::services::links_client::LinksClient;
use crate::node::{JoinDecision, LinkId, Membership, Node, Shell};
use crate::process_identity::{can_be_seen, is_dead};
use crate::runtime_log::NET;
use crate::terminal::escaped;
use crate::upstream::FoundController;
use hyper_util::rt::TokioIo;
use marline_core::error::{Error, ErrorKind, Ran};
use marline_core::id::Session;
use marline_core::time::Time;
use marline_wire::convert::{decode_joined, encode_join};
use marline_wire::frame::Frame;
use marline_wire::join::{Join, Joined, ProcessIdentity};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tracing::{debug, info, warn};

/// The pause before the first attempt to connect again. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The channel of this process's gRPC requests. Requests carry no credential: both ends of the
/// connection have proved in the handshake that they know the token.
pub(crate) type GrpcChannel = Channel;
type Client = LinksClient<GrpcChannel>;

/// Makes the connections of a [`GrpcChannel`].
#[derive(Clone)]
struct Connector {
    address: Arc<str>,
    token: Token,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Socket>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Socket>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Connector { address, token } = self.clone();
        Box::pin(async move {
            let (socket, _) = Socket::dial(&address, ConnectionKind::Grpc, &token).await?;
            Ok(TokioIo::new(socket))
        })
    }
}

fn client(found: &FoundController) -> Result<Client, Error> {
    Ok(LinksClient::new(grpc_channel(&found.nearest, found.token.clone())?)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES))
}

/// Creates a channel that connects when it is first used. Must be called inside the I/O runtime.
pub(crate) fn grpc_channel(address: &str, token: Token) -> Result<GrpcChannel, Error> {
    check_address(address)?;
    let connector = Connector { address: address.into(), token };
    // The connector has the address: the URI is only the authority that requests name.
    let endpoint = Endpoint::from_static("http://marline")
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    Ok(endpoint.connect_with_connector_lazy(connector))
}

/// Joins a controller elsewhere, and keeps the membership up. Blocks until the node has joined
/// once, the attempt has failed for good, or `patience` is over.
pub(crate) fn join(
    node: &Arc<Node>,
    membership: Membership,
    patience: Duration,
) -> Result<(), Error> {
    let found = membership.upstream.find(None)?;
    let guard = io().enter();
    let client = client(&found)?;
    drop(guard);
    node.set_upstream(&membership, &found.address);
    let (tell, mut told) = marline_channel::oneshot();
    let weak = Arc::downgrade(node);
    // The error to return if `patience` is over before the first answer.
    let error = Arc::new(Mutex::new(nobody_answers(&found.address, "timed out")));
    let first = First { tell, error: error.clone() };
    io().spawn(stay(weak, membership, found, client, first));
    let answer = told.recv().timeout(patience).wait();
    let answer =
        answer.unwrap_or_else(|_| Err(error.lock().expect("nothing panics under it").clone()));
    // This process has not joined: the cluster has run nothing for it.
    answer.map_err(|error| error.ran(Ran::No))
}

/// The caller of [`join`], which waits for the first answer.
struct First {
    tell: marline_channel::oneshot::Sender<Result<(), Error>>,
    /// Why there is no answer yet.
    error: Arc<Mutex<Error>>,
}

/// Joins, stays connected, and joins again when the session is over, at the address that the
/// controller has by then.
async fn stay(
    node: Weak<Node>,
    membership: Membership,
    mut found: FoundController,
    mut client: Client,
    first: First,
) {
    let mut first = Some(first);
    let mut pause = FIRST_PAUSE;
    let mut request = 0;
    let mut lost = false;
    loop {
        request += 1;
        let Some(asked) = ask_when_still(&node, membership.shell).await else { return };
        if first.is_none() && !lost {
            lost = true;
            let words = format!("lost the cluster at {}, trying again", found.address);
            warn!(target: NET, address = found.address, "lost the cluster");
            note(&node, &membership, words);
        }
        let there = look_again(&node, &membership, &mut found, &mut client).await;
        let joined = match there {
            Ok(()) => request_join(&mut client, &found.nearest, &membership, request).await,
            Err(error) => Err(ConnectError::from_reply(error)),
        };
        match joined {
            Ok(joined) => {
                pause = FIRST_PAUSE;
                let session = joined.session;
                info!(target: NET, %session, address = found.address, "joined the cluster");
                let controller = joined.process.clone().filter(can_be_seen);
                let Some(node_) = node.upgrade() else { return };
                let (cluster, epoch) = (joined.cluster, joined.controller_epoch);
                membership.secret.joined(ClusterIdentity { cluster, epoch });
                node_.joined(membership.shell, joined, asked);
                drop(node_);
                if let Some(first) = first.take() {
                    let _ = first.tell.send(Ok(()));
                }
                if std::mem::take(&mut lost) {
                    let words = format!("joined the cluster at {} again", found.address);
                    note(&node, &membership, words);
                }
                let which = LinkId::Upstream(session);
                keep_connected(&node, which, &found.nearest, &found.token, controller).await;
            }
            Err(ConnectError { error, is_retryable: may_pass }) => {
                debug!(target: NET, address = found.address, "could not join: {}", escaped(error.message()));
                if error.kind() == ErrorKind::Denied
                    && membership.upstream.find_again(&found).await.is_ok_and(|now| now != found)
                {
                    continue; // The record was written after the lookup: it has the right token.
                }
                if let Some(waits) = first.take_if(|_| !may_pass) {
                    let _ = waits.tell.send(Err(error));
                    return;
                }
                if let Some(waits) = &first {
                    *waits.error.lock().expect("nothing panics under it") = error;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Looks up where the controller is now: it may be another process than before.
async fn look_again(
    node: &Weak<Node>,
    membership: &Membership,
    found: &mut FoundController,
    client: &mut Client,
) -> Result<(), Error> {
    let now = membership.upstream.find_again(found).await?;
    if now != *found {
        *client = self::client(&now)?;
        *found = now;
        membership.secret.replace_token(found.token.clone());
        if let Some(node) = node.upgrade() {
            if let Shell::Client(index) = membership.shell {
                node.move_client(index, &found.address, found.token.clone());
            }
            node.set_upstream(membership, &found.address);
        }
    }
    Ok(())
}

/// Sends a request to join.
async fn request_join(
    client: &mut Client,
    address: &str,
    membership: &Membership,
    request: u64,
) -> Result<Joined, ConnectError> {
    let (role, process) = (membership.role.clone(), membership.process.clone());
    let join = encode_join(Join::new(membership.session_id, request, role, process));
    let reply = client.join(join).await.map_err(|status| {
        ConnectError::of_transport(address, &status)
            .unwrap_or_else(|| ConnectError::from_reply(from_status(status)))
    })?;
    decode_joined(reply.into_inner()).map_err(ConnectError::from_reply)
}

fn note(node: &Weak<Node>, membership: &Membership, words: String) {
    if let Some(node) = node.upgrade() {
        node.note(membership.shell, words);
    }
}

/// Waits until the shell may send a request to join: it must have stopped everything that it did in
/// its last session. Returns the time of the request. `None` if the shell must not join any more.
async fn ask_when_still(node: &Weak<Node>, shell: Shell) -> Option<Time> {
    loop {
        match node.upgrade()?.wants_to_join(shell) {
            JoinDecision::Now(asked) => return Some(asked),
            JoinDecision::Later => tokio::time::sleep(FIRST_PAUSE).await,
            JoinDecision::Never => return None,
        }
    }
}

/// Keeps a client's link to a worker connected, on an I/O thread.
pub(crate) fn connect_to_host(
    node: Weak<Node>,
    me: Session,
    host: Session,
    address: Arc<str>,
    token: Token,
) {
    io().spawn(async move {
        keep_connected(&node, LinkId::Host(me, host), &address, &token, None).await;
    });
}

/// Makes connections for a link as long as the link exists. If the link goes to a controller whose
/// process can be watched, and that process is dead, ends the session of the link.
async fn keep_connected(
    node: &Weak<Node>,
    which: LinkId,
    address: &str,
    token: &Token,
    controller: Option<ProcessIdentity>,
) {
    let (me, host) = match which {
        LinkId::Host(me, host) => (me, Some(host)),
        LinkId::Upstream(me) | LinkId::Session(me) | LinkId::Caller(me, _) => (me, None),
    };
    let mut pause = FIRST_PAUSE;
    for connection in 1.. {
        let Some(is_wanted) = node.upgrade().map(|node| node.wants_connection(which)) else {
            return;
        };
        if !is_wanted {
            return;
        }
        let dialled = FrameConnection::dial(address, token).await;
        if let Err(error) = &dialled {
            debug!(target: NET, link = %which, address, "could not connect: {error}");
        }
        if let Ok(dialled) = dialled {
            let outbox = dialled.outbox();
            // Ignore the result: `flush` below sends the frame.
            let _ = outbox.push(Frame::Attach { session: me, connection, host }, SendPriority::Now);
            let wanted = node
                .upgrade()
                .is_some_and(|node| node.connected(which, connection, outbox.clone()));
            if !wanted {
                return;
            }
            outbox.flush(true);
            let reader = LinkReader::new(node.clone(), which, connection);
            if reader.carry(dialled, outbox, Vec::new()).await {
                pause = FIRST_PAUSE;
            }
        }
        if controller.as_ref().is_some_and(is_dead)
            && let Some(node) = node.upgrade()
        {
            node.controller_died(me);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Upstream;
    use marline_core::controller::Role;

    fn try_to_join(address: &str, patience: Duration) -> Error {
        let node = Node::new();
        let membership = Membership {
            shell: Shell::Client(node.add_client_shell(address, None)),
            session_id: crate::new_session_id(),
            role: Role::Client,
            upstream: Upstream::At { address: address.into(), token: None },
            secret: Default::default(),
            process: None,
        };
        join(&node, membership, patience).unwrap_err()
    }

    #[test]
    fn a_join_that_gives_up_reports_the_last_cause() {
        let folder = tempfile::tempdir().unwrap();
        let socket = format!("unix:{}", folder.path().join("socket").display());
        // A listener that accepts connections and never answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = silent.local_addr().unwrap().to_string();
        let cases = [
            ("127.0.0.1:1", "connection refused"),
            (&socket, "no such file"),
            (&silent, "timed out"),
        ];
        for (address, why) in cases {
            let error = try_to_join(address, Duration::from_millis(300));
            assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Unavailable, false));
            let said = format!("no cluster answers at {address} ({why})");
            assert!(error.message().contains(&said), "{error}");
        }
    }

    #[test]
    fn a_join_does_not_retry_a_permanent_error() {
        let long = Duration::from_secs(3600);
        let error = try_to_join("127.0.0.1", long);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let error = try_to_join("unix:/no/such/folder", long);
        assert!(error.message().contains("(no such folder)"), "{error}");
    }
}
