//! What users ask for: tasks, calls and actors, with their options. Made once, shared, never changed.

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
/// The wait before the first retry, unless the work says otherwise.
pub const RETRY_DELAY: Duration = Duration::from_millis(100);
/// The longest name of a function, class, method, actor or namespace, in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// The most results that one task gives.
pub const MAX_RETURNS: u32 = 10_000;

/// The most items that one task gives.
pub const MAX_ITEMS: u32 = u32::MAX - 1;
/// So many items of a stream may be there that nobody has taken, unless the task says otherwise.
pub const DEFAULT_MAX_UNCONSUMED: u32 = 64;
/// The most that a task may say: each is kept for whoever is to take it.
pub const MAX_UNCONSUMED: u32 = 1 << 16;

/// Whoever takes the items of a stream says so in steps of so many: the producer has room for most of a window
/// all the same, and is told a few times in each.
pub fn consumed_report_step(stream: u32) -> u32 {
    (stream / 4).max(1)
}

/// How often something may be done again; the smaller first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Budget {
    /// So many times.
    Times(u32),
    /// As often as it takes.
    Unlimited,
}

impl Budget {
    /// Whether one more is allowed after `spent`.
    pub fn allows(self, spent: u32) -> bool {
        match self {
            Budget::Times(times) => spent < times,
            Budget::Unlimited => true,
        }
    }

    /// What is left after `spent`.
    pub fn less(self, spent: u32) -> Budget {
        match self {
            Budget::Times(times) => Budget::Times(times.saturating_sub(spent)),
            Budget::Unlimited => Budget::Unlimited,
        }
    }
}

/// Which failures of user code are tried again.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum RetryOn {
    /// None: what user code says is final.
    #[default]
    Never,
    /// All.
    Any,
    /// Those whose class, or one that it is a kind of, is named.
    Classes(Vec<String>),
}

impl RetryOn {
    /// Whether this error of user code is tried again.
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

/// How a task runs. Tasks of one function share theirs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskOptions {
    /// What it takes while it runs.
    pub resources: Resources,
    /// How often it may run again after its executor or worker was lost. For a call: at most this, and
    /// at most what its actor allows.
    pub max_retries: Budget,
    /// Which failures of user code count as a loss.
    pub retry_on: RetryOn,
    /// The wait before the first retry; each further one is twice as long, up to [`MAX_RETRY_DELAY`].
    pub retry_delay: Duration,
    /// How long one attempt may take. A call that takes longer is answered at once and asked to stop, and
    /// takes its place at its actor until it does.
    pub timeout: Option<Duration>,
    /// Whether it may run on a worker that may be taken away at any time.
    pub preemptible: bool,
    /// Whether its results are saved where they outlive every node, if they are large.
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

/// The wait before the retry after `spent` others: doubled each time, with up to half of it taken off
/// by chance so that what failed together does not return together.
pub fn retry_delay(first: Duration, spent: u32, random: &mut Random) -> Duration {
    let whole =
        first.saturating_mul(1_u32.checked_shl(spent).unwrap_or(u32::MAX)).min(MAX_RETRY_DELAY);
    whole / 2 + random.up_to(whole / 2)
}

/// What a task calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A function that some worker provides under this name.
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
    /// The actor, if it is a method of one.
    pub fn actor(&self) -> Option<ActorId> {
        match self {
            Target::Function(_) => None,
            Target::Method { actor, .. } => Some(*actor),
        }
    }

    /// The name of the function or method.
    pub fn name(&self) -> &Arc<str> {
        match self {
            Target::Function(name) => name,
            Target::Method { method, .. } => method,
        }
    }

    /// What people call it.
    pub fn label(&self) -> &str {
        label_of(self.name())
    }
}

/// One function call to be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskSpec {
    /// Made by whoever submits it: submitting it twice is submitting it once.
    pub id: TaskId,
    /// What to call.
    pub target: Target,
    /// The arguments, encoded.
    pub args: Payload,
    /// Objects whose values go along with the arguments; the task waits for them.
    pub needs: Vec<ObjectId>,
    /// What references inside the arguments name; held as long as the task may run.
    pub referents: Vec<Referent>,
    /// How many results it gives.
    pub returns: u32,
    /// If it gives items while it runs: how many there may be that nobody has taken. Its one result is how many
    /// there were, as a number in MessagePack.
    pub stream_window: Option<u32>,
    /// How it runs.
    pub options: Arc<TaskOptions>,
}

impl TaskSpec {
    /// Everything the task holds while it has not ended.
    pub fn referents_to_hold(&self) -> impl Iterator<Item = Referent> {
        self.input_objects().map(Referent::Object).chain(self.referents.iter().copied())
    }

    /// The objects whose values it reads.
    pub fn input_objects(&self) -> impl Iterator<Item = ObjectId> {
        self.needs.iter().copied().chain(self.args.stored_object())
    }

    /// The objects its results become.
    pub fn results(&self) -> impl Iterator<Item = ObjectId> + use<> {
        let id = self.id;
        (0..self.returns).map(move |index| ObjectId::of(id, index))
    }

    /// The same, and the first `items` of what it gives if it streams.
    pub fn results_and_items(&self, items: u32) -> impl Iterator<Item = ObjectId> + use<> {
        let id = self.id;
        self.results().chain((0..items).map(move |item| ObjectId::item(id, item)))
    }

