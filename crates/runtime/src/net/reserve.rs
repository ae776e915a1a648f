//! Descriptors kept back for when the process has no others left: with them it still accepts connections, so that
//! `marline status` is answered and workers can join.

use std::fs::File;

/// How many connections can be accepted, one after the other or at once, when there are no descriptors left.
const RESERVED: usize = 8;

/// See the [module](self).
#[derive(Default)]
pub(super) struct DescriptorReserve(Vec<File>);

impl DescriptorReserve {
    /// Takes descriptors until there are enough, or none is left. Says whether there are enough.
    pub fn fill(&mut self) -> bool {
        while self.0.len() < RESERVED {
            let Ok(file) = File::open("/dev/null") else { return false };
            self.0.push(file);
        }
        true
    }

    /// Makes one descriptor free. Says whether there was one.
    pub fn lend(&mut self) -> bool {
        self.0.pop().is_some()
    }
}

/// Whether this says that there are no descriptors left.
pub(super) fn is_shortage(error: &std::io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}
