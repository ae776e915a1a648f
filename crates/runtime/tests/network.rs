//! A controller, a worker and a client, each a node of its own, that meet over real sockets.

use marline_runtime::core::controller::Config;
use marline_runtime::core::error::{Error, ErrorKind};
use marline_runtime::core::id::ActorId;
use marline_runtime::core::payload::{Outcome, Payload};
use marline_runtime::core::resources::Resources;
use marline_runtime::core::spec::{ActorOptions, ActorSpec, Budget, Target, TaskOptions, TaskSpec};
use marline_runtime::{
    Client, Controller, ExecutorOptions, Instance, Invocation, Program, Reply, Worker,
    WorkerOptions, new_actor_id, new_object_id, new_task_id,
};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// `echo` returns its arguments. A `Counter` counts its calls.
struct Echo;

struct Counter(AtomicU64);

impl Program for Echo {
    fn provides(&self) -> Vec<String> {
        vec!["echo".into(), "fail".into(), "actor:Counter".into()]
    }

    fn run(&self, invocation: &Invocation) -> Result<Reply, Error> {
        match &*invocation.name {
            "echo" => {
                Ok(Reply { values: vec![invocation.args.clone().into()], ..Reply::default() })
            }
            _ => Err(Error::failed("it fails", Default::default())),
        }
    }

    fn construct(&self, _: &Invocation) -> Result<Arc<dyn Instance>, Error> {
        Ok(Arc::new(Counter(AtomicU64::new(0))))
    }
}

impl Instance for Counter {
    fn call(&self, _: &Invocation) -> Result<Reply, Error> {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        let payload = Payload::raw(count.to_le_bytes().to_vec());
        Ok(Reply { values: vec![payload.into()], ..Reply::default() })
    }
}

fn task(name: &str, args: &'static [u8]) -> Arc<TaskSpec> {
    Arc::new(TaskSpec {
        id: new_task_id(),
        target: Target::Function(name.into()),
        args: Payload::raw(args),
        needs: Vec::new(),
        referents: Vec::new(),
        returns: 1,
        stream_window: None,
        options: Arc::new(TaskOptions::default()),
    })
}

fn call(actor: ActorId) -> Arc<TaskSpec> {
    let options = TaskOptions { max_retries: Budget::Unlimited, ..TaskOptions::default() };
    Arc::new(TaskSpec {
        target: Target::Method { actor, method: "count".into() },
        options: Arc::new(options),
        ..(*task("", b"")).clone()
    })
}

fn counter() -> Arc<ActorSpec> {
    Arc::new(ActorSpec {
        id: new_actor_id(),
        class: "Counter".into(),
        args: Payload::raw(&b""[..]),
        needs: Vec::new(),
        referents: Vec::new(),
        name: None,
        namespace: "default".into(),
        options: Arc::new(ActorOptions::default()),
        interface: Default::default(),
    })
}

fn worker(controller: &str, token: Option<Arc<str>>, listen: Option<&str>) -> Worker {
    Worker::join(WorkerOptions {
        controller: controller.into(),
        token,
        listen: listen.map(Into::into),
        resources: Resources::cpus(2),
        preemptible: false,
        program: Arc::new(Echo),
        executors: ExecutorOptions::Threads,
        store: None,
        config: Default::default(),
    })
    .unwrap()
}

fn bytes(outcome: Outcome) -> Vec<u8> {
    outcome.unwrap()[0].payload.inline.to_vec()
}

fn tasks_and_calls_work(client: &Client) {
    let echoed = client.submit(task("echo", b"hello")).unwrap();
    assert_eq!(bytes(echoed.wait().unwrap()), b"hello");
    let failed = client.submit(task("fail", b"")).unwrap().wait().unwrap().unwrap_err();
    assert_eq!((failed.kind(), failed.message()), (ErrorKind::Failed, "it fails"));

    let many: Vec<_> = (0..500).map(|_| client.submit(task("echo", b"again")).unwrap()).collect();
    for handle in many {
        assert_eq!(bytes(handle.wait().unwrap()), b"again");
    }

    let actor = client.create_actor(counter()).unwrap().wait().unwrap().unwrap();
    let calls: Vec<_> = (0..200).map(|_| client.call(call(actor), vec![], None).unwrap()).collect();
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(bytes(call.wait().unwrap()), (number as u64 + 1).to_le_bytes());
    }
}

