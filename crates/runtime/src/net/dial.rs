//! What a node dials: the controller it joins, and the workers its clients call. A broken connection is
//! made again until its link is gone.

use super::outbox::Haste;
use super::plain::Connection;
use super::reader::Reader;
use super::server::Token;
use super::{CONNECTION_WINDOW_BYTES, KEEP_ALIVE, MAX_MESSAGE_BYTES, STREAM_WINDOW_BYTES, io};
use crate::node::{Membership, Node, Seat, Which, Wish};
use crate::proof::Process;
use crate::upstream::Found;
use crate::wire::convert::{decode_joined, encode_join, from_status};
use crate::wire::frame::Frame;
use crate::wire::join::{Join, Joined};
use crate::wire::v1::links_client::LinksClient;
use marline_core::error::{Error, ErrorKind, Ran};
use marline_core::id::Session;
use marline_core::time::Time;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// The first wait before a connection is made again; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A connection that says who it is.
pub(crate) type Wire = InterceptedService<Channel, Credentials>;
type Client = LinksClient<Wire>;

#[derive(Clone)]
pub(crate) struct Credentials(Token);

impl tonic::service::Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            let value = format!("Bearer {token}").parse();
            let value =
                value.map_err(|_| Status::invalid_argument("the token is not plain text"))?;
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }
}

fn client(found: &Found) -> Result<Client, Error> {
    Ok(LinksClient::new(channel(&found.nearest, found.token.clone())?)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES))
}

/// A connection that is made when it is needed. To be called where the runtime for input and output is.
pub(crate) fn channel(address: &str, token: Token) -> Result<Wire, Error> {
    let uri = if address.contains(':') && (address.starts_with("unix:") || address.contains("://"))
    {
        address.to_owned()
    } else {
        format!("http://{address}")
    };
    let endpoint = Endpoint::from_shared(uri)
        .map_err(|error| {
            Error::invalid(format!(
                "{address:?} is no address: {error}; expected host:port or unix:/path"
            ))
        })?
        .tcp_nodelay(true)
        .connect_timeout(Duration::from_secs(5))
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    Ok(InterceptedService::new(endpoint.connect_lazy(), Credentials(token)))
}

/// Joins a controller elsewhere, and keeps the membership up. Blocks until it has joined once, or
/// `patience` is over.
pub(crate) fn join(
    node: &Arc<Node>,
    membership: Membership,
    patience: Duration,
) -> Result<(), Error> {
    let found = membership.upstream.find(None)?;
    let guard = io().enter();
    let client = client(&found)?;
    drop(guard);
    node.belongs(&membership, &found.address);
    let (tell, told) = marline_channel::oneshot();
    let weak = Arc::downgrade(node);
    let address = found.address.clone();
    io().spawn(stay(weak, membership, found, client, tell));
    let mut told = told;
    match told.recv().timeout(patience).wait() {
        Ok(result) => result,
        Err(_) => Err(Error::unavailable(
            Ran::No,
            format!(
                "no controller answers at {address}: start one with `marline up`, or check the address"
            ),
        )),
    }
}

