//! Who has to do with a blob: fills it, reads it, or waits for it to come back. Mostly nobody does, and then it
//! takes no memory.

use super::event::{ProcessId, RequestId};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct BlobUsers(Option<Box<Present>>);

#[derive(Debug, Default)]
struct Present {
    filled_by: Option<ProcessId>,
    /// Its maker, which may not have passed it on yet. It does not read it.
    owner: Option<ProcessId>,
    /// How often each process reads it.
    pins: Vec<(ProcessId, Pin)>,
    /// Who wants to read it when it is back.
    wanted: Vec<(RequestId, ProcessId)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Pin {
    pub count: u32,
    /// A copy of the process may read it, too.
    pub copied: bool,
}

impl BlobUsers {
    pub fn who_fills(process: ProcessId) -> BlobUsers {
        BlobUsers(Some(Box::new(Present { filled_by: Some(process), ..Present::default() })))
    }

    /// Who fills it, until it is filled.
    pub fn filled_by(&self) -> Option<ProcessId> {
        self.0.as_ref()?.filled_by
    }

    /// Nobody fills it any more. Says who did.
    pub fn take_filler(&mut self) -> Option<ProcessId> {
        self.change(|present| present.filled_by.take())
    }

    /// Its maker, until that disowns it.
    pub fn owner(&self) -> Option<ProcessId> {
        self.0.as_ref()?.owner
    }

    pub fn set_owner(&mut self, process: ProcessId) {
        self.0.get_or_insert_default().owner = Some(process);
    }

    pub fn take_owner(&mut self) -> Option<ProcessId> {
        self.change(|present| present.owner.take())
    }

    /// Whether somebody reads it, or may pass it on.
    pub fn is_needed(&self) -> bool {
        self.is_pinned() || self.owner().is_some()
    }

    pub fn is_pinned(&self) -> bool {
        self.pins() > 0
    }

    /// How many processes read it.
    pub fn pins(&self) -> usize {
        self.0.as_ref().map_or(0, |present| present.pins.len())
    }

    /// Who reads it.
    pub fn readers(&self) -> impl Iterator<Item = &ProcessId> {
        self.0.iter().flat_map(|present| &present.pins).map(|(process, _)| process)
    }

    pub fn pin_of(&mut self, process: ProcessId) -> Option<&mut Pin> {
        let pins = &mut self.0.as_mut()?.pins;
        pins.iter_mut().find(|(by, _)| *by == process).map(|(_, pin)| pin)
    }

    /// The process reads it once more.
    pub fn pin(&mut self, process: ProcessId) {
        match self.pin_of(process) {
            Some(pin) => pin.count += 1,
            None => {
                let pins = &mut self.0.get_or_insert_default().pins;
                pins.push((process, Pin { count: 1, copied: false }));
            }
        }
    }

    /// The process reads it no more.
    pub fn unpin(&mut self, process: ProcessId) {
        self.change(|present| present.pins.retain(|(by, _)| *by != process));
    }

    pub fn is_wanted(&self) -> bool {
        self.0.as_ref().is_some_and(|present| !present.wanted.is_empty())
    }

    pub fn want(&mut self, request: RequestId, process: ProcessId) {
        self.0.get_or_insert_default().wanted.push((request, process));
    }

    /// Who wanted to read it.
    pub fn take_wanted(&mut self) -> Vec<(RequestId, ProcessId)> {
        self.change(|present| std::mem::take(&mut present.wanted))
    }

    /// Whoever asked this does not want to read it any more. Says whether it did.
    pub fn stop_asking(&mut self, request: RequestId) -> bool {
        let before = self.0.as_ref().map_or(0, |present| present.wanted.len());
        self.change(|present| present.wanted.retain(|(one, _)| *one != request));
        before > self.0.as_ref().map_or(0, |present| present.wanted.len())
    }

    /// The process does not want to read it any more.
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
