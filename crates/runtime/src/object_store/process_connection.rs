//! The connections of processes that use the store over a socket. The store reads a request as soon
//! as it arrives. It also reads a process's requests before it acts on anything that the process
//! reported elsewhere after them.

use super::reply_queue::{ReplyQueue, WriteCaller};
use super::store_protocol::{GrantedBlob, StoreReply, StoreRequest};
use super::{ObjectStore, ObjectStoreShared, ObjectStoreState, ReplyTo};
use crate::net::io;
use bytes::BytesMut;
use marline_core::error::Error;
use marline_core::map::{Map, Set};
use marline_core::object_store::{BlobId, Event, ProcessId, RequestId};
use marline_core::time::Time;
use marline_objects::{Access, descriptor_passing};
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use tokio::io::Interest;

/// How many bytes are read at a time.
const READ_BYTES: usize = 16 << 10;

/// See the [module](self).
pub(super) struct ProcessConnection {
    socket: Arc<tokio::net::UnixStream>,
    received: BytesMut,
    outgoing: ReplyQueue,
    /// The segments that were passed to the process.
    knows: Set<(u32, Access)>,
    /// The segments that are gone since, and of which the process was not told yet.
    gone: Vec<u32>,
    /// The process's requests, by their numbers.
    held: Map<u64, ProcessRequest>,
    /// Whether the socket has ended: nothing more will come from the process, or from any fork of
    /// it.
    ended: bool,
    /// Whether the worker has handled everything that the process reported.
    left: bool,
}

/// A request of a process, until it is refused, or the process releases it.
enum ProcessRequest {
    /// It is not answered yet.
    Waits(RequestId),
    /// It was granted room, which the process fills.
    Fills(BlobId),
    /// It was granted a pin: the process reads the blob.
    Reads(BlobId),
}

impl ObjectStore {
    /// Adds a process whose death no worker reports. When its socket ends, nothing of it is left.
    pub fn add_unsupervised_process(&self, socket: UnixStream) -> std::io::Result<()> {
        let process = self.add_peer(socket)?;
        self.process_left(process);
        Ok(())
    }

    /// Adds an executor that sends its requests over this socket.
    pub fn add_peer(&self, socket: UnixStream) -> std::io::Result<ProcessId> {
        socket.set_nonblocking(true)?;
        let runtime = io();
        let socket = {
            let _guard = runtime.enter();
            Arc::new(tokio::net::UnixStream::from_std(socket)?)
        };
        let process = self.enter(|state, _| {
            state.next_process += 1;
            let process = ProcessId(state.next_process);
            let peer = ProcessConnection {
                socket: socket.clone(),
                received: BytesMut::new(),
                outgoing: ReplyQueue::new(socket.clone()),
                knows: Set::default(),
                gone: Vec::new(),
                held: Map::default(),
                ended: false,
                left: false,
            };
            state.peers.insert(process, peer);
            process
        });
        runtime.spawn(listen(Arc::downgrade(&self.0), process, socket));
        Ok(process)
    }

    /// Reads the requests that a process has sent so far.
    pub fn read_requests(&self, process: ProcessId) {
        self.enter(|state, now| state.read_requests(now, process, ReadCaller::Anybody));
    }

    /// Notes that a process is dead and that the worker has handled everything that it reported.
    pub fn process_left(&self, process: ProcessId) {
        self.enter(|state, now| {
            state.read_requests(now, process, ReadCaller::Anybody);
            if let Some(peer) = state.peers.get_mut(&process) {
                peer.left = true;
                state.ended.push(process);
            }
        });
    }
}

fn on_its_way() -> Error {
    Error::new(marline_core::error::ErrorKind::NotReady, "the data is on its way")
}

async fn listen(
    store: Weak<ObjectStoreShared>,
    process: ProcessId,
    socket: Arc<tokio::net::UnixStream>,
) {
    loop {
        if socket.readable().await.is_err() {
            return;
        }
        let Some(store) = store.upgrade().map(ObjectStore) else { return };
        if !store.enter(|state, now| state.read_requests(now, process, ReadCaller::Listener)) {
            return;
        }
    }
}

/// Sends queued replies whenever the socket has room, until none is left.
async fn flush(
    store: Weak<ObjectStoreShared>,
    process: ProcessId,
    socket: Arc<tokio::net::UnixStream>,
) {
    loop {
        if socket.writable().await.is_err() {
            return;
        }
        let Some(store) = store.upgrade().map(ObjectStore) else { return };
        if !store.enter(|state, _| state.flush(process)) {
            return;
        }
    }
}

/// The code that reads the requests of a process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadCaller {
    /// The listening task. tokio tells it when bytes have arrived, and must learn that it has read
    /// them all.
    Listener,
    /// Other code, which knows that bytes have arrived, perhaps before the listening task does.
    Anybody,
}

