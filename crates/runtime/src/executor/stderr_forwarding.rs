//! Forwards the output of executors to this process's standard error, by a thread of its own. If
//! standard error is not read, no executor is held up: output without room is dropped. A terminal
//! gets the [harmless](crate::terminal) part of the output. A file or a pipe gets all bytes.

use super::log::OutputSource;
use crate::terminal::OutputFilter;
use marline_channel::{Builder, Overflow, Sender};
use std::io::{IsTerminal, Write};
use std::sync::{LazyLock, OnceLock};
use std::thread;

/// Which output is forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StderrForwarding {
    /// All output.
    All,
    /// Output that belongs to no task and no actor, so that no client is shown it.
    Ownerless,
    /// No output.
    Nothing,
}

impl StderrForwarding {
    /// Returns whether output of this source is forwarded.
    pub(super) fn covers(self, source: Option<OutputSource>) -> bool {
        match self {
            StderrForwarding::All => true,
            StderrForwarding::Ownerless => source.is_none(),
            StderrForwarding::Nothing => false,
        }
    }
}

/// The most pieces that wait to be printed.
const MAX_WAITING: usize = 256;

/// An output stream of an executor that is forwarded.
#[derive(Default)]
pub(super) struct ForwardedStream(OutputFilter);

impl ForwardedStream {
    pub fn pass_on(&mut self, bytes: &[u8]) {
        static IS_TERMINAL: LazyLock<bool> = LazyLock::new(|| std::io::stderr().is_terminal());
        if *IS_TERMINAL {
            send(self.0.filter(bytes));
        } else {
            send(bytes.into());
        }
    }
}

fn send(bytes: Vec<u8>) {
    // If the thread cannot be started, nothing is forwarded. The log still has the output.
    static PRINTER: OnceLock<Option<Sender<Vec<u8>>>> = OnceLock::new();
    let printer = PRINTER.get_or_init(|| {
        let builder = Builder::bounded(MAX_WAITING).overflow(Overflow::DropNewest);
        let (printer, pieces) = builder.build().expect("the capacity is small");
        let print = move || {
            while let Ok(bytes) = pieces.recv().wait() {
                let _ = Write::write_all(&mut std::io::stderr(), &bytes as &Vec<u8>);
            }
        };
        let thread = thread::Builder::new().name("marline-print".into());
        thread.spawn(print).is_ok().then_some(printer)
    });
    if let Some(printer) = printer {
        let _ = printer.try_send(bytes);
    }
}
