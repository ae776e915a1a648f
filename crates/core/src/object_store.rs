//! A node's object store: which blobs are in memory and which on disk, which processes read them,
//! and how room is made.
//!
//! ```text
//!           created           sealed           no pins, room is needed          written
//!   (room) ─────────▶ Filling ───────▶ Memory ────────────────────────▶ Spilling ─────▶ Disk
//!                        │              ▲  ▲    pinned, or disk error      │              │
//!    its process is gone │              │  └───────────────────────────────┘          pin │
//!                        ▼         read │                                       requested │
//!                    (dropped)          └─── Loading ◀──────────────── LoadQueued ◀───────┘
//!                                                       room granted
//! ```
//!
//! A blob that the cluster does not retain is dropped when no process pins or owns it.
//!
//! A process that reads a blob **pins** it: the blob's memory stays in place, whatever happens to
//! the object. The process returns the pin, or the pin goes with the process. If the process forks,
//! its child may go on reading. Such a pin stays until the process is gone, and everything that it
//! started with it.
//!
//! The process that created a blob **owns** it until the cluster retains the blob or has no use for
//! it. An owned blob is not dropped. Its owner does not read it, so it may be spilled.
//!
//! Memory is granted up to a limit. A request above the limit waits, in order, while the least
//! recently used blobs are spilled. If no request was granted room for long, it fails with
//! `Exhausted` and the usage of the store. No memory is counted twice: a blob that is being spilled
//! keeps its memory until it is written, and a blob that is being loaded has its memory from the
//! start.

mod blob_table;
mod check;
mod event;
#[cfg(test)]
mod tests;
mod users;

pub use event::{BlobId, Effect, Event, ProcessId, RequestId};

use crate::error::{Error, ErrorKind};
use crate::label::format_bytes;
use crate::map::{Map, Set};
use crate::time::Time;
use blob_table::{BlobState, BlobTable};
use std::collections::VecDeque;
use std::time::Duration;
use users::BlobUsers;

/// The limits of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The most bytes of blobs in memory.
    pub limit: u64,
    /// Whether blobs may be spilled to disk.
    pub spills: bool,
    /// A request that waits for room is refused when no request was granted room for this long.
    pub patience: Duration,
}

/// The usage of a store, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreUsage {
    /// The most bytes that may be in memory.
    pub limit: u64,
    /// The bytes in memory.
    pub used: u64,
    /// The bytes on disk.
    pub spilled: u64,
    /// All bytes that were ever written to disk, also those that were loaded since.
    pub written: u64,
}

/// The state machine of an object store. See the [module](self).
#[derive(Debug)]
pub struct ObjectStore {
    config: Config,
    blobs: BlobTable,
    /// Bytes of memory in use.
    used: u64,
    /// The bytes of `used` that were granted ahead of need and are not filled yet.
    ahead: u64,
    /// Bytes on disk.
    spilled: u64,
    /// All bytes that were ever written to disk.
    written: u64,
    /// The blobs that are being spilled, and their bytes.
    spilling: Set<BlobId>,
    spilling_bytes: u64,
    /// The blobs on disk for which a request waits.
    load_queue: Set<BlobId>,
    /// The requests that wait for room, in order, and their bytes.
    waiting: VecDeque<RoomRequest>,
    waiting_bytes: u64,
    /// When a request was last granted room.
    given_at: Time,
    /// The last error of the disk, and when the disk is tried again.
    disk_failed: Option<(Error, Time)>,
    /// When to decide whether to trim memory. Set when some was freed.
    trim_at: Option<Time>,
    /// Whether more memory was freed since `rest_at` was set.
    was_freed: bool,
    /// The blobs that each process fills, owns or has pinned.
    processes: Map<ProcessId, Set<BlobId>>,
}

