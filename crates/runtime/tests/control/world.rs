//! A cluster with a controller and a worker on free ports, and a program that tests can hold up.

use super::generic::ReflectionClient;
use marline_runtime::core::controller::Config;
use marline_runtime::core::error::Error;
use marline_runtime::core::payload::Payload;
use marline_runtime::core::resources::Resources;
use marline_runtime::{
    Controller, ExecutorOptions, Instance, Invocation, Program, Reply, Worker, WorkerOptions,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// A gate that is closed until a test opens it.
#[derive(Default)]
pub struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
    }
}

/// `echo` returns its arguments, `fail` fails, `gate` waits for the gate. A `Counter` counts its
/// calls, and its method `gate` waits. The constructor of a `Broken` fails.
struct Stage(Arc<Gate>);

struct Counter(AtomicU64, Arc<Gate>);

impl Program for Stage {
    fn provides(&self) -> Vec<String> {
        ["echo", "fail", "gate", "actor:Counter", "actor:Broken"].map(String::from).into()
    }

    fn run(&self, invocation: &Invocation) -> Result<Reply, Error> {
        match &*invocation.name {
            "fail" => return Err(Error::failed("it fails", Default::default())),
            "gate" => self.0.pass(),
            _ => {}
        }
        let values = vec![invocation.args.clone().into(); invocation.returns as usize];
        Ok(Reply { values, ..Reply::default() })
    }

    fn construct(&self, invocation: &Invocation) -> Result<Arc<dyn Instance>, Error> {
        match &*invocation.name {
            "Counter" => Ok(Arc::new(Counter(AtomicU64::new(0), self.0.clone()))),
            _ => Err(Error::failed("it cannot be made", Default::default())),
        }
    }
}

impl Instance for Counter {
    fn call(&self, invocation: &Invocation) -> Result<Reply, Error> {
        if &*invocation.name == "gate" {
            self.1.pass();
        }
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Reply { values: vec![Payload::raw(vec![count as u8]).into()], ..Reply::default() })
    }
}

pub struct TestCluster {
    pub client: ReflectionClient,
    pub gate: Arc<Gate>,
    pub controller: Controller,
    pub workers: Vec<(Worker, ReflectionClient)>,
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        self.gate.open();
    }
}

pub const TOKEN: &str = "secret";

/// Starts a controller without workers.
pub fn alone(config: Config) -> TestCluster {
    let controller = Controller::start("127.0.0.1:0", Some(TOKEN.into()), config).unwrap();
    let client = ReflectionClient::connect(controller.address(), Some(TOKEN)).unwrap();
    TestCluster { client, gate: Arc::default(), controller, workers: Vec::new() }
}

/// Starts a controller, and a worker with two CPUs.
pub fn world(config: Config) -> TestCluster {
    let mut world = alone(config);
    let worker = Worker::join(WorkerOptions {
        controller: world.controller.address().into(),
        token: Some(TOKEN.into()),
        listen: Some("127.0.0.1:0".into()),
        resources: Resources::cpus(2),
        preemptible: false,
        program: Arc::new(Stage(world.gate.clone())),
        executors: ExecutorOptions::Threads,
        store: None,
        config: Default::default(),
    });
    let worker = worker.unwrap();
    let listed = world.client.ok("ListWorkers", serde_json::json!({}));
    let address = listed["workers"][0]["address"].as_str().unwrap();
    let there = ReflectionClient::connect(address, Some(TOKEN)).unwrap();
    world.workers.push((worker, there));
    world
}
