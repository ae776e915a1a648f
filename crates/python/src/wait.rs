//! How a Python thread waits: without the interpreter's lock, and so that signals are handled.
//!
//! A task that waits for other work lends its CPU meanwhile. If too many tasks of the worker have
//! lent theirs, the wait fails instead.

use crate::answer::{Awaited, WakeCallback, when};
use crate::failure::to_python;
use crate::session::SessionState;
use marline_runtime::core::error::{Error, Ran};
use marline_runtime::core::payload::Payload;
use marline_runtime::{
    BlockingWait, Client, ItemProducer, LEND_AFTER, ObjectStoreHandle, WaitOutcome,
    wait_lending_cpu,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The length of a wait without a limit: 100 years, which fits into an `Instant`.
const LONGEST: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 100);
/// How long a wait sleeps before it checks for signals. A signal interrupts the sleep, unless it
/// comes just before the sleep begins.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often a wait that signals do not interrupt checks for them.
const SIGNALS_EVERY: Duration = Duration::from_millis(20);

/// Waits until `count` have come, at most `timeout` seconds. Returns whether they have come.
/// Handles signals. A task lends its CPU meanwhile; fails if too many tasks have lent theirs.
pub fn wait_for(
    py: Python<'_>,
    awaited: &[Awaited<'_>],
    count: usize,
    timeout: Option<f64>,
) -> PyResult<bool> {
    let deadline = match begin(awaited, count, timeout)? {
        WaitStart::Ready => return Ok(true),
        WaitStart::Expired => return py.check_signals().map(|()| false),
        WaitStart::Until(deadline) => deadline,
    };
    wait_lending_cpu(|wait| wait_until(py, awaited, count, deadline, wait))
}

/// Waits until the callback runs that this function passes to `then`. A task lends its CPU
/// meanwhile. If too many tasks have lent theirs, the wait fails, unless `has_come` is true.
pub fn wait_for_one(
    py: Python<'_>,
    has_come: impl Fn() -> bool,
    then: impl FnOnce(WakeCallback),
) -> PyResult<()> {
    let deadline = Instant::now() + LONGEST;
    wait_lending_cpu(|wait| {
        sleep(py, then, deadline, wait)?;
        match wait.error() {
            Some(error) if !has_come() => Err(to_python(py, &error)),
            Some(_) | None => Ok(()),
        }
    })
}

/// Waits until a stream has room for an item, or its task was cancelled. A task lends its CPU after
/// [`LEND_AFTER`]; if it may not lend, it goes on waiting.
pub fn wait_for_room(py: Python<'_>, items: &ItemProducer) -> PyResult<()> {
    let has_room = || items.has_room().unwrap_or(true);
    let doze = |wait: &BlockingWait, time| {
        sleep(py, |wake| items.when_room(wake), Instant::now() + time, wait)?;
        Ok::<_, PyErr>(has_room())
    };
    if has_room() || doze(&BlockingWait::default(), LEND_AFTER)? {
        return Ok(());
    }
    items.pause();
    if wait_lending_cpu(|wait| doze(wait, LONGEST))? {
        return Ok(());
    }
    while !doze(&BlockingWait::default(), LONGEST)? {}
    Ok(())
}

/// Waits until all have come, at most `timeout` seconds, without lending the CPU: for work that
/// ends soon and needs no CPU of this task. Returns whether they have come.
pub fn wait_briefly(py: Python<'_>, awaited: &[Awaited<'_>], timeout: f64) -> PyResult<bool> {
    match begin(awaited, awaited.len(), Some(timeout))? {
        WaitStart::Ready => Ok(true),
        WaitStart::Expired => Ok(false),
        WaitStart::Until(deadline) => {
            wait_until(py, awaited, awaited.len(), deadline, &BlockingWait::default())
        }
    }
}

/// Returns the end of a wait that starts now. Returns `None` if the wait has no limit, or an
/// invalid one.
pub fn deadline(timeout: Option<f64>) -> Option<Instant> {
    let timeout = Duration::try_from_secs_f64(timeout?).ok()?;
    Instant::now().checked_add(timeout)
}

