//! A cluster in this process.

use crate::client::Client;
use crate::program::Program;
use marline_runtime::core::Error;
use marline_runtime::core::controller::{Counters, WorkerStatus};
use marline_runtime::core::resources::Resources;
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
        ClusterBuilder { workers: 1, resources: Resources::cpus(cpus) }
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

    /// Starts it.
    pub fn start(self, program: Program) -> Result<Cluster, Error> {
        self.resources.validate()?;
        let inner =
            marline_runtime::Cluster::local(self.workers, self.resources, Arc::new(program));
        Ok(Cluster { inner })
    }
}
