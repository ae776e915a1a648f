//! The core of [`ObjectStoreState`]: delivers events to the state machine, and carries out its
//! effects on memory, on the disk and for requests. Everything here runs under the store's lock.

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
            self.outside.push(DeferredAction::WakeTimer);
        }
    }

    pub(super) fn effect(&mut self, now: Time, effect: Effect) {
        match effect {
            Effect::GrantRoom { request, blob, bytes } => self.grant(now, request, blob, bytes),
            Effect::GrantPin { request, blob } => self.grant_pin(now, request, blob),
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
            Effect::TrimMemory => self.outside.push(DeferredAction::TrimMemory),
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

    /// Returns the place of a sealed blob in memory, and the size of the blob in bytes.
    pub(super) fn place(&self, blob: BlobId) -> (Block, u64) {
        let block = self.bodies.block(blob).expect("the blob is sealed and in memory");
        let (bytes, ..) = self.machine.look(blob).expect("the machine knows the blob");
        (block, bytes)
    }

    pub(super) fn allocate(&mut self, bytes: u64) -> std::io::Result<Writable> {
        let room = self.arena.allocate(bytes as usize);
        for gone in self.arena.gone() {
            self.segment_gone(gone.number);
            self.outside.push(DeferredAction::ReturnSegment(gone));
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

    /// Records a request. Returns the number under which the machine answers it.
    pub(super) fn new_request(&mut self, process: ProcessId, answer: ReplyTo) -> RequestId {
        self.next_request += 1;
        let request = RequestId(self.next_request);
        self.requests.insert(request, PendingRequest { process, answer, seeks: None });
        request
    }

    pub(super) fn grant(&mut self, now: Time, request: RequestId, blob: BlobId, bytes: u64) {
        let PendingRequest { process, answer, .. } =
            self.requests.remove(&request).expect("every grant answers a request");
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
            ReplyTo::Read(_) | ReplyTo::Nobody => panic!("a read request was granted room"),
        }
    }

    pub(super) fn grant_pin(&mut self, now: Time, request: RequestId, blob: BlobId) {
        let PendingRequest { process, answer, .. } =
            self.requests.remove(&request).expect("every grant answers a request");
        let (block, bytes) = self.place(blob);
        let given = GrantedBlob { blob, block, bytes, trims: 0, worker: self.worker };
        match answer {
            ReplyTo::Read(to) => self.outside.push(DeferredAction::Read(to, Ok(given))),
            ReplyTo::Peer { number } => self.give_peer(process, number, given, Access::Read),
            ReplyTo::Nobody => self.handle(now, Event::Unpinned { process, blob }),
            ReplyTo::Fill(_) => panic!("a request for room was granted a pin"),
        }
    }

    pub(super) fn refuse(&mut self, request: RequestId, error: Error) {
        if let Some(PendingRequest { process, answer, .. }) = self.requests.remove(&request) {
            self.refuse_to(process, answer, error);
        }
    }

    /// Handles a read of a blob that was lost while it was loaded. If the request accepts another
    /// copy of the object, looks for one. Otherwise refuses the request.
    pub(super) fn miss(&mut self, now: Time, request: RequestId, error: &Error) {
        match self.requests.get(&request).and_then(|asker| asker.seeks) {
            Some(object) => self.read(now, request, object),
            None => self.refuse(request, Error::not_found(error.message().to_owned())),
        }
    }

    /// Tells the requester that its request is refused.
    pub(super) fn refuse_to(&mut self, process: ProcessId, answer: ReplyTo, error: Error) {
        match answer {
            ReplyTo::Fill(to) => self.outside.push(DeferredAction::Fill(to, Err(error))),
            ReplyTo::Read(to) => self.outside.push(DeferredAction::Read(to, Err(error))),
            ReplyTo::Peer { number } => self.refuse_peer(process, number, error),
            ReplyTo::Nobody => {}
        }
    }

    /// Makes a filled blob the data of this object.
    pub(super) fn sealed(&mut self, now: Time, blob: BlobId, object: ObjectId) {
        if !self.bodies.contains(blob) {
            return;
        }
        if let Some(room) = self.filling.remove(&blob) {
            self.bodies.set_memory(blob, room);
        }
        let known = self.bodies.named(object);
        if known.is_some_and(|known| !self.makers.contains_key(&known)) {
            // A task that runs again makes the same items: the blob that the cluster retains stays.
            self.handle(now, Event::Sealed { blob });
            return self.unname(now, blob);
        }
        // A blob that is made again replaces the earlier one.
        let before = self.bodies.name(blob, object);
        self.handle(now, Event::Sealed { blob });
        if let Some(before) = before {
            self.unname(now, before);
        }
        let told = self.missing.get(&object).is_some_and(|missing| missing.is_ordered);
        for request in self.take_waiting_requests(now, object) {
            self.read(now, request, object);
        }
        if told {
            self.keep_copy(now, object);
        }
    }

    /// Retains a copy for the cluster, and reports it to the controller.
    pub(super) fn keep_copy(&mut self, now: Time, object: ObjectId) {
        self.retain(now, object);
        self.outside.push(DeferredAction::DeliverToWorker(worker::Event::DataCopied { object }));
    }

    /// Ends the maker's ownership of a blob, and its retention by the cluster. The machine drops
    /// the blob when no process has it pinned.
    pub(super) fn unname(&mut self, now: Time, blob: BlobId) {
        if self.makers.remove(&blob).is_some() {
            self.handle(now, Event::Disowned { blob });
        }
        self.handle(now, Event::Forgotten { blob });
    }

    /// Returns the blob of an object, if it is here. Its maker may have sent a `Seal` that the
    /// store has not read yet, while other processes already know of the object. So if the blob is
    /// not known, reads all sockets first.
    pub(super) fn find(&mut self, now: Time, object: ObjectId) -> Option<BlobId> {
        if self.bodies.named(object).is_none() {
            self.hear_all(now);
        }
        self.bodies.named(object)
    }

    pub(super) fn retain(&mut self, now: Time, object: ObjectId) {
        match self.find(now, object) {
            Some(blob) => {
                self.saving.note_retained(object);
                self.handle(now, Event::Retained { blob });
                self.disown(now, object);
                self.notify_retained(object);
            }
            None => {
                let error = Error::gone(
                    Referent::Object(object),
                    "the process that made it ended before it was passed on",
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

    /// Handles the request of another node for data that is not here. Reports the data as lost,
    /// since a controller named this store. The report changes nothing if the data was never here
    /// in this session.
    pub(super) fn report_lost(&mut self, object: ObjectId) {
        if self.worker.is_some() {
            self.outside.push(DeferredAction::DeliverToWorker(lost(object)));
        }
    }

    /// Handles a request to read the data of an object: pins the blob, or looks for it elsewhere.
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
