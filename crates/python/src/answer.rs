//! The outcome of a task or call, which comes once and for which any number of threads and event
//! loops wait.
//!
//! The thread that receives the outcome stores it and runs the callbacks. It needs no interpreter.
//! `wait.rs` has the waiting of Python threads, `completions.rs` that of event loops.

use crate::reference::HoldGuard;
use crate::session::SessionState;
use crate::unread_failures::{Origin, UnreadFailure};
use marline_runtime::Callback;
use marline_runtime::core::error::{Error, Ran};
use marline_runtime::core::payload::{Outcome, Payload, Value};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// The outcome of a task or call, once it has ended.
#[derive(Default)]
pub struct Answer {
    outcome: OnceLock<Outcome>,
    waiting: Mutex<Vec<WakeCallback>>,
    /// Which of the first 64 values are known to have been in this node's object store, one bit
    /// each. A wait does not ask the store for them again.
    here: AtomicU64,
    /// Holds on what the values refer to, if this process has to hold it. Released with the answer.
    held: OnceLock<Vec<HoldGuard>>,
    /// Whether the error, if there is one, was raised in this process or handed to other work.
    is_read: AtomicBool,
    /// The failure that is printed if the error is never read.
    failed: OnceLock<Box<UnreadFailure>>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.print_if_unread();
    }
}

/// A callback that runs when an answer or item comes, on the thread that receives it. It must not
/// block, and must not take the interpreter's lock.
pub type WakeCallback = Box<dyn FnOnce() + Send>;

impl Answer {
    /// Makes an answer that has its outcome already.
    pub fn settled(outcome: Outcome) -> Arc<Answer> {
        let answer = Answer::default();
        let _ = answer.outcome.set(outcome);
        Arc::new(answer)
    }

    /// Returns the callback that settles this answer. An answer whose callback is dropped without a
    /// call fails.
    pub fn completion(self: &Arc<Answer>) -> Callback<Outcome> {
        self.completion_for(None)
    }

