//! Failures whose errors the user's code never reads. The driver prints one line for each. Without
//! it, a failed task whose result is ignored looks like one that succeeded.
//!
//! An [`Answer`] that ends with an error carries an [`UnreadFailure`]. When the last reference to
//! the answer is dropped and the error was not read, the answer prints the failure. Answers with
//! values cost nothing. Any thread may drop a reference, with or without the interpreter's lock, so
//! a separate thread writes the lines. It starts with the first line. `marline/_session/unread.py` has the
//! texts.

use crate::answer::Answer;
use crate::failure::kind_name;
use crate::fork::generation;
use marline_runtime::core::error::{Error, ErrorKind};
use marline_runtime::core::id::Referent;
use marline_runtime::terminal::escaped;
use pyo3::prelude::*;
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

/// The most distinct failures that a session prints. Each one is remembered, so that it is printed
/// once.
const MAX_DISTINCT: usize = 1_000;
/// The longest message that is printed, in characters. A longer one is cut.
const MAX_MESSAGE_CHARS: usize = 200;
/// The first length of the list of failed answers at which dropped ones are removed from it. After
/// that, they are removed whenever the list has doubled.
const FORGET_AT: usize = 64;
/// How long the end of a session waits for its lines to be written, at most. Standard error may be
/// a pipe that no process reads.
const MAX_CLOSE: Duration = Duration::from_secs(5);
/// The class of the exception that a task raises when it gets the result of a cancelled task.
const CANCELLED: &str = "TaskCancelledError";

/// The work that an answer belongs to. Every submission of a driver makes one, so it has only the
/// names: that costs two or three reference counts and no allocation.
pub struct Origin {
    unread: Arc<UnreadFailures>,
    work: WorkName,
}

/// The kind of the work and its names.
enum WorkName {
    Task(Arc<str>),
    Call { class: Arc<str>, method: Arc<str> },
    Actor(Arc<str>),
}

/// A failure that is printed if its error is never read.
pub struct UnreadFailure {
    unread: Arc<UnreadFailures>,
    notice: UnreadNotice,
}

/// The contents of the line of one failure. Two failures with equal contents are printed once.
#[pyclass(frozen, get_all, module = "marline._native")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct UnreadNotice {
    /// The kind of work: `task`, `call` or `actor`.
    what: &'static str,
    name: String,
    /// The name of the kind of the error.
    kind: &'static str,
    /// The class of the exception, if user code raised one.
    class_name: Option<String>,
    message: String,
    /// Whether the value is lost, and whether memory was exhausted. Each has its own exception
    /// class.
    is_value_gone: bool,
    is_out_of_memory: bool,
}

/// The unread failures of one session. See the [module](self).
pub struct UnreadFailures {
    state: Mutex<State>,
    /// Notified when there is a line to write, when lines were written, and when the session ends.
    changed: Condvar,
    /// The [`generation`] of the process that owns it.
    generation: u64,
}

#[derive(Default)]
struct State {
    printed: HashSet<UnreadNotice>,
    /// Lines to write. `None` stands for the line that says that there are too many.
    queue: VecDeque<Option<UnreadNotice>>,
    /// Failed answers that may still be referenced.
    failed: Vec<Weak<Answer>>,
    forget_at: usize,
    /// Whether the writing thread was started, and whether it is writing now.
    is_started: bool,
    writes: bool,
    is_closed: bool,
}

impl UnreadFailures {
    pub fn new() -> Arc<UnreadFailures> {
        let state = State { forget_at: FORGET_AT, ..State::default() };
        let generation = generation();
        Arc::new(UnreadFailures { state: Mutex::new(state), changed: Condvar::new(), generation })
    }

    /// Returns the origin of a task that calls `function`.
    pub fn task(self: &Arc<UnreadFailures>, function: &Arc<str>) -> Origin {
        Origin { unread: self.clone(), work: WorkName::Task(function.clone()) }
    }

    /// Returns the origin of a call of `method` of an actor of class `class`.
    pub fn call(self: &Arc<UnreadFailures>, class: &Arc<str>, method: &Arc<str>) -> Origin {
        let work = WorkName::Call { class: class.clone(), method: method.clone() };
        Origin { unread: self.clone(), work }
    }