    /// Its results as things that can be held; none if it asks for more than it may.
    pub fn results_to_hold(&self) -> impl Iterator<Item = Referent> + use<> {
        let most = if self.returns > MAX_RETURNS { 0 } else { usize::MAX };
        self.results().take(most).map(Referent::Object)
    }

    /// Its results, if they are as many as were asked for.
    pub fn check_results(&self, values: Vec<Value>) -> Outcome {
        if values.len() == self.returns as usize {
            return Ok(values);
        }
        let (name, count) = (self.target.label(), values.len());
        let message = format!("{name:?} returned {count} values, {} were asked for", self.returns);
        Err(Error::invalid(message).ran(Ran::Maybe))
    }

    /// Says what is wrong with it.
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
                "max_unconsumed is 0: at least one item must be able to wait for whoever takes it",
            )),
            Some(_) if self.returns != 1 => Err(Error::invalid(format!(
                "{} results of a task that streams were asked for: it has one, besides its items",
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
    /// Until its last handle goes.
    #[default]
    NonDetached,
    /// Until it is deleted.
    Detached,
}

/// How an actor lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActorOptions {
    /// What must be free where it is placed, besides what it takes. It is not taken.
    pub placement: Resources,
    /// What it takes while it lives.
    pub resources: Resources,
    /// How often it may be instantiated again after its executor or worker was lost.
    pub max_restarts: Budget,
    /// How often a call that may have run is sent again.
    pub max_task_retries: Budget,
    /// How many calls run at a time.
    pub max_concurrency: u32,
    /// How many calls may wait at the actor; more are refused as `Exhausted`.
    pub max_pending_calls: u32,
    /// How long it lives.
    pub lifetime: Lifetime,
    /// Whether an actor of the same class that has the name already is what was asked for.
    pub get_if_exists: bool,
    /// Whether it may live on a worker that may be taken away at any time.
    pub preemptible: bool,
    /// Without a call for this long it ends.
    pub idle_ttl: Option<Duration>,
    /// When its state is saved, if it can be: then a restart begins with what was saved last.
    pub checkpoints: Option<CheckpointPolicy>,
}

/// When an actor's state is saved, besides when its worker drains and when somebody calls [`SAVE_METHOD`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckpointPolicy {
    /// After so many calls.
    pub every_calls: Option<u32>,
    /// After so long, if there were calls.
    pub interval: Option<Duration>,
}

/// The largest checkpoint, in bytes: it travels in one message with the constructor's arguments.
pub const MAX_CHECKPOINT_BYTES: usize = 32 << 20;

/// The method that gives an actor's state; [`ActorOptions::checkpoints`] says when it is called.
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
    /// Made by whoever creates it.
    pub id: ActorId,
    /// The class that some worker provides under this name.
    pub class: Arc<str>,
    /// The constructor's arguments, encoded.
    pub args: Payload,
    /// Objects whose values go along with the arguments.
    pub needs: Vec<ObjectId>,
    /// What references inside the arguments name; held as long as the actor may be instantiated.
    pub holds: Vec<Referent>,
    /// The name it is found by.
    pub name: Option<Arc<str>>,
    /// Where its name counts.
    pub namespace: Arc<str>,
    /// How it lives.
    pub options: Arc<ActorOptions>,
    /// What callers in its own language should know of its methods. Only they look into it.
    pub interface: Bytes,
}

/// The longest description of an actor's methods.
pub const MAX_INTERFACE_BYTES: usize = 64 << 10;

impl ActorSpec {
    /// Everything the actor holds while it may be instantiated.
    pub fn held(&self) -> impl Iterator<Item = Referent> {
        self.data().map(Referent::Object).chain(self.holds.iter().copied())
    }

    /// The objects whose values it reads.
    pub fn data(&self) -> impl Iterator<Item = ObjectId> {
        self.needs.iter().copied().chain(self.args.stored_object())
    }

    /// Says what is wrong with it.
    pub fn validate(&self) -> Result<(), Error> {
        check_name("class", &self.class)?;
        match &self.name {
            Some(name) => check_name("actor", name)?,
            None if self.options.get_if_exists => {
                return Err(Error::invalid(
                    "get_if_exists is about the actor that has a name: give one",
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
                "a checkpoint every 0 calls or 0 seconds would be all it does",
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

/// The runtime whose executors run what has this name: the scheme of the name with its environment (`python`, `python/1f0a`),
/// or nothing for the worker's own program. The name may be one that a worker [provides](ACTOR_SCHEME).
pub fn runtime_of(name: &str) -> &str {
    let name = name.strip_prefix(ACTOR_SCHEME).unwrap_or(name);
    name.split_once(':').map_or("", |(runtime, _)| runtime)
}

/// The scheme of the names of commands: `command:ls`.
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
    fn retries_wait_longer_each_time_up_to_a_limit_and_never_less_than_half() {
        let mut random = Random::new(7);
        for spent in 0..80 {
            let whole =
                RETRY_DELAY.saturating_mul(2_u32.saturating_pow(spent)).min(MAX_RETRY_DELAY);
            let delay = retry_delay(RETRY_DELAY, spent, &mut random);
            assert!(delay >= whole / 2 && delay <= whole, "{spent}: {delay:?}");
        }
    }

    #[test]
    fn budgets_count() {
        assert!(
            Budget::Times(3).allows(2)
                && !Budget::Times(3).allows(3)
                && !Budget::Times(0).allows(0)
        );
        assert!(Budget::Unlimited.allows(u32::MAX));
    }
}
