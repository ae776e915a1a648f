//! Executors: where user code runs. Here are what a program of the user's provides, and what user code
//! can know of itself.
//!
//! `run.rs` runs user code, on a thread of the worker's process (`thread.rs`) or in a process of its own:
//! `process.rs` is the worker's end of that, `child.rs` the executor's, `wire.rs` what they say to each
//! other, `urgent_message.rs` what is heard while user code runs, `items.rs` what it gives meanwhile, `lifeline.rs` the file they share, `log.rs` what user code prints (`lines.rs` has it for whoever
//! submitted it, `stderr_forwarding.rs` passes it on here). `memory.rs` looks whether there is enough. `command.rs` is the
//! program that runs commands.

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
mod wire;

pub(crate) use items::COUNT_MARK;
pub use items::{ItemProducer, LEND_AFTER};
pub use stderr_forwarding::StderrForwarding;
pub(crate) use waiting::poll_until;
pub use waiting::{BlockingWait, wait_lending_cpu};

use marline_channel::CancelToken;
use marline_core::Error;
use marline_core::id::{ActorEpoch, ActorId, Attempt, Referent, TaskId};
use marline_core::payload::{Payload, Value};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What the user's program can run.
pub trait Program: Send + Sync + 'static {
    /// The names of its functions, and `actor:NAME` for its classes.
    fn provides(&self) -> Vec<String>;

    /// Runs a function.
    fn run(&self, invocation: &Invocation) -> Result<Reply, Error>;

    /// Makes an actor.
    fn construct(&self, invocation: &Invocation) -> Result<Arc<dyn Instance>, Error>;

    /// Whether its functions and methods give items where an [invocation](Invocation::items) asks for them.
    fn streams(&self) -> bool {
        false
    }

    /// Whether the last value of each task is the code of its function.
    fn comes_with_code(&self) -> bool {
        false
    }

    /// Whether this is all of the code of that function. Called when the code arrives.
    fn is_code_of(&self, _name: &str, _code: &Payload) -> bool {
        true
    }

    /// What runs under this id is to stop, alone or with what it has submitted: its token is cancelled. Called
    /// by a thread that must not wait; there is more to do only for code that cannot look at its token.
    fn interrupted(&self, _task: TaskId, _alone: bool) {}
}

/// A program that provides nothing: of a worker whose executors run commands, or another runtime's code.
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
    Error::not_found(format!("{:?} is not provided here", &*invocation.name))
}

/// An actor that was made.
pub trait Instance: Send + Sync + 'static {
    /// Runs a method. As many calls come at a time as the actor's `max_concurrency` says.
    fn call(&self, invocation: &Invocation) -> Result<Reply, Error>;

    /// Whether calls only begin on the thread that makes them, and end later: then they are
    /// [begun](Instance::begin) instead, as many at a time as the actor allows, without a thread for each.
    fn is_async(&self) -> bool {
        false
    }

    /// Starts from this state, which a call of `save_checkpoint` gave in an earlier life.
    fn load_checkpoint(&self, _checkpoint: &Payload) -> Result<(), Error> {
        Err(Error::unsupported("this actor cannot read checkpoints"))
    }

    /// A [reply](Reply::exits) said that the actor ends: the last that it can do.
    fn exit(&self) {}

    /// Begins a method; `end` is told how it ended.
    fn start_async(&self, invocation: &Invocation, end: ReplyCallback) {
        end(self.call(invocation));
    }
}

/// Who is told how a call ended that was begun.
pub type ReplyCallback = Box<dyn FnOnce(Result<Reply, Error>) + Send>;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The function, class or method.
    pub name: Arc<str>,
    /// The arguments, encoded.
    pub args: Payload,
    /// The values of the references among them, in order.
    pub values: Vec<Value>,
    /// How many results are wanted.
    pub returns: u32,
    /// Where it gives its items, if those are what is wanted of it; then it gives no results.
    pub items: Option<ItemProducer>,
    /// The GPUs it is given, by index.
    pub gpus: Arc<[u32]>,
}

/// What user code gave back.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Its results.
    pub values: Vec<Value>,
    /// Things that it kept references to.
    pub kept: Vec<Referent>,
    /// The actor ends itself after this call.
    pub exits: bool,
}

/// What user code can know of itself while it runs.
#[derive(Clone, Debug)]
pub struct Context {
    /// What it runs: the name of a function or a method.
    pub name: Arc<str>,
    /// The task or call.
    pub task: TaskId,
    /// Which try at it: a fencing token for effects outside Marline.
    pub attempt: Attempt,
    /// The actor it runs in.
    pub actor: Option<ActorId>,
    /// The epoch of that actor: a fencing token too.
    pub actor_epoch: Option<ActorEpoch>,
    /// The GPUs it was given, by index.
    pub gpus: Arc<[u32]>,
    /// When it has run for as long as it may.
    pub deadline: Option<Instant>,
    /// Cancelled when it is to stop.
    pub cancel: CancelToken,
    /// It is to stop with what it has submitted.
    stops_all: Arc<AtomicBool>,
    waiting: waiting::CurrentWait,
    tell: Teller,
}

impl Context {
    /// Whether it is to stop, and what it has submitted with it.
    pub fn stops_what_it_submitted(&self) -> bool {
        self.cancel.is_cancelled() && self.stops_all.load(Ordering::Relaxed)
    }
}

/// Whom an executor tells what it does.
#[derive(Clone)]
struct Teller(run::ReportFn);

impl std::fmt::Debug for Teller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Teller")
    }
}

/// How a worker has its executors.
pub(crate) enum Executors {
    /// As threads of its own process.
    Threads(Arc<dyn Program>),
    /// As processes, each its program started again.
    Processes(Arc<process::LaunchContext>),
}

/// The worker's end of an executor.
pub(crate) enum ExecutorHandle {
    Thread(thread::ThreadHandle),
    Process(process::ProcessHandle),
}

impl ExecutorHandle {
    pub fn send(&self, command: run::Command) {
        match self {
            ExecutorHandle::Thread(handle) => handle.send(command),
            ExecutorHandle::Process(handle) => handle.send(command),
        }
    }

    /// Ends it. Says whether that is all that will be heard of it.
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

    /// Asks something of it.
    pub fn ask(&self, ask: urgent_message::UrgentMessage) {
        match self {
            ExecutorHandle::Thread(handle) => handle.ask(ask),
            ExecutorHandle::Process(handle) => handle.ask(ask),
        }
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// The context of the task or call that runs on this thread, if one does.
pub fn context() -> Option<Context> {
    CURRENT.with_borrow(Clone::clone)
}

/// Whether a task or call runs on this thread.
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
