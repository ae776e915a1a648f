//! What a task or call is given and is in stores: brought to its executor, all of it, before it runs.
//!
//! Whoever has some of it and waits for the rest keeps others from theirs, who may do the same: then nobody would ever
//! have all. So whoever waits for long lets go of what it has, and begins anew when what it waited for has come; each
//! time it holds on for longer than before, and no two executors for as long, so that one of them gets through. The
//! last time it does not let go: what cannot be had at all is refused by the store.

use super::waiting::{BlockingWait, wait_lending_cpu};
use super::{Invocation, context};
use crate::object_store::{ObjectStoreHandle, PendingRead};
use marline_core::Error;
use marline_core::payload::Payload;
use std::time::{Duration, Instant};

/// Who waits for what takes its time looks this often whether it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// So long it is waited, with what there is in hand, before that is let go of; each time twice as long. The CPU is
/// not free before that: if it were for everything that is read from the disk, ever more tasks would
/// begin, and have all memory in hand when the first of them needs some for its result.
const HOLD: Duration = Duration::from_millis(100);
/// So often.
const LETS_GO: u32 = 4;

/// Brings what an invocation is given that is in stores.
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
        // No two for as long.
        let hold = hold + hold * (std::process::id() % 8) / 8;
        let mut opened = Vec::with_capacity(payloads.len());
        for payload in &payloads {
            let mut reading = objects.read(payload).expect("it is stored")?;
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
        later(objects.read(payloads[missing]).expect("it is stored")?)?;
    }
    Err(Error::internal("what is waited for to the end has come, or was refused"))
}

/// What takes its time is waited for as other work is: the CPU is free meanwhile.
fn later(mut reading: PendingRead) -> Result<Option<Payload>, Error> {
    wait_lending_cpu(|waits| wait(&mut reading, None, Some(waits)))
}

/// A payload with its data; nothing if it has not come in time.
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
            return Err(Error::cancelled("it was to stop while its arguments came"));
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
    Error::unsupported("a value is in a node's store, and this executor has none to read it from")
}
