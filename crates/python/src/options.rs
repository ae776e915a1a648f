//! The options of tasks and actors, converted from Python. `marline/_api/options.py` has checked their
//! values before.

use marline_runtime::core::resources::{Amount, Resources};
use marline_runtime::core::spec::{self, Budget, CheckpointPolicy, Lifetime, RetryOn};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::failure::to_python;

/// How a task runs. Made once for each function with its options.
#[pyclass(frozen, module = "marline._native")]
pub struct TaskOptions {
    pub options: Arc<spec::TaskOptions>,
}

/// The options about the attempts of a task.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct TaskLifeOptions {
    max_retries: i64,
    retry_exceptions: RetryExceptions,
    timeout: Option<f64>,
    preemptible: bool,
    durable: bool,
}

/// The resources that work uses.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Amounts {
    num_cpus: f64,
    num_gpus: f64,
    memory: u64,
    resources: BTreeMap<String, f64>,
}

impl Amounts {
    pub fn resources(&self, py: Python<'_>) -> PyResult<Resources> {
        let amount = |value| Amount::from_f64(value).map_err(|error| to_python(py, &error));
        let mut resources = Resources { cpu: amount(self.num_cpus)?, ..Resources::default() };
        resources = resources.with_gpus(amount(self.num_gpus)?).with_memory(self.memory);
        for (name, value) in &self.resources {
            resources = resources.with_custom(name, amount(*value)?);
        }
        resources.validate().map_err(|error| to_python(py, &error))?;
        Ok(resources)
    }
}

/// The results of a task or call: how many, and in which form.
#[derive(Clone, Copy)]
pub struct Returns {
    /// The number of results.
    pub results: u32,
    /// For a stream: how many items may wait to be taken.
    pub stream: Option<u32>,
    /// Whether all items come in one result.
    pub collects: bool,
    /// For a call: whether large results outlive their node.
    pub durable: bool,
}

impl FromPyObject<'_, '_> for Returns {
    type Error = PyErr;

    /// Takes a `Returns` of Python, which is a tuple: faster than by the names of its fields.
    fn extract(returns: Borrowed<'_, '_, PyAny>) -> PyResult<Returns> {
        let (results, stream, collects, durable) = returns.extract()?;
        Ok(Returns { results, stream, collects, durable })
    }
}

impl Returns {
    /// Returns how the items of a generator come, if all come in one result.
    pub fn collected(self, durable: bool) -> Option<CollectedItems> {
        self.collects.then_some(CollectedItems { durable })
    }
}

/// The items of a generator that the executor puts, so that one result has references to all.
#[derive(Clone, Copy)]
pub struct CollectedItems {
    /// Whether large items outlive their node.
    pub durable: bool,
}

/// Returns the options with durable results, if `durable`.
pub fn lasting(options: Arc<spec::TaskOptions>, durable: bool) -> Arc<spec::TaskOptions> {
    match durable {
        false => options,
        true => Arc::new(spec::TaskOptions { durable, ..(*options).clone() }),
    }
}

/// Converts a number of retries or restarts; -1 is no limit.
fn budget(times: i64) -> Budget {
    u32::try_from(times).map_or(Budget::Unlimited, Budget::Times)
}

/// Converts a number of seconds. A time that is too long for a `Duration` is no limit. Negative
/// times were rejected in Python.
pub fn seconds(time: Option<f64>) -> Option<Duration> {
    time.and_then(|time| Duration::try_from_secs_f64(time).ok())
}

#[pymethods]
impl TaskOptions {
    #[new]
    fn new(
        py: Python<'_>,
        amounts: Amounts,
        life_options: TaskLifeOptions,
    ) -> PyResult<TaskOptions> {
        // Each field is named, so that a new one must be considered here.
        let options = spec::TaskOptions {
            resources: amounts.resources(py)?,
            max_retries: budget(life_options.max_retries),
            retry_on: match life_options.retry_exceptions {
                RetryExceptions::All(true) => RetryOn::Any,
                RetryExceptions::All(false) => RetryOn::Never,
                RetryExceptions::Classes(classes) => RetryOn::Classes(classes),
            },
            retry_delay: spec::RETRY_DELAY,
            timeout: seconds(life_options.timeout),
            preemptible: life_options.preemptible,
            durable: life_options.durable,
        };
        Ok(TaskOptions { options: Arc::new(options) })
    }
}

/// The exceptions after which a task is retried.
#[derive(FromPyObject)]
enum RetryExceptions {
    All(bool),
    Classes(Vec<String>),
}

/// How an actor runs, its name and its namespace.
#[pyclass(frozen, module = "marline._native")]
pub struct ActorOptions {
    pub options: Arc<spec::ActorOptions>,
    pub name: Option<Arc<str>>,
    pub namespace: Arc<str>,
}

/// The options about the life of an actor.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ActorLifeOptions {
    max_restarts: i64,
    max_task_retries: i64,
    max_concurrency: u32,
    max_pending_calls: u32,
    detached: bool,
    get_if_exists: bool,
    preemptible: bool,
    idle_ttl: Option<f64>,
    /// Whether its class can save its state. The two fields below say when it does.
    saves: bool,
    checkpoint_every: Option<u32>,
    checkpoint_interval: Option<f64>,
}

#[pymethods]
impl ActorOptions {
    #[new]
    fn new(
        py: Python<'_>,
        placement: Amounts,
        amounts: Amounts,
        life_options: ActorLifeOptions,
        name: Option<&str>,
        namespace: &str,
    ) -> PyResult<ActorOptions> {
        let options = spec::ActorOptions {
            placement: placement.resources(py)?,
            resources: amounts.resources(py)?,
            max_restarts: budget(life_options.max_restarts),
            max_task_retries: budget(life_options.max_task_retries),
            max_concurrency: life_options.max_concurrency,
            max_pending_calls: life_options.max_pending_calls,
            lifetime: if life_options.detached {
                Lifetime::Detached
            } else {
                Lifetime::NonDetached
            },
            get_if_exists: life_options.get_if_exists,
            preemptible: life_options.preemptible,
            idle_ttl: seconds(life_options.idle_ttl),
            checkpoints: life_options.saves.then_some(CheckpointPolicy {
                every_calls: life_options.checkpoint_every,
                interval: seconds(life_options.checkpoint_interval),
            }),
        };
        let name = name.map(Arc::from);
        Ok(ActorOptions { options: Arc::new(options), name, namespace: namespace.into() })
    }
}
