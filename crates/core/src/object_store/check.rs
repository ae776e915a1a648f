//! What must be true of a store after every event.

use super::blob_table::BlobState;
use super::{BlobId, ObjectStore, RoomPurpose};
use crate::map::Set;

impl ObjectStore {
    /// Panics if the books do not add up.
    pub fn check_invariants(&self) {
        let sum = |is: fn(BlobState) -> bool| -> u64 {
            self.blobs
                .iter()
                .map(|(_, entry)| entry)
                .filter(|entry| is(entry.place))
                .map(|entry| entry.bytes)
                .sum()
        };
        assert_eq!(self.used, sum(BlobState::is_in_memory), "memory that is taken");
        let ahead = self.blobs.iter().map(|(_, entry)| entry).filter(|entry| entry.ahead);
        assert_eq!(self.ahead, ahead.map(|entry| entry.bytes).sum::<u64>(), "room ahead of need");
        assert_eq!(self.spilled, sum(BlobState::is_on_disk), "room on the disk that is taken");
        assert!(self.used <= self.config.limit, "more memory than there may be");
        let leaving = |place| place == BlobState::Spilling;
        assert_eq!(self.leaving_bytes, sum(leaving), "memory of what goes to the disk");
        let waiting: u64 = self.waiting.iter().map(|waiting| waiting.bytes).sum();
        assert_eq!(self.waiting_bytes, waiting, "what is waited for");
        assert!(self.waiting.iter().is_sorted_by_key(|waiting| waiting.since), "the first first");
        let idle: Set<BlobId> = self.blobs.idle().into_iter().collect();
        for (blob, entry) in self.blobs.iter() {
            let blob = &blob;
            let should = entry.place == BlobState::Memory && !entry.users.is_pinned();
            assert_eq!(idle.contains(blob), should, "{blob:?} is idle: {entry:?}");
            assert_eq!(self.leaving.contains(blob), entry.place == BlobState::Spilling, "{blob:?}");
            assert!(
                !entry.ahead || entry.place == BlobState::Filling,
                "{blob:?} is filled: {entry:?}"
            );
            let filled = entry.users.filled_by().is_none();
            assert_eq!(filled, entry.place != BlobState::Filling, "{blob:?}: {entry:?}");
            for process in entry.users.readers().copied().chain(entry.users.owner()) {
                assert!(self.processes[&process].contains(blob), "{process:?} has {blob:?}");
            }
            let waits = self
                .waiting
                .iter()
                .filter(|waiting| waiting.why == RoomPurpose::Load(*blob))
                .count();
            assert_eq!(waits, usize::from(entry.place == BlobState::LoadQueued), "{blob:?}");
            let comes = matches!(entry.place, BlobState::LoadQueued | BlobState::Loading);
            assert_eq!(self.wanted.contains(blob), comes, "{blob:?} is wanted");
            if !comes {
                assert!(!entry.users.is_wanted(), "{blob:?} is here, or nobody fetches it");
            }
            if !entry.kept && !entry.users.is_needed() && !entry.users.is_wanted() {
                let ends = matches!(
                    entry.place,
                    BlobState::Filling | BlobState::Spilling | BlobState::Loading
                );
                assert!(ends, "{blob:?} is nobody's: {entry:?}");
            }
        }
    }
}
