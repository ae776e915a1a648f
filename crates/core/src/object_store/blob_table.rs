//! All blobs of a store, and in which order those that nobody reads were last used. That order is a list through
//! the entries: there may be very many, and each takes no more than there is to say of it.

use super::event::BlobId;
use super::users::BlobUsers;
use crate::slab::{Row, Slab};

/// What a store knows of a blob.
#[derive(Debug)]
pub(super) struct Entry {
    pub bytes: u64,
    pub users: BlobUsers,
    pub place: BlobState,
    /// The cluster keeps it.
    pub kept: bool,
    /// It was asked for ahead of need, and is not filled.
    pub ahead: bool,
    serial: u32,
    /// Its neighbours, if it is idle: what was used before it, and after it. Itself where there is none.
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
    /// In memory, and being written.
    Spilling,
    Disk,
    /// On the disk; it waits for room to come back.
    LoadQueued,
    /// On the disk, and being read.
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

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct BlobTable {
    entries: Slab<Entry>,
    last_serial: u32,
    /// Of what is idle: what was not used for longest, and what was used last.
    ends: Option<(Row, Row)>,
}

impl BlobTable {
    /// Adds what is about to be filled.
    pub fn add(&mut self, bytes: u64, users: BlobUsers, ahead: bool) -> BlobId {
        self.last_serial = self.last_serial.wrapping_add(1);
        let (serial, place) = (self.last_serial, BlobState::Filling);
        let entry = Entry { bytes, users, place, kept: false, ahead, serial, links: None };
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

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (BlobId, &Entry)> {
        self.entries.iter().map(|(row, entry)| (BlobId::new(row, entry.serial), entry))
    }

    /// Nobody reads it, from now on.
    pub fn mark_idle(&mut self, blob: BlobId) {
        self.mark_busy(blob);
        let this = blob.row().expect("it is there");
        let (first, before) = self.ends.unwrap_or((this, this));
        if before != this {
            self.links(before).after = this;
        }
        self.ends = Some((first, this));
        let entry = self.entries.get_mut(this).expect("it is there");
        entry.links = Some(Links { before, after: this });
    }

    /// Somebody does, or it is about to go.
    pub fn mark_busy(&mut self, blob: BlobId) {
        let entry = self.get_mut(blob).expect("it is there");
        let Some(Links { before, after }) = entry.links.take() else { return };
        let this = blob.row().expect("it is there");
        let (first, last) = self.ends.expect("it was idle");
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
        let entry = self.entries.get_mut(row).expect("a neighbour is there");
        entry.links.as_mut().expect("a neighbour is idle")
    }

    /// What nobody has read for longest, and nobody does; from now on it is busy.
    pub fn take_oldest(&mut self) -> Option<BlobId> {
        let (first, _) = self.ends?;
        let entry = self.entries.get(first).expect("it is idle");
        let blob = BlobId::new(first, entry.serial);
        self.mark_busy(blob);
        Some(blob)
    }

    /// What is idle, the oldest first.
    pub fn idle(&self) -> Vec<BlobId> {
        let mut all = Vec::new();
        let mut next = self.ends.map(|(first, _)| first);
        while let Some(row) = next {
            let entry = self.entries.get(row).expect("it is idle");
            let links = entry.links.expect("it is idle");
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
    fn what_is_idle_is_in_the_order_of_its_last_use() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let (mut shelf, mut all, mut idle) = (BlobTable::default(), Vec::new(), Vec::new());
            for _ in 0..500 {
                let chosen =
                    (!all.is_empty()).then(|| all[random.below(all.len() as u64) as usize]);
                match (random.below(5), chosen) {
                    (0, _) | (_, None) => {
                        all.push(shelf.add(1, BlobUsers::who_fills(ProcessId(1)), false))
                    }
                    (1, Some(blob)) => {
                        assert!(shelf.remove(blob).is_some() && shelf.get(blob).is_none());
                        all.retain(|one| *one != blob);
                        idle.retain(|one| *one != blob);
                    }
                    (2, Some(blob)) => {
                        shelf.mark_busy(blob);
                        idle.retain(|one| *one != blob);
                    }
                    (3, _) => {
                        let oldest = (!idle.is_empty()).then(|| idle.remove(0));
                        assert_eq!(shelf.take_oldest(), oldest);
                    }
                    (_, Some(blob)) => {
                        shelf.mark_idle(blob);
                        idle.retain(|one| *one != blob);
                        idle.push(blob);
                    }
                }
                assert_eq!(shelf.idle(), idle);
            }
            assert_eq!(shelf.iter().count(), all.len());
        }
    }

    #[test]
    fn what_is_known_of_a_blob_is_small_and_none_is_taken_for_another() {
        assert!(size_of::<Entry>() <= 32, "{}", size_of::<Entry>());
        let mut shelf = BlobTable::default();
        let first = shelf.add(1, BlobUsers::default(), false);
        shelf.remove(first);
        let second = shelf.add(2, BlobUsers::default(), false);
        assert_eq!((first.row(), shelf.get(first).is_none()), (second.row(), true));
        assert!(shelf.get_mut(first).is_none() && shelf.remove(first).is_none());
        assert_eq!(shelf.get(second).map(|entry| entry.bytes), Some(2));
    }
}
