//! Scopes of user code: a running task or call, or a `with marline.scope():` block in a task or a
//! driver. A scope has the deadline of its task, if it is in one, and a list of the work that its
//! code submitted, so that this work can be cancelled.
//!
//! `marline/_api/scopes.py` keeps the innermost scope in a context variable.

use crate::answer::{Answer, Awaited};
use crate::session::SessionState;
use crate::submissions::Submissions;
use crate::wait::wait_briefly;
use marline_runtime::core::id::TaskId;
use marline_runtime::{Context, context};
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A running task or call, for Python.
#[pyclass(frozen, get_all, module = "marline._native")]
pub struct RunningWork {
    /// The name of the function or method.
    name: String,
    /// The id of the task or call.
    task: String,
    attempt: u64,
    /// The actor and its epoch, in a call.
    actor: Option<String>,
    actor_epoch: Option<u64>,
    /// The GPUs that were assigned to the work.
    gpus: Vec<u32>,
}

/// A scope of user code. See the [module](self).
#[pyclass(frozen, module = "marline._native")]
pub struct CodeScope {
    running: Option<Context>,
    /// The work that was submitted in this scope.
    submitted: Arc<Submissions>,
    /// The submissions of the scopes that enclose this one, the outermost first.
    outer_submissions: Vec<Arc<Submissions>>,
}

impl CodeScope {
    /// Records a task or call that was submitted in this scope, here and in all enclosing scopes.
    pub fn add(&self, session: &Arc<SessionState>, task: TaskId, answer: &Arc<Answer>) {
        for submitted in self.outer_submissions.iter().chain([&self.submitted]) {
            submitted.add(session, task, answer);
        }
    }

    /// Returns the answers of submitted work that has not ended.
    pub fn pending(&self) -> Vec<Arc<Answer>> {
        self.submitted.pending()
    }

    /// Returns how much time the task has until its deadline, if it has one.
    pub fn time_left(&self) -> Option<Duration> {
        let deadline = self.running.as_ref()?.deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }
}

#[pymethods]
impl CodeScope {
    /// Makes the scope of the task or call that runs on this thread.
    #[new]
    fn new() -> CodeScope {
        let running = context();
        let submitted = Submissions::new(running.as_ref().map(|context| context.task));
        CodeScope { running, submitted, outer_submissions: Vec::new() }
    }

    /// Makes a scope inside `outer`. Without `outer` it has no task and no enclosing scope.
    #[staticmethod]
    fn inside(outer: Option<&Bound<'_, CodeScope>>) -> CodeScope {
        let Some(outer) = outer.map(Bound::get) else {
            return CodeScope {
                running: None,
                submitted: Submissions::new(None),
                outer_submissions: Vec::new(),
            };
        };
        let outer_submissions =
            outer.outer_submissions.iter().chain([&outer.submitted]).cloned().collect();
        CodeScope {
            running: outer.running.clone(),
            submitted: Submissions::new(None),
            outer_submissions,
        }
    }

    /// Cancels the submitted work that has not ended, and all work that this scope submits later.
    fn end(&self, py: Python<'_>) {
        py.detach(|| self.submitted.end());
    }

    /// Cancels the submitted work that has not ended, if the task was cancelled together with the
    /// work that it submitted. Work that is submitted later goes on.
    fn cancel_if_recursive(&self, py: Python<'_>) {
        if self.running.as_ref().is_some_and(Context::stops_what_it_submitted) {
            py.detach(|| self.submitted.cancel());
        }
    }

    /// Waits until all submitted work has ended, at most `timeout` seconds. Returns how many tasks
    /// and calls have not ended.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<usize> {
        let pending = self.pending();
        wait_briefly(py, &pending.iter().map(Awaited::Answer).collect::<Vec<_>>(), timeout)?;
        Ok(self.unfinished())
    }

    /// Returns whether the task or call was cancelled.
    fn is_cancelled(&self) -> bool {
        self.running.as_ref().is_some_and(|context| context.cancel.is_cancelled())
    }

    /// Returns how many of the submitted tasks and calls have not ended.
    fn unfinished(&self) -> usize {
        self.pending().len()
    }

    /// Returns the seconds until the deadline of the task, if it has one.
    fn seconds_left(&self) -> Option<f64> {
        self.time_left().map(|left| left.as_secs_f64())
    }

    /// Returns what is known of the task or call; `None` outside of one.
    fn running(&self) -> Option<RunningWork> {
        let context = self.running.as_ref()?;
        Some(RunningWork {
            name: context.name.to_string(),
            task: context.task.to_string(),
            attempt: context.attempt.0,
            actor: context.actor.map(|actor| actor.to_string()),
            actor_epoch: context.actor_epoch.map(|epoch| epoch.0),
            gpus: context.gpus.to_vec(),
        })
    }
}
