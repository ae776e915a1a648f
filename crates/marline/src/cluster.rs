//! A cluster in this process.

use crate::client::Client;
use crate::program::Program;
use marline_runtime::core::Error;
use marline_runtime::core::controller::{Counters, WorkerStatus};
use marline_runtime::core::resources::Resources;
use marline_runtime::{Setting, StoreOptions};
use std::sync::Arc;
use std::thread::available_parallelism;

/// A whole cluster in this process: controller, workers, executors on threads. Ends when it is dropped.
pub struct Cluster {
    inner: marline_runtime::Cluster,
}

/// How a cluster in this process is made.
pub struct ClusterBuilder {
    workers: usize,
    resources: Resources,
    object_store_memory: Option<u64>,
}

impl Cluster {
    /// A cluster with one worker that offers as many CPUs as there are.
    pub fn local(program: Program) -> Result<Cluster, Error> {
        Cluster::builder().start(program)
    }

    /// A cluster made to measure.
    ///
    /// ```
    /// use marline::{Cluster, Program, Resources};
    ///
    /// let program = Program::new().task("one", || 1);
    /// let cluster = Cluster::builder().workers(3).resources(Resources::cpus(2)).start(program)?;
    /// assert_eq!(cluster.workers().len(), 3);
    /// # Ok::<(), marline::Error>(())
    /// ```
    pub fn builder() -> ClusterBuilder {
        let cpus = available_parallelism().map_or(1, |cpus| cpus.get() as u32);
        ClusterBuilder { workers: 1, resources: Resources::cpus(cpus), object_store_memory: None }
    }

    /// A client of this cluster.
    pub fn client(&self) -> Client {
        Client::new(self.inner.client())
    }

    /// The workers, and what is free there.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        self.inner.workers()
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

impl ClusterBuilder {
    /// So many workers (one, unless said otherwise).
    pub fn workers(mut self, workers: usize) -> ClusterBuilder {
        self.workers = workers;
        self
    }

    /// What each worker offers (all CPUs, unless said otherwise).
    pub fn resources(mut self, resources: Resources) -> ClusterBuilder {
        self.resources = resources;
        self
    }

    /// So many bytes of memory are for large values (30 % of what there is, or `MARLINE_STORE_MEMORY`, unless said
    /// otherwise); what does not fit goes to the disk. Where there are several workers, which have one memory,
    /// values stay in the controller's: 64 MiB each at most.
    pub fn object_store_memory(mut self, bytes: u64) -> ClusterBuilder {
        self.object_store_memory = Some(bytes);
        self
    }

    /// Starts it.
    pub fn start(self, program: Program) -> Result<Cluster, Error> {
        self.resources.validate()?;
        let limit = self.object_store_memory;
        let limit = limit.map(|value| Setting { name: "object_store_memory", value });
        let store = StoreOptions::new(limit, None, None)?.of_one_process();
        let ClusterBuilder { workers, resources, .. } = self;
        let program = Arc::new(program);
        let inner = marline_runtime::Cluster::local(workers, resources, Some(&store), program);
        Ok(Cluster { inner })
    }
}
