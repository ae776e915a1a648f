//! tonic: a request with its answer, and a stream in both directions.
//!
//! The server echoes on the task of the connection. The runtime of the client has one thread for
//! input and output, and the caller blocks another thread, as with ours. *On one thread* the caller
//! drives the connection itself. That saves two wake-ups, but no message is handled while the
//! caller does other work.

use crate::child::{Child, ready};
use crate::contest::Contestant;
use crate::marline_cluster::Transport;
use echo::echoes_client::EchoesClient;
use echo::echoes_server::{Echoes, EchoesServer};
use futures_util::StreamExt;
use futures_util::stream::{FuturesUnordered, iter};
use std::pin::Pin;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

#[allow(clippy::all)]
mod echo {
    tonic::include_proto!("echo");
}

pub const UNARY: &str = "tonic unary";
pub const STREAM: &str = "tonic stream";
pub const STREAM_ON_ONE_THREAD: &str = "tonic stream on one thread";

const BYTES: usize = 16;
/// The most unary requests that are under way at a time, and the room of the channel behind the
/// stream of `once`. Only HTTP/2 flow control bounds the stream of `bulk`.
const WINDOW: usize = 1024;

fn message() -> echo::Echo {
    echo::Echo { payload: vec![7; BYTES].into() }
}

fn connect(runtime: &Runtime, server: &Child) -> EchoesClient<Channel> {
    let address = &server.ready_line;
    let uri =
        if address.starts_with("unix:") { address.clone() } else { format!("http://{address}") };
    let endpoint = Endpoint::from_shared(uri).expect("it is an address").tcp_nodelay(true);
    EchoesClient::new(runtime.block_on(endpoint.connect()).expect("the server listens"))
}

fn start(transport: Transport) -> Child {
    Child::start(&["grpc", &transport.anywhere()])
}

pub fn unary(transport: Transport) -> Contestant {
    let server = start(transport);
    let runtime = runtime();
    let mut client = connect(&runtime, &server);
    let (same, handle) = (client.clone(), runtime.handle().clone());
    let once = move || {
        let _keep = &server;
        runtime.block_on(client.once(message())).expect("the server answers");
    };
    let bulk = move |count| {
        handle.block_on(async {
            let mut answers = FuturesUnordered::new();
            for _ in 0..count {
                if answers.len() == WINDOW {
                    let answer: Option<Result<_, Status>> = answers.next().await;
                    answer.expect("one is under way").expect("the server answers");
                }
                let mut client = same.clone();
                answers.push(async move { client.once(message()).await });
            }
            while answers.next().await.is_some() {}
        });
    };
    Contestant { name: UNARY, once: Box::new(once), bulk: Some(Box::new(bulk)) }
}

pub fn stream(transport: Transport) -> Contestant {
    streaming(STREAM, transport, runtime())
}

pub fn stream_on_one_thread(transport: Transport) -> Contestant {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build();
    streaming(STREAM_ON_ONE_THREAD, transport, runtime.expect("a runtime starts"))
}

fn streaming(name: &'static str, transport: Transport, runtime: Runtime) -> Contestant {
    let server = start(transport);
    let mut client = connect(&runtime, &server);
    let mut same = client.clone();
    let (outgoing, out) = mpsc::channel(WINDOW);
    let incoming = runtime.block_on(client.stream(ReceiverStream::new(out)));
    let mut incoming = incoming.expect("the server takes a stream").into_inner();
    let runtime = std::rc::Rc::new(runtime);
    let driver = runtime.clone();
    let once = move || {
        let _keep = &server;
        driver.block_on(async {
            outgoing.send(message()).await.expect("the server lives");
            incoming.message().await.expect("the server answers").expect("it does not end");
        });
    };
    let bulk = move |count| {
        runtime.block_on(async {
            let out = iter(std::iter::repeat_with(message)).take(count);
            let answers = same.stream(out).await.expect("the server takes a stream");
            let mut answers = answers.into_inner();
            for _ in 0..count {
                answers.message().await.expect("the server answers").expect("it does not end");
            }
        });
    };
    Contestant { name, once: Box::new(once), bulk: Some(Box::new(bulk)) }
}

fn runtime() -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_io().enable_time().build();
    runtime.expect("a runtime starts")
}

struct Service;

#[tonic::async_trait]
impl Echoes for Service {
    async fn once(&self, request: Request<echo::Echo>) -> Result<Response<echo::Echo>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    type StreamStream = Pin<Box<Streaming<echo::Echo>>>;

    async fn stream(
        &self,
        request: Request<Streaming<echo::Echo>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        Ok(Response::new(Box::pin(request.into_inner())))
    }
}

/// Runs the server, as a child process.
pub fn serve(at: &str) {
    let runtime = runtime();
    let server = Server::builder().add_service(EchoesServer::new(Service));
    let guard = runtime.enter();
    if let Some(path) = at.strip_prefix("unix:") {
        let listener = UnixListener::bind(path).expect("the path is free");
        runtime.spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        drop(guard);
        return ready(at);
    }
    drop(guard);
    let listener = runtime.block_on(TcpListener::bind(at)).expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    let incoming = TcpListenerStream::new(listener).map(|stream| {
        stream.inspect(|stream| stream.set_nodelay(true).expect("TCP has the option"))
    });
    runtime.spawn(server.serve_with_incoming(incoming));
    ready(&address);
}
