//! Executors on threads of this process. A thread cannot be killed: one that does not stop when asked
//! is left alone, and what it returns goes nowhere. Whoever needs more runs executors as processes.

use super::Program;
use super::run::{Command, Runner, Running, Said};
use crate::node::Node;
use marline_channel::{Sender, unbounded};
use marline_core::id::TaskId;
use marline_core::worker::{Event, ExecutorId};
use std::io;
use std::sync::{Arc, Weak};
use std::thread;

/// The worker's end of an executor; dropping it ends the executor when it is idle.
pub(crate) struct Handle {
    commands: Sender<Command>,
    running: Running,
}

impl Handle {
    /// Starts an executor.
    pub fn spawn(
        node: Weak<Node>,
        worker: usize,
        executor: ExecutorId,
        program: Arc<dyn Program>,
    ) -> io::Result<Handle> {
        let (commands, inbox) = unbounded();
        let running = Running::default();
        let tell = move |said| {
            if let Some(node) = node.upgrade() {
                node.executor_said(worker, event(executor, said));
            }
        };
        let mut runner = Runner::new(program, running.clone(), Arc::new(tell));
        let run = move || {
            while let Ok(command) = inbox.recv().wait() {
                runner.handle(command);
            }
        };
        let name = format!("marline-exec-{}", executor.0);
        thread::Builder::new().name(name).spawn(run)?;
        Ok(Handle { commands, running })
    }

    pub fn send(&self, command: Command) {
        // It fails only when the thread is gone, which it is only when this handle is.
        let _ = self.commands.try_send(command);
    }

    pub fn interrupt(&self, task: TaskId) {
        self.running.interrupt(task);
    }

    /// Nobody listens to this executor any more.
    pub fn abandon(self) {
        self.running.interrupt_all();
    }
}

/// What an executor said, as its worker hears it.
pub(super) fn event(executor: ExecutorId, said: Said) -> Event {
    match said {
        Said::RunEnded { attempt, end } => Event::RunEnded { executor, task: attempt.task, end },
        Said::Constructed { instance: _, result } => Event::Constructed { executor, result },
        Said::CallFinished { attempt, end } => {
            Event::CallFinished { executor, call: attempt.task, end }
        }
    }
}