impl ObjectStoreState {
    /// Reads and handles requests. Returns whether more may come.
    fn read_requests(&mut self, now: Time, process: ProcessId, who: ReadCaller) -> bool {
        let mut buffer = [0; READ_BYTES];
        loop {
            let Some(peer) = self.peers.get_mut(&process).filter(|peer| !peer.ended) else {
                return false;
            };
            let socket = peer.socket.clone();
            let mut receive = || descriptor_passing::receive(&*socket, &mut buffer);
            let received = match who {
                ReadCaller::Listener => socket.try_io(Interest::READABLE, receive),
                ReadCaller::Anybody => receive(),
            };
            match received {
                Ok((count, _)) if count > 0 => peer.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Ok(_) | Err(_) => {
                    peer.ended = true;
                    self.ended.push(process);
                    return false;
                }
            }
            while let Some(peer) = self.peers.get_mut(&process) {
                match StoreRequest::next(&mut peer.received) {
                    Ok(Some(ask)) => self.handle_request(now, process, ask),
                    Ok(None) => break,
                    Err(_) => {
                        self.end_peer(process);
                        break;
                    }
                }
            }
        }
    }

    /// Reads the requests that all processes have sent so far.
    pub(super) fn hear_all(&mut self, now: Time) {
        if self.is_hearing {
            return; // Handling a request got here: the outer call reads all.
        }
        self.is_hearing = true;
        for process in self.peers.keys().copied().collect::<Vec<_>>() {
            self.read_requests(now, process, ReadCaller::Anybody);
        }
        self.is_hearing = false;
    }

    fn handle_request(&mut self, now: Time, process: ProcessId, ask: StoreRequest) {
        match ask {
            StoreRequest::Create { number, bytes, ahead } => {
                let request = self.asked_under(process, number);
                self.handle(
                    now,
                    Event::CreateRequested { request, process, bytes, speculative: ahead },
                );
            }
            StoreRequest::Seal { number, object } => {
                if let Some(ProcessRequest::Fills(blob)) = self.take_held(process, number) {
                    self.sealed(now, blob, object);
                }
            }
            StoreRequest::Discard { object } => {
                let maker = self.bodies.named(object).and_then(|blob| self.makers.get(&blob));
                if maker == Some(&process) {
                    self.disown(now, object);
                }
            }
            StoreRequest::Read { number, object } => {
                let request = self.asked_under(process, number);
                self.read(now, request, object);
            }
            StoreRequest::Release { number } => self.release_blob(now, process, number),
            StoreRequest::Fork => self.handle(now, Event::Forked { process }),
            StoreRequest::Save { number, object } => self.save_for(process, number, object),
            StoreRequest::ExplainWait { number } => {
                let error = self.machine.lack_of_room().unwrap_or_else(on_its_way);
                self.answer(process, &StoreReply::Refused { number, error }, None);
            }
        }
    }

    fn asked_under(&mut self, process: ProcessId, number: u64) -> RequestId {
        let request = self.new_request(process, ReplyTo::Peer { number });
        self.hold(process, number, ProcessRequest::Waits(request));
        request
    }

    fn hold(&mut self, process: ProcessId, number: u64, held: ProcessRequest) {
        if let Some(peer) = self.peers.get_mut(&process) {
            peer.held.insert(number, held);
        }
    }

    fn take_held(&mut self, process: ProcessId, number: u64) -> Option<ProcessRequest> {
        self.peers.get_mut(&process)?.held.remove(&number)
    }

    /// Handles the release of a request: the process needs it no more.
    ///
    /// A process sends `Release` once for each number, unless it has sealed the room it was
    /// granted. It need not know how far the request has come. The store knows, because it reads
    /// the release after the request:
    ///
    /// - A request that waits is answered to no process.
    /// - A blob that was granted is taken back.
    /// - Of a refused request nothing is left.
    ///
    /// So nothing is lost, even if the answer is on its way. And nothing is taken back twice,
    /// because the process ignores answers to numbers that it has released.
    fn release_blob(&mut self, now: Time, process: ProcessId, number: u64) {
        match self.take_held(process, number) {
            Some(ProcessRequest::Waits(request)) => {
                if let Some(asker) = self.requests.get_mut(&request) {
                    asker.answer = ReplyTo::Nobody;
                }
                self.handle(now, Event::RequestCancelled { request });
            }
            Some(ProcessRequest::Fills(blob)) => self.handle(now, Event::Abandoned { blob }),
            Some(ProcessRequest::Reads(blob)) => {
                self.handle(now, Event::Unpinned { process, blob })
            }
            None => {}
        }
    }

    /// Removes a process of which nothing is left, and frees what it had.
    pub(super) fn remove_process(&mut self, now: Time, process: ProcessId) {
        if !self.peers.get(&process).is_some_and(|peer| peer.ended && peer.left) {
            return;
        }
        self.peers.remove(&process);
        self.requests.retain(|_, asker| asker.process != process);
        // No request of the process waits any more: lookups must not go on for them.
        for missing in self.missing.values_mut() {
            missing.requests.retain(|request| self.requests.contains_key(request));
        }
        self.makers.retain(|_, maker| *maker != process);
        self.handle(now, Event::ProcessGone { process });
    }

