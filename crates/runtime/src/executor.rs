//! Executors: the threads and processes of a worker that run user code. This file has the interface
//! to the user's program, and the [`Context`] of running user code.
//!
//! - `run.rs` runs user code, in either kind of executor.
//! - `thread.rs`: executors on threads of the worker's process.
//! - `process.rs`: the worker's side of executor processes. `child.rs`: the executor's side.
//! - `urgent_message.rs`: requests that an executor receives while user code runs.
//! - `items.rs`: what user code yields while it runs. `waiting.rs`: what happens while it waits for
//!   other work.
//! - `arguments.rs`: resolves arguments that are in object stores. `code.rs`: the code of
//!   functions, for forked executors.
//! - `lifeline.rs`: the file that a worker shares with its executor processes.
//! - `log.rs`: the output of user code. `lines.rs`: that output for the client that submitted it.
//!   `stderr_forwarding.rs`: that output on the worker's standard error.
//! - `memory.rs` watches how much memory is left. `spin.rs` polls shortly before sleeping.
//! - `command.rs`: the program that runs commands.

mod arguments;
pub(crate) mod child;
mod code;
pub(crate) mod command;
pub(crate) mod items;
pub(crate) mod lifeline;
mod lines;
pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod run;
pub(crate) mod spin;
mod stderr_forwarding;
pub(crate) mod thread;
pub(crate) mod urgent_message;
mod waiting;

pub(crate) use items::COUNT_MARK;
pub use items::{ItemProducer, LEND_AFTER};
pub use stderr_forwarding::StderrForwarding;
pub(crate) use waiting::poll_until;
pub use waiting::{BlockingWait, wait_lending_cpu};

use marline_channel::CancelToken;
use marline_core::Error;
use marline_core::id::{ActorEpoch, ActorId, Attempt, Referent, TaskId};
use marline_core::payload::{Payload, Value};
use marline_core::worker::{Event, ExecutorId};
use marline_wire::executor::{ExecutorCommand, ExecutorReport};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The functions and actor classes that an executor can run.
pub trait Program: Send + Sync + 'static {
    /// Returns the names of the functions, and `actor:NAME` for each class.
    fn provides(&self) -> Vec<String>;

    /// Runs a function.
    fn run(&self, invocation: &Invocation) -> Result<Reply, Error>;

    /// Constructs an actor.
    fn construct(&self, invocation: &Invocation) -> Result<Arc<dyn Instance>, Error>;

    /// Returns whether functions and methods can yield items where an
    /// [invocation](Invocation::items) asks for them.
    fn streams(&self) -> bool {
        false
    }

    /// Returns whether the last value of each task is the code of its function.
    fn comes_with_code(&self) -> bool {
        false
    }

    /// Returns whether `code` is the complete code of that function. Called when the code arrives.
    fn is_code_of(&self, _name: &str, _code: &Payload) -> bool {
        true
    }

    /// Called when the task or call with this id is cancelled, alone or with the work that it has
    /// submitted. Its token is cancelled already; only code that cannot check its token needs more.
    /// The thread that calls this must not wait.
    fn interrupted(&self, _task: TaskId, _alone: bool) {}
}

/// A program that provides nothing, for a worker whose executors run commands or the code of
/// another runtime.
pub struct NoProgram;

impl Program for NoProgram {
    fn provides(&self) -> Vec<String> {
        Vec::new()
    }

    fn run(&self, invocation: &Invocation) -> Result<Reply, Error> {
        Err(not_here(invocation))
    }

    fn construct(&self, invocation: &Invocation) -> Result<Arc<dyn Instance>, Error> {
        Err(not_here(invocation))
    }
}

fn not_here(invocation: &Invocation) -> Error {
    Error::not_found(format!("{:?} is not provided by this worker", &*invocation.name))
}

/// A constructed actor.
pub trait Instance: Send + Sync + 'static {
    /// Runs a method. Up to the actor's `max_concurrency` calls run at a time.
    fn call(&self, invocation: &Invocation) -> Result<Reply, Error>;

    /// Returns whether calls only start on the executor's thread and end later. Then each call goes
    /// to [`start_async`](Instance::start_async). As many run at a time as the actor allows,
    /// without a thread for each.
    fn is_async(&self) -> bool {
        false
    }

    /// Restores the state that a call of `save_checkpoint` returned in an earlier instance.
    fn load_checkpoint(&self, _checkpoint: &Payload) -> Result<(), Error> {
        Err(Error::unsupported("this actor cannot read checkpoints"))
    }

    /// Called after a [reply](Reply::exits) that ends the actor. The instance does nothing after
    /// this.
    fn exit(&self) {}

    /// Starts a method. Calls `end` with the reply when the method has ended.
    fn start_async(&self, invocation: &Invocation, end: ReplyCallback) {
        end(self.call(invocation));
    }
}

