//! How a Python thread waits: without the interpreter's lock, and as long as no signal wants to be handled.

use crate::answer::{Awaited, Ring, when};
use crate::failure::to_python;
use crate::session::Inner;
use marline_runtime::core::error::{Error, Ran};
use marline_runtime::core::payload::Payload;
use marline_runtime::{
    BlockingWait, ItemProducer, LEND_AFTER, ObjectStoreHandle, WaitOutcome, wait_lending_cpu,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// A wait without a limit, as far as anybody can tell.
const LONGEST: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 100);
/// A signal ends a wait. One that comes just before it begins does not: it is seen after this long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often somebody looks for signals who cannot be woken by them.
const SIGNALS_EVERY: Duration = Duration::from_millis(20);

/// Waits until so many have come or the time is over. Signals are handled as they come. A task gives up its CPU
/// meanwhile; if too many do already, it fails. Says whether they have come.
pub fn wait_for(
    py: Python<'_>,
    awaited: &[Awaited<'_>],
    count: usize,
    timeout: Option<f64>,
) -> PyResult<bool> {
    let deadline = match begin(awaited, count, timeout)? {
        Begin::Come => return Ok(true),
        Begin::Over => return py.check_signals().map(|()| false),
        Begin::Until(deadline) => deadline,
    };
    wait_lending_cpu(|wait| wait_until(py, awaited, count, deadline, wait))
}

/// Waits until something has come: `then` does what it is given when it has. A task gives up its CPU meanwhile; if
/// too many do already, it fails.
pub fn wait_for_one(
    py: Python<'_>,
    has_come: impl Fn() -> bool,
    then: impl FnOnce(Ring),
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

/// Waits until there is room for an item, or it is to stop. A task gives up its CPU if that takes long and it may.
pub fn wait_for_room(py: Python<'_>, items: &ItemProducer) -> PyResult<()> {
    let has_room = || items.has_room().unwrap_or(true);
    let doze = |wait: &BlockingWait, time| {
        sleep(py, |ring| items.when_room(ring), Instant::now() + time, wait)?;
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

/// The same, without giving up anything meanwhile: for what ends soon and needs nothing.
pub fn wait_briefly(py: Python<'_>, awaited: &[Awaited<'_>], timeout: f64) -> PyResult<bool> {
    match begin(awaited, awaited.len(), Some(timeout))? {
        Begin::Come => Ok(true),
        Begin::Over => Ok(false),
        Begin::Until(deadline) => {
            wait_until(py, awaited, awaited.len(), deadline, &BlockingWait::default())
        }
    }
}

/// When a wait that begins now is over, if it has a limit that makes sense.
pub fn deadline(timeout: Option<f64>) -> Option<Instant> {
    let timeout = Duration::try_from_secs_f64(timeout?).ok()?;
    Instant::now().checked_add(timeout)
}

/// Whether there is anything to wait for.
enum Begin {
    Come,
    Over,
    Until(Instant),
}

fn begin(awaited: &[Awaited<'_>], count: usize, timeout: Option<f64>) -> PyResult<Begin> {
    if let Some(timeout) = timeout.filter(|timeout| timeout.is_nan() || *timeout < 0.0) {
        return Err(PyValueError::new_err(format!(
            "timeout is {timeout}: it is a number of seconds, 0 or more; without one there is no limit"
        )));
    }
    if come(awaited) >= count.min(awaited.len()) {
        return Ok(Begin::Come);
    }
    let timeout = timeout.map(|timeout| Duration::try_from_secs_f64(timeout).unwrap_or(LONGEST));
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        return Ok(Begin::Over);
    }
    Ok(Begin::Until(Instant::now() + timeout.unwrap_or(LONGEST).min(LONGEST)))
}

fn come(awaited: &[Awaited<'_>]) -> usize {
    awaited.iter().filter(|one| one.has_come()).count()
}

fn wait_until(
    py: Python<'_>,
    awaited: &[Awaited<'_>],
    count: usize,
    deadline: Instant,
    wait: &BlockingWait,
) -> PyResult<bool> {
    let ring = wait.waiter().clone();
    when(awaited.iter(), count.min(awaited.len()), move || ring.notify());
    if !sleep_until_rung(py, deadline, wait)? {
        return Ok(false);
    }
    match wait.error() {
        Some(error) if come(awaited) < count.min(awaited.len()) => Err(to_python(py, &error)),
        Some(_) | None => Ok(true),
    }
}

/// Sleeps until it is rung, which `then` is to do, or the time is over. Says which.
fn sleep(
    py: Python<'_>,
    then: impl FnOnce(Ring),
    deadline: Instant,
    wait: &BlockingWait,
) -> PyResult<bool> {
    let ring = wait.waiter().clone();
    then(Box::new(move || ring.notify()));
    sleep_until_rung(py, deadline, wait)
}

fn sleep_until_rung(py: Python<'_>, deadline: Instant, wait: &BlockingWait) -> PyResult<bool> {
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

/// Looks which large values are at this node already, if so many are not known to be: for a few milliseconds in all.
pub fn look_near(py: Python<'_>, awaited: &[Awaited<'_>], count: usize) {
    if come(awaited) >= count.min(awaited.len()) {
        return;
    }
    let mut far = awaited.iter().filter_map(Awaited::far);
    py.detach(|| {
        let until = Instant::now() + BRIEFLY;
        let ask = |session: &Inner, payload| session.objects()?.read(payload)?.ok();
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
                    answer.set_here(index);
                }
            }
        }
    });
}

/// Of so many values it is asked at a time whether they are at this node: far fewer than those whose answers a store
/// keeps for who does not read them.
const LOOKS_AT_A_TIME: usize = 4096;

/// A payload with its data, wherever that is; in time. Signals are handled as they come, and a task gives up its CPU
/// for what takes its time.
pub fn open(
    py: Python<'_>,
    session: &Inner,
    payload: &Payload,
    deadline: Option<Instant>,
) -> PyResult<Payload> {
    let client = session.client().map_err(|error| to_python(py, &error))?;
    client.with_objects(|objects| match objects {
        Some(objects) => open_from(py, objects, payload, deadline),
        None => py.detach(|| client.load(payload)).map_err(|error| to_python(py, &error)),
    })
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
                let words = match py.detach(|| objects.lack_of_room()) {
                    Some(lack) => format!("its data did not come in time: {}", lack.message()),
                    None => "its data did not come in time; it may still come".into(),
                };
                let words = format!("the value is there, and {words}");
                return Err(raise(Error::timeout(words).ran(Ran::Maybe)));
            }
        }
    })
}

/// So long something may take that is nearly there. If the CPU were free for everything that is read from the disk,
/// ever more tasks would begin, and have all memory in hand when one of them needs some.
const BRIEFLY: Duration = Duration::from_millis(100);

/// Does what takes its time and knows nothing of signals, on a thread of its own. A signal that raises ends the
/// wait for it; what it comes to is dropped then.
pub fn interruptible<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> R + Send + 'static,
) -> PyResult<R> {
    let (tell, mut told) = mpsc::channel();
    let work = move || drop(tell.send(work()));
    thread::Builder::new().name("marline-wait".into()).spawn(work)?;
    loop {
        let told = &mut told; // Only this thread reads it, whoever has the interpreter meanwhile.
        match py.detach(move || told.recv_timeout(SIGNALS_EVERY)) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("it panicked"));
            }
        }
    }
}
