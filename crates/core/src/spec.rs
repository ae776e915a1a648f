//! Specifications of tasks, calls and actors, with their options. A client builds each once; it is
//! shared and never changed.

use crate::error::{Error, Failure, Ran};
use crate::id::{ActorId, ObjectId, Referent, TaskId};
use crate::label::label_of;
use crate::payload::{Outcome, Payload, Value};
use crate::random::Random;
use crate::resources::Resources;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait before a retry.
pub const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);
/// The wait before the first retry, unless the task's options set another.
pub const RETRY_DELAY: Duration = Duration::from_millis(100);
/// The longest name of a function, class, method, actor or namespace, in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// The most results that one task returns.
pub const MAX_RETURNS: u32 = 10_000;

/// The most items that one task yields.
pub const MAX_ITEMS: u32 = u32::MAX - 1;
/// How many items of a stream may exist that its consumer has not taken, unless the task sets
/// another number.
pub const DEFAULT_MAX_UNCONSUMED: u32 = 64;
/// The largest number of unconsumed items that a task may set. Each of them is kept until its
/// consumer takes it.
pub const MAX_UNCONSUMED: u32 = 1 << 16;

/// Returns after how many items the consumer of a stream reports its progress. A report a few times
/// per window is enough: the producer has room for most of a window all the same.
pub fn consumed_report_step(stream: u32) -> u32 {
    (stream / 4).max(1)
}

/// How often something may be repeated. Smaller budgets order first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Budget {
    /// At most this many times.
    Times(u32),
    /// Without limit.
    Unlimited,
}

impl Budget {
    /// Returns whether the budget allows one more after `spent`.
    pub fn allows(self, spent: u32) -> bool {
        match self {
            Budget::Times(times) => spent < times,
            Budget::Unlimited => true,
        }
    }

    /// Returns the rest of the budget after `spent`.
    pub fn less(self, spent: u32) -> Budget {
        match self {
            Budget::Times(times) => Budget::Times(times.saturating_sub(spent)),
            Budget::Unlimited => Budget::Unlimited,
        }
    }
}

/// Which failures of user code are retried.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum RetryOn {
    /// No failure: an error of user code is final.
    #[default]
    Never,
    /// All failures.
    Any,
    /// Failures of these classes and of their subclasses.
    Classes(Vec<String>),
}

impl RetryOn {
    /// Returns whether this error of user code is retried.
    pub fn covers(&self, error: &Error) -> bool {
        match self {
            RetryOn::Never => false,
            RetryOn::Any => true,
            RetryOn::Classes(classes) => {
                let of = |failure: &Failure| {
                    classes.contains(&failure.class)
                        || failure.bases.iter().any(|base| classes.contains(base))
                };
                error.failure().is_some_and(of)
            }
        }
    }
}

/// How a task runs. Tasks of one function share one instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskOptions {
    /// The resources that it takes while it runs.
    pub resources: Resources,
    /// How often it may run again after its executor or worker was lost. A call is also limited by
    /// its actor's `max_task_retries`.
    pub max_retries: Budget,
    /// Which failures of user code are retried, from the same budget.
    pub retry_on: RetryOn,
    /// The wait before the first retry. Each further wait is twice as long, up to
    /// [`MAX_RETRY_DELAY`].
    pub retry_delay: Duration,
    /// The longest time that one attempt may take. A call that exceeds it fails at once for its
    /// caller and is asked to stop. Until it stops it keeps its place at its actor.
    pub timeout: Option<Duration>,
    /// Whether it may run on a worker that can be taken away at any time.
    pub preemptible: bool,
    /// Whether large results are also saved where they outlive every node.
    pub durable: bool,
}

impl Default for TaskOptions {
    fn default() -> TaskOptions {
        TaskOptions {
            resources: Resources::one_cpu(),
            max_retries: Budget::Times(3),
            retry_on: RetryOn::Never,
            retry_delay: RETRY_DELAY,
            timeout: None,
            preemptible: true,
            durable: false,
        }
    }
}

