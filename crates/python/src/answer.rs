//! Something that comes once, for any number of threads and event loops to wait for.

use crate::reference::Held;
use crate::session::Inner;
use crate::unread::{Failed, Origin};
use marline_runtime::Callback;
use marline_runtime::core::error::{Error, Ran};
use marline_runtime::core::payload::{Outcome, Payload, Value};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// How a task ended, once it has.
#[derive(Default)]
pub struct Answer {
    outcome: OnceLock<Outcome>,
    waiting: Mutex<Vec<Ring>>,
    /// Which of its first values have been at this node, by their bits: nobody asks for those again.
    here: AtomicU64,
    /// What the values name, where this process was made to hold it: let go with the answer.
    held: OnceLock<Vec<Held>>,
    /// Whether its error, if it has one, was raised here or handed to other work.
    is_read: AtomicBool,
    /// What is printed if nobody reads its error.
    failed: OnceLock<Box<Failed>>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.report_if_unread();
    }
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
    pub fn tell(self: &Arc<Answer>) -> Callback<Outcome> {
        self.tell_of(None)
    }

    /// The same. If it ends with an error that nobody reads, the driver prints of which work that is.
    pub fn tell_of(self: &Arc<Answer>, origin: Option<Origin>) -> Callback<Outcome> {
        let mut promise = Promise(Some(self.clone()));
        Box::new(move |outcome| {
            if let (Some(origin), Some(answer), Err(error)) = (origin, &promise.0, &outcome)
                && let Some(failed) = origin.failed(answer, error)
            {
                let _ = answer.failed.set(failed);
            }
            promise.keep(outcome);
        })
    }

    /// The same for a call: what its values name is held for whoever gets them.
    pub fn tell_call(
        self: &Arc<Answer>,
        session: &Arc<Inner>,
        origin: Option<Origin>,
    ) -> Callback<Outcome> {
        let (tell, answer, session) = (self.tell_of(origin), self.clone(), session.clone());
        Box::new(move |outcome: Outcome| {
            let named = outcome.iter().flatten().flat_map(Value::referents_to_hold);
            let held: Vec<Held> = named.map(|thing| Held::new(&session, thing)).collect();
            if !held.is_empty() {
                let _ = answer.held.set(held);
            }
            tell(outcome);
        })
    }

    /// Somebody has read its error, sees to it that somebody does, or wants no part of it.
    pub fn mark_read(&self) {
        self.is_read.store(true, Ordering::Relaxed);
    }

    /// Reports its error if nobody has read it; once.
    pub fn report_if_unread(&self) {
        if let Some(failed) = self.failed.get()
            && !self.is_read.swap(true, Ordering::Relaxed)
        {
            failed.report();
        }
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

    /// Whether a value has come, and is at this node if it is large, or was.
    pub fn is_here(&self, index: usize) -> bool {
        self.get().is_some() && (self.large(index).is_none() || self.was_here(index))
    }

    /// A value that has come, if its data is in a store.
    pub fn large(&self, index: usize) -> Option<&Payload> {
        let values = self.get()?.as_ref().ok()?;
        Some(&values[index].payload).filter(|payload| payload.stored.is_some())
    }

    fn was_here(&self, index: usize) -> bool {
        self.here.load(Ordering::Relaxed) & bit(index) != 0
    }

    /// The data of a value is at this node.
    pub fn set_here(&self, index: usize) {
        self.here.fetch_or(bit(index), Ordering::Relaxed);
    }

    /// Does this when a value has come, and is at this node if it is large.
    pub fn then_here(self: &Arc<Answer>, index: usize, session: &Arc<Inner>, ring: Ring) {
        // What waits in an answer must not keep it, nor the session that it comes by.
        let (answer, session) = (Arc::downgrade(self), Arc::downgrade(session));
        self.then(Box::new(move || {
            let (Some(answer), Some(session)) = (answer.upgrade(), session.upgrade()) else {
                return ring();
            };
            let far = answer.large(index).filter(|_| !answer.was_here(index));
            match far.zip(session.client().ok()) {
                None => ring(),
                Some((payload, client)) => {
                    let came = answer.clone();
                    let tell = move |()| {
                        came.set_here(index);
                        ring();
                    };
                    client.prefetch(payload, Box::new(tell));
                }
            }
        }));
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

/// The bit of a value; there is none for those after the first ones.
fn bit(index: usize) -> u64 {
    1_u64.checked_shl(index as u32).unwrap_or(0)
}

/// Does this, once, when so many of these have come, one at least.
pub fn when<'a>(
    awaited: impl Iterator<Item = &'a Awaited<'a>>,
    count: usize,
    ring: impl Fn() + Send + Sync + 'static,
) {
    let all = Arc::new((AtomicUsize::new(0), ring));
    for one in awaited {
        let all = all.clone();
        one.then(Box::new(move || {
            let (come, ring) = &*all;
            if come.fetch_add(1, Ordering::AcqRel) + 1 == count {
                ring();
            }
        }));
    }
}

/// What is waited for.
pub enum Awaited<'a> {
    /// An answer.
    Answer(&'a Arc<Answer>),
    /// One of the values of an answer, and its data at this node.
    Data(&'a Arc<Answer>, usize, &'a Arc<Inner>),
}

impl Awaited<'_> {
    /// Whether it has come.
    pub fn has_come(&self) -> bool {
        match self {
            Awaited::Answer(answer) => answer.get().is_some(),
            Awaited::Data(answer, index, _) => answer.is_here(*index),
        }
    }

    /// A value that has come, and whose data may be elsewhere: of which answer, which it is, and in which session.
    pub fn far(&self) -> Option<(&Arc<Answer>, usize, &Inner)> {
        match self {
            Awaited::Answer(_) => None,
            Awaited::Data(answer, index, session) => {
                answer.large(*index).filter(|_| !answer.was_here(*index))?;
                Some((answer, *index, session))
            }
        }
    }

    fn then(&self, ring: Ring) {
        match self {
            Awaited::Answer(answer) => answer.then(ring),
            Awaited::Data(answer, index, session) => answer.then_here(*index, session, ring),
        }
    }
}
