//! Running user code: one task after another, or an actor and its calls. The same for an executor that
//! is a thread and one that is a process; `tell` says where what happened goes.

use super::{Context, Instance, Invocation, Program, Reply, Teller, with_context};
use crate::net::MAX_MESSAGE_BYTES;
use marline_channel::CancelToken;
use marline_core::account::Grant;
use marline_core::error::{Error, Failure, Ran};
use marline_core::id::{ActorEpoch, Attempt, TaskId};
use marline_core::message;
use marline_core::message::Try;
use marline_core::payload::Value;
use marline_core::spec::{ActorSpec, TaskSpec};
use marline_core::worker::CallEnd;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;

/// The most bytes of results: a message without what surrounds them.
const MAX_RESULT_BYTES: usize = MAX_MESSAGE_BYTES - (1 << 20);

/// What an executor is told.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Run { spec: Arc<TaskSpec>, attempt: Attempt, values: Vec<Value>, grant: Grant },
    Construct { spec: Arc<ActorSpec>, epoch: ActorEpoch, values: Vec<Value>, grant: Grant },
    Call { spec: Arc<TaskSpec>, attempt: Attempt, values: Vec<Value> },
}

/// What an executor says.
#[derive(Debug)]
pub(crate) enum Said {
    RunEnded {
        attempt: Try,
        end: CallEnd,
    },
    Constructed {
        instance: message::Instance,
        result: Result<(), Error>,
    },
    CallFinished {
        attempt: Try,
        end: CallEnd,
    },
    /// User code waits for other work, or no longer.
    Blocked {
        attempt: Try,
        blocked: bool,
    },
}

/// Where it says it.
pub(crate) type Tell = Arc<dyn Fn(Said) + Send + Sync>;

/// What runs in an executor, to be asked to stop.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Mutex<BTreeMap<TaskId, CancelToken>>>);

impl Running {
    fn with<R>(&self, what: impl FnOnce(&mut BTreeMap<TaskId, CancelToken>) -> R) -> R {
        what(&mut self.0.lock().expect("no user code runs under it"))
    }

    /// Asks what runs under this id to stop.
    pub fn interrupt(&self, task: TaskId) {
        if let Some(cancel) = self.with(|running| running.get(&task).cloned()) {
            cancel.cancel();
        }
    }

    /// Asks everything to stop.
    pub fn interrupt_all(&self) {
        let all: Vec<CancelToken> = self.with(|running| running.values().cloned().collect());
        for cancel in all {
            cancel.cancel();
        }
    }
}

/// See the [module](self).
#[derive(Clone)]
pub(crate) struct Runner {
    program: Arc<dyn Program>,
    tell: Tell,
    running: Running,
    actor: Option<Actor>,
}

#[derive(Clone)]
struct Actor {
    instance: Arc<dyn Instance>,
    epoch: ActorEpoch,
    gpus: Arc<[u32]>,
    concurrent: bool,
}

impl Runner {
    pub fn new(program: Arc<dyn Program>, running: Running, tell: Tell) -> Runner {
        Runner { program, tell, running, actor: None }
    }

    /// Does what it is told, and says how it ended. Calls of an actor that takes several at a time run
    /// on threads of their own.
    pub fn handle(&mut self, command: Command) {
        match command {
            Command::Run { spec, attempt, values, grant } => {
                let program = self.program.clone();
                let place = Place { actor_epoch: None, gpus: grant.gpus.into() };
                let end = self.guarded(&spec, attempt, place, values, |call| program.run(call));
                (self.tell)(Said::RunEnded { attempt: Try { task: spec.id, attempt }, end });
            }
            Command::Construct { spec, epoch, values, grant } => {
                self.construct(&spec, epoch, values, grant);
            }
            Command::Call { spec, attempt, values } => self.call(spec, attempt, values),
        }
    }

    fn construct(&mut self, spec: &ActorSpec, epoch: ActorEpoch, values: Vec<Value>, grant: Grant) {
        let (name, args) = (spec.class.clone(), spec.args.clone());
        let invocation = Invocation { name, args, values, returns: 0 };
        let made = caught(|| self.program.construct(&invocation));
        let result = made.map(|instance| {
            let concurrent = spec.options.max_concurrency > 1;
            self.actor = Some(Actor { instance, epoch, gpus: grant.gpus.into(), concurrent });
        });
        let instance = message::Instance { actor: spec.id, epoch };
        (self.tell)(Said::Constructed { instance, result });
    }

    fn call(&self, spec: Arc<TaskSpec>, attempt: Attempt, values: Vec<Value>) {
        let Some(actor) = self.actor.clone() else { return };
        if !actor.concurrent {
            return self.call_now(&actor, &spec, attempt, values);
        }
        let runner = self.clone();
        let attempt_of = Try { task: spec.id, attempt };
        let call = move || runner.call_now(&actor, &spec, attempt, values);
        if let Err(error) = thread::Builder::new().name("marline-call".into()).spawn(call) {
            let error = Error::exhausted(format!(
                "no thread could be started for a call, it did not run: {error}; does the actor's \
                 max_concurrency fit its memory?"
            ));
            let end = CallEnd { outcome: Err(error), kept: Vec::new() };
            (self.tell)(Said::CallFinished { attempt: attempt_of, end });
        }
    }

    fn call_now(&self, actor: &Actor, spec: &TaskSpec, attempt: Attempt, values: Vec<Value>) {
        let place = Place { actor_epoch: Some(actor.epoch), gpus: actor.gpus.clone() };
        let end = self.guarded(spec, attempt, place, values, |call| actor.instance.call(call));
        (self.tell)(Said::CallFinished { attempt: Try { task: spec.id, attempt }, end });
    }

    /// Runs user code; what it panics with is its error.
    fn guarded(
        &self,
        spec: &TaskSpec,
        attempt: Attempt,
        place: Place,
        values: Vec<Value>,
        code: impl FnOnce(&Invocation) -> Result<Reply, Error>,
    ) -> CallEnd {
        let cancel = CancelToken::new();
        self.running.with(|running| running.insert(spec.id, cancel.clone()));
        let invocation = Invocation {
            name: spec.target.name().clone(),
            args: spec.args.clone(),
            values,
            returns: spec.returns,
        };
        let Place { actor_epoch, gpus } = place;
        let tell = Teller(self.tell.clone());
        let context = Context { task: spec.id, attempt, actor_epoch, gpus, cancel, tell };
        let reply = with_context(context, || caught(|| code(&invocation)));
        self.running.with(|running| running.remove(&spec.id));
        match reply.and_then(bounded) {
            Ok(reply) => CallEnd { outcome: Ok(reply.values), kept: reply.kept },
            Err(error) => CallEnd { outcome: Err(error), kept: Vec::new() },
        }
    }
}

/// What user code can know of where it runs.
struct Place {
    actor_epoch: Option<ActorEpoch>,
    gpus: Arc<[u32]>,
}

/// What does not fit into a message is user code's error, seen here: what carries messages would break.
fn bounded(reply: Reply) -> Result<Reply, Error> {
    let bytes: usize = reply.values.iter().map(|value| value.payload.len()).sum();
    if bytes <= MAX_RESULT_BYTES {
        return Ok(reply);
    }
    let message = format!(
        "the results are {bytes} bytes, the limit is {MAX_RESULT_BYTES} (MAX_RESULT_BYTES)"
    );
    Err(Error::too_large(message).ran(Ran::Maybe))
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
