//! What the machine decides, done to memory, disk and whoever asked, under the store's lock.

use super::disk::Job;
use super::words::Given;
use super::{Asker, Outside, State, To, lost, unmappable};
use marline_core::error::Error;
use marline_core::id::{ObjectId, Thing};
use marline_core::store::{Blob, Effect, Event, Process, Request};
use marline_core::time::Time;
use marline_core::worker;
use marline_objects::{Access, Block, Writable};

impl State {
    pub(super) fn handle(&mut self, now: Time, event: Event) {
        let mut effects = Vec::new();
        let before = self.machine.next_wake();
        self.machine.handle(now, event, &mut effects);
        for effect in effects {
            self.effect(now, effect);
        }
        if self.machine.next_wake() != before {
            self.outside.push(Outside::Due);
        }
    }

    pub(super) fn effect(&mut self, now: Time, effect: Effect) {
        match effect {
            Effect::Grant { request, blob, bytes } => self.grant(now, request, blob, bytes),
            Effect::Give { request, blob } => self.give(now, request, blob),
            Effect::Refuse { request, error } => self.refuse(request, error),
            Effect::Spill { blob } => {
                let (block, bytes) = self.place(blob);
                self.have_disk_do(now, Job::Write { blob, block, bytes: bytes as usize });
            }
            Effect::Load { blob, bytes } => match self.allocate(bytes) {
                Ok(room) => {
                    let spilled = self.spilled[&blob].clone();
                    self.have_disk_do(now, Job::Read { blob, spilled, room });
                }
                Err(error) => {
                    let result = Err(unmappable(&error));
                    self.handle(now, Event::LoadEnded { blob, result });
                }
            },
            Effect::FreeMemory { blob } => self.bodies.free_memory(blob),
            Effect::FreeDisk { blob } => self.free_disk(blob),
            Effect::Drop { blob } => self.drop_body(blob),
            Effect::GiveBack => self.outside.push(Outside::GiveBack),
            Effect::Miss { request, error } => self.miss(now, request, &error),
            Effect::Lost { blob, error } => {
                if let Some(object) = self.bodies.name_of(blob) {
                    self.outside.push(Outside::Tell(worker::Event::DataLost { object, error }));
                }
            }
        }
    }

    /// Where something is that was sealed and is in memory, and how many bytes it has.
    pub(super) fn place(&self, blob: Blob) -> (Block, u64) {
        let block = self.bodies.block(blob).expect("it was sealed, and is in memory");
        let (bytes, ..) = self.machine.look(blob).expect("the machine knows it");
        (block, bytes)
    }

    pub(super) fn allocate(&mut self, bytes: u64) -> std::io::Result<Writable> {
        let room = self.arena.allocate(bytes as usize);
        for gone in self.arena.gone() {
            self.segment_gone(gone.number);
            self.outside.push(Outside::Gone(gone));
        }
        room
    }

    pub(super) fn drop_body(&mut self, blob: Blob) {
        self.makers.remove(&blob);
        self.filling.remove(&blob);
        self.free_disk(blob);
        self.copied.remove(&blob);
        if let Some(object) = self.bodies.remove(blob) {
            self.saving.dropped(object);
        }
    }

    /// Somebody asks for something; says under which number it is answered.
    pub(super) fn ask(&mut self, process: Process, answer: To) -> Request {
        self.next_request += 1;
        let request = Request(self.next_request);
        self.requests.insert(request, Asker { process, answer, seeks: None });
        request
    }

    pub(super) fn grant(&mut self, now: Time, request: Request, blob: Blob, bytes: u64) {
        let Asker { process, answer, .. } =
            self.requests.remove(&request).expect("it was asked for");
        self.bodies.add(blob);
        self.makers.insert(blob, process);
        if matches!(answer, To::Nobody) {
            return self.handle(now, Event::Abandoned { blob });
        }
        let room = match self.allocate(bytes) {
            Ok(room) => room,
            Err(error) => {
                self.refuse_to(process, answer, unmappable(&error));
                return self.handle(now, Event::Abandoned { blob });
            }
        };
        match answer {
            To::Fill(to) => self.outside.push(Outside::Fill(to, Ok((blob, room)))),
            To::Peer { number } => {
                let (block, trims) = (room.block(), room.trims());
                let given = Given { blob, block, bytes, trims, worker: self.worker };
                self.filling.insert(blob, room);
                self.give_peer(process, number, given, Access::Write);
            }
            To::Read(_) | To::Nobody => panic!("what is read is not filled"),
        }
    }

    pub(super) fn give(&mut self, now: Time, request: Request, blob: Blob) {
        let Asker { process, answer, .. } =
            self.requests.remove(&request).expect("it was asked for");
        let (block, bytes) = self.place(blob);
        let given = Given { blob, block, bytes, trims: 0, worker: self.worker };
        match answer {
            To::Read(to) => self.outside.push(Outside::Read(to, Ok(given))),
            To::Peer { number } => self.give_peer(process, number, given, Access::Read),
            To::Nobody => self.handle(now, Event::Unpinned { process, blob }),
            To::Fill(_) => panic!("what is filled is not read"),
        }
    }

