//! Failures whose errors nobody reads. A driver prints each of them in one line: otherwise a task that failed looks like
//! one that worked.
//!
//! An [`Answer`] that ends with an error takes a [`Failed`] along, and reports it when its last reference is dropped,
//! unless somebody has read the error. Nothing is done for answers that have a value. Any thread may drop a reference,
//! with the interpreter's lock or without, so the lines are written by a thread of its own, which starts with the first
//! of them. `marline/_unread.py` has the words.

use crate::answer::Answer;
use crate::fork::generation;
use marline_runtime::core::error::{Error, ErrorKind};
use marline_runtime::core::id::Referent;
use marline_runtime::terminal::escaped;
use pyo3::prelude::*;
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

/// So many distinct failures are printed in a session; each is remembered, so that it is printed once.
const MAX_DISTINCT: usize = 1_000;
/// The longest message that is printed, in characters; what is longer is cut.
const MAX_MESSAGE_CHARS: usize = 200;
/// Failed answers that were dropped are forgotten when there are so many, and then whenever they have doubled.
const FORGET_AT: usize = 64;
/// The end of a session waits at most this long for its lines to be written: nobody may be reading standard error.
const MAX_CLOSE: Duration = Duration::from_secs(5);
/// The class of the exception that a task raises if it gets the result of a task that was cancelled.
const CANCELLED: &str = "TaskCancelledError";

/// The work that an answer belongs to. Every call of a driver makes one, so it has the names alone: that costs two or
/// three reference counts, and no allocation.
pub struct Origin {
    unread: Arc<Unread>,
    work: Work,
}

/// The kinds of work, and their names.
enum Work {
    Task(Arc<str>),
    Call { class: Arc<str>, method: Arc<str> },
    Actor(Arc<str>),
}

/// A failure that is printed if nobody reads it.
pub struct Failed {
    unread: Arc<Unread>,
    notice: Notice,
}

/// What is printed of a failure, and what makes it distinct.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Notice {
    /// `task`, `call` or `actor`.
    what: &'static str,
    name: String,
    kind: String,
    /// The class of the exception, if user code raised it.
    class: Option<String>,
    message: String,
    /// Whether a value is gone, and whether memory ran short: there are exceptions for these.
    is_value_gone: bool,
    is_out_of_memory: bool,
}

/// See the [module](self).
pub struct Unread {
    state: Mutex<State>,
    /// Rung when there is something to write, and when it was written.
    changed: Condvar,
    /// Which process it belongs to.
    generation: u64,
}

#[derive(Default)]
struct State {
    printed: HashSet<Notice>,
    /// Lines to write. `None` is the line that says that there are too many.
    queue: VecDeque<Option<Notice>>,
    /// Answers that failed, until they are dropped.
    failed: Vec<Weak<Answer>>,
    forget_at: usize,
    /// Whether the thread that writes has been started, and whether it is at it.
    is_started: bool,
    writes: bool,
    is_closed: bool,
}

impl Unread {
    pub fn new() -> Arc<Unread> {
        let state = State { forget_at: FORGET_AT, ..State::default() };
        let generation = generation();
        Arc::new(Unread { state: Mutex::new(state), changed: Condvar::new(), generation })
    }

    /// A task that calls this function.
    pub fn task(self: &Arc<Unread>, function: &Arc<str>) -> Origin {
        Origin { unread: self.clone(), work: Work::Task(function.clone()) }
    }

    /// A call to this method of an actor of this class.
    pub fn call(self: &Arc<Unread>, class: &Arc<str>, method: &Arc<str>) -> Origin {
        let work = Work::Call { class: class.clone(), method: method.clone() };
        Origin { unread: self.clone(), work }
    }

