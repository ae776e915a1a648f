//! What happens to a node's store, and what it asks of its shell.

use crate::error::Error;
use crate::slab::Row;

/// A large value in this store. No two have the same, also of those that are gone: below is where it stands among
/// those that are there, above a number that grows with each, and begins anew only after four billion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlobId(pub u64);

impl BlobId {
    pub(super) fn new(row: Row, serial: u32) -> BlobId {
        BlobId(u64::from(serial) << 32 | u64::from(row.number()))
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
pub struct ProcessId(pub u64);

/// A question that is answered once, by [`Effect::Grant`], [`Effect::Give`], [`Effect::Refuse`] or [`Effect::RefuseLost`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Event {
    /// A process wants to make something of this size; or is likely to, soon: then it is answered at once, and gets
    /// room only where there is much.
    CreateRequested { request: RequestId, process: ProcessId, bytes: u64, speculative: bool },
    /// Its maker has filled it: from now on it is read, and does not change. It is its maker's until that ends or
    /// disowns it.
    Sealed { blob: BlobId },
    /// Its maker does not fill it.
    Abandoned { blob: BlobId },
    /// Its maker needs it no longer: the cluster keeps it, or nobody wants it.
    Disowned { blob: BlobId },
    /// The cluster keeps it, until it is forgotten.
    Retained { blob: BlobId },
    /// The cluster keeps it no longer.
    Forgotten { blob: BlobId },
    /// A process wants to read it.
    PinRequested { request: RequestId, process: ProcessId, blob: BlobId },
    /// A process reads it no longer; as often as it was given it.
    Unpinned { process: ProcessId, blob: BlobId },
    /// Whoever asked this does not want to know any more. If it is not answered yet, it is refused.
    RequestCancelled { request: RequestId },
    /// A process has made a copy of itself.
    Forked { process: ProcessId },
    /// A process is gone, and all that it started.
    ProcessGone { process: ProcessId },
    /// It is on the disk, or why not.
    SpillEnded { blob: BlobId, result: Result<(), Error> },
    /// It is back in memory, or why not: it is as it was if there was no memory for it, and lost otherwise.
    LoadEnded { blob: BlobId, result: Result<(), Error> },
    /// The time has come that [`next_wake`](super::Store::next_wake) named, or later.
    TimePassed,
}

/// What is to be done, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Effect {
    /// Give the asker memory for it.
    GrantRoom { request: RequestId, blob: BlobId, bytes: u64 },
    /// Show it to the asker.
    GrantPin { request: RequestId, blob: BlobId },
    /// Tell the asker that it is not to be.
    Refuse { request: RequestId, error: Error },
    /// Write it to the disk, and say when that has [ended](Event::SpillEnded). Its memory stays.
    Spill { blob: BlobId },
    /// Its memory is free: it is on the disk.
    FreeMemory { blob: BlobId },
    /// Read it back from the disk, and say when that has [ended](Event::LoadEnded).
    Load { blob: BlobId, bytes: u64 },
    /// It is in memory again: its room on the disk is free.
    FreeDisk { blob: BlobId },
    /// Nobody needs it any more: whatever it has is free.
    Drop { blob: BlobId },
    /// Memory that nobody uses goes back to the system: none was needed for some time.
    TrimMemory,
    /// It cannot be read back: the cluster does not have it here any more.
    Lost { blob: BlobId, error: Error },
    /// What the asker wants to read was lost on its way: have it looked for elsewhere.
    RefuseLost { request: RequestId, error: Error },
}
