//! What was submitted within a stretch of user code and has not ended, so that it can be cancelled with it.
//! Nothing is held: what nobody else waits for any more is still found while it runs.

use crate::answer::Answer;
use crate::session::Inner;
use marline_runtime::core::id::TaskId;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// What has ended is forgotten when there are so many, and then whenever they have doubled.
const FORGET_AT: usize = 64;

/// See the [module](self).
pub struct Submitted(Mutex<List>);

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
            client.cancel(self.task, false);
        }
    }
}

impl Submitted {
    /// Nothing so far.
    pub fn new() -> Arc<Submitted> {
        let list = List { work: Vec::new(), forget_at: FORGET_AT, is_over: false };
        Arc::new(Submitted(Mutex::new(list)))
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().expect("nothing panics under it")
    }

    /// This was submitted.
    pub fn add(&self, session: &Arc<Inner>, task: TaskId, answer: &Arc<Answer>) {
        let mut list = self.list();
        if list.work.len() >= list.forget_at {
            list.work.retain(|work| work.pending().is_some());
            list.forget_at = FORGET_AT.max(2 * list.work.len());
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
        let mut list = self.list();
        list.is_over = true;
        for work in list.work.iter().filter(|work| work.pending().is_some()) {
            work.cancel();
        }
    }

    /// What has not ended.
    pub fn pending(&self) -> Vec<Arc<Answer>> {
        self.list().work.iter().filter_map(Work::pending).collect()
    }
}
