//! The events and effects of a node's object store.

use crate::error::Error;
use crate::slab::Row;

/// Names a large value in this store. The low half is its row among the existing blobs. The high
/// half is a serial number that grows with each blob. It wraps around after four billion blobs, and
/// until then no id is used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlobId(pub u64);

impl BlobId {
    pub(super) fn new(row: Row, serial: u32) -> BlobId {
        BlobId(u64::from(serial) << 32 | u64::from(row.number()))
    }

    /// Returns the row. It may not exist, since other processes can send any number.
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

/// A request, answered once: by [`Effect::GrantRoom`], [`Effect::GrantPin`], [`Effect::Refuse`] or
/// [`Effect::RefuseLost`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// An event, from the store's point of view.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Event {
    /// A process wants to create a blob of this size. If `speculative`, it is only likely to need
    /// one soon. Such a request is answered at once, and is granted room only if there is plenty.
    CreateRequested { request: RequestId, process: ProcessId, bytes: u64, speculative: bool },
    /// The owner has filled the blob. From now on it can be read and does not change. It belongs to
    /// its owner until the owner ends or disowns it.
    Sealed { blob: BlobId },
    /// The process that was to fill the blob does not.
    Abandoned { blob: BlobId },
    /// The owner does not need the blob any more: the cluster retains it, or has no use for it.
    Disowned { blob: BlobId },
    /// The cluster retains the blob, until `Forgotten`.
    Retained { blob: BlobId },
    /// The cluster does not retain the blob any more.
    Forgotten { blob: BlobId },
    /// A process wants to read a blob.
    PinRequested { request: RequestId, process: ProcessId, blob: BlobId },
    /// A process returns one of its pins.
    Unpinned { process: ProcessId, blob: BlobId },
    /// A request was cancelled. If it is not answered yet, it is refused.
    RequestCancelled { request: RequestId },
    /// A process has forked.
    Forked { process: ProcessId },
    /// A process is gone, and everything that it started.
    ProcessGone { process: ProcessId },
    /// A spill ended. The blob is on disk, or the spill failed.
    SpillEnded { blob: BlobId, result: Result<(), Error> },
    /// A load ended. The blob is in memory, or the load failed. It stays on disk if memory was
    /// exhausted. Otherwise it is lost.
    LoadEnded { blob: BlobId, result: Result<(), Error> },
    /// The time that [`next_wake`](super::ObjectStore::next_wake) returned has come.
    TimePassed,
}

/// An action for the shell. The shell does them in order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Effect {
    /// Grant the requester memory for a new blob.
    GrantRoom { request: RequestId, blob: BlobId, bytes: u64 },
    /// Grant the requester a pin.
    GrantPin { request: RequestId, blob: BlobId },
    /// Refuse a request, with this error.
    Refuse { request: RequestId, error: Error },
    /// Write a blob to disk, and report its [end](Event::SpillEnded). Its memory stays.
    Spill { blob: BlobId },
    /// Free the memory of a blob that is on disk.
    FreeMemory { blob: BlobId },
    /// Read a blob from disk, and report its [end](Event::LoadEnded).
    Load { blob: BlobId, bytes: u64 },
    /// Free the disk space of a blob that is in memory again.
    FreeDisk { blob: BlobId },
    /// Free everything of a blob that is not needed any more.
    Drop { blob: BlobId },
    /// Return free memory to the system, since none was freed for some time.
    TrimMemory,
    /// Report that the cluster has lost its copy here: a blob cannot be read back from disk.
    Lost { blob: BlobId, error: Error },
    /// Refuse a pin, because the blob was lost while it was loaded. The requester may find another
    /// copy.
    RefuseLost { request: RequestId, error: Error },
}