/// Returns the wait before the retry after `spent` others. It doubles each time. Up to half of it
/// is taken off at random, so that tasks that failed together do not return together.
pub fn retry_delay(first: Duration, spent: u32, random: &mut Random) -> Duration {
    let whole =
        first.saturating_mul(1_u32.checked_shl(spent).unwrap_or(u32::MAX)).min(MAX_RETRY_DELAY);
    whole / 2 + random.up_to(whole / 2)
}

/// The function or method that a task calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A function that a worker provides under this name.
    Function(Arc<str>),
    /// A method of an actor.
    Method {
        /// The actor.
        actor: ActorId,
        /// Its method.
        method: Arc<str>,
    },
}

impl Target {
    /// Returns the actor, if the target is a method.
    pub fn actor(&self) -> Option<ActorId> {
        match self {
            Target::Function(_) => None,
            Target::Method { actor, .. } => Some(*actor),
        }
    }

    /// Returns the name of the function or method.
    pub fn name(&self) -> &Arc<str> {
        match self {
            Target::Function(name) => name,
            Target::Method { method, .. } => method,
        }
    }

    /// Returns the name of the function or method as people read it.
    pub fn label(&self) -> &str {
        label_of(self.name())
    }
}

/// One function call to be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskSpec {
    /// Chosen by the client that submits the task. Submitting the same id twice submits the task
    /// once.
    pub id: TaskId,
    /// The function or method to call.
    pub target: Target,
    /// The arguments, encoded.
    pub args: Payload,
    /// Objects whose values the task gets with its arguments. It waits for them.
    pub needs: Vec<ObjectId>,
    /// The referents of references inside the arguments. They are held as long as the task may run.
    pub referents: Vec<Referent>,
    /// How many results it returns.
    pub returns: u32,
    /// For a task that yields items while it runs: how many items may exist that its consumer has
    /// not taken. The task's one result is then the number of its items, in MessagePack.
    pub stream_window: Option<u32>,
    /// The task's options.
    pub options: Arc<TaskOptions>,
}

impl TaskSpec {
    /// Returns every referent that the task holds until it ends.
    pub fn referents_to_hold(&self) -> impl Iterator<Item = Referent> {
        self.input_objects().map(Referent::Object).chain(self.referents.iter().copied())
    }

    /// Returns the objects whose values the task reads.
    pub fn input_objects(&self) -> impl Iterator<Item = ObjectId> {
        self.needs.iter().copied().chain(self.args.stored_object())
    }

    /// Returns the objects that the task's results become.
    pub fn results(&self) -> impl Iterator<Item = ObjectId> + use<> {
        let id = self.id;
        (0..self.returns).map(move |index| ObjectId::of(id, index))
    }

    /// Returns the objects of the task's results and of its first `items` items.
    pub fn results_and_items(&self, items: u32) -> impl Iterator<Item = ObjectId> + use<> {
        let id = self.id;
        self.results().chain((0..items).map(move |item| ObjectId::item(id, item)))
    }

    /// Returns the task's results as referents. Returns none if the task asks for more results than
    /// it may.
    pub fn results_to_hold(&self) -> impl Iterator<Item = Referent> + use<> {
        let most = if self.returns > MAX_RETURNS { 0 } else { usize::MAX };
        self.results().take(most).map(Referent::Object)
    }

    /// Returns `values` if the task was to return that many, otherwise an error.
    pub fn check_results(&self, values: Vec<Value>) -> Outcome {
        if values.len() == self.returns as usize {
            return Ok(values);
        }
        let (name, count) = (self.target.label(), values.len());
        let message = format!("{name:?} returned {count} values, {} were asked for", self.returns);
        Err(Error::invalid(message).ran(Ran::Maybe))
    }

    /// Fails if the specification is not valid.
    pub fn validate(&self) -> Result<(), Error> {
        check_name("function", self.target.name())?;
        if self.returns > MAX_RETURNS {
            return Err(Error::too_large(format!(
                "{} results were asked for, the limit is {MAX_RETURNS} (MAX_RETURNS)",
                self.returns
            )));
        }
        self.validate_stream()?;
        self.options.resources.validate()
    }