#[test]
fn a_cluster_works_over_tcp() {
    let controller = Controller::start("127.0.0.1:0", None, Config::default()).unwrap();
    let _worker = worker(controller.address(), None, Some("127.0.0.1:0"));
    tasks_and_calls_work(&Client::connect(controller.address(), None).unwrap());
}

#[test]
fn a_cluster_works_over_unix_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| format!("unix:{}", folder.path().join(name).display());
    let controller = Controller::start(&at("controller"), None, Config::default()).unwrap();
    let _worker = worker(controller.address(), None, Some(&at("worker")));
    tasks_and_calls_work(&Client::connect(controller.address(), None).unwrap());
}

#[test]
fn calls_to_a_worker_that_listens_nowhere_go_through_the_controller() {
    let controller = Controller::start("127.0.0.1:0", None, Config::default()).unwrap();
    let _worker = worker(controller.address(), None, None);
    tasks_and_calls_work(&Client::connect(controller.address(), None).unwrap());
}

#[test]
fn a_client_without_the_right_token_is_denied() {
    let token: Arc<str> = "secret".into();
    let controller =
        Controller::start("127.0.0.1:0", Some(token.clone()), Config::default()).unwrap();
    for wrong in [None, Some("other".into())] {
        let Err(error) = Client::connect(controller.address(), wrong) else {
            panic!("a wrong token was accepted")
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    let _worker = worker(controller.address(), Some(token.clone()), Some("127.0.0.1:0"));
    tasks_and_calls_work(&Client::connect(controller.address(), Some(token)).unwrap());
}

#[test]
fn a_public_address_requires_a_token() {
    let Err(error) = Controller::start("0.0.0.0:0", None, Config::default()) else {
        panic!("it listens without a token")
    };
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[test]
fn pending_tasks_and_calls_run_when_a_worker_joins_later() {
    let controller = Controller::start("127.0.0.1:0", None, Config::default()).unwrap();
    let client = Client::connect(controller.address(), None).unwrap();
    let waits = client.submit(task("echo", b"late")).unwrap();
    let actor = client.create_actor(counter()).unwrap().wait().unwrap().unwrap();
    let called = client.call(call(actor), vec![], None).unwrap();
    let _worker = worker(controller.address(), None, Some("127.0.0.1:0"));
    assert_eq!(bytes(waits.wait().unwrap()), b"late");
    assert_eq!(bytes(called.wait().unwrap()), 1_u64.to_le_bytes());
}

#[test]
fn a_worker_has_no_tasks_left_after_a_client_has_left() {
    let controller = Controller::start("127.0.0.1:0", None, Config::default()).unwrap();
    let _worker = worker(controller.address(), None, Some("127.0.0.1:0"));
    let client = Client::connect(controller.address(), None).unwrap();
    client.submit(task("echo", b"hello")).unwrap().wait().unwrap().unwrap();
    drop(client);
    let watcher = Client::connect(controller.address(), None).unwrap();
    // Work that the controller does after it has handled the first client's leaving.
    for _ in 0..50 {
        watcher.submit(task("echo", b"x")).unwrap().wait().unwrap().unwrap();
    }
    let workers = controller.workers();
    assert_eq!((workers.len(), workers[0].tasks, workers[0].actors), (1, 0, 0));
}

#[test]
fn a_call_that_needs_an_unconfirmed_stored_put_must_sync_first() {
    let controller = Controller::start("127.0.0.1:0", None, Config::default()).unwrap();
    let client = Client::connect(controller.address(), None).unwrap();
    let needing = |object| {
        let call = call(new_actor_id());
        TaskSpec { needs: vec![object], ..(*call).clone() }
    };
    let small = client.put(Payload::raw("small").into()).unwrap();
    assert!(!client.must_sync_before(&needing(small)), "a small value travels in the call");
    let large = new_object_id();
    client.put_as(large, Payload::raw("large").stored_as(large).into(), None).unwrap();
    assert!(client.must_sync_before(&needing(large)));
    assert!(!client.must_sync_before(&call(new_actor_id())), "the call needs no value");
    client.sync().unwrap();
    assert!(!client.must_sync_before(&needing(large)));
    let here = controller.client();
    here.put_as(new_object_id(), Payload::raw("large").stored_as(large).into(), None).unwrap();
    assert!(!here.must_sync_before(&needing(large)), "its own controller knows the value");
}

/// A timeout that no correct run reaches.
const DEADLINE: Duration = Duration::from_secs(60);

fn large(bytes: usize) -> Arc<TaskSpec> {
    Arc::new(TaskSpec { args: Payload::raw(vec![7; bytes]), ..(*task("echo", b"")).clone() })
}

/// Starts a proxy between a client and its controller. While `stuck`, the client gets nothing.
fn between(controller: &str, stuck: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (controller, stuck) = (controller.to_owned(), stuck.clone());
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&controller) else { return };
            let (to_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let stuck = stuck.clone();
            thread::spawn(move || pass_on(client, to_server, &AtomicBool::new(false)));
            thread::spawn(move || pass_on(server, to_client, &stuck));
        }
    });
    address
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, stuck: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        while stuck.load(Ordering::Acquire) {
            thread::park_timeout(Duration::from_millis(5));
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn a_client_that_does_not_read_delays_no_other_client() {
    let controller = Controller::start("127.0.0.1:0", None, Config::default()).unwrap();
    let _worker = worker(controller.address(), None, Some("127.0.0.1:0"));
    let stuck = Arc::new(AtomicBool::new(false));
    let slow = Client::connect(&between(controller.address(), &stuck), None).unwrap();
    slow.submit(large(1)).unwrap().wait().unwrap().unwrap();
    stuck.store(true, Ordering::Release);
    // Each submission waits for room, which comes when the client reads again.
    let submits = thread::spawn(move || {
        for _ in 0..30 {
            slow.submit(large(1 << 20)).unwrap();
        }
    });
    let other = Client::connect(controller.address(), None).unwrap();
    tasks_and_calls_work(&other);
    tasks_and_calls_work(&other);
    stuck.store(false, Ordering::Release);
    submits.join().unwrap();
    tasks_and_calls_work(&other);
}

/// Starts a controller with a token, and a worker and a client that have the token.
fn guarded_cluster() -> (Controller, Worker, Client) {
    let token: Arc<str> = "secret".into();
    let controller =
        Controller::start("127.0.0.1:0", Some(token.clone()), Config::default()).unwrap();
    let worker = worker(controller.address(), Some(token.clone()), Some("127.0.0.1:0"));
    let client = Client::connect(controller.address(), Some(token)).unwrap();
    (controller, worker, client)
}

#[test]
fn an_empty_or_too_long_token_is_rejected() {
    let long = "x".repeat(4097);
    for token in ["", &long] {
        let started = Controller::start("127.0.0.1:0", Some(token.into()), Config::default());
        let error = started.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("MAX_TOKEN_BYTES"), "{error}");
    }
}

#[test]
fn malformed_bytes_end_only_their_own_connection() {
    let (controller, _worker, client) = guarded_cluster();
    let messages: [&[u8]; 5] = [
        b"MRLN\xff\x01",
        b"MRLN\x02\x09nonsense that is as long as a nonce",
        b"MRL1\0\0\0\x06secret\0\0\0\0",
        b"DATA\0\0\0\x06secret",
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    ];
    for message in messages {
        let mut stranger = TcpStream::connect(controller.address()).unwrap();
        stranger.write_all(message).unwrap();
        stranger.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut answer = Vec::new();
        let end = stranger.read_to_end(&mut answer);
        let timed_out =
            matches!(&end, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!timed_out, "the connection is still open after {message:?}");
    }
    tasks_and_calls_work(&client);
}

#[test]
fn a_task_with_too_large_arguments_is_rejected_and_others_run() {
    let controller = Controller::start("127.0.0.1:0", None, Config::default()).unwrap();
    let _worker = worker(controller.address(), None, Some("127.0.0.1:0"));
    let client = Client::connect(controller.address(), None).unwrap();
    let limit = Config::default().max_payload_bytes;
    let mut passes = client.submit(large(limit)).unwrap();
    assert_eq!(bytes(passes.wait_timeout(DEADLINE).unwrap()).len(), limit);
    for bytes in [limit + 1, 100 << 20] {
        let refused =
            client.submit(large(bytes)).and_then(|mut task| task.wait_timeout(DEADLINE)?);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::TooLarge);
    }
    tasks_and_calls_work(&client);
}
