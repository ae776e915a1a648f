//! Tasks and calls that yield items while they run: in one process, and between nodes over sockets.

use marline_runtime::core::controller::Config;
use marline_runtime::core::error::{Error, ErrorKind};
use marline_runtime::core::id::{ActorId, ObjectId, Referent};
use marline_runtime::core::payload::{Outcome, Payload};
use marline_runtime::core::resources::Resources;
use marline_runtime::core::spec::{ActorOptions, ActorSpec, Target, TaskOptions, TaskSpec};
use marline_runtime::{
    Client, Cluster, Controller, ExecutorOptions, Instance, Invocation, ItemStream, Program, Reply,
    StreamNext, Waiter, Worker, WorkerOptions, new_actor_id, new_task_id,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// `count` yields 0, 1, 2, … below its argument, and fails if the argument is odd. A `Counter` has
/// a method that does the same.
#[derive(Default)]
struct Count {
    /// How many items were made, including those that found no room in the end.
    made: AtomicU32,
}

impl Count {
    fn give(&self, invocation: &Invocation) -> Result<Reply, Error> {
        let Some(items) = &invocation.items else {
            return Err(Error::failed("the call is not a stream", Default::default()));
        };
        let text = String::from_utf8_lossy(&invocation.args.inline).into_owned();
        let count: u32 = text.parse().expect("a number");
        for number in 0..count {
            items.wait()?;
            self.made.fetch_add(1, Ordering::Relaxed);
            items.yield_item(Payload::raw(number.to_string()).into())?;
        }
        match count % 2 {
            0 => Ok(Reply::default()),
            _ => Err(Error::failed("it is odd", Default::default())),
        }
    }
}

struct Shared(Arc<Count>);

impl Program for Shared {
    fn provides(&self) -> Vec<String> {
        vec!["count".into(), "actor:Counter".into()]
    }

    fn streams(&self) -> bool {
        true
    }

    fn run(&self, invocation: &Invocation) -> Result<Reply, Error> {
        self.0.give(invocation)
    }

    fn construct(&self, _: &Invocation) -> Result<Arc<dyn Instance>, Error> {
        Ok(Arc::new(Shared(self.0.clone())))
    }
}

impl Instance for Shared {
    fn call(&self, invocation: &Invocation) -> Result<Reply, Error> {
        self.0.give(invocation)
    }
}

fn task(count: u32, most: u32) -> Arc<TaskSpec> {
    Arc::new(TaskSpec {
        id: new_task_id(),
        target: Target::Function("count".into()),
        args: Payload::raw(count.to_string()),
        needs: Vec::new(),
        referents: Vec::new(),
        returns: 1,
        stream_window: Some(most),
        options: Arc::new(TaskOptions::default()),
    })
}

fn call(actor: ActorId, count: u32, most: u32) -> Arc<TaskSpec> {
    let target = Target::Method { actor, method: "count".into() };
    Arc::new(TaskSpec { target, ..(*task(count, most)).clone() })
}

/// Returns a maker of callbacks, and the receiver of the outcomes that they get.
fn told() -> (impl Fn() -> marline_runtime::Callback<Outcome>, Receiver<Outcome>) {
    let (sender, outcomes) = mpsc::channel();
    let sender = Arc::new(Mutex::new(sender));
    let make = move || {
        let sender = sender.clone();
        let callback: marline_runtime::Callback<Outcome> =
            Box::new(move |outcome| drop(sender.lock().unwrap().send(outcome)));
        callback
    };
    (make, outcomes)
}

/// Returns the next item, or how the stream ended.
fn next(stream: &ItemStream) -> Result<Option<(ObjectId, String)>, Error> {
    loop {
        match stream.take() {
            StreamNext::Item(object, value) => {
                let text = String::from_utf8_lossy(&value?.payload.inline).into_owned();
                return Ok(Some((object, text)));
            }
            StreamNext::End(end) => return end.map(|()| None),
            StreamNext::Pending => {
                let waiter = Arc::<Waiter>::default();
                let ring = waiter.clone();
                stream.on_ready(Box::new(move || ring.notify()));
                waiter.wait(Instant::now() + LONG);
            }
        }
    }
}

fn takes_all(client: &Client, stream: &ItemStream, count: u32) {
    for number in 0..count {
        let (object, text) = next(stream).unwrap().expect("there are more");
        assert_eq!((object, text), (ObjectId::item(stream.task(), number), number.to_string()));
        client.release(Referent::Object(object));
    }
    match count % 2 {
        0 => assert_eq!(next(stream).unwrap(), None),
        _ => {
            let error = next(stream).unwrap_err();
            assert_eq!((error.kind(), error.message()), (ErrorKind::Failed, "it is odd"));
            assert_eq!(next(stream).unwrap(), None, "the error is returned once");
        }
    }
}

fn tasks_and_calls_stream(client: &Client) {
    let spec = ActorSpec {
        id: new_actor_id(),
        class: "Counter".into(),
        args: Payload::raw(&b""[..]),
        needs: Vec::new(),
        referents: Vec::new(),
        name: None,
        namespace: "default".into(),
        options: Arc::new(ActorOptions::default()),
        interface: Default::default(),
    };
    let actor = client.create_actor(Arc::new(spec)).unwrap().wait().unwrap().unwrap();
    for (count, most) in [(0, 1), (1, 1), (100, 1), (1_000, 64), (17, 4)] {
        let (tell, ended) = told();
        let stream = client.submit_stream(task(count, most), tell).unwrap();
        takes_all(client, &stream, count);
        let outcome = ended.recv_timeout(LONG).unwrap();
        if let Ok(values) = outcome {
            let bytes = [&[0xcf][..], &u64::from(count).to_be_bytes()].concat();
            assert_eq!(&values[0].payload.inline[..], bytes);
        }
        let (tell, _ended) = told();
        let spec = call(actor, count, most);
        let stream = client.call_stream(spec, Some(Vec::new()), None, tell()).unwrap();
        takes_all(client, &stream, count);
    }
}

fn worker(controller: &str, listen: Option<&str>) -> Worker {
    Worker::join(WorkerOptions {
        controller: controller.into(),
        token: None,
        listen: listen.map(Into::into),
        resources: Resources::cpus(2),
        preemptible: false,
        program: Arc::new(Shared(Arc::default())),
        executors: ExecutorOptions::Threads,
        store: None,
        config: Default::default(),
    })
    .unwrap()
}

fn embedded() -> (Cluster, Arc<Count>) {
    let count = Arc::<Count>::default();
    let program = Arc::new(Shared(count.clone()));
    let cluster = Cluster::local(1, Resources::cpus(2), None, program).unwrap();
    (cluster, count)
}

#[test]
fn streams_arrive_in_order_in_one_process() {
    let (cluster, _) = embedded();
    tasks_and_calls_stream(&cluster.client());
}

#[test]
fn streams_of_direct_calls_arrive_in_order_over_tcp() {
    let controller = Controller::start("127.0.0.1:0", None, Config::default()).unwrap();
    let _worker = worker(controller.address(), Some("127.0.0.1:0"));
    tasks_and_calls_stream(&Client::connect(controller.address(), None).unwrap());
}

#[test]
fn streams_of_calls_through_the_controller_arrive_in_order() {
    let controller = Controller::start("127.0.0.1:0", None, Config::default()).unwrap();
    let _worker = worker(controller.address(), None);
    tasks_and_calls_stream(&Client::connect(controller.address(), None).unwrap());
}

#[test]
fn a_producer_makes_only_its_window_of_items_and_stops_on_close() {
    let (cluster, count) = embedded();
    let client = cluster.client();
    let (tell, ended) = told();
    let stream = client.submit_stream(task(1_000_000, 8), tell).unwrap();
    let first = next(&stream).unwrap().unwrap().0;
    let end = Instant::now() + LONG;
    while count.made.load(Ordering::Relaxed) < 8 {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    stream.close();
    assert_eq!(next(&stream).unwrap(), None);
    let error = ended.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let made = count.made.load(Ordering::Relaxed);
    assert!((8..=10).contains(&made), "{made}: one was taken, and reported in steps of two");
    let value = client.get(first).unwrap().wait().unwrap().unwrap();
    assert_eq!(&value.payload.inline[..], b"0", "an item that was taken stays");
}

#[test]
fn a_stream_of_a_program_that_does_not_stream_is_unsupported() {
    struct Plain;
    impl Program for Plain {
        fn provides(&self) -> Vec<String> {
            vec!["count".into()]
        }
        fn run(&self, _: &Invocation) -> Result<Reply, Error> {
            unreachable!("the program cannot stream")
        }
        fn construct(&self, _: &Invocation) -> Result<Arc<dyn Instance>, Error> {
            unreachable!("the program has no actors")
        }
    }
    let cluster = Cluster::local(1, Resources::cpus(1), None, Arc::new(Plain)).unwrap();
    let (tell, _ended) = told();
    let stream = cluster.client().submit_stream(task(2, 8), tell).unwrap();
    let error = next(&stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