/// The callback that takes the reply of a call that was started asynchronously.
pub type ReplyCallback = Box<dyn FnOnce(Result<Reply, Error>) + Send>;

/// A function, class or method to run, with its arguments.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The name of the function, class or method.
    pub name: Arc<str>,
    /// The arguments, encoded.
    pub args: Payload,
    /// The values of the references among the arguments, in order.
    pub values: Vec<Value>,
    /// The number of results that are expected.
    pub returns: u32,
    /// Where to yield items, if the caller expects a stream. Then there are no results.
    pub items: Option<ItemProducer>,
    /// The indexes of the GPUs that are granted.
    pub gpus: Arc<[u32]>,
}

/// The values that user code returned.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The results.
    pub values: Vec<Value>,
    /// The referents that user code still holds.
    pub kept: Vec<Referent>,
    /// Whether the actor ends itself after this call.
    pub exits: bool,
}

/// The facts that user code can learn about itself while it runs.
#[derive(Clone, Debug)]
pub struct Context {
    /// The name of the function or method.
    pub name: Arc<str>,
    /// The id of the task or call.
    pub task: TaskId,
    /// The number of the attempt. It is a fencing token for effects outside Marline.
    pub attempt: Attempt,
    /// The actor, if this is a call.
    pub actor: Option<ActorId>,
    /// The epoch of the actor. It is a fencing token too.
    pub actor_epoch: Option<ActorEpoch>,
    /// The indexes of the GPUs that are granted.
    pub gpus: Arc<[u32]>,
    /// When the timeout of the task or call is over.
    pub deadline: Option<Instant>,
    /// Cancelled when the task or call must stop.
    pub cancel: CancelToken,
    /// Set if the work that it has submitted must stop too.
    stops_all: Arc<AtomicBool>,
    waiting: waiting::CurrentWait,
    report: Reporter,
}

impl Context {
    /// Returns whether the task or call was cancelled together with the work that it has submitted.
    pub fn stops_what_it_submitted(&self) -> bool {
        self.cancel.is_cancelled() && self.stops_all.load(Ordering::Relaxed)
    }
}

/// Where an executor reports what happens in it.
#[derive(Clone)]
struct Reporter(run::ReportFn);

impl std::fmt::Debug for Reporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reporter")
    }
}

/// How a worker runs its executors.
pub(crate) enum Executors {
    /// As threads of its own process, which run this program.
    Threads(Arc<dyn Program>),
    /// As processes, each of which starts the worker's program again or is a fork.
    Processes(Arc<process::LaunchContext>),
}

/// The worker's end of an executor.
pub(crate) enum ExecutorHandle {
    Thread(thread::ThreadHandle),
    Process(process::ProcessHandle),
}

impl ExecutorHandle {
    pub fn send(&self, command: ExecutorCommand) {
        match self {
            ExecutorHandle::Thread(handle) => handle.send(command),
            ExecutorHandle::Process(handle) => handle.send(command),
        }
    }

    /// Ends the executor. Returns `true` if it sends no more events after this, not even about its
    /// death.
    pub fn end(self) -> bool {
        match self {
            ExecutorHandle::Thread(handle) => {
                handle.abandon();
                true
            }
            ExecutorHandle::Process(handle) => {
                handle.kill();
                false
            }
        }
    }

    /// Sends a request that the executor receives while user code runs.
    pub fn ask(&self, ask: urgent_message::UrgentMessage) {
        match self {
            ExecutorHandle::Thread(handle) => handle.ask(ask),
            ExecutorHandle::Process(handle) => handle.ask(ask),
        }
    }
}

/// Returns the event that a report of an executor is to the worker's machine.
fn event(executor: ExecutorId, report: ExecutorReport) -> Event {
    match report {
        ExecutorReport::Ready => Event::ExecutorReady { executor },
        ExecutorReport::TaskEnded { task, end } => Event::TaskEnded { executor, task, end },
        ExecutorReport::InputsUnavailable { task, error } => {
            Event::InputsUnavailable { executor, task, error }
        }
        ExecutorReport::Constructed { result } => Event::Constructed { executor, result },
        ExecutorReport::CallEnded { call, end } => Event::CallEnded { executor, call, end },
        ExecutorReport::Yielded { task, index, value } => {
            Event::Yielded { executor, task, index, value }
        }
        ExecutorReport::ActorExited => Event::ActorExited { executor },
        ExecutorReport::Blocked => Event::Blocked { executor },
        ExecutorReport::Resumed => Event::Resumed { executor },
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// Returns the context of the task or call that runs on this thread, if one does.
pub fn context() -> Option<Context> {
    CURRENT.with_borrow(Clone::clone)
}

/// Returns whether a task or call runs on this thread.
pub(crate) fn runs_here() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// Runs `work` with `context` as the current one.
fn with_context<R>(context: Context, work: impl FnOnce() -> R) -> R {
    let before = CURRENT.replace(Some(context));
    let result = work();
    CURRENT.set(before);
    result
}
