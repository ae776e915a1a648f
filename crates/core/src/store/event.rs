//! What happens to a node's store, and what it asks of its shell.

use crate::error::Error;
use crate::slab::Row;

/// A large value in this store. No two have the same, also of those that are gone: below is where it stands among
/// those that are there, above a number that grows with each, and begins anew only after four billion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Blob(pub u64);

impl Blob {
    pub(super) fn new(row: Row, serial: u32) -> Blob {
        Blob(u64::from(serial) << 32 | u64::from(row.number()))
    }

    /// Whatever number it is, which others may have sent.
    pub(super) fn row(self) -> Option<Row> {
        Row::from_number(self.0 as u32)
    }

    pub(super) fn serial(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// A process that uses this store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Process(pub u64);

/// A question that is answered once, by [`Effect::Grant`], [`Effect::Give`], [`Effect::Refuse`] or [`Effect::Miss`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Request(pub u64);

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Event {
    /// A process wants to make something of this size; or is likely to, soon: then it is answered at once, and gets
    /// room only where there is much.
    CreateAsked { request: Request, process: Process, bytes: u64, ahead: bool },
    /// Its maker has filled it: from now on it is read, and does not change. It is its maker's until that ends or
    /// disowns it.
    Sealed { blob: Blob },
    /// Its maker does not fill it.
    Abandoned { blob: Blob },
    /// Its maker needs it no longer: the cluster keeps it, or nobody wants it.
    Disowned { blob: Blob },
    /// The cluster keeps it, until it is forgotten.
    Kept { blob: Blob },
    /// The cluster keeps it no longer.
    Forgotten { blob: Blob },
    /// A process wants to read it.
    PinAsked { request: Request, process: Process, blob: Blob },
    /// A process reads it no longer; as often as it was given it.
    Unpinned { process: Process, blob: Blob },
    /// Whoever asked this does not want to know any more. If it is not answered yet, it is refused.
    GivenUp { request: Request },
    /// A process has made a copy of itself.
    Forked { process: Process },
    /// A process is gone, and all that it started.
    ProcessGone { process: Process },
    /// It is on the disk, or why not.
    SpillEnded { blob: Blob, result: Result<(), Error> },
    /// It is back in memory, or why not: it is as it was if there was no memory for it, and lost otherwise.
    LoadEnded { blob: Blob, result: Result<(), Error> },
    /// The time has come that [`next_wake`](super::Store::next_wake) named, or later.
    TimePassed,
}

/// What is to be done, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Effect {
    /// Give the asker memory for it.
    Grant { request: Request, blob: Blob, bytes: u64 },
    /// Show it to the asker.
    Give { request: Request, blob: Blob },
    /// Tell the asker that it is not to be.
    Refuse { request: Request, error: Error },
    /// Write it to the disk, and say when that has [ended](Event::SpillEnded). Its memory stays.
    Spill { blob: Blob },
    /// Its memory is free: it is on the disk.
    FreeMemory { blob: Blob },
    /// Read it back from the disk, and say when that has [ended](Event::LoadEnded).
    Load { blob: Blob, bytes: u64 },
    /// It is in memory again: its room on the disk is free.
    FreeDisk { blob: Blob },
    /// Nobody needs it any more: whatever it has is free.
    Drop { blob: Blob },
    /// Memory that nobody uses goes back to the system: none was needed for some time.
    GiveBack,
    /// It cannot be read back: the cluster does not have it here any more.
    Lost { blob: Blob, error: Error },
    /// What the asker wants to read was lost on its way: have it looked for elsewhere.
    Miss { request: Request, error: Error },
}