/// The answer of [`begin`]: whether there is anything to wait for.
enum WaitStart {
    Ready,
    Expired,
    Until(Instant),
}

fn begin(awaited: &[Awaited<'_>], count: usize, timeout: Option<f64>) -> PyResult<WaitStart> {
    if let Some(timeout) = timeout.filter(|timeout| timeout.is_nan() || *timeout < 0.0) {
        return Err(PyValueError::new_err(format!(
            "timeout must be a number of seconds, 0 or more, or None for no limit, not {timeout}"
        )));
    }
    if come(awaited) >= count.min(awaited.len()) {
        return Ok(WaitStart::Ready);
    }
    let timeout = timeout.map(|timeout| Duration::try_from_secs_f64(timeout).unwrap_or(LONGEST));
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        return Ok(WaitStart::Expired);
    }
    Ok(WaitStart::Until(Instant::now() + timeout.unwrap_or(LONGEST).min(LONGEST)))
}

fn come(awaited: &[Awaited<'_>]) -> usize {
    awaited.iter().filter(|item| item.has_come()).count()
}

fn wait_until(
    py: Python<'_>,
    awaited: &[Awaited<'_>],
    count: usize,
    deadline: Instant,
    wait: &BlockingWait,
) -> PyResult<bool> {
    let wake = wait.waiter().clone();
    when(awaited.iter(), count.min(awaited.len()), move || wake.notify());
    if !sleep_until_notified(py, deadline, wait)? {
        return Ok(false);
    }
    match wait.error() {
        Some(error) if come(awaited) < count.min(awaited.len()) => Err(to_python(py, &error)),
        Some(_) | None => Ok(true),
    }
}

/// Sleeps until the callback runs that `then` registers, or until `deadline`. Returns whether the
/// callback ran.
fn sleep(
    py: Python<'_>,
    then: impl FnOnce(WakeCallback),
    deadline: Instant,
    wait: &BlockingWait,
) -> PyResult<bool> {
    let wake = wait.waiter().clone();
    then(Box::new(move || wake.notify()));
    sleep_until_notified(py, deadline, wait)
}

fn sleep_until_notified(py: Python<'_>, deadline: Instant, wait: &BlockingWait) -> PyResult<bool> {
    loop {
        py.check_signals()?;
        let look = (Instant::now() + LOOK_EVERY).min(deadline);
        match py.detach(|| wait.waiter().wait(look)) {
            WaitOutcome::Notified => return Ok(true),
            WaitOutcome::TimedOut if Instant::now() >= deadline => return Ok(false),
            WaitOutcome::TimedOut | WaitOutcome::Interrupted => {}
        }
    }
}

/// Asks this node's object store which large values it has already, unless `count` are known to be
/// local. Takes [`BRIEFLY`] at most in all.
pub fn check_local_copies(py: Python<'_>, awaited: &[Awaited<'_>], count: usize) {
    if come(awaited) >= count.min(awaited.len()) {
        return;
    }
    let mut far = awaited.iter().filter_map(Awaited::far);
    py.detach(|| {
        let until = Instant::now() + BRIEFLY;
        let ask = |session: &SessionState, payload| session.objects()?.read(payload)?.ok();
        while Instant::now() < until {
            let asked: Vec<_> = far
                .by_ref()
                .take(LOOKS_AT_A_TIME)
                .filter_map(|(answer, index, session)| {
                    Some((answer, index, ask(session, answer.large(index)?)?))
                })
                .collect();
            if asked.is_empty() {
                return;
            }
            for (answer, index, mut reading) in asked {
                let left = until.saturating_duration_since(Instant::now());
                if let Some(Ok(_)) = reading.wait(Some(left)) {
                    answer.mark_local(index);
                }
            }
        }
    });
}

/// How many values the object store is asked for at a time. Far fewer than the answers that the
/// store keeps for a client that does not read them.
const LOOKS_AT_A_TIME: usize = 4096;

/// Returns a payload with its data, wherever the data is; fails with a timeout after `deadline`.
/// Handles signals. A task lends its CPU: at once if this node has no object store, otherwise if
/// the wait is longer than [`BRIEFLY`].
pub fn open(
    py: Python<'_>,
    session: &SessionState,
    payload: &Payload,
    deadline: Option<Instant>,
) -> PyResult<Payload> {
    let client = session.client().map_err(|error| to_python(py, &error))?;
    client.with_objects(|objects| match objects {
        Some(objects) => open_from(py, objects, payload, deadline),
        None => pull(py, client, payload, deadline),
    })
}

/// Pulls the data of a payload into this process, on a thread of the client. If the wait ends
/// early, the pull goes on, and a later call shares it.
fn pull(
    py: Python<'_>,
    client: &Client,
    payload: &Payload,
    deadline: Option<Instant>,
) -> PyResult<Payload> {
    if payload.stored.is_none() {
        return Ok(payload.clone());
    }
    let pulled = Arc::new(Mutex::new(None));
    let take = || pulled.lock().expect("nothing panics under it").take();
    let start = |wake: WakeCallback| {
        let pulled = pulled.clone();
        let tell = Box::new(move |data| {
            *pulled.lock().expect("nothing panics under it") = Some(data);
            wake();
        });
        client.load_with_callback(payload, tell);
    };
    let end = deadline.unwrap_or_else(|| Instant::now() + LONGEST);
    wait_lending_cpu(|wait| {
        sleep(py, start, end, wait)?;
        let data: Option<Result<Payload, Error>> = take();
        data.unwrap_or_else(|| Err(wait.error().unwrap_or_else(|| late(None))))
            .map_err(|error| to_python(py, &error))
    })
}

/// Returns the error for data that has not arrived by the deadline of a wait.
fn late(lack_of_room: Option<Error>) -> Error {
    let words = "the value exists, but its data did not arrive in time";
    let words = match lack_of_room {
        Some(lack) => format!("{words}: {}", lack.message()),
        None => format!("{words}; it may still arrive"),
    };
    Error::timeout(words).ran(Ran::Maybe)
}

fn open_from(
    py: Python<'_>,
    objects: &ObjectStoreHandle,
    payload: &Payload,
    deadline: Option<Instant>,
) -> PyResult<Payload> {
    let raise = |error: Error| to_python(py, &error);
    let Some(reading) = objects.read(payload) else { return Ok(payload.clone()) };
    let mut reading = reading.map_err(raise)?;
    let soon = deadline.map_or(BRIEFLY, |deadline| {
        deadline.saturating_duration_since(Instant::now()).min(BRIEFLY)
    });
    if let Some(came) = py.detach(|| reading.wait(Some(soon))) {
        return came.map_err(raise);
    }
    wait_lending_cpu(|wait| {
        loop {
            py.check_signals()?;
            if let Some(came) = py.detach(|| reading.wait(Some(SIGNALS_EVERY))) {
                return came.map_err(raise);
            }
            if let Some(error) = wait.error() {
                return Err(raise(error));
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(raise(late(py.detach(|| objects.lack_of_room()))));
            }
        }
    })
}

/// How long a wait for local data may take before the task lends its CPU. If a task lent its CPU
/// for each read from the disk, more and more tasks would start, and together pin all memory when
/// one of them needs some.
const BRIEFLY: Duration = Duration::from_millis(100);

/// Runs blocking work that signals cannot interrupt, on a new thread, and waits for its result. If
/// a signal handler raises, the wait ends, and the result is dropped when it comes.
pub fn interruptible<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> R + Send + 'static,
) -> PyResult<R> {
    let (result_sender, mut result_receiver) = mpsc::channel();
    let work = move || drop(result_sender.send(work()));
    thread::Builder::new().name("marline-wait".into()).spawn(work)?;
    loop {
        // `&mut`: a `Receiver` cannot be shared between threads, and `detach` takes a closure that
        // another thread could run.
        let result_receiver = &mut result_receiver;
        match py.detach(move || result_receiver.recv_timeout(SIGNALS_EVERY)) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the thread marline-wait panicked"));
            }
        }
    }
}
