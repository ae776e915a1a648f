//! Child processes: each measurement runs in one of its own. So a rival that hangs,
//! crashes or leaves threads behind does not disturb the others.
//!
//! The arguments are `--child SHAPE CONTESTANT MESSAGES` (0: find out how many). The
//! child prints one line: messages, nanoseconds, lost, doubled.

use crate::arguments::Order;
use crate::contestant::{Outcome, Program, Shape};
use crate::rivals::prepare_crossfire;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The longest time of a measurement. A run is meant to take 45 ms, so a child that needs this long
/// hangs.
pub const LIMIT: Duration = Duration::from_secs(5);

/// Calibration raises the number of messages until a run takes this long.
const CALIBRATION: Duration = Duration::from_millis(4);

/// Before a run, one part in this many is run without being measured.
const WARM_UP: u64 = 8;

/// Lets glibc keep freed memory, so that a queue pays for its memory once and not
/// page by page in every run. Otherwise unbounded shapes would measure the kernel.
const KEEP_MEMORY: [(&str, &str); 3] = [
    ("MALLOC_TRIM_THRESHOLD_", "33554432"),
    ("MALLOC_MMAP_THRESHOLD_", "33554432"),
    ("MALLOC_TOP_PAD_", "67108864"),
];

#[derive(Clone, Copy, PartialEq)]
pub enum Failure {
    Hung,
    Crashed,
}

/// Runs a measurement in a child process. Waits for its answer for at most [`LIMIT`].
pub fn ask(
    program: &Path,
    pin: bool,
    shape: &str,
    contestant: &str,
    messages: u64,
) -> Result<Outcome, Failure> {
    let mut command = if pin {
        let mut taskset = Command::new("taskset");
        taskset.args(["-c", "0"]).arg(program);
        taskset
    } else {
        Command::new(program)
    };
    let mut child = command
        .args(["--child", shape, contestant, &messages.to_string()])
        .envs(KEEP_MEMORY)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|_| Failure::Crashed)?;
    let mut stdout = child.stdout.take().expect("stdout is piped");
    let (answer, answered) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let _ = stdout.read_to_string(&mut text);
        let _ = answer.send(text);
    });
    let text = answered.recv_timeout(LIMIT);
    if text.is_err() {
        let _ = child.kill();
    }
    let _ = child.wait();
    parse(&text.map_err(|_| Failure::Hung)?).ok_or(Failure::Crashed)
}

fn parse(text: &str) -> Option<Outcome> {
    let numbers: Vec<u64> =
        text.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let [messages, nanoseconds, lost, doubled] = numbers[..] else {
        return None;
    };
    Some(Outcome { messages, elapsed: Duration::from_nanos(nanoseconds), lost, doubled })
}

/// Runs the measurement that [`ask`] has started this process for, and prints the answer.
pub fn answer(shapes: &[Shape], order: &Order) -> Result<(), String> {
    let shape = shapes.iter().find(|shape| shape.name == order.shape).ok_or("no such shape")?;
    let contestant = shape
        .contestants
        .iter()
        .find(|contestant| contestant.name == order.contestant)
        .ok_or("no such contestant in this shape")?;
    if contestant.program == Program::WithoutMetrics && cfg!(feature = "metrics") {
        return Err("the program given as --without-metrics was built with metrics".into());
    }
    prepare_crossfire();
    let run = |messages| (contestant.run)(messages);
    let outcome = match order.messages {
        Some(messages) => {
            run(warm_up(messages, shape.chunk));
            measure(run, messages, shape.chunk)
        }
        None => calibrate(run, shape.chunk),
    };
    println!(
        "{} {} {} {}",
        outcome.messages,
        outcome.elapsed.as_nanos(),
        outcome.lost,
        outcome.doubled
    );
    Ok(())
}

/// Returns how many messages the warm-up has. It is a whole chunk if there are chunks, so that
/// their memory is there.
fn warm_up(messages: u64, chunk: u64) -> u64 {
    if chunk == u64::MAX { messages.div_ceil(WARM_UP) } else { messages.min(chunk) }
}

fn measure(run: impl Fn(u64) -> Outcome, messages: u64, chunk: u64) -> Outcome {
    let mut total = Outcome::default();
    while total.messages < messages {
        total = total + run((messages - total.messages).min(chunk));
    }
    total
}

fn calibrate(run: impl Fn(u64) -> Outcome, chunk: u64) -> Outcome {
    let mut messages = 64;
    loop {
        let outcome = run(messages);
        if outcome.elapsed >= CALIBRATION || messages >= chunk {
            return outcome;
        }
        messages = (messages * 4).min(chunk);
    }
}
