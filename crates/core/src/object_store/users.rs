//! The users of a blob: the processes that fill it, own it, read it, or wait until it is loaded.
//! Mostly a blob has no users, and then this takes no memory.

use super::event::{ProcessId, RequestId};

/// The users of a blob. See the [module](self).
#[derive(Debug, Default)]
pub(super) struct BlobUsers(Option<Box<Present>>);

#[derive(Debug, Default)]
struct Present {
    filled_by: Option<ProcessId>,
    /// The process that created the blob and may not have reported it yet. It does not read the
    /// blob.
    owner: Option<ProcessId>,
    /// The pins of each process.
    pins: Vec<(ProcessId, Pin)>,
    /// The requests to read the blob once it is loaded.
    wanted: Vec<(RequestId, ProcessId)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Pin {
    pub count: u32,
    /// Whether a fork of the process may read the blob, too.
    pub copied: bool,
}

impl BlobUsers {
    pub fn who_fills(process: ProcessId) -> BlobUsers {
        BlobUsers(Some(Box::new(Present { filled_by: Some(process), ..Present::default() })))
    }

    /// Returns the process that fills the blob, until it is filled.
    pub fn filled_by(&self) -> Option<ProcessId> {
        self.0.as_ref()?.filled_by
    }

    /// Removes and returns the process that fills the blob.
    pub fn take_filler(&mut self) -> Option<ProcessId> {
        self.change(|present| present.filled_by.take())
    }

    /// Returns the owner: the process that created the blob, until it disowns it.
    pub fn owner(&self) -> Option<ProcessId> {
        self.0.as_ref()?.owner
    }

    pub fn set_owner(&mut self, process: ProcessId) {
        self.0.get_or_insert_default().owner = Some(process);
    }

    pub fn take_owner(&mut self) -> Option<ProcessId> {
        self.change(|present| present.owner.take())
    }

    /// Returns whether a process has the blob pinned, or owns it.
    pub fn is_needed(&self) -> bool {
        self.is_pinned() || self.owner().is_some()
    }

    pub fn is_pinned(&self) -> bool {
        self.pins() > 0
    }

    /// Returns how many processes have the blob pinned.
    pub fn pins(&self) -> usize {
        self.0.as_ref().map_or(0, |present| present.pins.len())
    }

    /// Iterates over the processes that have the blob pinned.
    pub fn readers(&self) -> impl Iterator<Item = &ProcessId> {
        self.0.iter().flat_map(|present| &present.pins).map(|(process, _)| process)
    }

    pub fn pin_of(&mut self, process: ProcessId) -> Option<&mut Pin> {
        let pins = &mut self.0.as_mut()?.pins;
        pins.iter_mut().find(|(by, _)| *by == process).map(|(_, pin)| pin)
    }

    /// Adds a pin of a process.
    pub fn pin(&mut self, process: ProcessId) {
        match self.pin_of(process) {
            Some(pin) => pin.count += 1,
            None => {
                let pins = &mut self.0.get_or_insert_default().pins;
                pins.push((process, Pin { count: 1, copied: false }));
            }
        }
    }

    /// Removes all pins of a process.
    pub fn unpin(&mut self, process: ProcessId) {
        self.change(|present| present.pins.retain(|(by, _)| *by != process));
    }

    pub fn is_wanted(&self) -> bool {
        self.0.as_ref().is_some_and(|present| !present.wanted.is_empty())
    }

    pub fn want(&mut self, request: RequestId, process: ProcessId) {
        self.0.get_or_insert_default().wanted.push((request, process));
    }

    /// Removes and returns the requests that wait for the blob.
    pub fn take_wanted(&mut self) -> Vec<(RequestId, ProcessId)> {
        self.change(|present| std::mem::take(&mut present.wanted))
    }

    /// Removes a request. Returns whether it waited for the blob.
    pub fn stop_asking(&mut self, request: RequestId) -> bool {
        let before = self.0.as_ref().map_or(0, |present| present.wanted.len());
        self.change(|present| present.wanted.retain(|(one, _)| *one != request));
        before > self.0.as_ref().map_or(0, |present| present.wanted.len())
    }

    /// Removes the requests of a process.
    pub fn stop_wanting(&mut self, process: ProcessId) {
        self.change(|present| present.wanted.retain(|(_, by)| *by != process));
    }

    fn change<T: Default>(&mut self, what: impl FnOnce(&mut Present) -> T) -> T {
        let Some(present) = &mut self.0 else { return T::default() };
        let result = what(present);
        self.0.take_if(|present| {
            present.filled_by.is_none()
                && present.owner.is_none()
                && present.pins.is_empty()
                && present.wanted.is_empty()
        });
        result
    }
}
