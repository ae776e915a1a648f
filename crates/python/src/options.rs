//! How tasks and actors run, as Python says it.

use marline_runtime::core::resources::{Amount, Resources};
use marline_runtime::core::spec::{self, Budget, CheckpointPolicy, Lifetime, RetryOn};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::failure::to_python;

/// How a task runs. Made once for a function and its options.
#[pyclass(frozen, module = "marline._native")]
pub struct TaskOptions {
    pub options: Arc<spec::TaskOptions>,
}

/// What work takes or needs.
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

/// What is wanted of a task or call: how many results, or how many items may wait that were not taken, or all its
/// items in one result; of a call, whether they are to outlive their node.
#[derive(Clone, Copy, FromPyObject)]
pub struct Returns(pub u32, pub Option<u32>, pub bool, pub bool);

/// The same; what comes of it is to outlive its node.
pub fn lasting(options: Arc<spec::TaskOptions>, durable: bool) -> Arc<spec::TaskOptions> {
    match durable {
        false => options,
        true => Arc::new(spec::TaskOptions { durable, ..(*options).clone() }),
    }
}

/// How often: -1 is without a limit.
fn budget(times: i64) -> Budget {
    u32::try_from(times).map_or(Budget::Unlimited, Budget::Times)
}

/// A time, unless it is too long: then there is no limit. What makes no sense was refused before.
pub fn seconds(time: Option<f64>) -> Option<Duration> {
    time.and_then(|time| Duration::try_from_secs_f64(time).ok())
}

#[pymethods]
impl TaskOptions {
    #[new]
    fn new(
        py: Python<'_>,
        amounts: Amounts,
        max_retries: i64,
        retry_exceptions: RetryExceptions,
        timeout: Option<f64>,
        preemptible: bool,
        durable: bool,
    ) -> PyResult<TaskOptions> {
        let options = spec::TaskOptions {
            resources: amounts.resources(py)?,
            max_retries: budget(max_retries),
            retry_on: match retry_exceptions {
                RetryExceptions::All(true) => RetryOn::Any,
                RetryExceptions::All(false) => RetryOn::Never,
                RetryExceptions::Classes(classes) => RetryOn::Classes(classes),
            },
            timeout: seconds(timeout),
            preemptible,
            durable,
            ..spec::TaskOptions::default()
        };
        Ok(TaskOptions { options: Arc::new(options) })
    }
}

/// Which exceptions are tried again.
#[derive(FromPyObject)]
enum RetryExceptions {
    All(bool),
    Classes(Vec<String>),
}

/// How an actor lives.
#[pyclass(frozen, module = "marline._native")]
pub struct ActorOptions {
    pub options: Arc<spec::ActorOptions>,
    pub name: Option<Arc<str>>,
    pub namespace: Arc<str>,
}

/// What an actor's life depends on.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Terms {
    max_restarts: i64,
    max_task_retries: i64,
    max_concurrency: u32,
    max_pending_calls: u32,
    detached: bool,
    get_if_exists: bool,
    preemptible: bool,
    idle_ttl: Option<f64>,
    /// Whether its state can be saved, and when that is done.
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
        terms: Terms,
        name: Option<&str>,
        namespace: &str,
    ) -> PyResult<ActorOptions> {
        let options = spec::ActorOptions {
            placement: placement.resources(py)?,
            resources: amounts.resources(py)?,
            max_restarts: budget(terms.max_restarts),
            max_task_retries: budget(terms.max_task_retries),
            max_concurrency: terms.max_concurrency,
            max_pending_calls: terms.max_pending_calls,
            lifetime: if terms.detached { Lifetime::Detached } else { Lifetime::NonDetached },
            get_if_exists: terms.get_if_exists,
            preemptible: terms.preemptible,
            idle_ttl: seconds(terms.idle_ttl),
            checkpoints: terms.saves.then_some(CheckpointPolicy {
                every_calls: terms.checkpoint_every,
                interval: seconds(terms.checkpoint_interval),
            }),
        };
        let name = name.map(Arc::from);
        Ok(ActorOptions { options: Arc::new(options), name, namespace: namespace.into() })
    }
}