    /// The constructor of an actor of this class.
    pub fn actor(self: &Arc<Unread>, class: &Arc<str>) -> Origin {
        Origin { unread: self.clone(), work: Work::Actor(class.clone()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under it")
    }

    /// An answer has failed. If its references outlive the session, [`close`](Unread::close) looks at it.
    fn watch(&self, answer: &Arc<Answer>) {
        let mut state = self.state();
        if state.failed.len() >= state.forget_at {
            state.failed.retain(|one| one.strong_count() > 0);
            state.forget_at = FORGET_AT.max(2 * state.failed.len());
        }
        state.failed.push(Arc::downgrade(answer));
    }

    fn report(self: &Arc<Unread>, notice: &Notice) {
        if self.generation != generation() {
            return; // It is another process's, and its lock may be held for good here.
        }
        let mut state = self.state();
        if state.is_closed || state.printed.len() > MAX_DISTINCT || state.printed.contains(notice) {
            return;
        }
        state.printed.insert(notice.clone());
        let fits = state.printed.len() <= MAX_DISTINCT;
        state.queue.push_back(fits.then(|| notice.clone()));
        if !state.is_started {
            let unread = self.clone();
            let writer = thread::Builder::new().name("marline-unread".into());
            state.is_started = writer.spawn(move || unread.write_all()).is_ok();
        }
        self.changed.notify_all();
    }

    /// Writes what comes, until the session is over.
    fn write_all(&self) {
        let mut state = self.state();
        loop {
            if state.queue.is_empty() {
                if state.is_closed {
                    return;
                }
                state = self.changed.wait(state).expect("nothing panics under it");
                continue;
            }
            let notices: Vec<_> = state.queue.drain(..).collect();
            state.writes = true;
            drop(state);
            // Nothing, if the interpreter is about to end.
            let written = Python::try_attach(|py| write(py, &notices));
            state = self.state();
            state.writes = false;
            self.changed.notify_all();
            if written.is_none() {
                return;
            }
        }
    }

    /// The session ends: writes the lines that wait. `with_held` also reports failures whose references are still held.
    /// Work that fails from now on was cut off by the end, and is not reported.
    pub fn close(self: &Arc<Unread>, py: Python<'_>, with_held: bool) {
        if self.generation != generation() {
            return;
        }
        // Not under the lock: one of them may be dropped here, and report itself.
        let failed = std::mem::take(&mut self.state().failed);
        for answer in failed.iter().filter(|_| with_held).filter_map(Weak::upgrade) {
            answer.report_if_unread();
        }
        let left: Vec<_> = {
            let mut state = self.state();
            state.is_closed = true;
            self.changed.notify_all();
            if state.is_started { Vec::new() } else { state.queue.drain(..).collect() }
        };
        write(py, &left); // No thread could be started.
        py.detach(|| {
            let is_busy = |state: &mut State| state.writes || !state.queue.is_empty();
            drop(self.changed.wait_timeout_while(self.state(), MAX_CLOSE, is_busy));
        });
    }
}

/// Has Python write lines.
fn write(py: Python<'_>, notices: &[Option<Notice>]) {
    if notices.is_empty() {
        return;
    }
    let words = |notice: &Notice| {
        let Notice { what, name, kind, class, message, is_value_gone, is_out_of_memory } =
            notice.clone();
        (what, name, kind, class, message, is_value_gone, is_out_of_memory)
    };
    let notices: Vec<_> = notices.iter().map(|notice| notice.as_ref().map(words)).collect();
    let module = py.import("marline._unread");
    // Nobody can be told if it fails.
    drop(module.and_then(|module| module.call_method1("show", (notices,))));
}

impl Origin {
    /// The work ended with an error: returns the failure that its answer reports if nobody reads it. Nothing, if
    /// somebody ended the work on purpose.
    pub fn failed(self, answer: &Arc<Answer>, error: &Error) -> Option<Box<Failed>> {
        let Origin { unread, work } = self;
        if is_meant(&work, error) {
            return None;
        }
        unread.watch(answer);
        let error = raised(error);
        let (what, name) = match work {
            Work::Task(function) => ("task", function.to_string()),
            Work::Call { class, method } => ("call", format!("{class}.{method}")),
            Work::Actor(class) => ("actor", class.to_string()),
        };
        let notice = Notice {
            what,
            name: escaped(&name).into_owned(),
            kind: format!("{:?}", error.kind()),
            class: error.failure().map(|failure| escaped(&failure.class).into_owned()),
            message: first_line(error.message()),
            is_value_gone: matches!(error.what_is_gone(), Some(Referent::Object(_))),
            is_out_of_memory: error.is_out_of_memory(),
        };
        Some(Box::new(Failed { unread, notice }))
    }
}

impl Failed {
    /// Nobody has read it, and nobody can any more.
    pub fn report(&self) {
        self.unread.report(&self.notice);
    }
}

/// The error that a caller sees: work fails as what it depends on did.
fn raised(error: &Error) -> &Error {
    match error.cause().map(raised) {
        Some(cause) if cause.kind() == ErrorKind::Failed => cause,
        Some(_) | None => error,
    }
}

/// Whether somebody ended the work on purpose: it was cancelled, or its actor was deleted or let go. A call that such an
/// actor never ran was made too late: that is a failure.
fn is_meant(work: &Work, error: &Error) -> bool {
    let is_birth = matches!(work, Work::Actor(_));
    let is_of_ended_actor = matches!(error.what_is_gone(), Some(Referent::Actor(_)))
        && error.cause().is_none()
        && (is_birth || error.may_have_run());
    let raised = raised(error);
    let class = raised.failure().map_or("", |failure| failure.class.as_str());
    raised.kind() == ErrorKind::Cancelled
        || class.rsplit('.').next() == Some(CANCELLED)
        || is_of_ended_actor
}

/// The first line of a message, escaped and cut.
fn first_line(message: &str) -> String {
    let line = message.trim_start().lines().next().unwrap_or_default();
    let mut cut: String = line.chars().take(MAX_MESSAGE_CHARS).collect();
    if cut.len() < line.len() {
        cut.push('…');
    }
    escaped(&cut).into_owned()
}
