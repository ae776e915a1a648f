//! The blobs of a store, with their memory and their names. There may be very many, so an entry is
//! small: data that few blobs have, or only for a short time, is elsewhere.

use marline_core::id::ObjectId;
use marline_core::object_store::BlobId;
use marline_core::table::{Row, Table};
use marline_objects::{Arena, Block, SealedBlock, Writable};

/// See the [module](self).
pub(super) struct BlobIndex {
    arena: Arena,
    blobs: Table<BlobId, BlobEntry>,
    names: Table<ObjectId, BlobId>,
}

#[derive(Default)]
struct BlobEntry {
    /// The row of the blob's name in the table of names. No two blobs have the same row.
    name: Option<Row>,
    /// The blob's memory, if the blob is sealed and in memory.
    memory: Option<SealedBlock>,
}

impl BlobIndex {
    /// Creates an empty index for blobs in the memory of this arena.
    pub fn new(arena: Arena) -> BlobIndex {
        BlobIndex { arena, blobs: Table::default(), names: Table::default() }
    }

    /// Adds a blob that is about to be filled.
    pub fn add(&mut self, blob: BlobId) {
        self.blobs.insert(blob, BlobEntry::default());
    }

    pub fn contains(&self, blob: BlobId) -> bool {
        self.blobs.contains_key(&blob)
    }

    /// Sets the memory of a blob that was filled, or loaded from the disk.
    pub fn set_memory(&mut self, blob: BlobId, room: Writable) {
        if let Some(body) = self.blobs.get_mut(&blob) {
            assert!(body.memory.is_none(), "{blob:?} is in memory twice");
            body.memory = Some(room.keep());
        }
    }

    /// Returns the block of a blob, if the blob is sealed and in memory.
    pub fn block(&self, blob: BlobId) -> Option<Block> {
        self.blobs.get(&blob)?.memory.as_ref().map(SealedBlock::block)
    }

    /// Frees the memory of a blob that is on the disk and that no process reads.
    pub fn free_memory(&mut self, blob: BlobId) {
        let memory = self.blobs.get_mut(&blob).and_then(|body| body.memory.take());
        if let Some(memory) = memory {
            self.arena.free(memory);
        }
    }

    /// Makes a blob the data of an object. Returns the blob that had the name before.
    pub fn name(&mut self, blob: BlobId, object: ObjectId) -> Option<BlobId> {
        let (row, before) = self.names.insert(object, blob);
        if let Some(body) = before.and_then(|before| self.blobs.get_mut(&before)) {
            body.name = None;
        }
        self.blobs.get_mut(&blob).expect("the blob was added").name = Some(row);
        before
    }

    /// Returns the blob of an object, if it is here.
    pub fn named(&self, object: ObjectId) -> Option<BlobId> {
        self.names.get(&object).copied()
    }

    /// Returns the object whose data the blob is.
    pub fn name_of(&self, blob: BlobId) -> Option<ObjectId> {
        self.blobs.get(&blob)?.name.map(|row| *self.names.at(row).0)
    }

    /// Returns all objects with a blob here, in no order.
    pub fn all_named(&self) -> impl Iterator<Item = (ObjectId, BlobId)> {
        self.names.iter().map(|(object, blob)| (*object, *blob))
    }

    /// Removes a blob. Returns the object whose data it was.
    pub fn remove(&mut self, blob: BlobId) -> Option<ObjectId> {
        self.free_memory(blob);
        let name = self.name_of(blob);
        self.blobs.remove(&blob);
        if let Some(object) = &name {
            self.names.remove(object);
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::id::TaskId;

    #[test]
    fn an_object_names_the_blob_that_was_named_last() {
        let arena = Arena::default();
        let mut bodies = BlobIndex::new(arena.clone());
        let [first, second, other] = [1, 2, 3].map(BlobId);
        let [object, another] = [1, 2].map(|number| ObjectId::of(TaskId::from_u128(number), 0));
        for blob in [first, second, other] {
            bodies.add(blob);
            bodies.set_memory(blob, arena.allocate(100).unwrap());
        }
        assert_eq!(bodies.name(first, object), None);
        assert_eq!(bodies.name(second, object), Some(first));
        assert_eq!((bodies.name_of(first), bodies.named(object)), (None, Some(second)));
        assert_eq!(bodies.remove(second), Some(object));
        assert_eq!(bodies.name(other, another), None);
        assert_eq!(bodies.name_of(first), None, "another name has its old row");
        assert_eq!(bodies.remove(first), None);
        assert_eq!(bodies.named(another), Some(other));
        assert!(bodies.block(first).is_none() && bodies.block(other).is_some());
        bodies.free_memory(other);
        assert_eq!((bodies.block(other), arena.used()), (None, 0));
        assert_eq!(bodies.all_named().collect::<Vec<_>>(), [(another, other)]);
    }

    #[test]
    fn a_blob_entry_takes_at_most_24_bytes() {
        assert!(size_of::<(BlobId, BlobEntry)>() <= 24, "{}", size_of::<(BlobId, BlobEntry)>());
    }
}
