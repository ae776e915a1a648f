//! Something that comes once, for any number of threads and event loops to wait for.

use crate::reference::Held;
use crate::session::Inner;
use marline_runtime::Tell;
use marline_runtime::core::error::{Error, Ran};
use marline_runtime::core::payload::{Outcome, Value};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// How a task ended, once it has.
#[derive(Default)]
pub struct Answer {
    outcome: OnceLock<Outcome>,
    waiting: Mutex<Vec<Ring>>,
    /// What the values name, where this process was made to hold it: let go with the answer.
    held: OnceLock<Vec<Held>>,
}

/// What is done when it comes, by whichever thread hears of it. It must not block, and knows no Python.
pub type Ring = Box<dyn FnOnce() + Send>;

impl Answer {
    /// One that has come.
    pub fn known(outcome: Outcome) -> Arc<Answer> {
        let answer = Answer::default();
        let _ = answer.outcome.set(outcome);
        Arc::new(answer)
    }

    /// Who is to be told of it. If nobody ever is, it has failed.
    pub fn tell(self: &Arc<Answer>) -> Tell<Outcome> {
        let mut promise = Promise(Some(self.clone()));
        Box::new(move |outcome| promise.keep(outcome))
    }

    /// The same for a call: what its values name is held for whoever gets them.
    pub fn tell_call(self: &Arc<Answer>, session: &Arc<Inner>) -> Tell<Outcome> {
        let (tell, answer, session) = (self.tell(), self.clone(), session.clone());
        Box::new(move |outcome: Outcome| {
            let named = outcome.iter().flatten().flat_map(Value::names);
            let held: Vec<Held> = named.map(|thing| Held::new(&session, thing)).collect();
            if !held.is_empty() {
                let _ = answer.held.set(held);
            }
            tell(outcome);
        })
    }

    /// It, if it has come.
    pub fn get(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// Does this when it comes; at once if it has.
    pub fn then(&self, ring: Ring) {
        let mut waiting = self.waiting();
        if self.outcome.get().is_none() {
            waiting.push(ring);
            return;
        }
        drop(waiting);
        ring();
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Ring>> {
        self.waiting.lock().expect("nothing panics under it")
    }

    fn settle(&self, outcome: Outcome) {
        let _ = self.outcome.set(outcome);
        // Whoever comes later sees that it has come: it looks under the lock.
        let waiting = std::mem::take(&mut *self.waiting());
        for ring in waiting {
            ring();
        }
    }
}

struct Promise(Option<Arc<Answer>>);

impl Promise {
    fn keep(&mut self, outcome: Outcome) {
        if let Some(answer) = self.0.take() {
            answer.settle(outcome);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let words = "the cluster was shut down while this was waited for";
        self.keep(Err(Error::unavailable(Ran::Maybe, words)));
    }
}

/// Does this, once, when so many of these have come, one at least.
pub fn when<'a>(
    answers: impl Iterator<Item = &'a Arc<Answer>>,
    count: usize,
    ring: impl Fn() + Send + Sync + 'static,
) {
    let all = Arc::new((AtomicUsize::new(0), ring));
    for answer in answers {
        let all = all.clone();
        answer.then(Box::new(move || {
            let (come, ring) = &*all;
            if come.fetch_add(1, Ordering::AcqRel) + 1 == count {
                ring();
            }
        }));
    }
}
