//! What the machine decides, done to memory, disk and whoever asked, under the store's lock.

use super::disk::DiskOperation;
use super::store_protocol::GrantedBlob;
use super::{DeferredAction, ObjectStoreState, PendingRequest, ReplyTo, lost, unmappable};
use marline_core::error::Error;
use marline_core::id::{ObjectId, Referent};
use marline_core::object_store::{BlobId, Effect, Event, ProcessId, RequestId};
use marline_core::time::Time;
use marline_core::worker;
use marline_objects::{Access, Block, Writable};

impl ObjectStoreState {
    pub(super) fn handle(&mut self, now: Time, event: Event) {
        let mut effects = Vec::new();
        let before = self.machine.next_wake();
        self.machine.handle(now, event, &mut effects);
        for effect in effects {
            self.effect(now, effect);
        }
        if self.machine.next_wake() != before {
            self.outside.push(DeferredAction::Due);
        }
    }

    pub(super) fn effect(&mut self, now: Time, effect: Effect) {
        match effect {
            Effect::GrantRoom { request, blob, bytes } => self.grant(now, request, blob, bytes),
            Effect::GrantPin { request, blob } => self.give(now, request, blob),
            Effect::Refuse { request, error } => self.refuse(request, error),
            Effect::Spill { blob } => {
                let (block, bytes) = self.place(blob);
                self.have_disk_do(now, DiskOperation::Write { blob, block, bytes: bytes as usize });
            }
            Effect::Load { blob, bytes } => match self.allocate(bytes) {
                Ok(room) => {
                    let spilled = self.spilled[&blob].clone();
                    self.have_disk_do(now, DiskOperation::Read { blob, spilled, room });
                }
                Err(error) => {
                    let result = Err(unmappable(&error));
                    self.handle(now, Event::LoadEnded { blob, result });
                }
            },
            Effect::FreeMemory { blob } => self.bodies.free_memory(blob),
            Effect::FreeDisk { blob } => self.free_disk(blob),
            Effect::Drop { blob } => self.drop_body(blob),
            Effect::TrimMemory => self.outside.push(DeferredAction::GiveBack),
            Effect::RefuseLost { request, error } => self.miss(now, request, &error),
            Effect::Lost { blob, error } => {
                if let Some(object) = self.bodies.name_of(blob) {
                    self.outside.push(DeferredAction::DeliverToWorker(worker::Event::DataLost {
                        object,
                        error,
                    }));
                }
            }
        }
    }

    /// Where something is that was sealed and is in memory, and how many bytes it has.
    pub(super) fn place(&self, blob: BlobId) -> (Block, u64) {
        let block = self.bodies.block(blob).expect("it was sealed, and is in memory");
        let (bytes, ..) = self.machine.look(blob).expect("the machine knows it");
        (block, bytes)
    }

    pub(super) fn allocate(&mut self, bytes: u64) -> std::io::Result<Writable> {
        let room = self.arena.allocate(bytes as usize);
        for gone in self.arena.gone() {
            self.segment_gone(gone.number);
            self.outside.push(DeferredAction::Gone(gone));
        }
        room
    }

    pub(super) fn drop_body(&mut self, blob: BlobId) {
        self.makers.remove(&blob);
        self.filling.remove(&blob);
        self.free_disk(blob);
        self.copied.remove(&blob);
        if let Some(object) = self.bodies.remove(blob) {
            self.saving.dropped(object);
        }
    }

    /// Somebody asks for something; says under which number it is answered.
    pub(super) fn ask(&mut self, process: ProcessId, answer: ReplyTo) -> RequestId {
        self.next_request += 1;
        let request = RequestId(self.next_request);
        self.requests.insert(request, PendingRequest { process, answer, seeks: None });
        request
    }

    pub(super) fn grant(&mut self, now: Time, request: RequestId, blob: BlobId, bytes: u64) {
        let PendingRequest { process, answer, .. } =
            self.requests.remove(&request).expect("it was asked for");
        self.bodies.add(blob);
        self.makers.insert(blob, process);
        if matches!(answer, ReplyTo::Nobody) {
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
            ReplyTo::Fill(to) => self.outside.push(DeferredAction::Fill(to, Ok((blob, room)))),
            ReplyTo::Peer { number } => {
                let (block, trims) = (room.block(), room.trims());
                let given = GrantedBlob { blob, block, bytes, trims, worker: self.worker };
                self.filling.insert(blob, room);
                self.give_peer(process, number, given, Access::Write);
            }
            ReplyTo::Read(_) | ReplyTo::Nobody => panic!("what is read is not filled"),
        }
    }

    pub(super) fn give(&mut self, now: Time, request: RequestId, blob: BlobId) {
        let PendingRequest { process, answer, .. } =
            self.requests.remove(&request).expect("it was asked for");
        let (block, bytes) = self.place(blob);
        let given = GrantedBlob { blob, block, bytes, trims: 0, worker: self.worker };
        match answer {
            ReplyTo::Read(to) => self.outside.push(DeferredAction::Read(to, Ok(given))),
            ReplyTo::Peer { number } => self.give_peer(process, number, given, Access::Read),
            ReplyTo::Nobody => self.handle(now, Event::Unpinned { process, blob }),
            ReplyTo::Fill(_) => panic!("what is filled is not read"),
        }
    }

