//! Who reads a blob, and how often. Mostly nobody does, and then it takes no memory.

use super::event::Process;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Pins(Vec<(Process, Pin)>);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Pin {
    pub count: u32,
    /// A copy of the process may read it, too.
    pub copied: bool,
}

impl Pins {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.0.iter().map(|(process, _)| process)
    }

    pub fn get_mut(&mut self, process: Process) -> Option<&mut Pin> {
        self.0.iter_mut().find(|(by, _)| *by == process).map(|(_, pin)| pin)
    }

    /// The process reads it once more.
    pub fn add(&mut self, process: Process) {
        match self.get_mut(process) {
            Some(pin) => pin.count += 1,
            None => self.0.push((process, Pin { count: 1, copied: false })),
        }
    }

    /// The process reads it no more.
    pub fn remove(&mut self, process: Process) {
        self.0.retain(|(by, _)| *by != process);
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
    }
}