/// A request that waits for room.
#[derive(Debug)]
struct RoomRequest {
    bytes: u64,
    purpose: RoomPurpose,
    /// When it was made.
    since: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RoomPurpose {
    Create { request: RequestId, process: ProcessId, ahead: bool },
    Load(BlobId),
}

/// Memory is trimmed when none was freed for this long.
const TRIM_DELAY: Duration = Duration::from_secs(5);
/// Room is granted ahead of need while at most one part in `MUCH_PART` of the memory is in use ...
const MUCH_PART: u64 = 2;
/// ... and to at most one part in `AHEAD_PART` of the memory.
const AHEAD_PART: u64 = 8;
/// How long after an error the disk is tried again.
const DISK_PAUSE: Duration = Duration::from_secs(1);

impl ObjectStore {
    /// Creates an empty store.
    pub fn new(config: Config) -> ObjectStore {
        ObjectStore {
            config,
            blobs: BlobTable::default(),
            used: 0,
            ahead: 0,
            spilled: 0,
            written: 0,
            spilling: Set::default(),
            spilling_bytes: 0,
            load_queue: Set::default(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            given_at: Time::ZERO,
            disk_failed: None,
            trim_at: None,
            was_freed: false,
            processes: Map::default(),
        }
    }

    /// Returns the bytes in memory.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Returns the bytes on disk.
    pub fn spilled(&self) -> u64 {
        self.spilled
    }

    /// Returns the usage of the store.
    pub fn usage(&self) -> StoreUsage {
        let (limit, used) = (self.config.limit, self.used);
        StoreUsage { limit, used, spilled: self.spilled, written: self.written }
    }

    /// Returns the size of a blob in bytes, how many processes have it pinned, and whether it is in
    /// memory.
    pub fn look(&self, blob: BlobId) -> Option<(u64, usize, bool)> {
        let entry = self.blobs.get(blob)?;
        Some((entry.bytes, entry.users.pins(), entry.state.is_in_memory()))
    }

    /// Returns when [`Event::TimePassed`] is due.
    pub fn next_wake(&self) -> Option<Time> {
        let first = self.waiting.front().filter(|_| self.spilling.is_empty());
        let Some(first) = first else {
            return self.trim_at; // No request waits, or a spill is making room.
        };
        let retry = self.disk_failed.as_ref().map(|(_, until)| *until);
        [Some(self.patience_ends(first)), retry, self.trim_at].into_iter().flatten().min()
    }

    /// Handles an event. Appends its effects to `effects`.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::CreateRequested { request, process, bytes, speculative: ahead } => {
                let why = RoomPurpose::Create { request, process, ahead };
                if ahead && !self.has_much_room(bytes) {
                    let error = Error::exhausted("no room ahead of need in this node's store");
                    return effects.push(Effect::Refuse { request, error });
                }
                self.wait(now, bytes, why, effects);
            }
            Event::Sealed { blob } => self.sealed(blob, effects),
            Event::Abandoned { blob } => self.abandoned(blob, effects),
            Event::Disowned { blob } => self.disowned(blob, effects),
            Event::Retained { blob } => {
                if let Some(entry) = self.blobs.get_mut(blob) {
                    entry.retained = true;
                }
            }
            Event::Forgotten { blob } => {
                if let Some(entry) = self.blobs.get_mut(blob) {
                    entry.retained = false;
                    self.look_at(blob, effects);
                }
            }
            Event::PinRequested { request, process, blob } => {
                self.pin_asked(now, request, process, blob, effects);
            }
            Event::Unpinned { process, blob } => self.unpinned(process, blob, effects),
            Event::RequestCancelled { request } => self.cancel_request(request, effects),
            Event::Forked { process } => self.forked(process),
            Event::ProcessGone { process } => self.process_gone(process, effects),
            Event::SpillEnded { blob, result } => self.spill_ended(now, blob, result, effects),
            Event::LoadEnded { blob, result } => self.load_ended(blob, result, effects),
            Event::TimePassed => {}
        }
        self.make_room(now, effects);
        self.rest(now, effects);
    }

    /// Trims free memory, if none was freed for some time. Until then it stays allocated, so that
    /// it is quick to use again.
    fn rest(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let is_due = self.trim_at.is_some_and(|at| at <= now);
        if is_due && !self.was_freed {
            self.trim_at = None;
            effects.push(Effect::TrimMemory);
        } else if self.was_freed && (is_due || self.trim_at.is_none()) {
            // The timer is not moved with every free, since the shell would have to set its timer
            // each time.
            self.trim_at = Some(now + TRIM_DELAY);
            self.was_freed = false;
        }
    }

    /// Returns whether there is room for a speculative request: little memory is in use, and little
    /// of it ahead of need.
    fn has_much_room(&self, bytes: u64) -> bool {
        self.waiting.is_empty()
            && self.used.saturating_add(bytes) <= self.config.limit / MUCH_PART
            && self.ahead.saturating_add(bytes) <= self.config.limit / AHEAD_PART
    }

    fn wait(&mut self, now: Time, bytes: u64, why: RoomPurpose, effects: &mut Vec<Effect>) {
        if bytes > self.config.limit {
            let error = self.too_large(bytes);
            return self.refuse(why, &error, effects);
        }
        self.waiting_bytes += bytes;
        self.waiting.push_back(RoomRequest { bytes, purpose: why, since: now });
    }

    /// Returns when a waiting request is refused, if no request is granted room before. As long as
    /// others are, its turn will come.
    fn patience_ends(&self, waiting: &RoomRequest) -> Time {
        waiting.since.max(self.given_at) + self.config.patience
    }

    /// Removes the waiting requests that `who` selects.
    fn stop_waiting(&mut self, who: impl Fn(&RoomPurpose) -> bool) {
        self.waiting.retain(|waiting| {
            let stops = who(&waiting.purpose);
            self.waiting_bytes -= if stops { waiting.bytes } else { 0 };
            !stops
        });
    }

    fn cancel_request(&mut self, request: RequestId, effects: &mut Vec<Effect>) {
        let is_it = |why: &RoomPurpose| matches!(why, RoomPurpose::Create { request: one, .. } if *one == request);
        let asked = self.waiting.iter().any(|waiting| is_it(&waiting.purpose));
        self.stop_waiting(is_it);
        let wants = |blob: &BlobId| {
            let entry = self.blobs.get_mut(*blob).expect("it is wanted");
            entry.users.stop_asking(request)
        };
        let wanted = self.load_queue.iter().copied().find(wants);
        if asked || wanted.is_some() {
            let error = Error::cancelled("the request was cancelled");
            effects.push(Effect::Refuse { request, error });
        }
        if let Some(blob) = wanted {
            self.stop_fetching(blob, effects);
        }
    }

    /// Leaves a blob on disk if no request waits for it any more. A load that has begun goes on.
    fn stop_fetching(&mut self, blob: BlobId, effects: &mut Vec<Effect>) {
        let entry = self.blobs.get_mut(blob).expect("it was wanted");
        if entry.state == BlobState::LoadQueued && !entry.users.is_wanted() {
            entry.state = BlobState::Disk;
            self.load_queue.remove(&blob);
            self.stop_waiting(|why| *why == RoomPurpose::Load(blob));
            self.look_at(blob, effects);
        }
    }

    /// Grants room to waiting requests, in order, and spills blobs for the others.
    fn make_room(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.disk_failed.as_ref().is_some_and(|(_, until)| *until <= now) {
            self.disk_failed = None;
        }
        while let Some(first) = self.waiting.front() {
            if self.used + first.bytes > self.config.limit {
                break;
            }
            let first = self.waiting.pop_front().expect("the front was just seen");
            self.waiting_bytes -= first.bytes;
            self.used += first.bytes;
            self.given_at = now;
            self.give_room(first, effects);
        }
        self.spill(effects);
        self.give_up(now, effects);
    }

    fn give_room(
        &mut self,
        RoomRequest { bytes, purpose: why, .. }: RoomRequest,
        effects: &mut Vec<Effect>,
    ) {
        match why {
            RoomPurpose::Create { request, process, ahead } => {
                let blob = self.blobs.add(bytes, BlobUsers::who_fills(process), ahead);
                self.ahead += if ahead { bytes } else { 0 };
                self.processes.entry(process).or_default().insert(blob);
                effects.push(Effect::GrantRoom { request, blob, bytes });
            }
            RoomPurpose::Load(blob) => {
                self.blobs.get_mut(blob).expect("it is wanted").state = BlobState::Loading;
                effects.push(Effect::Load { blob, bytes });
            }
        }
    }

    /// Spills as many idle blobs as the waiting requests need, least recently used first.
    fn spill(&mut self, effects: &mut Vec<Effect>) {
        if !self.config.spills || self.disk_failed.is_some() {
            return;
        }
        let needed = self.used + self.waiting_bytes;
        let mut missing = needed.saturating_sub(self.config.limit + self.spilling_bytes);
        while missing > 0
            && let Some(blob) = self.blobs.take_oldest()
        {
            let entry = self.blobs.get_mut(blob).expect("it is idle");
            entry.state = BlobState::Spilling;
            missing = missing.saturating_sub(entry.bytes);
            self.spilling.insert(blob);
            self.spilling_bytes += entry.bytes;
            effects.push(Effect::Spill { blob });
        }
    }

    /// Refuses the requests that have waited for too long, unless a spill is about to make room.
    fn give_up(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if !self.spilling.is_empty() {
            return;
        }
        // The first request has waited for longest.
        while let Some(first) = self.waiting.front()
            && self.patience_ends(first) <= now
        {
            let RoomRequest { bytes, purpose: why, .. } =
                self.waiting.pop_front().expect("one is there");
            self.waiting_bytes -= bytes;
            let error = self.exhausted(bytes);
            self.refuse(why, &error, effects);
        }
    }

    fn refuse(&mut self, why: RoomPurpose, error: &Error, effects: &mut Vec<Effect>) {
        match why {
            RoomPurpose::Create { request, .. } => {
                effects.push(Effect::Refuse { request, error: error.clone() });
            }
            RoomPurpose::Load(blob) => {
                let entry = self.blobs.get_mut(blob).expect("it is wanted");
                entry.state = BlobState::Disk;
                self.load_queue.remove(&blob);
                for (request, _) in entry.users.take_wanted() {
                    effects.push(Effect::Refuse { request, error: error.clone() });
                }
                self.look_at(blob, effects);
            }
        }
    }

    fn sealed(&mut self, blob: BlobId, effects: &mut Vec<Effect>) {
        let Some(entry) = self.blobs.get_mut(blob) else { return };
        if let Some(process) = entry.users.take_filler() {
            self.ahead -= if std::mem::take(&mut entry.speculative) { entry.bytes } else { 0 };
            entry.state = BlobState::Memory;
            // The blob belongs to its process until the cluster retains it. No process reads it, so
            // it may be spilled.
            entry.users.set_owner(process);
            self.look_at(blob, effects);
        }
    }

    fn abandoned(&mut self, blob: BlobId, effects: &mut Vec<Effect>) {
        let filler = self.blobs.get(blob).and_then(|entry| entry.users.filled_by());
        if filler.is_some() {
            self.drop_blob(blob, effects);
        }
    }

    fn disowned(&mut self, blob: BlobId, effects: &mut Vec<Effect>) {
        let owner = self.blobs.get_mut(blob).and_then(|entry| entry.users.take_owner());
        if let Some(process) = owner {
            self.forget_process(process, blob);
            self.look_at(blob, effects);
        }
    }

    fn pin_asked(
        &mut self,
        now: Time,
        request: RequestId,
        process: ProcessId,
        blob: BlobId,
        effects: &mut Vec<Effect>,
    ) {
        let Some(entry) = self.blobs.get_mut(blob) else {
            let error = Error::not_found(format!("value {} is not in this store", blob.0));
            return effects.push(Effect::Refuse { request, error });
        };
        match entry.state {
            BlobState::Filling => {
                let error = Error::not_ready(format!("value {} is not complete yet", blob.0));
                effects.push(Effect::Refuse { request, error });
            }
            BlobState::Memory | BlobState::Spilling => {
                self.pin(process, blob);
                effects.push(Effect::GrantPin { request, blob });
            }
            BlobState::LoadQueued | BlobState::Loading => entry.users.want(request, process),
            BlobState::Disk => {
                entry.state = BlobState::LoadQueued;
                entry.users.want(request, process);
                self.load_queue.insert(blob);
                let bytes = entry.bytes;
                self.wait(now, bytes, RoomPurpose::Load(blob), effects);
            }
        }
    }

    fn pin(&mut self, process: ProcessId, blob: BlobId) {
        let entry = self.blobs.get_mut(blob).expect("it is pinned");
        entry.users.pin(process);
        self.processes.entry(process).or_default().insert(blob);
        self.blobs.mark_busy(blob);
    }

    fn unpinned(&mut self, process: ProcessId, blob: BlobId, effects: &mut Vec<Effect>) {
        let Some(entry) = self.blobs.get_mut(blob) else { return };
        let Some(pin) = entry.users.pin_of(process) else { return };
        pin.count = pin.count.saturating_sub(1);
        if pin.count == 0 && !pin.copied {
            self.unpin(process, blob, effects);
        }
    }

    fn unpin(&mut self, process: ProcessId, blob: BlobId, effects: &mut Vec<Effect>) {
        self.blobs.get_mut(blob).expect("it is pinned").users.unpin(process);
        self.forget_process(process, blob);
        self.look_at(blob, effects);
    }

    /// Removes the blob from a process's list, if the process neither owns nor pins it.
    fn forget_process(&mut self, process: ProcessId, blob: BlobId) {
        let users = self.blobs.get_mut(blob).map(|entry| &mut entry.users);
        if users
            .is_some_and(|users| users.owner() == Some(process) || users.pin_of(process).is_some())
        {
            return;
        }
        if let Some(blobs) = self.processes.get_mut(&process) {
            blobs.remove(&blob);
            if blobs.is_empty() {
                self.processes.remove(&process);
            }
        }
    }

    fn forked(&mut self, process: ProcessId) {
        for blob in self.processes.get(&process).into_iter().flatten() {
            let entry = self.blobs.get_mut(*blob).expect("it is pinned");
            if let Some(pin) = entry.users.pin_of(process) {
                pin.copied = true;
            }
        }
    }

    fn process_gone(&mut self, process: ProcessId, effects: &mut Vec<Effect>) {
        self.stop_waiting(
            |why| matches!(why, RoomPurpose::Create { process: by, .. } if *by == process),
        );
        for blob in self.load_queue.iter().copied().collect::<Vec<_>>() {
            let entry = self.blobs.get_mut(blob).expect("it is wanted");
            entry.users.stop_wanting(process);
            self.stop_fetching(blob, effects);
        }
        for blob in self.processes.remove(&process).unwrap_or_default() {
            let entry = self.blobs.get_mut(blob).expect("its process had it");
            entry.users.unpin(process);
            if entry.users.owner() == Some(process) {
                entry.users.take_owner();
            }
            self.look_at(blob, effects);
        }
    }

    /// Drops a blob that is not needed any more, or marks it idle if it is not pinned. Called after
    /// every change of its users.
    fn look_at(&mut self, blob: BlobId, effects: &mut Vec<Effect>) {
        let entry = self.blobs.get_mut(blob).expect("a blob that changed exists");
        let abandoned = match entry.state {
            BlobState::Filling => {
                entry.users.filled_by().is_none_or(|by| !self.processes.contains_key(&by))
            }
            BlobState::Memory | BlobState::Spilling | BlobState::Disk => true,
            BlobState::LoadQueued | BlobState::Loading => !entry.users.is_wanted(),
        };
        if !entry.retained && !entry.users.is_needed() && abandoned {
            // A blob that is being written or read is dropped when that has ended.
            if !matches!(entry.state, BlobState::Spilling | BlobState::Loading) {
                self.drop_blob(blob, effects);
            }
        } else if !entry.users.is_pinned() && entry.state == BlobState::Memory {
            self.blobs.mark_idle(blob);
        }
    }

    fn drop_blob(&mut self, blob: BlobId, effects: &mut Vec<Effect>) {
        let entry = self.blobs.remove(blob).expect("it is dropped once");
        self.ahead -= if entry.speculative { entry.bytes } else { 0 };
        if entry.state.is_in_memory() {
            self.used -= entry.bytes;
            self.was_freed = true;
        }
        if entry.state.is_on_disk() {
            self.spilled -= entry.bytes;
        }
        if self.load_queue.remove(&blob) {
            self.stop_waiting(|why| *why == RoomPurpose::Load(blob));
        }
        // A blob that could not be loaded may still have an owner.
        for process in entry.users.filled_by().into_iter().chain(entry.users.owner()) {
            self.forget_process(process, blob);
        }
        effects.push(Effect::Drop { blob });
    }

    fn spill_ended(
        &mut self,
        now: Time,
        blob: BlobId,
        result: Result<(), Error>,
        effects: &mut Vec<Effect>,
    ) {
        if !self.spilling.remove(&blob) {
            return;
        }
        let entry = self.blobs.get_mut(blob).expect("it was leaving");
        self.spilling_bytes -= entry.bytes;
        entry.state = BlobState::Memory;
        let needed = entry.retained || entry.users.is_needed();
        match result {
            Ok(()) if needed && !entry.users.is_pinned() => {
                entry.state = BlobState::Disk;
                self.used -= entry.bytes;
                self.was_freed = true;
                self.spilled += entry.bytes;
                self.written += entry.bytes;
                effects.push(Effect::FreeMemory { blob });
            }
            // The blob was pinned meanwhile, or is not needed any more.
            Ok(()) => {
                if needed {
                    effects.push(Effect::FreeDisk { blob });
                }
                self.look_at(blob, effects);
            }
            Err(error) => {
                self.disk_failed = Some((error, now + DISK_PAUSE));
                self.look_at(blob, effects);
            }
        }
    }

    fn load_ended(&mut self, blob: BlobId, result: Result<(), Error>, effects: &mut Vec<Effect>) {
        let Some(entry) = self.blobs.get_mut(blob) else { return };
        if entry.state != BlobState::Loading {
            return;
        }
        self.load_queue.remove(&blob);
        let wanted = entry.users.take_wanted();
        match result {
            Ok(()) => {
                entry.state = BlobState::Memory;
                self.spilled -= entry.bytes;
                effects.push(Effect::FreeDisk { blob });
                for (request, process) in wanted {
                    self.pin(process, blob);
                    effects.push(Effect::GrantPin { request, blob });
                }
                self.look_at(blob, effects);
            }
            Err(error) if error.kind() == ErrorKind::Exhausted => {
                entry.state = BlobState::Disk;
                self.used -= entry.bytes;
                for (request, _) in wanted {
                    effects.push(Effect::Refuse { request, error: error.clone() });
                }
                self.look_at(blob, effects);
            }
            Err(error) => {
                effects.push(Effect::Lost { blob, error: error.clone() });
                self.drop_blob(blob, effects);
                for (request, _) in wanted {
                    effects.push(Effect::RefuseLost { request, error: error.clone() });
                }
            }
        }
    }

    fn too_large(&self, bytes: u64) -> Error {
        Error::exhausted(format!(
            "{} do not fit into this node's store, which may take {} in all: pass it in parts, or give \
             the store more memory",
            format_bytes(bytes),
            format_bytes(self.config.limit)
        ))
    }

    /// Returns the error for the first request that waits for room, with the usage of the store, if
    /// one waits.
    pub fn lack_of_room(&self) -> Option<Error> {
        self.waiting.front().map(|waiting| self.exhausted(waiting.bytes))
    }

    fn exhausted(&self, bytes: u64) -> Error {
        let pinned: u64 = self
            .blobs
            .iter()
            .filter(|(_, entry)| entry.users.is_pinned())
            .map(|(_, entry)| entry.bytes)
            .sum();
        let disk = match &self.disk_failed {
            Some((error, _)) => {
                format!("nothing more could be written to the disk ({})", error.message())
            }
            None if !self.config.spills => "there is no disk to spill to".into(),
            None => format!("{} are on the disk", format_bytes(self.spilled)),
        };
        Error::exhausted(format!(
            "no room for {} in this node's store: {} of {} are used, {} of it are being read, {disk}. Release \
             references that are not needed any more, or give the store more memory",
            format_bytes(bytes),
            format_bytes(self.used),
            format_bytes(self.config.limit),
            format_bytes(pinned),
        ))
    }
}
