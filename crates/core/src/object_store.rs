//! A node's store of large values: what is in memory and what on the disk, who reads it, and what makes room.
//!
//! ```text
//!            created          sealed            nobody reads it, room is needed
//!   (room) ──────────▶ Filling ──────▶ Memory ◀─────────────────────────▶ Leaving ──▶ Disk
//!                         │              ▲  read again, or it did not work                │ somebody
//!     its process is gone │              └──────────────── Coming ◀───────────────────────┘ reads it
//!                         ▼
//!                      dropped, as anything is that neither the cluster keeps nor anybody reads
//! ```
//!
//! Whoever reads a blob has it **pinned**: its memory stays where it is, whatever becomes of the object. A pin is
//! returned by its process, or goes with it. What a process had pinned when it forked, its child may go on
//! reading: that stays pinned until the process is gone, and all that it started with it.
//!
//! The process that made a blob **owns** it until the cluster keeps it, or nobody wants it. An owned blob is not
//! dropped. Its owner does not read it, so it may go to the disk.
//!
//! Memory is given out up to a limit. Who asks for more waits, in the order of asking, while what was not read
//! for longest goes to the disk; if nobody was given any for long, the answer is `Exhausted`, with the figures.
//! Nothing is counted twice: what is on its way to the disk has its memory until it is there, and what
//! comes back has it from when that begins.

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

/// What a store may take, and how long it is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The most bytes in memory.
    pub limit: u64,
    /// Whether there is a disk for what has no room.
    pub spills: bool,
    /// Who waits for room is refused when nobody was given any for this long.
    pub patience: Duration,
}

/// How full a store is, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreUsage {
    /// The most that may be in memory.
    pub limit: u64,
    /// What is.
    pub used: u64,
    /// What is on the disk.
    pub spilled: u64,
    /// What went to the disk in all, also what came back since.
    pub written: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct ObjectStore {
    config: Config,
    blobs: BlobTable,
    /// Bytes of memory that are taken.
    used: u64,
    /// Of those, what was asked for ahead of need, and is not filled yet.
    ahead: u64,
    /// Bytes on the disk.
    spilled: u64,
    /// Bytes that went there in all.
    written: u64,
    /// What goes there now, and what it takes.
    leaving: Set<BlobId>,
    leaving_bytes: u64,
    /// What somebody wants to have back from there.
    wanted: Set<BlobId>,
    /// Who waits for room, the first first, and for how much in all.
    waiting: VecDeque<RoomRequest>,
    waiting_bytes: u64,
    /// When somebody was last given room.
    given_at: Time,
    /// What the disk said when it last failed, and when it is tried again.
    disk_failed: Option<(Error, Time)>,
    /// When it is looked at whether memory goes back to the system, if some was freed.
    rest_at: Option<Time>,
    /// Since that was decided, more was freed: there is much to do.
    was_freed: bool,
    processes: Map<ProcessId, Set<BlobId>>,
}