    pub(super) fn refuse(&mut self, request: Request, error: Error) {
        if let Some(Asker { process, answer, .. }) = self.requests.remove(&request) {
            self.refuse_to(process, answer, error);
        }
    }

    /// What somebody wants to read was here, and is not any more.
    pub(super) fn miss(&mut self, now: Time, request: Request, error: &Error) {
        match self.requests.get(&request).and_then(|asker| asker.seeks) {
            Some(object) => self.read(now, request, object),
            None => self.refuse(request, Error::not_found(error.message().to_owned())),
        }
    }

    /// Tells whoever asked that it is not to be.
    pub(super) fn refuse_to(&mut self, process: Process, answer: To, error: Error) {
        match answer {
            To::Fill(to) => self.outside.push(Outside::Fill(to, Err(error))),
            To::Read(to) => self.outside.push(Outside::Read(to, Err(error))),
            To::Peer { number } => self.refuse_peer(process, number, error),
            To::Nobody => {}
        }
    }

    /// What was filled is the data of this object.
    pub(super) fn sealed(&mut self, now: Time, blob: Blob, object: ObjectId) {
        if !self.bodies.contains(blob) {
            return;
        }
        if let Some(room) = self.filling.remove(&blob) {
            self.bodies.is_in_memory(blob, room);
        }
        let known = self.bodies.named(object);
        if known.is_some_and(|known| !self.makers.contains_key(&known)) {
            // A task that runs again gives the same items: what the cluster keeps of an earlier time stays.
            self.handle(now, Event::Sealed { blob });
            return self.unname(now, blob);
        }
        // Made again, it takes the place of what was there before.
        let before = self.bodies.name(blob, object);
        self.handle(now, Event::Sealed { blob });
        if let Some(before) = before {
            self.unname(now, before);
        }
        let told = self.missing.get(&object).is_some_and(|missing| missing.told);
        for request in self.looked_for(now, object) {
            self.read(now, request, object);
        }
        if told {
            self.keep_copy(now, object);
        }
    }

    /// The cluster keeps the data of this object, and the controller learns that it is here.
    pub(super) fn keep_copy(&mut self, now: Time, object: ObjectId) {
        self.keep(now, object);
        self.outside.push(Outside::Tell(worker::Event::DataCopied { object }));
    }

    /// Another has its name.
    pub(super) fn unname(&mut self, now: Time, blob: Blob) {
        if self.makers.remove(&blob).is_some() {
            self.handle(now, Event::Disowned { blob });
        }
        self.handle(now, Event::Forgotten { blob });
    }

    /// The data of an object, if it is here. Whoever made it may have said so and not been heard, while others
    /// know of it already.
    pub(super) fn find(&mut self, now: Time, object: ObjectId) -> Option<Blob> {
        if self.bodies.named(object).is_none() {
            self.hear_all(now);
        }
        self.bodies.named(object)
    }

    pub(super) fn keep(&mut self, now: Time, object: ObjectId) {
        match self.find(now, object) {
            Some(blob) => {
                self.saving.kept(object);
                self.handle(now, Event::Kept { blob });
                self.let_go_of(now, object);
                self.tell_kept(object);
            }
            None => {
                let error = Error::gone(
                    Thing::Object(object),
                    "whoever made it ended before it was passed on",
                );
                self.outside.push(Outside::Tell(worker::Event::DataLost { object, error }));
            }
        }
    }

    pub(super) fn forget(&mut self, now: Time, object: ObjectId) {
        if let Some(blob) = self.bodies.named(object) {
            self.unname(now, blob);
        }
    }

    pub(super) fn forget_all(&mut self, now: Time) {
        let mut blobs: Vec<Blob> = self.bodies.all_named().map(|(_, blob)| blob).collect();
        blobs.sort_unstable();
        for blob in blobs {
            self.unname(now, blob);
        }
    }

    /// Another node asked for data that is not here. Whoever told it so is told better; if it never was in this session,
    /// that changes nothing.
    pub(super) fn asked_in_vain(&mut self, object: ObjectId) {
        if self.worker.is_some() {
            self.outside.push(Outside::Tell(lost(object)));
        }
    }

    /// Somebody wants to read the data of an object.
    pub(super) fn read(&mut self, now: Time, request: Request, object: ObjectId) {
        let Some(asker) = self.requests.get_mut(&request) else { return };
        if matches!(asker.answer, To::Nobody) {
            self.requests.remove(&request);
            return;
        }
        asker.seeks = Some(object);
        let process = asker.process;
        if let Some(blob) = self.find(now, object) {
            return self.handle(now, Event::PinAsked { request, process, blob });
        }
        let missing = self.missing.entry(object).or_default();
        missing.requests.push(request);
        if !missing.begun {
            (missing.begun, missing.waits) = (true, true);
            self.outside.push(Outside::Tell(worker::Event::DataMissing { object }));
        }
    }
}
