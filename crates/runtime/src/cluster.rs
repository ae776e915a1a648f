//! A whole cluster in one process: for tests, for programs that need no more, and as the start of
//! everything larger.

use crate::client::Client;
use crate::executor::{Executors, Program};
use crate::net::credentials::Credentials;
use crate::node::Node;
use crate::object_store::{ObjectStore, StoreOptions};
use crate::process::with_environment;
use marline_core::controller::{self, Counters, WorkerInfo, WorkerStatus};
use marline_core::resources::Resources;
use marline_core::schedule::WorkerCapabilities;
use marline_core::worker;
use std::sync::Arc;
use std::time::Duration;

/// A controller and workers in this process, with executors on threads. Ends when it is dropped.
pub struct Cluster {
    node: Arc<Node>,
}

impl Cluster {
    /// Starts a controller and `workers` workers that each offer `resources` and run `program`. A single one may have
    /// a store of large values; several would bring each other what is in this process anyway.
    pub fn local(
        workers: usize,
        resources: Resources,
        store: Option<&StoreOptions>,
        program: Arc<dyn Program>,
    ) -> Cluster {
        let node = Node::new();
        // No other worker can join: a worker that knows more is not waited for.
        let config = controller::Config {
            unknown_task_wait: Duration::ZERO,
            ..controller::Config::default()
        };
        node.host_controller(config);
        let cluster = Cluster { node };
        for _ in 0..workers {
            let store = store.filter(|_| workers == 1);
            let store = store.map(|store| ObjectStore::new(store, Credentials::default()));
            cluster.add_worker(resources.clone(), store, program.clone());
        }
        cluster
    }

    fn add_worker(
        &self,
        resources: Resources,
        store: Option<ObjectStore>,
        program: Arc<dyn Program>,
    ) {
        let names = program.provides().into_iter().map(Arc::from).collect();
        let info = WorkerInfo {
            address: Some("here".into()),
            hostname: "localhost".into(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            resources,
            store: None,
            durable: false,
            provides: Arc::new(WorkerCapabilities { names, ..WorkerCapabilities::default() }),
        };
        let config = with_environment(worker::Config::default());
        self.node.host_worker(Executors::Threads(program), store, info, config);
    }

    /// A client of this cluster.
    pub fn client(&self) -> Client {
        Client::new(self.node.clone())
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.node
            .with_state(|state, _| state.controller().map(controller::Controller::counters))
            .unwrap_or_default()
    }

    /// The workers, and what is free there.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        self.node
            .with_state(|state, _| state.controller().map(controller::Controller::list_workers))
            .unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.node.close();
    }
}
