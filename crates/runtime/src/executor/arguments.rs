//! Resolves the arguments of a task or call that are in object stores: brings all of them to the
//! executor before user code runs.
//!
//! An executor that pins some arguments and waits for the rest can block other executors, which may
//! do the same. Then no executor would ever have all its arguments. So an executor that waits for
//! too long releases what it has pinned, and starts again when the missing argument has arrived.
//! Each round holds on for longer than the one before, and no two executors hold on for equally
//! long, so one of them gets through. The last round releases nothing: the store refuses arguments
//! that cannot all fit.

use super::waiting::{BlockingWait, wait_lending_cpu};
use super::{Invocation, context};
use crate::object_store::{ObjectStoreHandle, PendingRead};
use marline_core::Error;
use marline_core::payload::Payload;
use std::time::{Duration, Instant};

/// How often an executor that waits for an argument checks whether it must stop.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long the first round waits for an argument while it holds others. Each later round waits
/// twice as long. The executor keeps its CPU during this time. If it lent its CPU for every read
/// from the disk, more and more tasks would start, and together hold all memory when the first of
/// them needs some for its result.
const HOLD: Duration = Duration::from_millis(100);
/// How many rounds release their arguments. One more round follows.
const LETS_GO: u32 = 4;

/// Brings the stored arguments of an invocation to this executor.
pub(super) fn open(
    objects: Option<&ObjectStoreHandle>,
    invocation: &mut Invocation,
) -> Result<(), Error> {
    let values = invocation.values.iter_mut().map(|value| &mut value.payload);
    let all = values.chain([&mut invocation.args]);
    let payloads: Vec<&mut Payload> = all.filter(|payload| payload.stored.is_some()).collect();
    if payloads.is_empty() {
        return Ok(());
    }
    let objects = objects.ok_or_else(no_store)?;
    for time in 0..=LETS_GO {
        let hold = HOLD * 2_u32.pow(time);
        // No two executors hold on for equally long.
        let hold = hold + hold * (std::process::id() % 8) / 8;
        let mut opened = Vec::with_capacity(payloads.len());
        for payload in &payloads {
            let mut reading = objects.read(payload).expect("the payload is in a store")?;
            let came = match wait(&mut reading, Some(hold), None)? {
                None if time == LETS_GO => later(reading)?,
                came => came,
            };
            match came {
                Some(payload) => opened.push(payload),
                None => break,
            }
        }
        if opened.len() == payloads.len() {
            for (payload, opened) in payloads.into_iter().zip(opened) {
                *payload = opened;
            }
            return Ok(());
        }
        let missing = opened.len();
        drop(opened);
        later(objects.read(payloads[missing]).expect("the payload is in a store")?)?;
    }
    Err(Error::internal("the last round of waiting for arguments ended without them"))
}

/// Waits for an argument without a limit. The task lends its CPU meanwhile, as in any wait for
/// other work.
fn later(mut reading: PendingRead) -> Result<Option<Payload>, Error> {
    wait_lending_cpu(|waits| wait(&mut reading, None, Some(waits)))
}

/// Returns a payload with its data, or `None` if the data has not arrived within `at_most`.
fn wait(
    reading: &mut PendingRead,
    at_most: Option<Duration>,
    waits: Option<&BlockingWait>,
) -> Result<Option<Payload>, Error> {
    let until = at_most.map(|at_most| Instant::now() + at_most);
    let cancel = context().map(|context| context.cancel);
    loop {
        if let Some(came) = reading.wait(Some(LOOK_EVERY)) {
            return came.map(Some);
        }
        if cancel.as_ref().is_some_and(|cancel| cancel.is_cancelled()) {
            return Err(Error::cancelled("it was cancelled before its arguments arrived"));
        }
        if let Some(error) = waits.and_then(BlockingWait::error) {
            return Err(error);
        }
        if until.is_some_and(|until| until <= Instant::now()) {
            return Ok(None);
        }
    }
}

fn no_store() -> Error {
    Error::unsupported("an argument is in an object store, and this executor has no store")
}