    fn validate_stream(&self) -> Result<(), Error> {
        match self.stream_window {
            None => Ok(()),
            Some(0) => Err(Error::invalid(
                "max_unconsumed is 0: expected at least 1, so that an item can wait for its consumer",
            )),
            Some(_) if self.returns != 1 => Err(Error::invalid(format!(
                "a task that streams has one result besides its items, {} results were asked for",
                self.returns
            ))),
            Some(count) if count > MAX_UNCONSUMED => Err(Error::too_large(format!(
                "max_unconsumed is {count}, the limit is {MAX_UNCONSUMED} (MAX_UNCONSUMED)"
            ))),
            Some(_) => Ok(()),
        }
    }
}

/// How long an actor lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lifetime {
    /// Until its last handle is released.
    #[default]
    NonDetached,
    /// Until it is deleted.
    Detached,
}

/// How an actor is placed, runs and ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActorOptions {
    /// The resources that must be free where it is placed, at least. It is granted only
    /// `resources`.
    pub placement: Resources,
    /// The resources that it takes while it lives.
    pub resources: Resources,
    /// How often it may restart after its executor or worker was lost.
    pub max_restarts: Budget,
    /// How often a call that may have run is sent again.
    pub max_task_retries: Budget,
    /// How many calls run at the same time.
    pub max_concurrency: u32,
    /// How many calls may wait at the actor. Further calls are rejected with `Exhausted`.
    pub max_pending_calls: u32,
    /// How long it lives.
    pub lifetime: Lifetime,
    /// Whether to return an existing actor of the same class and name, instead of an error.
    pub get_if_exists: bool,
    /// Whether it may live on a worker that can be taken away at any time.
    pub preemptible: bool,
    /// How long the actor lives without a call.
    pub idle_ttl: Option<Duration>,
    /// When its state is saved. A restart begins with the newest checkpoint. `None` if the state is
    /// not saved.
    pub checkpoints: Option<CheckpointPolicy>,
}

/// When an actor's state is saved. It is also saved when its worker drains, and when a client calls
/// [`SAVE_METHOD`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckpointPolicy {
    /// After this many calls.
    pub every_calls: Option<u32>,
    /// At this interval, if there were calls.
    pub interval: Option<Duration>,
}

/// The largest checkpoint, in bytes. It travels in one message with the constructor's arguments.
pub const MAX_CHECKPOINT_BYTES: usize = 32 << 20;

/// The method that returns an actor's state. [`ActorOptions::checkpoints`] sets when it is called.
pub const SAVE_METHOD: &str = "save_checkpoint";

impl Default for ActorOptions {
    fn default() -> ActorOptions {
        ActorOptions {
            placement: Resources::one_cpu(),
            resources: Resources::default(),
            max_restarts: Budget::Times(0),
            max_task_retries: Budget::Times(0),
            max_concurrency: 1,
            max_pending_calls: 100_000,
            lifetime: Lifetime::NonDetached,
            get_if_exists: false,
            preemptible: true,
            idle_ttl: None,
            checkpoints: None,
        }
    }
}

/// An actor to be created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActorSpec {
    /// Chosen by the client that creates the actor.
    pub id: ActorId,
    /// The class, by the name under which a worker provides it.
    pub class: Arc<str>,
    /// The constructor's arguments, encoded.
    pub args: Payload,
    /// Objects whose values the constructor gets with its arguments.
    pub needs: Vec<ObjectId>,
    /// The referents of references inside the arguments. They are held as long as the actor may be
    /// instantiated.
    pub referents: Vec<Referent>,
    /// The name by which clients find it.
    pub name: Option<Arc<str>>,
    /// The namespace of the name.
    pub namespace: Arc<str>,
    /// The actor's options.
    pub options: Arc<ActorOptions>,
    /// A description of its methods for callers in its own language. Marline does not look into it.
    pub interface: Bytes,
}

