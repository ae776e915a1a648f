//! The invariants of an object store, checked after every event.

use super::blob_table::BlobState;
use super::{BlobId, ObjectStore, RoomPurpose};
use crate::map::Set;

impl ObjectStore {
    /// Panics if the state is inconsistent.
    pub fn check_invariants(&self) {
        let sum = |is: fn(BlobState) -> bool| -> u64 {
            self.blobs
                .iter()
                .map(|(_, entry)| entry)
                .filter(|entry| is(entry.state))
                .map(|entry| entry.bytes)
                .sum()
        };
        assert_eq!(self.used, sum(BlobState::is_in_memory), "bytes in memory");
        let ahead = self.blobs.iter().map(|(_, entry)| entry).filter(|entry| entry.speculative);
        assert_eq!(self.ahead, ahead.map(|entry| entry.bytes).sum::<u64>(), "bytes ahead of need");
        assert_eq!(self.spilled, sum(BlobState::is_on_disk), "bytes on disk");
        assert!(self.used <= self.config.limit, "more memory than the limit");
        let leaving = |place| place == BlobState::Spilling;
        assert_eq!(self.spilling_bytes, sum(leaving), "bytes that are being spilled");
        let waiting: u64 = self.waiting.iter().map(|waiting| waiting.bytes).sum();
        assert_eq!(self.waiting_bytes, waiting, "bytes that requests wait for");
        assert!(self.waiting.iter().is_sorted_by_key(|waiting| waiting.since), "requests in order");
        let idle: Set<BlobId> = self.blobs.idle().into_iter().collect();
        for (blob, entry) in self.blobs.iter() {
            let blob = &blob;
            let should = entry.state == BlobState::Memory && !entry.users.is_pinned();
            assert_eq!(idle.contains(blob), should, "{blob:?} is idle: {entry:?}");
            assert_eq!(
                self.spilling.contains(blob),
                entry.state == BlobState::Spilling,
                "{blob:?}"
            );
            assert!(
                !entry.speculative || entry.state == BlobState::Filling,
                "{blob:?} is filled, and ahead of need: {entry:?}"
            );
            let filled = entry.users.filled_by().is_none();
            assert_eq!(filled, entry.state != BlobState::Filling, "{blob:?}: {entry:?}");
            for process in entry.users.readers().copied().chain(entry.users.owner()) {
                assert!(self.processes[&process].contains(blob), "{process:?} has {blob:?}");
            }
            let waits = self
                .waiting
                .iter()
                .filter(|waiting| waiting.purpose == RoomPurpose::Load(*blob))
                .count();
            assert_eq!(waits, usize::from(entry.state == BlobState::LoadQueued), "{blob:?}");
            let comes = matches!(entry.state, BlobState::LoadQueued | BlobState::Loading);
            assert_eq!(self.load_queue.contains(blob), comes, "{blob:?} is wanted");
            if !comes {
                assert!(!entry.users.is_wanted(), "{blob:?} has requests and is not being loaded");
            }
            if !entry.retained && !entry.users.is_needed() && !entry.users.is_wanted() {
                let ends = matches!(
                    entry.state,
                    BlobState::Filling | BlobState::Spilling | BlobState::Loading
                );
                assert!(ends, "{blob:?} has no users and was not dropped: {entry:?}");
            }
        }
    }
}