    pub(super) fn refuse(&mut self, request: RequestId, error: Error) {
        if let Some(PendingRequest { process, answer, .. }) = self.requests.remove(&request) {
            self.refuse_to(process, answer, error);
        }
    }

    /// What somebody wants to read was here, and is not any more.
    pub(super) fn miss(&mut self, now: Time, request: RequestId, error: &Error) {
        match self.requests.get(&request).and_then(|asker| asker.seeks) {
            Some(object) => self.read(now, request, object),
            None => self.refuse(request, Error::not_found(error.message().to_owned())),
        }
    }

    /// Tells whoever asked that it is not to be.
    pub(super) fn refuse_to(&mut self, process: ProcessId, answer: ReplyTo, error: Error) {
        match answer {
            ReplyTo::Fill(to) => self.outside.push(DeferredAction::Fill(to, Err(error))),
            ReplyTo::Read(to) => self.outside.push(DeferredAction::Read(to, Err(error))),
            ReplyTo::Peer { number } => self.refuse_peer(process, number, error),
            ReplyTo::Nobody => {}
        }
    }

    /// What was filled is the data of this object.
    pub(super) fn sealed(&mut self, now: Time, blob: BlobId, object: ObjectId) {
        if !self.bodies.contains(blob) {
            return;
        }
        if let Some(room) = self.filling.remove(&blob) {
            self.bodies.set_memory(blob, room);
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
        let told = self.missing.get(&object).is_some_and(|missing| missing.is_ordered);
        for request in self.looked_for(now, object) {
            self.read(now, request, object);
        }
        if told {
            self.keep_copy(now, object);
        }
    }

    /// The cluster keeps the data of this object, and the controller learns that it is here.
    pub(super) fn keep_copy(&mut self, now: Time, object: ObjectId) {
        self.retain(now, object);
        self.outside.push(DeferredAction::DeliverToWorker(worker::Event::DataCopied { object }));
    }

    /// Another has its name.
    pub(super) fn unname(&mut self, now: Time, blob: BlobId) {
        if self.makers.remove(&blob).is_some() {
            self.handle(now, Event::Disowned { blob });
        }
        self.handle(now, Event::Forgotten { blob });
    }

    /// The data of an object, if it is here. Whoever made it may have said so and not been heard, while others
    /// know of it already.
    pub(super) fn find(&mut self, now: Time, object: ObjectId) -> Option<BlobId> {
        if self.bodies.named(object).is_none() {
            self.hear_all(now);
        }
        self.bodies.named(object)
    }

    pub(super) fn retain(&mut self, now: Time, object: ObjectId) {
        match self.find(now, object) {
            Some(blob) => {
                self.saving.kept(object);
                self.handle(now, Event::Retained { blob });
                self.disown(now, object);
                self.tell_kept(object);
            }
            None => {
                let error = Error::gone(
                    Referent::Object(object),
                    "whoever made it ended before it was passed on",
                );
                self.outside.push(DeferredAction::DeliverToWorker(worker::Event::DataLost {
                    object,
                    error,
                }));
            }
        }
    }

    pub(super) fn evict(&mut self, now: Time, object: ObjectId) {
        if let Some(blob) = self.bodies.named(object) {
            self.unname(now, blob);
        }
    }

    pub(super) fn forget_all(&mut self, now: Time) {
        let mut blobs: Vec<BlobId> = self.bodies.all_named().map(|(_, blob)| blob).collect();
        blobs.sort_unstable();
        for blob in blobs {
            self.unname(now, blob);
        }
    }

    /// Another node asked for data that is not here. Whoever told it so is told better; if it never was in this session,
    /// that changes nothing.
    pub(super) fn asked_in_vain(&mut self, object: ObjectId) {
        if self.worker.is_some() {
            self.outside.push(DeferredAction::DeliverToWorker(lost(object)));
        }
    }

    /// Somebody wants to read the data of an object.
    pub(super) fn read(&mut self, now: Time, request: RequestId, object: ObjectId) {
        let Some(asker) = self.requests.get_mut(&request) else { return };
        if matches!(asker.answer, ReplyTo::Nobody) {
            self.requests.remove(&request);
            return;
        }
        asker.seeks = Some(object);
        let process = asker.process;
        if let Some(blob) = self.find(now, object) {
            return self.handle(now, Event::PinRequested { request, process, blob });
        }
        let missing = self.missing.entry(object).or_default();
        missing.requests.push(request);
        if !missing.begun {
            (missing.begun, missing.waits) = (true, true);
            self.outside
                .push(DeferredAction::DeliverToWorker(worker::Event::DataMissing { object }));
        }
    }
}