    /// Returns the callback that settles this answer. If the outcome is an error that is never
    /// read, the driver prints a line that names `origin`.
    pub fn completion_for(self: &Arc<Answer>, origin: Option<Origin>) -> Callback<Outcome> {
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

    /// Returns the callback that settles the answer of a call. It also holds what the values refer
    /// to, until the answer is dropped.
    pub fn call_completion(
        self: &Arc<Answer>,
        session: &Arc<SessionState>,
        origin: Option<Origin>,
    ) -> Callback<Outcome> {
        let (tell, answer, session) = (self.completion_for(origin), self.clone(), session.clone());
        Box::new(move |outcome: Outcome| {
            let named = outcome.iter().flatten().flat_map(Value::referents_to_hold);
            let held: Vec<HoldGuard> =
                named.map(|referent| HoldGuard::new(&session, referent)).collect();
            if !held.is_empty() {
                let _ = answer.held.set(held);
            }
            tell(outcome);
        })
    }

    /// Marks the error as read: it was raised, it was handed to other work, or the user has
    /// cancelled the work.
    pub fn mark_read(&self) {
        self.is_read.store(true, Ordering::Relaxed);
    }

    /// Prints the error if it was not read; at most once.
    pub fn print_if_unread(&self) {
        if let Some(failed) = self.failed.get()
            && !self.is_read.swap(true, Ordering::Relaxed)
        {
            failed.report();
        }
    }

    /// Returns the outcome, if it has come.
    pub fn get(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// Runs `wake` when the outcome comes; at once if it has come.
    pub fn then(&self, wake: WakeCallback) {
        let mut waiting = self.waiting();
        if self.outcome.get().is_none() {
            waiting.push(wake);
            return;
        }
        drop(waiting);
        wake();
    }

    /// Returns whether a value has come, and its blob is or was at this node if it is large.
    pub fn is_local(&self, index: usize) -> bool {
        self.get().is_some() && (self.large(index).is_none() || self.was_local(index))
    }

    /// Returns a value that has come, if its data is in an object store.
    pub fn large(&self, index: usize) -> Option<&Payload> {
        let values = self.get()?.as_ref().ok()?;
        Some(&values[index].payload).filter(|payload| payload.stored.is_some())
    }

    fn was_local(&self, index: usize) -> bool {
        self.here.load(Ordering::Relaxed) & bit(index) != 0
    }

    /// Records that the blob of a value is at this node.
    pub fn mark_local(&self, index: usize) {
        self.here.fetch_or(bit(index), Ordering::Relaxed);
    }

    /// Runs `wake` when a value has come and, if it is large, its blob is at this node.
    pub fn then_local(
        self: &Arc<Answer>,
        index: usize,
        session: &Arc<SessionState>,
        wake: WakeCallback,
    ) {
        // Weak: a callback that waits in an answer must not keep the answer or its session alive.
        let (answer, session) = (Arc::downgrade(self), Arc::downgrade(session));
        self.then(Box::new(move || {
            let (Some(answer), Some(session)) = (answer.upgrade(), session.upgrade()) else {
                return wake();
            };
            let far = answer.large(index).filter(|_| !answer.was_local(index));
            match far.zip(session.client().ok()) {
                None => wake(),
                Some((payload, client)) => {
                    let came = answer.clone();
                    let tell = move |()| {
                        came.mark_local(index);
                        wake();
                    };
                    client.prefetch(payload, Box::new(tell));
                }
            }
        }));
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<WakeCallback>> {
        self.waiting.lock().expect("nothing panics under it")
    }

    fn settle(&self, outcome: Outcome) {
        let _ = self.outcome.set(outcome);
        // After this no callback can be missed: `then` checks the outcome under the same lock.
        let waiting = std::mem::take(&mut *self.waiting());
        for wake in waiting {
            wake();
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
        let words = "the cluster was shut down before the result came";
        self.keep(Err(Error::unavailable(Ran::Maybe, words)));
    }
}

/// Returns the bit of a value in [`Answer::here`]; 0 for values after the first 64.
fn bit(index: usize) -> u64 {
    1_u64.checked_shl(index as u32).unwrap_or(0)
}

/// Runs `wake` once, when `count` of these have come. `count` is at least 1.
pub fn when<'a>(
    awaited: impl Iterator<Item = &'a Awaited<'a>>,
    count: usize,
    wake: impl Fn() + Send + Sync + 'static,
) {
    let all = Arc::new((AtomicUsize::new(0), wake));
    for item in awaited {
        let all = all.clone();
        item.then(Box::new(move || {
            let (come_count, wake) = &*all;
            if come_count.fetch_add(1, Ordering::AcqRel) + 1 == count {
                wake();
            }
        }));
    }
}

/// The thing that a thread waits for.
pub enum Awaited<'a> {
    /// The outcome of a task or call.
    Answer(&'a Arc<Answer>),
    /// One of the values of an answer, with its blob at this node.
    Data(&'a Arc<Answer>, usize, &'a Arc<SessionState>),
}

impl Awaited<'_> {
    /// Returns whether it has come.
    pub fn has_come(&self) -> bool {
        match self {
            Awaited::Answer(answer) => answer.get().is_some(),
            Awaited::Data(answer, index, _) => answer.is_local(*index),
        }
    }

    /// Returns the answer, the index of the value and the session, if the value has come and its
    /// blob is not known to be at this node.
    pub fn far(&self) -> Option<(&Arc<Answer>, usize, &SessionState)> {
        match self {
            Awaited::Answer(_) => None,
            Awaited::Data(answer, index, session) => {
                answer.large(*index).filter(|_| !answer.was_local(*index))?;
                Some((answer, *index, session))
            }
        }
    }

    fn then(&self, wake: WakeCallback) {
        match self {
            Awaited::Answer(answer) => answer.then(wake),
            Awaited::Data(answer, index, session) => answer.then_local(*index, session, wake),
        }
    }
}
