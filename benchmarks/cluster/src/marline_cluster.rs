//! Marline as it is measured: a cluster in this process, or a controller and a worker in processes
//! of their own with this process as the client.

use crate::child::{Child, ready};
use crate::contest::Contestant;
use marline::{ActorHandle, Client, Cluster, Controller, Program, Worker};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub struct Echo;

impl Echo {
    fn new() -> Echo {
        Echo
    }

    fn ask(&mut self, value: u64) -> u64 {
        value
    }

    fn pid(&mut self) -> u32 {
        std::process::id()
    }
}

pub fn program() -> Program {
    Program::new()
        .task("nothing", || ())
        .actor("Echo", Echo::new, |echo| echo.method("ask", Echo::ask).method("pid", Echo::pid))
}

/// How a client reaches its cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    Embedded,
    Tcp,
    Unix,
    /// Unix sockets, and executors that are processes of their own.
    Processes,
}

impl Transport {
    pub const ALL: [Transport; 4] =
        [Transport::Embedded, Transport::Tcp, Transport::Unix, Transport::Processes];

    pub fn name(self) -> &'static str {
        match self {
            Transport::Embedded => "embedded",
            Transport::Tcp => "tcp",
            Transport::Unix => "unix",
            Transport::Processes => "unix/processes",
        }
    }

    /// Returns a free address to listen on.
    pub fn anywhere(self) -> String {
        match self {
            Transport::Embedded | Transport::Tcp => "127.0.0.1:0".into(),
            Transport::Unix | Transport::Processes => format!("unix:{}", socket_path().display()),
        }
    }
}

/// Returns the folder for the sockets of this run. `main` removes it at the end.
pub fn socket_folder() -> PathBuf {
    std::env::temp_dir().join(format!("marline-bench-{}", std::process::id()))
}

fn socket_path() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let folder = socket_folder();
    std::fs::create_dir_all(&folder).expect("the folder for temporary files can be written to");
    folder.join(NEXT.fetch_add(1, Relaxed).to_string())
}

/// A running cluster. It ends when this value is dropped.
pub struct MarlineCluster {
    pub client: Client,
    pub workers: Vec<Child>,
    transport: Transport,
    controller: Option<Child>,
    _embedded: Option<Cluster>,
}

impl MarlineCluster {
    pub fn start(transport: Transport) -> MarlineCluster {
        if transport == Transport::Embedded {
            let cluster = Cluster::local(program()).expect("a cluster starts");
            let client = cluster.client();
            let (workers, controller) = (Vec::new(), None);
            return MarlineCluster {
                client,
                workers,
                transport,
                controller,
                _embedded: Some(cluster),
            };
        }
        let controller = Child::start(&["controller", &transport.anywhere()]);
        let client =
            Client::connect(&controller.ready_line).expect("the controller lets a client in");
        let controller = Some(controller);
        let mut ours =
            MarlineCluster { client, workers: Vec::new(), transport, controller, _embedded: None };
        ours.add_worker();
        ours
    }

    /// Starts another worker process.
    pub fn add_worker(&mut self) {
        let controller = &self.controller.as_ref().expect("it is a process").ready_line;
        let executors =
            if self.transport == Transport::Processes { "processes" } else { "threads" };
        let listen = self.transport.anywhere();
        self.workers.push(Child::start(&["worker", controller, &listen, executors]));
    }

    pub fn actor(&self) -> ActorHandle {
        let actor = self.client.actor("Echo").create(()).expect("an actor is created");
        assert_eq!(actor.call::<u64>("ask", (1_u64,)).unwrap().wait().unwrap(), 1);
        actor
    }

    /// Returns a contestant whose request is a task that does nothing.
    pub fn task(&self) -> Contestant {
        let (client, same) = (self.client.clone(), self.client.clone());
        let once = move || client.task("nothing").submit::<()>(()).unwrap().wait().unwrap();
        let bulk = move |count| {
            let all: Vec<_> =
                (0..count).map(|_| same.task("nothing").submit::<()>(()).unwrap()).collect();
            all.into_iter().for_each(|one| one.wait().unwrap());
        };
        Contestant { name: "marline", once: Box::new(once), bulk: Some(Box::new(bulk)) }
    }

    /// Returns a contestant whose request is a call that returns its argument.
    pub fn call(&self) -> Contestant {
        let actor = self.actor();
        let same = actor.clone();
        let once = move || {
            actor.call::<u64>("ask", (7_u64,)).unwrap().wait().unwrap();
        };
        let bulk = move |count| {
            let all: Vec<_> =
                (0..count).map(|_| same.call::<u64>("ask", (7_u64,)).unwrap()).collect();
            all.into_iter().for_each(|one| assert_eq!(one.wait().unwrap(), 7));
        };
        Contestant { name: "marline", once: Box::new(once), bulk: Some(Box::new(bulk)) }
    }
}

/// Runs a controller, as a child process.
pub fn controller(at: &str) {
    let controller = Controller::listen(at).expect("a controller listens");
    ready(controller.address());
}

/// Runs a worker, as a child process.
pub fn worker(controller: &str, listen: &str, executors: &str) {
    let worker = Worker::of(program()).listen(listen);
    let worker = if executors == "threads" { worker.threads() } else { worker };
    let _worker = worker.join(controller).expect("the controller lets a worker in");
    ready("joined");
}
