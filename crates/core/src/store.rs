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

mod check;
mod event;
mod shelf;
#[cfg(test)]
mod tests;
mod users;

pub use event::{Blob, Effect, Event, Process, Request};

use crate::error::{Error, ErrorKind};
use crate::label::amount;
use crate::map::{Map, Set};
use crate::time::Time;
use shelf::{Place, Shelf};
use std::collections::VecDeque;
use std::time::Duration;
use users::Users;

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
pub struct Figures {
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
pub struct Store {
    config: Config,
    blobs: Shelf,
    /// Bytes of memory that are taken.
    used: u64,
    /// Of those, what was asked for ahead of need, and is not filled yet.
    ahead: u64,
    /// Bytes on the disk.
    spilled: u64,
    /// Bytes that went there in all.
    written: u64,
    /// What goes there now, and what it takes.
    leaving: Set<Blob>,
    leaving_bytes: u64,
    /// What somebody wants to have back from there.
    wanted: Set<Blob>,
    /// Who waits for room, the first first, and for how much in all.
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    /// When somebody was last given room.
    given_at: Time,
    /// What the disk said when it last failed, and when it is tried again.
    disk_failed: Option<(Error, Time)>,
    /// When it is looked at whether memory goes back to the system, if some was freed.
    rest_at: Option<Time>,
    /// Since that was decided, more was freed: there is much to do.
    was_freed: bool,
    processes: Map<Process, Set<Blob>>,
}

/// Somebody who waits for room.
#[derive(Debug)]
struct Waiting {
    bytes: u64,
    why: Why,
    /// Since when.
    since: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    Create { request: Request, process: Process, ahead: bool },
    Load(Blob),
}

/// So long nothing is freed before memory goes back to the system.
const REST: Duration = Duration::from_secs(5);
/// Room is given out ahead of need while no more than this part of the memory is taken ...
const MUCH_PART: u64 = 2;
/// ... and no more of it than this part.
const AHEAD_PART: u64 = 8;
/// So long after the disk failed it is tried again.
const DISK_PAUSE: Duration = Duration::from_secs(1);

impl Store {
    /// An empty one.
    pub fn new(config: Config) -> Store {
        Store {
            config,
            blobs: Shelf::default(),
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
    pub fn figures(&self) -> Figures {
        let (limit, used) = (self.config.limit, self.used);
        Figures { limit, used, spilled: self.spilled, written: self.written }
    }

    /// How many bytes it has, how many processes read it, and whether it is in memory.
    pub fn look(&self, blob: Blob) -> Option<(u64, usize, bool)> {
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
            Event::CreateAsked { request, process, bytes, ahead } => {
                let why = Why::Create { request, process, ahead };
                if ahead && !self.has_much_room(bytes) {
                    let error = Error::exhausted("there is no room to spare in this node's store");
                    return effects.push(Effect::Refuse { request, error });
                }
                self.wait(now, bytes, why, effects);
            }
            Event::Sealed { blob } => self.sealed(blob, effects),
            Event::Abandoned { blob } => self.abandoned(blob, effects),
            Event::Disowned { blob } => self.disowned(blob, effects),
            Event::Kept { blob } => {
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
            Event::PinAsked { request, process, blob } => {
                self.pin_asked(now, request, process, blob, effects);
            }
            Event::Unpinned { process, blob } => self.unpinned(process, blob, effects),
            Event::GivenUp { request } => self.given_up(request, effects),
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
            effects.push(Effect::GiveBack);
        } else if self.was_freed && (is_due || self.rest_at.is_none()) {
            // It is not put off each time: whoever keeps time would be told each time.
            self.rest_at = Some(now + REST);
            self.was_freed = false;
        }
    }

    /// Whether there is room for what may not be needed, and few have such.
    fn has_much_room(&self, bytes: u64) -> bool {
        self.waiting.is_empty()
            && self.used.saturating_add(bytes) <= self.config.limit / MUCH_PART
            && self.ahead.saturating_add(bytes) <= self.config.limit / AHEAD_PART
    }

    fn wait(&mut self, now: Time, bytes: u64, why: Why, effects: &mut Vec<Effect>) {
        if bytes > self.config.limit {
            let error = self.too_large(bytes);
            return self.refuse(why, &error, effects);
        }
        self.waiting_bytes += bytes;
        self.waiting.push_back(Waiting { bytes, why, since: now });
    }

    /// Until when somebody waits if nobody is given room before: as long as there is some, it will be his turn.
    fn patience_ends(&self, waiting: &Waiting) -> Time {
        waiting.since.max(self.given_at) + self.config.patience
    }

    /// Those that are meant wait no longer.
    fn stop_waiting(&mut self, who: impl Fn(&Why) -> bool) {
        self.waiting.retain(|waiting| {
            let stops = who(&waiting.why);
            self.waiting_bytes -= if stops { waiting.bytes } else { 0 };
            !stops
        });
    }

    fn given_up(&mut self, request: Request, effects: &mut Vec<Effect>) {
        let is_it = |why: &Why| matches!(why, Why::Create { request: one, .. } if *one == request);
        let asked = self.waiting.iter().any(|waiting| is_it(&waiting.why));
        self.stop_waiting(is_it);
        let wants = |blob: &Blob| {
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
    fn stop_fetching(&mut self, blob: Blob, effects: &mut Vec<Effect>) {
        let entry = self.blobs.get_mut(blob).expect("it was wanted");
        if entry.place == Place::Wanted && !entry.users.is_wanted() {
            entry.place = Place::Disk;
            self.wanted.remove(&blob);
            self.stop_waiting(|why| *why == Why::Load(blob));
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

    fn give_room(&mut self, Waiting { bytes, why, .. }: Waiting, effects: &mut Vec<Effect>) {
        match why {
            Why::Create { request, process, ahead } => {
                let blob = self.blobs.add(bytes, Users::who_fills(process), ahead);
                self.ahead += if ahead { bytes } else { 0 };
                self.processes.entry(process).or_default().insert(blob);
                effects.push(Effect::Grant { request, blob, bytes });
            }
            Why::Load(blob) => {
                self.blobs.get_mut(blob).expect("it is wanted").place = Place::Coming;
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
            entry.place = Place::Leaving;
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
            let Waiting { bytes, why, .. } = self.waiting.pop_front().expect("it is there");
            self.waiting_bytes -= bytes;
            let error = self.exhausted(bytes);
            self.refuse(why, &error, effects);
        }
    }

    fn refuse(&mut self, why: Why, error: &Error, effects: &mut Vec<Effect>) {
        match why {
            Why::Create { request, .. } => {
                effects.push(Effect::Refuse { request, error: error.clone() });
            }
            Why::Load(blob) => {
                let entry = self.blobs.get_mut(blob).expect("it is wanted");
                entry.place = Place::Disk;
                self.wanted.remove(&blob);
                for (request, _) in entry.users.take_wanted() {
                    effects.push(Effect::Refuse { request, error: error.clone() });
                }
                self.look_at(blob, effects);
            }
        }
    }

    fn sealed(&mut self, blob: Blob, effects: &mut Vec<Effect>) {
        let Some(entry) = self.blobs.get_mut(blob) else { return };
        if let Some(process) = entry.users.take_filler() {
            self.ahead -= if std::mem::take(&mut entry.ahead) { entry.bytes } else { 0 };
            entry.place = Place::Memory;
            // It is its process's until the cluster keeps it; nobody reads it, so it may go to the disk.
            entry.users.set_owner(process);
            self.look_at(blob, effects);
        }
    }

    fn abandoned(&mut self, blob: Blob, effects: &mut Vec<Effect>) {
        let filler = self.blobs.get(blob).and_then(|entry| entry.users.filled_by());
        if filler.is_some() {
            self.drop_blob(blob, effects);
        }
    }

    fn disowned(&mut self, blob: Blob, effects: &mut Vec<Effect>) {
        let owner = self.blobs.get_mut(blob).and_then(|entry| entry.users.take_owner());
        if let Some(process) = owner {
            self.forget_process(process, blob);
            self.look_at(blob, effects);
        }
    }

    fn pin_asked(
        &mut self,
        now: Time,
        request: Request,
        process: Process,
        blob: Blob,
        effects: &mut Vec<Effect>,
    ) {
        let Some(entry) = self.blobs.get_mut(blob) else {
            let error = Error::not_found(format!("value {} is not in this store", blob.0));
            return effects.push(Effect::Refuse { request, error });
        };
        match entry.place {
            Place::Filling => {
                let error = Error::not_ready(format!("value {} is not complete yet", blob.0));
                effects.push(Effect::Refuse { request, error });
            }
            Place::Memory | Place::Leaving => {
                self.pin(process, blob);
                effects.push(Effect::Give { request, blob });
            }
            Place::Wanted | Place::Coming => entry.users.want(request, process),
            Place::Disk => {
                entry.place = Place::Wanted;
                entry.users.want(request, process);
                self.wanted.insert(blob);
                let bytes = entry.bytes;
                self.wait(now, bytes, Why::Load(blob), effects);
            }
        }
    }

    fn pin(&mut self, process: Process, blob: Blob) {
        let entry = self.blobs.get_mut(blob).expect("it is pinned");
        entry.users.pin(process);
        self.processes.entry(process).or_default().insert(blob);
        self.blobs.is_busy(blob);
    }

    fn unpinned(&mut self, process: Process, blob: Blob, effects: &mut Vec<Effect>) {
        let Some(entry) = self.blobs.get_mut(blob) else { return };
        let Some(pin) = entry.users.pin_of(process) else { return };
        pin.count = pin.count.saturating_sub(1);
        if pin.count == 0 && !pin.copied {
            self.unpin(process, blob, effects);
        }
    }

    fn unpin(&mut self, process: Process, blob: Blob, effects: &mut Vec<Effect>) {
        self.blobs.get_mut(blob).expect("it is pinned").users.unpin(process);
        self.forget_process(process, blob);
        self.look_at(blob, effects);
    }

    /// A process may have nothing more to do with a blob.
    fn forget_process(&mut self, process: Process, blob: Blob) {
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

    fn forked(&mut self, process: Process) {
        for blob in self.processes.get(&process).into_iter().flatten() {
            let entry = self.blobs.get_mut(*blob).expect("it is pinned");
            if let Some(pin) = entry.users.pin_of(process) {
                pin.copied = true;
            }
        }
    }

    fn process_gone(&mut self, process: Process, effects: &mut Vec<Effect>) {
        self.stop_waiting(|why| matches!(why, Why::Create { process: by, .. } if *by == process));
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
    fn look_at(&mut self, blob: Blob, effects: &mut Vec<Effect>) {
        let entry = self.blobs.get_mut(blob).expect("something has changed about it");
        let abandoned = match entry.place {
            Place::Filling => {
                entry.users.filled_by().is_none_or(|by| !self.processes.contains_key(&by))
            }
            Place::Memory | Place::Leaving | Place::Disk => true,
            Place::Wanted | Place::Coming => !entry.users.is_wanted(),
        };
        if !entry.kept && !entry.users.is_needed() && abandoned {
            // What is being written or read is dropped when that has ended.
            if !matches!(entry.place, Place::Leaving | Place::Coming) {
                self.drop_blob(blob, effects);
            }
        } else if !entry.users.is_pinned() && entry.place == Place::Memory {
            self.blobs.is_idle(blob);
        }
    }

    fn drop_blob(&mut self, blob: Blob, effects: &mut Vec<Effect>) {
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
            self.stop_waiting(|why| *why == Why::Load(blob));
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
        blob: Blob,
        result: Result<(), Error>,
        effects: &mut Vec<Effect>,
    ) {
        if !self.leaving.remove(&blob) {
            return;
        }
        let entry = self.blobs.get_mut(blob).expect("it was leaving");
        self.leaving_bytes -= entry.bytes;
        entry.place = Place::Memory;
        let needed = entry.kept || entry.users.is_needed();
        match result {
            Ok(()) if needed && !entry.users.is_pinned() => {
                entry.place = Place::Disk;
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

    fn load_ended(&mut self, blob: Blob, result: Result<(), Error>, effects: &mut Vec<Effect>) {
        let Some(entry) = self.blobs.get_mut(blob) else { return };
        if entry.place != Place::Coming {
            return;
        }
        self.wanted.remove(&blob);
        let wanted = entry.users.take_wanted();
        match result {
            Ok(()) => {
                entry.place = Place::Memory;
                self.spilled -= entry.bytes;
                effects.push(Effect::FreeDisk { blob });
                for (request, process) in wanted {
                    self.pin(process, blob);
                    effects.push(Effect::Give { request, blob });
                }
                self.look_at(blob, effects);
            }
            Err(error) if error.kind() == ErrorKind::Exhausted => {
                entry.place = Place::Disk;
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
                    effects.push(Effect::Miss { request, error: error.clone() });
                }
            }
        }
    }

    fn too_large(&self, bytes: u64) -> Error {
        Error::exhausted(format!(
            "{} do not fit into this node's store, which may take {} in all: pass it in parts, or give the \
             store more",
            amount(bytes),
            amount(self.config.limit)
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
            None => format!("{} are on the disk", amount(self.spilled)),
        };
        Error::exhausted(format!(
            "no room for {} in this node's store: {} of {} are used, {} of it are being read, {disk}. Let go \
             of what is not needed any more, or give the store more",
            amount(bytes),
            amount(self.used),
            amount(self.config.limit),
            amount(pinned),
        ))
    }
}
