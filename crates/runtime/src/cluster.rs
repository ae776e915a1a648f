//! A whole cluster in one process: for tests, and for programs that need no more than one process.
//! The clusters of several processes consist of the same parts (see `process.rs`).

use crate::client::Client;
use crate::executor::{Executors, Program};
use crate::net::credentials::Credentials;
use crate::node::Node;
use crate::object_store::{ObjectStore, StoreOptions};
use crate::process::with_environment;
use crate::runtime_log;
use marline_core::controller::{self, Counters, WorkerInfo, WorkerStatus};
use marline_core::error::Error;
use marline_core::resources::Resources;
use marline_core::schedule::WorkerCapabilities;
use marline_core::worker;
use std::sync::Arc;
use std::time::Duration;

/// A controller and its workers in this process, with executors on threads. Dropping it ends the
/// cluster.
pub struct Cluster {
    node: Arc<Node>,
}

impl Cluster {
    /// Starts a controller and `workers` workers. Each worker offers `resources` and runs
    /// `program`.
    ///
    /// Fails if the environment asks for a [log](crate::runtime_log) in a way that is not valid.
    ///
    /// Only a single worker gets the object store: several workers would copy values to each other
    /// that are in this process already.
    pub fn local(
        workers: usize,
        resources: Resources,
        store: Option<&StoreOptions>,
        program: Arc<dyn Program>,
    ) -> Result<Cluster, Error> {
        runtime_log::start_from_environment()?;
        let node = Node::new();
        // No other worker can join, so work that none of these workers can run fails at once.
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
        Ok(cluster)
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

    /// Starts a client of this cluster.
    pub fn client(&self) -> Client {
        Client::new(self.node.clone())
    }

    /// Returns the controller's counters of what happened so far.
    pub fn counters(&self) -> Counters {
        self.node
            .with_state(|state, _| state.controller().map(controller::Controller::counters))
            .unwrap_or_default()
    }

    /// Returns the workers, with their free resources.
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
