//! Where user code is: in which task or call, and in which `with scope()` of it.

use crate::answer::{Answer, Awaited};
use crate::session::Inner;
use crate::submitted::Submitted;
use crate::wait::wait_briefly;
use marline_runtime::core::id::TaskId;
use marline_runtime::{Context, context};
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A task or call that runs: its name, the task, its attempt, the actor and its epoch, and the GPUs it was
/// given.
type Running = (String, String, u64, Option<String>, Option<u64>, Vec<u32>);

/// A stretch of user code. See the [module](self).
#[pyclass(frozen, module = "marline._native")]
pub struct Scope {
    running: Option<Context>,
    /// What was submitted in it.
    submitted: Arc<Submitted>,
    /// The same of those that it is inside of.
    around: Vec<Arc<Submitted>>,
}

impl Scope {
    /// This was submitted in it.
    pub fn add(&self, session: &Arc<Inner>, task: TaskId, answer: &Arc<Answer>) {
        for submitted in self.around.iter().chain([&self.submitted]) {
            submitted.add(session, task, answer);
        }
    }

    /// What was submitted in it and has not ended.
    pub fn pending(&self) -> Vec<Arc<Answer>> {
        self.submitted.pending()
    }

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
        let running = context();
        let submitted = Submitted::new(running.as_ref().map(|context| context.task));
        Scope { running, submitted, around: Vec::new() }
    }

    /// One inside another, or inside nothing.
    #[staticmethod]
    fn inside(outer: Option<&Bound<'_, Scope>>) -> Scope {
        let Some(outer) = outer.map(Bound::get) else {
            return Scope { running: None, submitted: Submitted::new(None), around: Vec::new() };
        };
        let around = outer.around.iter().chain([&outer.submitted]).cloned().collect();
        Scope { running: outer.running.clone(), submitted: Submitted::new(None), around }
    }

    /// Cancels what was submitted in it and has not ended, and what is from now on.
    fn end(&self, py: Python<'_>) {
        py.detach(|| self.submitted.end());
    }

    /// If the task or call was asked to stop, and not alone: cancels what was submitted in it and has not ended.
    fn stop(&self, py: Python<'_>) {
        if self.running.as_ref().is_some_and(Context::stops_what_it_submitted) {
            py.detach(|| self.submitted.cancel());
        }
    }

    /// Waits until all that was submitted in it has ended, or the time is over. Says how many have not.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<usize> {
        let pending = self.pending();
        wait_briefly(py, &pending.iter().map(Awaited::Answer).collect::<Vec<_>>(), timeout)?;
        Ok(self.unfinished())
    }

    /// Whether the task or call is to stop.
    fn is_cancelled(&self) -> bool {
        self.running.as_ref().is_some_and(|context| context.cancel.is_cancelled())
    }

    /// How much of what was submitted in it has not ended.
    fn unfinished(&self) -> usize {
        self.pending().len()
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