    pub(super) fn give_peer(
        &mut self,
        process: ProcessId,
        number: u64,
        granted: GrantedBlob,
        access: Access,
    ) {
        let (segment, blob) = (granted.block.segment, granted.blob);
        self.hold(
            process,
            number,
            match access {
                Access::Read => ProcessRequest::Reads(blob),
                Access::Write => ProcessRequest::Fills(blob),
            },
        );
        let peer = self.peers.get_mut(&process);
        let is_new = peer.is_some_and(|peer| peer.knows.insert((segment, access)));
        let passed = is_new.then_some(access);
        let answer = StoreReply::Granted { number, granted, passed };
        self.answer(process, &answer, passed.map(|access| (segment, access)));
    }

    pub(super) fn refuse_peer(&mut self, process: ProcessId, number: u64, error: Error) {
        self.take_held(process, number);
        self.answer(process, &StoreReply::Refused { number, error }, None);
    }

    /// Notes that a segment is gone. Each process that was passed the segment learns it with its
    /// next reply. A process that makes no request learns nothing.
    pub(super) fn segment_gone(&mut self, segment: u32) {
        for peer in self.peers.values_mut() {
            let [read, written] =
                [Access::Read, Access::Write].map(|access| peer.knows.remove(&(segment, access)));
            if read || written {
                peer.gone.push(segment);
            }
        }
    }

    pub(super) fn answer(
        &mut self,
        process: ProcessId,
        answer: &StoreReply,
        passed: Option<(u32, Access)>,
    ) {
        let Some(peer) = self.peers.get_mut(&process).filter(|peer| !peer.ended) else { return };
        let gone = peer.gone.drain(..).map(|segment| StoreReply::SegmentGone { segment });
        let mut bytes: BytesMut = gone.flat_map(|gone| gone.encode()).collect();
        bytes.extend_from_slice(&answer.encode());
        let passed = passed.map(|(number, access)| {
            (self.arena.segment(number).expect("a block of the segment is in use"), access)
        });
        match peer.outgoing.send(bytes, passed) {
            Ok(false) => {}
            Ok(true) => {
                io().spawn(flush(self.me.clone(), process, peer.socket.clone()));
            }
            // The process sends requests and does not read replies, or is gone.
            Err(_) => self.end_peer(process),
        }
    }

    /// Sends queued replies, now that the socket of a process has room. Returns whether some are
    /// left.
    fn flush(&mut self, process: ProcessId) -> bool {
        let Some(peer) = self.peers.get_mut(&process).filter(|peer| !peer.ended) else {
            return false;
        };
        peer.outgoing.write(WriteCaller::Flusher).unwrap_or_else(|_| {
            self.end_peer(process);
            false
        })
    }

    /// Stops replying to a process that breaks the protocol. What it has stays until it is gone.
    fn end_peer(&mut self, process: ProcessId) {
        if let Some(peer) = self.peers.get_mut(&process) {
            peer.outgoing.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::credentials::Credentials;
    use crate::object_store::StoreOptions;
    use marline_core::id::{ObjectId, TaskId};
    use std::io::{Read, Write};

    fn store() -> ObjectStore {
        let options = StoreOptions { limit: 1 << 20, spill: None, ..StoreOptions::default() };
        ObjectStore::new(&options, Credentials::new(None))
    }

    fn peer(store: &ObjectStore) -> (UnixStream, ProcessId) {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let process = store.add_peer(theirs).unwrap();
        (mine, process)
    }

    #[test]
    fn a_process_that_ends_while_its_request_is_read_leaves_no_pin() {
        let store = store();
        let ((mut maker, _), (mut reader, process)) = (peer(&store), peer(&store));
        let object = ObjectId::of(TaskId::from_u128(7), 0);
        let bytes = 1_000;
        maker.write_all(&StoreRequest::Create { number: 1, bytes, ahead: false }.encode()).unwrap();
        maker.read_exact(&mut [0]).unwrap();
        store.process_left(process); // The worker knows that it is dead, and its socket has not ended.
        store.enter(|state, now| {
            // No other code reads these sockets first. The reader sends a request and is gone. The
            // blob that it wants was sealed meanwhile.
            maker.write_all(&StoreRequest::Seal { number: 1, object }.encode()).unwrap();
            reader.write_all(&StoreRequest::Read { number: 1, object }.encode()).unwrap();
            drop(reader);
            state.read_requests(now, process, ReadCaller::Anybody);
        });
        let held = store.list(1);
        assert_eq!(
            (held[0].object, held[0].readers),
            (object, 0),
            "its maker owns it and does not read it"
        );
        assert_eq!(store.lock().peers.len(), 1, "the reader is gone");
    }

    #[test]
    fn granted_room_is_freed_once_however_often_it_is_released() {
        let store = store();
        let (mut mine, process) = peer(&store);
        for number in 1..=3 {
            mine.write_all(&StoreRequest::Create { number, bytes: 1_000, ahead: false }.encode())
                .unwrap();
            mine.read_exact(&mut [0]).unwrap(); // The room is granted.
        }
        for number in [1, 2, 1, 7] {
            mine.write_all(&StoreRequest::Release { number }.encode()).unwrap();
        }
        store.read_requests(process);
        assert_eq!(store.usage().used, 1_000);
    }
}