/// Somebody who waits for room.
#[derive(Debug)]
struct RoomRequest {
    bytes: u64,
    why: RoomPurpose,
    /// Since when.
    since: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RoomPurpose {
    Create { request: RequestId, process: ProcessId, ahead: bool },
    Load(BlobId),
}

/// So long nothing is freed before memory goes back to the system.
const TRIM_DELAY: Duration = Duration::from_secs(5);
/// Room is given out ahead of need while no more than this part of the memory is taken ...
const MUCH_PART: u64 = 2;
/// ... and no more of it than this part.
const AHEAD_PART: u64 = 8;
/// So long after the disk failed it is tried again.
const DISK_PAUSE: Duration = Duration::from_secs(1);

impl ObjectStore {
    /// An empty one.
    pub fn new(config: Config) -> ObjectStore {
        ObjectStore {
            config,
            blobs: BlobTable::default(),
            used: 0,
            ahead: 0,
            spilled: 0,
            written: 0,
            leaving: Set::default(),
            leaving_bytes: 0,
            wanted: Set::default(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            given_at: Time::ZERO,
            disk_failed: None,
            rest_at: None,
            was_freed: false,
            processes: Map::default(),
        }
    }

    /// Bytes in memory.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes on the disk.
    pub fn spilled(&self) -> u64 {
        self.spilled
    }

    /// How full it is.
    pub fn figures(&self) -> StoreUsage {
        let (limit, used) = (self.config.limit, self.used);
        StoreUsage { limit, used, spilled: self.spilled, written: self.written }
    }

    /// How many bytes it has, how many processes read it, and whether it is in memory.
    pub fn look(&self, blob: BlobId) -> Option<(u64, usize, bool)> {
        let entry = self.blobs.get(blob)?;
        Some((entry.bytes, entry.users.pins(), entry.place.is_in_memory()))
    }

    /// When [`Event::TimePassed`] is due.
    pub fn next_wake(&self) -> Option<Time> {
        let first = self.waiting.front().filter(|_| self.leaving.is_empty());
        let Some(first) = first else {
            return self.rest_at; // For those who wait there is nothing to be done, or something is.
        };
        let retry = self.disk_failed.as_ref().map(|(_, until)| *until);
        [Some(self.patience_ends(first)), retry, self.rest_at].into_iter().flatten().min()
    }

    /// Takes note of what happened.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::CreateRequested { request, process, bytes, speculative: ahead } => {
                let why = RoomPurpose::Create { request, process, ahead };
                if ahead && !self.has_much_room(bytes) {
                    let error = Error::exhausted("there is no room to spare in this node's store");
                    return effects.push(Effect::Refuse { request, error });
                }
                self.wait(now, bytes, why, effects);
            }
            Event::Sealed { blob } => self.sealed(blob, effects),
            Event::Abandoned { blob } => self.abandoned(blob, effects),
            Event::Disowned { blob } => self.disowned(blob, effects),
            Event::Retained { blob } => {
                if let Some(entry) = self.blobs.get_mut(blob) {
                    entry.kept = true;
                }
            }
            Event::Forgotten { blob } => {
                if let Some(entry) = self.blobs.get_mut(blob) {
                    entry.kept = false;
                    self.look_at(blob, effects);
                }
            }
            Event::PinRequested { request, process, blob } => {
                self.pin_asked(now, request, process, blob, effects);
            }
            Event::Unpinned { process, blob } => self.unpinned(process, blob, effects),
            Event::RequestCancelled { request } => self.given_up(request, effects),
            Event::Forked { process } => self.forked(process),
            Event::ProcessGone { process } => self.process_gone(process, effects),
            Event::SpillEnded { blob, result } => self.spill_ended(now, blob, result, effects),
            Event::LoadEnded { blob, result } => self.load_ended(blob, result, effects),
            Event::TimePassed => {}
        }
        self.make_room(now, effects);
        self.rest(now, effects);
    }

    /// What is free has its memory, so that it is quick to use again; unless nothing was freed for some time.
    fn rest(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let is_due = self.rest_at.is_some_and(|at| at <= now);
        if is_due && !self.was_freed {
            self.rest_at = None;
            effects.push(Effect::TrimMemory);
        } else if self.was_freed && (is_due || self.rest_at.is_none()) {
            // It is not put off each time: whoever keeps time would be told each time.
            self.rest_at = Some(now + TRIM_DELAY);
            self.was_freed = false;
        }
    }

    /// Whether there is room for what may not be needed, and few have such.
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
        self.waiting.push_back(RoomRequest { bytes, why, since: now });
    }

    /// Until when somebody waits if nobody is given room before: as long as there is some, it will be his turn.
    fn patience_ends(&self, waiting: &RoomRequest) -> Time {
        waiting.since.max(self.given_at) + self.config.patience
    }

    /// Those that are meant wait no longer.
    fn stop_waiting(&mut self, who: impl Fn(&RoomPurpose) -> bool) {
        self.waiting.retain(|waiting| {
            let stops = who(&waiting.why);
            self.waiting_bytes -= if stops { waiting.bytes } else { 0 };
            !stops
        });
    }

    fn given_up(&mut self, request: RequestId, effects: &mut Vec<Effect>) {
        let is_it = |why: &RoomPurpose| matches!(why, RoomPurpose::Create { request: one, .. } if *one == request);
        let asked = self.waiting.iter().any(|waiting| is_it(&waiting.why));
        self.stop_waiting(is_it);
        let wants = |blob: &BlobId| {
            let entry = self.blobs.get_mut(*blob).expect("it is wanted");
            entry.users.stop_asking(request)
        };
        let wanted = self.wanted.iter().copied().find(wants);
        if asked || wanted.is_some() {
            let error = Error::cancelled("whoever asked for it does not wait any more");
            effects.push(Effect::Refuse { request, error });
        }
        if let Some(blob) = wanted {
            self.stop_fetching(blob, effects);
        }
    }

    /// If nobody wants to have it back any more, it stays on the disk; what is being read comes all the same.
    fn stop_fetching(&mut self, blob: BlobId, effects: &mut Vec<Effect>) {
        let entry = self.blobs.get_mut(blob).expect("it was wanted");
        if entry.place == BlobState::LoadQueued && !entry.users.is_wanted() {
            entry.place = BlobState::Disk;
            self.wanted.remove(&blob);
            self.stop_waiting(|why| *why == RoomPurpose::Load(blob));
            self.look_at(blob, effects);
        }
    }

    /// Gives room to those who wait, in their order, and has the disk take what it can.
    fn make_room(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.disk_failed.as_ref().is_some_and(|(_, until)| *until <= now) {
            self.disk_failed = None;
        }
        while let Some(first) = self.waiting.front() {
            if self.used + first.bytes > self.config.limit {
                break;
            }
            let first = self.waiting.pop_front().expect("it is there");
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
        RoomRequest { bytes, why, .. }: RoomRequest,
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
                self.blobs.get_mut(blob).expect("it is wanted").place = BlobState::Loading;
                effects.push(Effect::Load { blob, bytes });
            }
        }
    }

    /// Has as much written as those need who wait, what was not used for longest first.
    fn spill(&mut self, effects: &mut Vec<Effect>) {
        if !self.config.spills || self.disk_failed.is_some() {
            return;
        }
        let needed = self.used + self.waiting_bytes;
        let mut missing = needed.saturating_sub(self.config.limit + self.leaving_bytes);
        while missing > 0
            && let Some(blob) = self.blobs.take_oldest()
        {
            let entry = self.blobs.get_mut(blob).expect("it is idle");
            entry.place = BlobState::Spilling;
            missing = missing.saturating_sub(entry.bytes);
            self.leaving.insert(blob);
            self.leaving_bytes += entry.bytes;
            effects.push(Effect::Spill { blob });
        }
    }

    /// Who has waited for long enough is told how things are, unless something is being done about it.
    fn give_up(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if !self.leaving.is_empty() {
            return;
        }
        // Who asked first has waited for longest.
        while let Some(first) = self.waiting.front()
            && self.patience_ends(first) <= now
        {
            let RoomRequest { bytes, why, .. } = self.waiting.pop_front().expect("it is there");
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
                entry.place = BlobState::Disk;
                self.wanted.remove(&blob);
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
            self.ahead -= if std::mem::take(&mut entry.ahead) { entry.bytes } else { 0 };
            entry.place = BlobState::Memory;
            // It is its process's until the cluster keeps it; nobody reads it, so it may go to the disk.
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
        match entry.place {
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
                entry.place = BlobState::LoadQueued;
                entry.users.want(request, process);
                self.wanted.insert(blob);
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

    /// A process may have nothing more to do with a blob.
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
        for blob in self.wanted.iter().copied().collect::<Vec<_>>() {
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

    /// Something has changed about who needs it.
    fn look_at(&mut self, blob: BlobId, effects: &mut Vec<Effect>) {
        let entry = self.blobs.get_mut(blob).expect("something has changed about it");
        let abandoned = match entry.place {
            BlobState::Filling => {
                entry.users.filled_by().is_none_or(|by| !self.processes.contains_key(&by))
            }
            BlobState::Memory | BlobState::Spilling | BlobState::Disk => true,
            BlobState::LoadQueued | BlobState::Loading => !entry.users.is_wanted(),
        };
        if !entry.kept && !entry.users.is_needed() && abandoned {
            // What is being written or read is dropped when that has ended.
            if !matches!(entry.place, BlobState::Spilling | BlobState::Loading) {
                self.drop_blob(blob, effects);
            }
        } else if !entry.users.is_pinned() && entry.place == BlobState::Memory {
            self.blobs.mark_idle(blob);
        }
    }

    fn drop_blob(&mut self, blob: BlobId, effects: &mut Vec<Effect>) {
        let entry = self.blobs.remove(blob).expect("it is dropped once");
        self.ahead -= if entry.ahead { entry.bytes } else { 0 };
        if entry.place.is_in_memory() {
            self.used -= entry.bytes;
            self.was_freed = true;
        }
        if entry.place.is_on_disk() {
            self.spilled -= entry.bytes;
        }
        if self.wanted.remove(&blob) {
            self.stop_waiting(|why| *why == RoomPurpose::Load(blob));
        }
        // Data that cannot be read back may still be its maker's.
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
        if !self.leaving.remove(&blob) {
            return;
        }
        let entry = self.blobs.get_mut(blob).expect("it was leaving");
        self.leaving_bytes -= entry.bytes;
        entry.place = BlobState::Memory;
        let needed = entry.kept || entry.users.is_needed();
        match result {
            Ok(()) if needed && !entry.users.is_pinned() => {
                entry.place = BlobState::Disk;
                self.used -= entry.bytes;
                self.was_freed = true;
                self.spilled += entry.bytes;
                self.written += entry.bytes;
                effects.push(Effect::FreeMemory { blob });
            }
            // Somebody has begun to read it, or nobody needs it.
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
        if entry.place != BlobState::Loading {
            return;
        }
        self.wanted.remove(&blob);
        let wanted = entry.users.take_wanted();
        match result {
            Ok(()) => {
                entry.place = BlobState::Memory;
                self.spilled -= entry.bytes;
                effects.push(Effect::FreeDisk { blob });
                for (request, process) in wanted {
                    self.pin(process, blob);
                    effects.push(Effect::GrantPin { request, blob });
                }
                self.look_at(blob, effects);
            }
            Err(error) if error.kind() == ErrorKind::Exhausted => {
                entry.place = BlobState::Disk;
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
            "{} do not fit into this node's store, which may take {} in all: pass it in parts, or give the \
             store more",
            format_bytes(bytes),
            format_bytes(self.config.limit)
        ))
    }

    /// Says so, with the figures, if somebody waits for room.
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
            None if !self.config.spills => "there is no disk for the rest".into(),
            None => format!("{} are on the disk", format_bytes(self.spilled)),
        };
        Error::exhausted(format!(
            "no room for {} in this node's store: {} of {} are used, {} of it are being read, {disk}. Let go \
             of what is not needed any more, or give the store more",
            format_bytes(bytes),
            format_bytes(self.used),
            format_bytes(self.config.limit),
            format_bytes(pinned),
        ))
    }
}
