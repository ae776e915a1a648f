//! All blobs of a store. The idle ones, which no process has pinned, also form a list in the order
//! of their last use. The list runs through the entries, since there may be very many blobs and
//! each entry must be small.

use super::event::BlobId;
use super::users::BlobUsers;
use crate::slab::{Row, Slab};

/// A blob as its object store knows it.
#[derive(Debug)]
pub(super) struct Entry {
    pub bytes: u64,
    pub users: BlobUsers,
    pub state: BlobState,
    /// Whether the cluster retains the blob.
    pub retained: bool,
    /// Whether its room was granted ahead of need, and it is not filled yet.
    pub speculative: bool,
    serial: u32,
    /// The neighbours in the idle list, if the blob is idle. At an end of the list it is its own
    /// neighbour.
    links: Option<Links>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Links {
    before: Row,
    after: Row,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlobState {
    Filling,
    Memory,
    /// In memory, and being written to disk.
    Spilling,
    Disk,
    /// On disk. It waits for room in memory.
    LoadQueued,
    /// On disk, and being read.
    Loading,
}

impl BlobState {
    pub fn is_in_memory(self) -> bool {
        matches!(
            self,
            BlobState::Filling | BlobState::Memory | BlobState::Spilling | BlobState::Loading
        )
    }

    pub fn is_on_disk(self) -> bool {
        matches!(self, BlobState::Disk | BlobState::LoadQueued | BlobState::Loading)
    }
}

/// All blobs of a store. See the [module](self).
#[derive(Debug, Default)]
pub(super) struct BlobTable {
    entries: Slab<Entry>,
    last_serial: u32,
    /// The ends of the idle list: the blob that was used least recently, and the one that was used
    /// last.
    ends: Option<(Row, Row)>,
}

impl BlobTable {
    /// Adds a blob that is about to be filled.
    pub fn add(&mut self, bytes: u64, users: BlobUsers, ahead: bool) -> BlobId {
        self.last_serial = self.last_serial.wrapping_add(1);
        let (serial, place) = (self.last_serial, BlobState::Filling);
        let entry = Entry {
            bytes,
            users,
            state: place,
            retained: false,
            speculative: ahead,
            serial,
            links: None,
        };
        BlobId::new(self.entries.insert(entry), serial)
    }

    pub fn get(&self, blob: BlobId) -> Option<&Entry> {
        self.entries.get(blob.row()?).filter(|entry| entry.serial == blob.serial())
    }

    pub fn get_mut(&mut self, blob: BlobId) -> Option<&mut Entry> {
        self.entries.get_mut(blob.row()?).filter(|entry| entry.serial == blob.serial())
    }

    pub fn remove(&mut self, blob: BlobId) -> Option<Entry> {
        self.get(blob)?;
        self.mark_busy(blob);
        self.entries.remove(blob.row()?)
    }

    /// Iterates over all blobs, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (BlobId, &Entry)> {
        self.entries.iter().map(|(row, entry)| (BlobId::new(row, entry.serial), entry))
    }

    /// Puts a blob at the end of the idle list, as the one used last.
    pub fn mark_idle(&mut self, blob: BlobId) {
        self.mark_busy(blob);
        let this = blob.row().expect("an idle blob exists");
        let (first, before) = self.ends.unwrap_or((this, this));
        if before != this {
            self.links(before).after = this;
        }
        self.ends = Some((first, this));
        let entry = self.entries.get_mut(this).expect("an idle blob exists");
        entry.links = Some(Links { before, after: this });
    }

    /// Removes a blob from the idle list, because it was pinned, spilled or removed.
    pub fn mark_busy(&mut self, blob: BlobId) {
        let entry = self.get_mut(blob).expect("a busy blob exists");
        let Some(Links { before, after }) = entry.links.take() else { return };
        let this = blob.row().expect("a busy blob exists");
        let (first, last) = self.ends.expect("the list has an idle blob");
        match (before == this, after == this) {
            (true, true) => self.ends = None,
            (true, false) => {
                self.links(after).before = after;
                self.ends = Some((after, last));
            }
            (false, true) => {
                self.links(before).after = before;
                self.ends = Some((first, before));
            }
            (false, false) => {
                self.links(before).after = after;
                self.links(after).before = before;
            }
        }
    }

    fn links(&mut self, row: Row) -> &mut Links {
        let entry = self.entries.get_mut(row).expect("a neighbour exists");
        entry.links.as_mut().expect("a neighbour is idle")
    }

    /// Removes and returns the least recently used idle blob.
    pub fn take_oldest(&mut self) -> Option<BlobId> {
        let (first, _) = self.ends?;
        let entry = self.entries.get(first).expect("a listed blob exists");
        let blob = BlobId::new(first, entry.serial);
        self.mark_busy(blob);
        Some(blob)
    }

    /// Returns the idle blobs, least recently used first.
    pub fn idle(&self) -> Vec<BlobId> {
        let mut all = Vec::new();
        let mut next = self.ends.map(|(first, _)| first);
        while let Some(row) = next {
            let entry = self.entries.get(row).expect("a listed blob exists");
            let links = entry.links.expect("a listed blob is idle");
            all.push(BlobId::new(row, entry.serial));
            next = (links.after != row).then_some(links.after);
        }
        assert_eq!(self.ends.map(|(_, last)| last), all.last().and_then(|blob| blob.row()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_store::ProcessId;
    use crate::random::Random;

    #[test]
    fn idle_blobs_are_ordered_by_their_last_use() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let (mut table, mut all, mut idle) = (BlobTable::default(), Vec::new(), Vec::new());
            for _ in 0..500 {
                let chosen =
                    (!all.is_empty()).then(|| all[random.below(all.len() as u64) as usize]);
                match (random.below(5), chosen) {
                    (0, _) | (_, None) => {
                        all.push(table.add(1, BlobUsers::who_fills(ProcessId(1)), false))
                    }
                    (1, Some(blob)) => {
                        assert!(table.remove(blob).is_some() && table.get(blob).is_none());
                        all.retain(|one| *one != blob);
                        idle.retain(|one| *one != blob);
                    }
                    (2, Some(blob)) => {
                        table.mark_busy(blob);
                        idle.retain(|one| *one != blob);
                    }
                    (3, _) => {
                        let oldest = (!idle.is_empty()).then(|| idle.remove(0));
                        assert_eq!(table.take_oldest(), oldest);
                    }
                    (_, Some(blob)) => {
                        table.mark_idle(blob);
                        idle.retain(|one| *one != blob);
                        idle.push(blob);
                    }
                }
                assert_eq!(table.idle(), idle);
            }
            assert_eq!(table.iter().count(), all.len());
        }
    }

    #[test]
    fn an_entry_is_small_and_the_id_of_a_removed_blob_finds_no_other_blob() {
        assert!(size_of::<Entry>() <= 32, "{}", size_of::<Entry>());
        let mut table = BlobTable::default();
        let first = table.add(1, BlobUsers::default(), false);
        table.remove(first);
        let second = table.add(2, BlobUsers::default(), false);
        assert_eq!((first.row(), table.get(first).is_none()), (second.row(), true));
        assert!(table.get_mut(first).is_none() && table.remove(first).is_none());
        assert_eq!(table.get(second).map(|entry| entry.bytes), Some(2));
    }
}
