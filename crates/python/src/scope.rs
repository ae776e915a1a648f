//! Where user code is: in which task or call.

use marline_runtime::{Context, context};
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// A task or call that runs: its name, the task, its attempt, the actor and its epoch, and the GPUs it was
/// given.
type Running = (String, String, u64, Option<String>, Option<u64>, Vec<u32>);

/// A stretch of user code. See the [module](self).
#[pyclass(frozen, module = "marline._native")]
pub struct Scope {
    running: Option<Context>,
}

impl Scope {
    /// How long it may go on, if that is limited.
    pub fn time_left(&self) -> Option<Duration> {
        let deadline = self.running.as_ref()?.deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }
}

#[pymethods]
impl Scope {
    /// That of the task or call that runs on this thread.
    #[new]
    fn new() -> Scope {
        Scope { running: context() }
    }

    /// The seconds it may go on, if that is limited.
    fn left(&self) -> Option<f64> {
        self.time_left().map(|left| left.as_secs_f64())
    }

    /// What is known of the task or call.
    fn running(&self) -> Option<Running> {
        let context = self.running.as_ref()?;
        let actor = context.actor.map(|actor| actor.to_string());
        let epoch = context.actor_epoch.map(|epoch| epoch.0);
        let (name, task) = (context.name.to_string(), context.task.to_string());
        Some((name, task, context.attempt.0, actor, epoch, context.gpus.to_vec()))
    }
}
