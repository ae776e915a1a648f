//! What was submitted within a stretch of user code and has not ended, so that it can be cancelled with it.
//! A task that is asked to stop is found here by its id, by a thread that needs no Python for it. Nothing is
//! held: what nobody else waits for any more is still found while it runs.

use crate::answer::Answer;
use crate::session::Inner;
use marline_runtime::core::id::TaskId;
use marline_runtime::core::message::CancelMode;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// What has ended is forgotten when there are so many, and then whenever they have doubled.
const FORGET_AT: usize = 64;

/// The tasks that run here and have submitted something.
static TASKS: Mutex<BTreeMap<TaskId, Weak<Submitted>>> = Mutex::new(BTreeMap::new());

/// A task is to stop: so is what it has submitted.
pub fn stop(task: TaskId) {
    let submitted = tasks().get(&task).and_then(Weak::upgrade);
    if let Some(submitted) = submitted {
        submitted.cancel();
    }
}

fn tasks() -> MutexGuard<'static, BTreeMap<TaskId, Weak<Submitted>>> {
    TASKS.lock().expect("nothing panics under it")
}

/// See the [module](self).
pub struct Submitted {
    list: Mutex<List>,
    /// The task or call that submits.
    by: Option<TaskId>,
}

struct List {
    work: Vec<Work>,
    forget_at: usize,
    /// All of it was cancelled: so is what comes late.
    is_over: bool,
}

struct Work {
    session: Weak<Inner>,
    task: TaskId,
    /// Whoever tells how it ended has it until then.
    answer: Weak<Answer>,
}

impl Work {
    /// What is to be waited for, if it has not ended.
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

impl Submitted {
    /// Nothing so far; by a task or call, or within it.
    pub fn new(by: Option<TaskId>) -> Arc<Submitted> {
        let list = List { work: Vec::new(), forget_at: FORGET_AT, is_over: false };
        Arc::new(Submitted { list: Mutex::new(list), by })
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().expect("nothing panics under it")
    }

    /// This was submitted.
    pub fn add(self: &Arc<Submitted>, session: &Arc<Inner>, task: TaskId, answer: &Arc<Answer>) {
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
        let work = Work { session, task, answer };
        if list.is_over {
            work.cancel();
        }
        list.work.push(work);
    }

    /// Cancels what has not ended, and what is submitted from now on.
    pub fn end(&self) {
        self.list().is_over = true;
        self.cancel();
    }

    /// Cancels what has not ended.
    pub fn cancel(&self) {
        for work in self.list().work.iter().filter(|work| work.pending().is_some()) {
            work.cancel();
        }
    }

    /// What has not ended.
    pub fn pending(&self) -> Vec<Arc<Answer>> {
        self.list().work.iter().filter_map(Work::pending).collect()
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if let Some(by) = self.by {
            let mut tasks = tasks();
            // Another try at the same task may have taken its place.
            if tasks.get(&by).is_some_and(|submitted| submitted.strong_count() == 0) {
                tasks.remove(&by);
            }
        }
    }
}
