//! What executors print, passed on to this process's standard error by a thread of its own: whoever does
//! not read that stands in nobody's way, and misses what there was no room for. A terminal is shown what
//! [does no harm](crate::terminal) there; a file or a pipe gets the bytes.

use super::log::OutputSource;
use crate::terminal::OutputFilter;
use marline_channel::{Builder, Overflow, Sender};
use std::io::{IsTerminal, Write};
use std::sync::{LazyLock, OnceLock};
use std::thread;

/// What of it is passed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StderrForwarding {
    /// Everything.
    All,
    /// What is no task's and no actor's, so that nobody else is shown it.
    Ownerless,
    /// Nothing.
    Nothing,
}

impl StderrForwarding {
    /// Whether this is meant.
    pub(super) fn covers(self, source: Option<OutputSource>) -> bool {
        match self {
            StderrForwarding::All => true,
            StderrForwarding::Ownerless => source.is_none(),
            StderrForwarding::Nothing => false,
        }
    }
}

/// How many pieces wait to be printed at most.
const MAX_WAITING: usize = 256;

/// A stream of an executor that is passed on.
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
    // Without a thread for it, nothing is passed on: the log has it.
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
