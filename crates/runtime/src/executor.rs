//! Executors: where user code runs. Here are what a program of the user's provides, and what user code
//! can know of itself; `thread.rs` runs it on threads of this process.

pub(crate) mod thread;

use marline_channel::CancelToken;
use marline_core::Error;
use marline_core::id::{ActorEpoch, Attempt, TaskId, Thing};
use marline_core::payload::{Payload, Value};
use std::cell::RefCell;
use std::sync::Arc;

/// What the user's program can run.
pub trait Program: Send + Sync + 'static {
    /// The names of its functions, and `actor:NAME` for its classes.
    fn provides(&self) -> Vec<String>;

    /// Runs a function.
    fn run(&self, invocation: &Invocation) -> Result<Reply, Error>;

    /// Makes an actor.
    fn construct(&self, invocation: &Invocation) -> Result<Arc<dyn Instance>, Error>;
}

/// An actor that was made.
pub trait Instance: Send + Sync + 'static {
    /// Runs a method. As many calls come at a time as the actor's `max_concurrency` says.
    fn call(&self, invocation: &Invocation) -> Result<Reply, Error>;
}

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
}

/// What user code gave back.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Its results.
    pub values: Vec<Value>,
    /// Things that it kept references to.
    pub kept: Vec<Thing>,
}

/// What user code can know of itself while it runs.
#[derive(Clone, Debug)]
pub struct Context {
    /// The task or call.
    pub task: TaskId,
    /// Which try at it: a fencing token for effects outside Marline.
    pub attempt: Attempt,
    /// The epoch of the actor it runs in: a fencing token too.
    pub actor_epoch: Option<ActorEpoch>,
    /// Cancelled when it is to stop.
    pub cancel: CancelToken,
}

thread_local! {
    static CURRENT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// The context of the task or call that runs on this thread, if one does.
pub fn context() -> Option<Context> {
    CURRENT.with_borrow(Clone::clone)
}

/// Runs `work` with `context` as the current one.
fn with_context<R>(context: Context, work: impl FnOnce() -> R) -> R {
    let before = CURRENT.replace(Some(context));
    let result = work();
    CURRENT.set(before);
    result
}
