//! A controller that others join, and workers that join it: processes of a cluster.
//!
//! ```
//! use marline::{Client, Controller, Program, Worker};
//!
//! let controller = Controller::listen("127.0.0.1:0")?;                      // in one process …
//! let program = Program::new().task("square", |x: i64| x * x);
//! let _worker = Worker::of(program).join(controller.address())?;            // … in others …
//! let client = Client::connect(controller.address())?;                      // … and in a third
//! assert_eq!(client.task("square").submit::<i64>((9_i64,))?.wait()?, 81);
//! # Ok::<(), marline::Error>(())
//! ```

use crate::client::Client;
use crate::program::Program;
use marline_runtime::WorkerOptions;
use marline_runtime::core::controller::{Config, Counters, WorkerStatus};
use marline_runtime::core::error::Error;
use marline_runtime::core::resources::Resources;
use std::sync::Arc;
use std::thread::available_parallelism;

/// A controller: places work, watches sessions, owns names. Ends when it is dropped.
pub struct Controller {
    inner: marline_runtime::Controller,
}

impl Controller {
    /// Listens at `127.0.0.1:PORT` (port 0: any that is free) or `unix:/path`.
    pub fn listen(at: &str) -> Result<Controller, Error> {
        Ok(Controller { inner: marline_runtime::Controller::start(at, None, Config::default())? })
    }

    /// Listens anywhere, asking everybody for a token.
    pub fn listen_with_token(at: &str, token: &str) -> Result<Controller, Error> {
        let inner = marline_runtime::Controller::start(at, Some(token.into()), Config::default())?;
        Ok(Controller { inner })
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        self.inner.address()
    }

    /// A client in this process.
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

/// A worker of a controller elsewhere. Ends when it is dropped.
pub struct Worker {
    _inner: marline_runtime::Worker,
}

/// A worker that has not joined yet.
pub struct WorkerBuilder {
    options: WorkerOptions,
}

impl Worker {
    /// A worker that runs this program, offers as many CPUs as there are, and listens for calls on
    /// this machine.
    pub fn of(program: Program) -> WorkerBuilder {
        let cpus = available_parallelism().map_or(1, |cpus| cpus.get() as u32);
        WorkerBuilder {
            options: WorkerOptions {
                controller: String::new(),
                token: None,
                listen: Some("127.0.0.1:0".into()),
                resources: Resources::cpus(cpus),
                preemptible: false,
                program: Arc::new(program),
                config: Default::default(),
            },
        }
    }
}

impl WorkerBuilder {
    /// What it offers.
    pub fn resources(mut self, resources: Resources) -> Self {
        self.options.resources = resources;
        self
    }

    /// Where it listens for calls: `host:port` or `unix:/path`.
    pub fn listen(mut self, at: &str) -> Self {
        self.options.listen = Some(at.into());
        self
    }

    /// The cluster's token.
    pub fn token(mut self, token: &str) -> Self {
        self.options.token = Some(token.into());
        self
    }

    /// It may be taken away at any time: work that must not be is not placed here.
    pub fn preemptible(mut self) -> Self {
        self.options.preemptible = true;
        self
    }

    /// Joins the controller at this address. When the session is lost, it stops what runs and joins again.
    pub fn join(mut self, controller: &str) -> Result<Worker, Error> {
        self.options.resources.validate()?;
        self.options.controller = controller.into();
        Ok(Worker { _inner: marline_runtime::Worker::join(self.options)? })
    }
}
