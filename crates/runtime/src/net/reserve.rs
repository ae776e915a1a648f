//! File descriptors held in reserve. When the process has no free descriptor left, it closes
//! reserved ones to keep accepting connections, so that `marline status` gets an answer and workers
//! can join.

use std::fs::File;

/// How many connections the process can accept, one after the other or at once, when no other
/// descriptor is free.
const RESERVED: usize = 8;

/// See the [module](self).
#[derive(Default)]
pub(super) struct DescriptorReserve(Vec<File>);

impl DescriptorReserve {
    /// Opens descriptors until the reserve is full or none is left. Returns whether the reserve is
    /// full.
    pub fn fill(&mut self) -> bool {
        while self.0.len() < RESERVED {
            let Ok(file) = File::open("/dev/null") else { return false };
            self.0.push(file);
        }
        true
    }

    /// Closes one reserved descriptor, so that it is free for another use. Returns whether there
    /// was one.
    pub fn lend(&mut self) -> bool {
        self.0.pop().is_some()
    }
}

/// Returns whether the error says that the process or the system has no free descriptor.
pub(super) fn is_shortage(error: &std::io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}
