//! The work that a scope of user code has submitted, so that the work can be cancelled with the
//! scope.
//!
//! When a task is cancelled, a thread looks up its submissions by the task's id ([`TASKS`]); it
//! needs no interpreter for that. The list holds nothing: it does not keep values or sessions
//! alive. It still finds work whose references are gone, because the callback of running work keeps
//! the answer.

use crate::answer::Answer;
use crate::session::SessionState;
use marline_runtime::core::id::TaskId;
use marline_runtime::core::message::CancelMode;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The first length of a list at which work that has ended is removed from it. After that, ended
/// work is removed whenever the list has doubled, so that the cost of adding stays constant.
const FORGET_AT: usize = 64;

/// The submissions of the tasks and calls that run in this process and have submitted work.
static TASKS: Mutex<BTreeMap<TaskId, Weak<Submissions>>> = Mutex::new(BTreeMap::new());

/// Cancels what a task has submitted.
pub fn cancel_submitted_by(task: TaskId) {
    let submitted = tasks().get(&task).and_then(Weak::upgrade);
    if let Some(submitted) = submitted {
        submitted.cancel();
    }
}

fn tasks() -> MutexGuard<'static, BTreeMap<TaskId, Weak<Submissions>>> {
    TASKS.lock().expect("nothing panics under it")
}

/// The work that one scope has submitted. See the [module](self).
pub struct Submissions {
    list: Mutex<List>,
    /// The task or call that submits. `None` for the scope of a `with marline.scope():` block.
    by: Option<TaskId>,
}

struct List {
    work: Vec<SubmittedTask>,
    forget_at: usize,
    /// Whether the scope has ended with an error: then new work is cancelled at once.
    is_over: bool,
}

struct SubmittedTask {
    session: Weak<SessionState>,
    task: TaskId,
    /// The callback that settles the answer keeps it alive until the work has ended.
    answer: Weak<Answer>,
}

impl SubmittedTask {
    /// Returns the answer, if the work has not ended.
    fn pending(&self) -> Option<Arc<Answer>> {
        self.answer.upgrade().filter(|answer| answer.get().is_none())
    }

    fn cancel(&self) {
        if let Some(session) = self.session.upgrade()
            && let Ok(client) = session.client()
        {
            client.cancel(self.task, CancelMode::Graceful);
        }
    }
}

impl Submissions {
    /// Makes an empty list. With `by`, [`cancel_submitted_by`] finds the list when that task is
    /// cancelled. Without, its owner cancels it.
    pub fn new(by: Option<TaskId>) -> Arc<Submissions> {
        let list = List { work: Vec::new(), forget_at: FORGET_AT, is_over: false };
        Arc::new(Submissions { list: Mutex::new(list), by })
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().expect("nothing panics under it")
    }

    /// Adds a task or call; cancels it at once if the scope has ended.
    pub fn add(
        self: &Arc<Submissions>,
        session: &Arc<SessionState>,
        task: TaskId,
        answer: &Arc<Answer>,
    ) {
        let mut list = self.list();
        if list.work.len() >= list.forget_at {
            list.work.retain(|work| work.pending().is_some());
            list.forget_at = FORGET_AT.max(2 * list.work.len());
        }
        if list.work.is_empty()
            && let Some(by) = self.by
        {
            tasks().insert(by, Arc::downgrade(self));
        }
        let (session, answer) = (Arc::downgrade(session), Arc::downgrade(answer));
        let work = SubmittedTask { session, task, answer };
        if list.is_over {
            work.cancel();
        }
        list.work.push(work);
    }

    /// Cancels work that has not ended, and all work that is added from now on.
    pub fn end(&self) {
        self.list().is_over = true;
        self.cancel();
    }

    /// Cancels work that has not ended.
    pub fn cancel(&self) {
        for work in self.list().work.iter().filter(|work| work.pending().is_some()) {
            work.cancel();
        }
    }

    /// Returns the answers of work that has not ended.
    pub fn pending(&self) -> Vec<Arc<Answer>> {
        self.list().work.iter().filter_map(SubmittedTask::pending).collect()
    }
}

impl Drop for Submissions {
    fn drop(&mut self) {
        if let Some(by) = self.by {
            let mut tasks = tasks();
            // Another attempt of the same task may have replaced the entry.
            if tasks.get(&by).is_some_and(|submitted| submitted.strong_count() == 0) {
                tasks.remove(&by);
            }
        }
    }
}
