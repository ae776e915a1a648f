//! A whole cluster in this process, for tests and for programs on one machine.

use crate::client::Client;
use crate::program::Program;
use marline_runtime::core::Error;
use marline_runtime::core::controller::{Counters, WorkerStatus};
use marline_runtime::core::resources::Resources;
use marline_runtime::{Setting, StoreOptions};
use std::sync::Arc;
use std::thread::available_parallelism;

/// A whole cluster in this process: controller, workers, and executors on threads. It ends when it
/// is dropped.
pub struct Cluster {
    inner: marline_runtime::Cluster,
}

/// The options of a cluster in this process. Made by [`Cluster::builder`].
pub struct ClusterBuilder {
    workers: usize,
    resources: Resources,
    object_store_memory: Option<u64>,
}

impl Cluster {
    /// Starts a cluster with one worker that offers all CPUs that this process may use.
    pub fn local(program: Program) -> Result<Cluster, Error> {
        Cluster::builder().start(program)
    }

    /// Returns a builder, for a cluster with other options.
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

    /// Returns a client of this cluster.
    pub fn client(&self) -> Client {
        Client::new(self.inner.client())
    }

    /// Returns the workers, and what each has free.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        self.inner.workers()
    }

    /// Returns how many tasks were submitted, finished, failed, and so on.
    pub fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

impl ClusterBuilder {
    /// Sets the number of workers. The default is one.
    pub fn workers(mut self, workers: usize) -> ClusterBuilder {
        self.workers = workers;
        self
    }

    /// Sets what each worker offers. The default is all CPUs.
    pub fn resources(mut self, resources: Resources) -> ClusterBuilder {
        self.resources = resources;
        self
    }

    /// Sets how many bytes of memory are for large values. The default is `MARLINE_STORE_MEMORY`,
    /// else 30 % of all memory. Values that do not fit go to the disk. With several workers, which
    /// share the memory of one process, values stay with the controller instead, and one may have
    /// at most 64 MiB.
    pub fn object_store_memory(mut self, bytes: u64) -> ClusterBuilder {
        self.object_store_memory = Some(bytes);
        self
    }

    /// Starts the cluster.
    pub fn start(self, program: Program) -> Result<Cluster, Error> {
        self.resources.validate()?;
        let limit = self.object_store_memory;
        let limit = limit.map(|value| Setting { name: "object_store_memory", value });
        let store = StoreOptions::new(limit, None, None)?.of_one_process();
        let ClusterBuilder { workers, resources, .. } = self;
        let program = Arc::new(program);
        let inner = marline_runtime::Cluster::local(workers, resources, Some(&store), program)?;
        Ok(Cluster { inner })
    }
}