    /// Returns the origin of the constructor of an actor of class `class`.
    pub fn actor(self: &Arc<UnreadFailures>, class: &Arc<str>) -> Origin {
        Origin { unread: self.clone(), work: WorkName::Actor(class.clone()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under it")
    }

    /// Remembers a failed answer. If its references outlive the session,
    /// [`close`](UnreadFailures::close) finds it.
    fn watch(&self, answer: &Arc<Answer>) {
        let mut state = self.state();
        if state.failed.len() >= state.forget_at {
            state.failed.retain(|answer| answer.strong_count() > 0);
            state.forget_at = FORGET_AT.max(2 * state.failed.len());
        }
        state.failed.push(Arc::downgrade(answer));
    }

    fn report(self: &Arc<UnreadFailures>, notice: &UnreadNotice) {
        if self.generation != generation() {
            return; // In a fork: a thread of the parent may hold the lock, forever.
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

    /// Writes lines as they come, until the session ends.
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
            // `None` if the interpreter is shutting down.
            let written = Python::try_attach(|py| write(py, &notices));
            state = self.state();
            state.writes = false;
            self.changed.notify_all();
            if written.is_none() {
                return;
            }
        }
    }

    /// Ends with the session: waits until queued lines are written. With `with_held` it also prints
    /// failures whose references still exist. Work that fails later was cut off by the end of the
    /// session and is not printed.
    pub fn close(self: &Arc<UnreadFailures>, py: Python<'_>, with_held: bool) {
        if self.generation != generation() {
            return;
        }
        // Not under the lock: this may drop the last reference to an answer, which then prints its
        // own failure.
        let failed = std::mem::take(&mut self.state().failed);
        for answer in failed.iter().filter(|_| with_held).filter_map(Weak::upgrade) {
            answer.print_if_unread();
        }
        let left: Vec<_> = {
            let mut state = self.state();
            state.is_closed = true;
            self.changed.notify_all();
            if state.is_started { Vec::new() } else { state.queue.drain(..).collect() }
        };
        write(py, &left); // The writing thread could not be started.
        py.detach(|| {
            let is_busy = |state: &mut State| state.writes || !state.queue.is_empty();
            drop(self.changed.wait_timeout_while(self.state(), MAX_CLOSE, is_busy));
        });
    }
}

/// Writes lines, through `marline/_session/unread.py`.
fn write(py: Python<'_>, notices: &[Option<UnreadNotice>]) {
    if notices.is_empty() {
        return;
    }
    let notices: Vec<_> = notices.to_vec();
    let module = py.import("marline._session.unread");
    // An error is ignored: there is no caller that could handle it.
    drop(module.and_then(|module| module.call_method1("show", (notices,))));
}

impl Origin {
    /// Returns the failure that the answer prints if its error is not read. Returns `None` if the
    /// work was ended on purpose.
    pub fn failed(self, answer: &Arc<Answer>, error: &Error) -> Option<Box<UnreadFailure>> {
        let Origin { unread, work } = self;
        if is_meant(&work, error) {
            return None;
        }
        unread.watch(answer);
        let error = raised(error);
        let (what, name) = match work {
            WorkName::Task(function) => ("task", function.to_string()),
            WorkName::Call { class, method } => ("call", format!("{class}.{method}")),
            WorkName::Actor(class) => ("actor", class.to_string()),
        };
        let notice = UnreadNotice {
            what,
            name: escaped(&name).into_owned(),
            kind: kind_name(error.kind()),
            class_name: error.failure().map(|failure| escaped(&failure.class).into_owned()),
            message: first_line(error.message()),
            is_value_gone: matches!(error.what_is_gone(), Some(Referent::Object(_))),
            is_out_of_memory: error.is_out_of_memory(),
        };
        Some(Box::new(UnreadFailure { unread, notice }))
    }
}

impl UnreadFailure {
    /// Prints the failure: its error was not read, and no reference is left to read it.
    pub fn report(&self) {
        self.unread.report(&self.notice);
    }
}

/// Returns the error that a caller sees. Work whose argument failed in user code fails with that
/// error.
fn raised(error: &Error) -> &Error {
    match error.cause().map(raised) {
        Some(cause) if cause.kind() == ErrorKind::Failed => cause,
        Some(_) | None => error,
    }
}

/// Returns whether the work was ended on purpose: it was cancelled, or its actor was deleted or
/// released. A call that such an actor never ran was made too late, which is a failure.
fn is_meant(work: &WorkName, error: &Error) -> bool {
    let is_birth = matches!(work, WorkName::Actor(_));
    let is_of_ended_actor = matches!(error.what_is_gone(), Some(Referent::Actor(_)))
        && error.cause().is_none()
        && (is_birth || error.may_have_run());
    let raised = raised(error);
    let class = raised.failure().map_or("", |failure| failure.class.as_str());
    raised.kind() == ErrorKind::Cancelled
        || class.rsplit('.').next() == Some(CANCELLED)
        || is_of_ended_actor
}

/// Returns the first line of a message, cut to [`MAX_MESSAGE_CHARS`] and escaped.
fn first_line(message: &str) -> String {
    let line = message.trim_start().lines().next().unwrap_or_default();
    let mut cut: String = line.chars().take(MAX_MESSAGE_CHARS).collect();
    if cut.len() < line.len() {
        cut.push('…');
    }
    escaped(&cut).into_owned()
}