/// Joins, stays connected, and joins again when the session is over: where the controller is by then.
async fn stay(
    node: Weak<Node>,
    membership: Membership,
    mut found: Found,
    mut client: Client,
    first: marline_channel::oneshot::Sender<Result<(), Error>>,
) {
    let mut first = Some(first);
    let mut pause = FIRST_PAUSE;
    let mut request = 0;
    let mut lost = false;
    loop {
        request += 1;
        let Some(asked) = ask_when_still(&node, membership.seat).await else { return };
        if first.is_none() && !lost {
            lost = true;
            let words = format!("lost the cluster at {}, trying again", found.address);
            note(&node, &membership, words);
        }
        let there = look_again(&node, &membership, &mut found, &mut client).await;
        let joined = match there {
            Ok(()) => ask(&mut client, &membership, request).await,
            Err(error) => Err(error),
        };
        match joined {
            Ok(joined) => {
                pause = FIRST_PAUSE;
                let session = joined.session;
                let controller = joined.process.clone().filter(Process::can_be_seen);
                let Some(node_) = node.upgrade() else { return };
                node_.joined(membership.seat, joined, asked);
                drop(node_);
                if let Some(first) = first.take() {
                    let _ = first.send(Ok(()));
                }
                if std::mem::take(&mut lost) {
                    let words = format!("joined the cluster at {} again", found.address);
                    note(&node, &membership, words);
                }
                let which = Which::Upstream(session);
                keep_connected(&node, which, &found.nearest, &found.token, controller).await;
            }
            // Trying again helps only if nobody answered.
            Err(error) if error.kind() != ErrorKind::Unavailable && first.is_some() => {
                let _ = first.take().expect("it is there").send(Err(error));
                return;
            }
            Err(_) => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Looks where the controller is now: it may be another process than before.
async fn look_again(
    node: &Weak<Node>,
    membership: &Membership,
    found: &mut Found,
    client: &mut Client,
) -> Result<(), Error> {
    let now = membership.upstream.find_again(found).await?;
    if now != *found {
        *client = self::client(&now)?;
        *found = now;
        membership.secret.set(found.token.clone());
        if let Some(node) = node.upgrade() {
            node.belongs(membership, &found.address);
        }
    }
    Ok(())
}

/// Asks to be let in.
async fn ask(client: &mut Client, membership: &Membership, request: u64) -> Result<Joined, Error> {
    let join = encode_join(Join {
        process: membership.process.clone(),
        ..Join::new(membership.session_id, request, membership.role.clone())
    });
    let reply = client.join(join).await.map_err(from_status)?;
    decode_joined(reply.into_inner())
}

fn note(node: &Weak<Node>, membership: &Membership, words: String) {
    if let Some(node) = node.upgrade() {
        node.note(membership.seat, words);
    }
}

/// When to ask: whoever asks to join has stopped whatever it did before. Nothing if it is to leave.
async fn ask_when_still(node: &Weak<Node>, seat: Seat) -> Option<Time> {
    loop {
        match node.upgrade()?.wants_to_join(seat) {
            Wish::Now(asked) => return Some(asked),
            Wish::Later => tokio::time::sleep(FIRST_PAUSE).await,
            Wish::Never => return None,
        }
    }
}

/// Keeps a client's link to a worker connected.
pub(crate) fn call(node: Weak<Node>, me: Session, host: Session, address: Arc<str>, token: Token) {
    io().spawn(async move {
        keep_connected(&node, Which::Host(me, host), &address, &token, None).await;
    });
}

/// Makes connections for a link as long as the link is there. If it is the link to a controller whose
/// process can be seen, and that process is gone, its session is over.
async fn keep_connected(
    node: &Weak<Node>,
    which: Which,
    address: &str,
    token: &Token,
    controller: Option<Process>,
) {
    let (me, host) = match which {
        Which::Host(me, host) => (me, Some(host)),
        Which::Upstream(me) | Which::Session(me) | Which::Caller(me, _) => (me, None),
    };
    let mut pause = FIRST_PAUSE;
    for connection in 1.. {
        let Some(is_wanted) = node.upgrade().map(|node| node.wants_connection(which)) else {
            return;
        };
        if !is_wanted {
            return;
        }
        if let Ok(dialled) = Connection::dial(address, token).await {
            let outbox = dialled.outbox();
            // Whoever pushes next flushes it too.
            let _ = outbox.push(Frame::Attach { session: me, connection, host }, Haste::Now);
            let wanted = node
                .upgrade()
                .is_some_and(|node| node.connected(which, connection, outbox.clone()));
            if !wanted {
                return;
            }
            outbox.flush(true);
            let reader = Reader::new(node.clone(), which, connection);
            if reader.carry(dialled, outbox, Vec::new()).await {
                pause = FIRST_PAUSE;
            }
        }
        if controller.as_ref().is_some_and(Process::is_dead)
            && let Some(node) = node.upgrade()
        {
            node.controller_died(me);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