/// The most bytes in a description of an actor's methods.
pub const MAX_INTERFACE_BYTES: usize = 64 << 10;

impl ActorSpec {
    /// Returns every referent that the actor holds while it may be instantiated.
    pub fn referents_to_hold(&self) -> impl Iterator<Item = Referent> {
        self.input_objects().map(Referent::Object).chain(self.referents.iter().copied())
    }

    /// Returns the objects whose values the constructor reads.
    pub fn input_objects(&self) -> impl Iterator<Item = ObjectId> {
        self.needs.iter().copied().chain(self.args.stored_object())
    }

    /// Fails if the specification is not valid.
    pub fn validate(&self) -> Result<(), Error> {
        check_name("class", &self.class)?;
        match &self.name {
            Some(name) => check_name("actor", name)?,
            None if self.options.get_if_exists => {
                return Err(Error::invalid(
                    "get_if_exists finds the actor by its name: give it one",
                ));
            }
            None => {}
        }
        if self.namespace.len() > MAX_NAME_BYTES {
            return Err(too_long("namespace", self.namespace.len()));
        }
        if self.options.max_concurrency == 0 {
            return Err(Error::invalid(
                "max_concurrency is 0: at least one call must be able to run",
            ));
        }
        if let Some(CheckpointPolicy { every_calls, interval }) = self.options.checkpoints
            && (every_calls == Some(0) || interval == Some(Duration::ZERO))
        {
            return Err(Error::invalid(
                "a checkpoint interval is 0: expected at least 1 call, or more than 0 seconds",
            ));
        }
        if self.interface.len() > MAX_INTERFACE_BYTES {
            let bytes = self.interface.len();
            return Err(Error::too_large(format!(
                "the description of the methods of {:?} is {bytes} bytes, the limit is {MAX_INTERFACE_BYTES} \
                 (MAX_INTERFACE_BYTES)",
                self.class
            )));
        }
        self.options.placement.validate()?;
        self.options.resources.validate()
    }
}

/// The prefix of the names under which workers provide actor classes.
pub const ACTOR_SCHEME: &str = "actor:";

/// Returns the runtime whose executors run the function or class of this name. It is the scheme of
/// the name with its environment (`python`, `python/1f0a`), or empty for the worker's own program.
/// The name may have the prefix [`ACTOR_SCHEME`].
pub fn runtime_of(name: &str) -> &str {
    let name = name.strip_prefix(ACTOR_SCHEME).unwrap_or(name);
    name.split_once(':').map_or("", |(runtime, _)| runtime)
}

/// The scheme of the names of commands, as in `command:ls`.
pub const COMMAND_SCHEME: &str = "command";

fn check_name(what: &str, name: &str) -> Result<(), Error> {
    match name.len() {
        0 => Err(Error::invalid(format!("the name of the {what} is empty"))),
        1..=MAX_NAME_BYTES => Ok(()),
        bytes => Err(too_long(what, bytes)),
    }
}

fn too_long(what: &str, bytes: usize) -> Error {
    Error::too_large(format!(
        "the name of the {what} has {bytes} bytes; at most {MAX_NAME_BYTES} are allowed (MAX_NAME_BYTES)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delays_double_up_to_a_limit_and_jitter_takes_at_most_half() {
        let mut random = Random::new(7);
        for spent in 0..80 {
            let whole =
                RETRY_DELAY.saturating_mul(2_u32.saturating_pow(spent)).min(MAX_RETRY_DELAY);
            let delay = retry_delay(RETRY_DELAY, spent, &mut random);
            assert!(delay >= whole / 2 && delay <= whole, "{spent}: {delay:?}");
        }
    }

    #[test]
    fn a_budget_allows_exactly_its_number_of_times() {
        assert!(
            Budget::Times(3).allows(2)
                && !Budget::Times(3).allows(3)
                && !Budget::Times(0).allows(0)
        );
        assert!(Budget::Unlimited.allows(u32::MAX));
    }
}
