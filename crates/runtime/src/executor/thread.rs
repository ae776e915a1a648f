//! Executors on threads of this process. A thread cannot be killed: one that does not stop when asked
//! is left alone, and what it returns goes nowhere. Whoever needs more runs executors as processes.

use super::{Context, Instance, Invocation, Program, Reply, with_context};
use crate::node::Node;
use marline_channel::{CancelToken, Receiver, Sender, unbounded};
use marline_core::error::{Error, Failure};
use marline_core::id::{ActorEpoch, Attempt, TaskId};
use marline_core::payload::Value;
use marline_core::spec::{ActorSpec, TaskSpec};
use marline_core::worker::{CallEnd, Event, ExecutorId};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

/// What an executor is told.
pub(crate) enum Command {
    Run { spec: Arc<TaskSpec>, attempt: Attempt, values: Vec<Value> },
    Construct { spec: Arc<ActorSpec>, epoch: ActorEpoch, values: Vec<Value> },
    Call { spec: Arc<TaskSpec>, attempt: Attempt, values: Vec<Value> },
}

/// The worker's end of an executor; dropping it ends the executor when it is idle.
pub(crate) struct Handle {
    commands: Sender<Command>,
    running: Running,
}

/// What runs in an executor, to be asked to stop.
type Running = Arc<Mutex<BTreeMap<TaskId, CancelToken>>>;

impl Handle {
    /// Starts an executor.
    pub fn spawn(
        node: Weak<Node>,
        worker: usize,
        id: ExecutorId,
        program: Arc<dyn Program>,
    ) -> Handle {
        let (commands, inbox) = unbounded();
        let running = Running::default();
        let seat = Seat { node, worker, id, program, running: running.clone(), actor: None };
        let name = format!("marline-exec-{}", id.0);
        thread::Builder::new()
            .name(name)
            .spawn(move || seat.run(inbox))
            .expect("a thread can be started");
        Handle { commands, running }
    }

    pub fn send(&self, command: Command) {
        // It fails only when the thread is gone, which it is only when this handle is.
        let _ = self.commands.try_send(command);
    }

    pub fn interrupt(&self, task: TaskId) {
        if let Some(cancel) = self.running.lock().expect("no user code runs under it").get(&task) {
            cancel.cancel();
        }
    }

    /// Nobody listens to this executor any more.
    pub fn abandon(self) {
        for cancel in self.running.lock().expect("no user code runs under it").values() {
            cancel.cancel();
        }
    }
}

/// An executor's own end.
struct Seat {
    node: Weak<Node>,
    worker: usize,
    id: ExecutorId,
    program: Arc<dyn Program>,
    running: Running,
    actor: Option<Actor>,
}

#[derive(Clone)]
struct Actor {
    instance: Arc<dyn Instance>,
    epoch: ActorEpoch,
    concurrent: bool,
}

impl Seat {
    fn run(mut self, inbox: Receiver<Command>) {
        while let Ok(command) = inbox.recv().wait() {
            match command {
                Command::Run { spec, attempt, values } => {
                    let task = spec.id;
                    let program = self.program.clone();
                    let end = self.guarded(&spec, attempt, None, values, |invocation| {
                        program.run(invocation)
                    });
                    self.tell(Event::RunEnded { executor: self.id, task, end });
                }
                Command::Construct { spec, epoch, values } => self.construct(&spec, epoch, values),
                Command::Call { spec, attempt, values } => self.call(spec, attempt, values),
            }
        }
    }

    fn construct(&mut self, spec: &ActorSpec, epoch: ActorEpoch, values: Vec<Value>) {
        let (name, args) = (spec.class.clone(), spec.args.clone());
        let invocation = Invocation { name, args, values, returns: 0 };
        let made = caught(|| self.program.construct(&invocation));
        let result = made.map(|instance| {
            let concurrent = spec.options.max_concurrency > 1;
            self.actor = Some(Actor { instance, epoch, concurrent });
        });
        self.tell(Event::Constructed { executor: self.id, result });
    }

    fn call(&self, spec: Arc<TaskSpec>, attempt: Attempt, values: Vec<Value>) {
        let Some(actor) = self.actor.clone() else { return };
        if !actor.concurrent {
            return self.call_now(&actor, &spec, attempt, values);
        }
        let seat = self.for_one_call();
        let name = format!("marline-call-{}", self.id.0);
        let call = move || seat.call_now(&actor, &spec, attempt, values);
        thread::Builder::new().name(name).spawn(call).expect("a thread can be started");
    }

    fn call_now(&self, actor: &Actor, spec: &TaskSpec, attempt: Attempt, values: Vec<Value>) {
        let call = spec.id;
        let epoch = Some(actor.epoch);
        let end = self
            .guarded(spec, attempt, epoch, values, |invocation| actor.instance.call(invocation));
        self.tell(Event::CallFinished { executor: self.id, call, end });
    }

    fn for_one_call(&self) -> Seat {
        Seat {
            node: self.node.clone(),
            worker: self.worker,
            id: self.id,
            program: self.program.clone(),
            running: self.running.clone(),
            actor: None,
        }
    }

    /// Runs user code; what it panics with is its error.
    fn guarded(
        &self,
        spec: &TaskSpec,
        attempt: Attempt,
        actor_epoch: Option<ActorEpoch>,
        values: Vec<Value>,
        code: impl FnOnce(&Invocation) -> Result<Reply, Error>,
    ) -> CallEnd {
        let cancel = CancelToken::new();
        let running = || self.running.lock().expect("no user code runs under it");
        running().insert(spec.id, cancel.clone());
        let invocation = Invocation {
            name: spec.target.name().clone(),
            args: spec.args.clone(),
            values,
            returns: spec.returns,
        };
        let context = Context { task: spec.id, attempt, actor_epoch, cancel };
        let reply = with_context(context, || caught(|| code(&invocation)));
        running().remove(&spec.id);
        match reply {
            Ok(reply) => CallEnd { outcome: Ok(reply.values), kept: reply.kept },
            Err(error) => CallEnd { outcome: Err(error), kept: Vec::new() },
        }
    }

    fn tell(&self, event: Event) {
        if let Some(node) = self.node.upgrade() {
            node.executor_said(self.worker, event);
        }
    }
}

fn caught<R>(code: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    catch_unwind(AssertUnwindSafe(code)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
        let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
        let words = words.unwrap_or_else(|| "a panic without words".into());
        let failure = Failure { class: "panic".into(), ..Failure::default() };
        Err(Error::failed(format!("user code panicked: {words}"), failure))
    })
}
