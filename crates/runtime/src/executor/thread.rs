//! Executors on threads of this process. A thread cannot be killed: one that ignores a cancellation
//! is abandoned, and its result is dropped. Users who need more run executors as processes.

use super::run::{Runner, RunningTasks};
use super::urgent_message::UrgentMessage;
use super::{Program, event};
use crate::node::Node;
use crate::object_store::ObjectStoreHandle;
use marline_channel::{Receiver, Sender, rendezvous, unbounded};
use marline_core::error::{Error, Ran};
use marline_core::worker::{Event, ExecutorId};
use marline_wire::executor::ExecutorCommand;
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// A function that a thread runs.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// An executor's thread that must be started outside the node's lock.
pub(crate) struct ThreadStart {
    job: Job,
    /// Receives an event if no thread can be started.
    node: Weak<Node>,
    worker: usize,
    executor: ExecutorId,
}

/// How long an idle thread waits for the next job before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// Runs a job on an idle thread, or on a new one.
pub(super) fn on_some_thread(job: Job) -> std::io::Result<()> {
    static IDLERS: OnceLock<(Sender<Job>, Receiver<Job>)> = OnceLock::new();
    let (jobs, idlers) = IDLERS.get_or_init(rendezvous);
    // A rendezvous channel takes the job only if a thread already waits for one.
    let Err(back) = jobs.try_send(job) else { return Ok(()) };
    let mut job = back.into_inner();
    let run = move || loop {
        job();
        match idlers.recv().timeout(IDLE).wait() {
            Ok(next) => job = next,
            Err(_) => return,
        }
    };
    thread::Builder::new().name("marline-exec".into()).spawn(run).map(drop)
}

impl ThreadStart {
    pub fn start(self) {
        if let Err(error) = on_some_thread(self.job)
            && let Some(node) = self.node.upgrade()
        {
            let words = format!("no thread could be started for an executor: {error}");
            let error = Error::unavailable(Ran::No, words);
            let event = Event::ExecutorDied { executor: self.executor, error };
            node.deliver_executor_event(self.worker, event);
        }
    }
}

/// The worker's handle of an executor. Dropping it ends the executor when it is idle.
pub(crate) struct ThreadHandle {
    commands: Sender<ExecutorCommand>,
    running: RunningTasks,
}

impl ThreadHandle {
    /// Creates an executor. Its thread is started later, since that takes a while. Commands that
    /// are sent before that wait.
    pub fn new(
        node: Weak<Node>,
        worker: usize,
        executor: ExecutorId,
        program: Arc<dyn Program>,
        objects: Option<ObjectStoreHandle>,
    ) -> (ThreadHandle, ThreadStart) {
        let (commands, inbox) = unbounded();
        let running = RunningTasks::default();
        let node_of = node.clone();
        let report = move |report| {
            if let Some(node) = node_of.upgrade() {
                node.deliver_executor_event(worker, event(executor, report));
            }
        };
        let mut runner = Runner::new(program, running.clone(), objects, Arc::new(report));
        let run = move || {
            while let Ok(command) = inbox.recv().wait() {
                runner.handle(command, Instant::now());
            }
        };
        let start = ThreadStart { job: Box::new(run), node, worker, executor };
        (ThreadHandle { commands, running }, start)
    }

    pub fn send(&self, command: ExecutorCommand) {
        // This fails only if the thread is gone, which ends only after this handle.
        let _ = self.commands.try_send(command);
    }

    pub fn ask(&self, ask: UrgentMessage) {
        self.running.handle_urgent(ask);
    }

    /// Abandons the executor: asks its work to stop, and ignores its reports.
    pub fn abandon(self) {
        self.running.interrupt_all();
    }
}
