//! Processes that use the store over a socket: what they ask is heard as soon as it comes, and before it is acted
//! on what they said elsewhere after it.

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

/// How much is read at a time.
const READ_BYTES: usize = 16 << 10;

/// See the [module](self).
pub(super) struct ProcessConnection {
    socket: Arc<tokio::net::UnixStream>,
    received: BytesMut,
    outgoing: ReplyQueue,
    /// Segments that were passed on to it.
    knows: Set<(u32, Access)>,
    /// Of those, which are gone, and it does not know that.
    gone: Vec<u32>,
    /// What it has asked for, by the numbers that it gave.
    held: Map<u64, ProcessRequest>,
    /// Nothing more will come from it, or from any fork of it.
    ended: bool,
    /// Its worker has seen to all that it said.
    left: bool,
}

/// What a process has asked for, until it is refused, or the process lets go of it.
enum ProcessRequest {
    /// It is not answered yet.
    Waits(RequestId),
    /// It was given, to be filled.
    Fills(BlobId),
    /// It was given, to be read.
    Reads(BlobId),
}

impl ObjectStore {
    /// Another process asks over this socket from now on, of which nobody says when it is dead: when the socket
    /// ends, nothing of it is left.
    pub fn add_unsupervised_process(&self, socket: UnixStream) -> std::io::Result<()> {
        let process = self.add_peer(socket)?;
        self.left(process);
        Ok(())
    }

    /// An executor asks over this socket from now on.
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

    /// Hears what a process has asked so far.
    pub fn hear(&self, process: ProcessId) {
        self.enter(|state, now| state.hear(now, process, ReadCaller::Anybody));
    }

    /// The worker has seen to everything that a process said, which is dead.
    pub fn left(&self, process: ProcessId) {
        self.enter(|state, now| {
            state.hear(now, process, ReadCaller::Anybody);
            if let Some(peer) = state.peers.get_mut(&process) {
                peer.left = true;
                state.ended.push(process);
            }
        });
    }
}

fn on_its_way() -> Error {
    Error::new(marline_core::error::ErrorKind::NotReady, "it is on its way")
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
        if !store.enter(|state, now| state.hear(now, process, ReadCaller::Listener)) {
            return;
        }
    }
}

/// Says what there was no room for, when there is.
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

/// Who hears what a process asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadCaller {
    /// The one that is told when something has come, and has to say that it has read everything.
    Listener,
    /// Somebody who knows that something has come, perhaps before the listener is told.
    Anybody,
}

impl ObjectStoreState {
    /// Says whether more may come.
    fn hear(&mut self, now: Time, process: ProcessId, who: ReadCaller) -> bool {
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
                    Ok(Some(ask)) => self.asked(now, process, ask),
                    Ok(None) => break,
                    Err(_) => {
                        self.end_peer(process);
                        break;
                    }
                }
            }
        }
    }

    /// Hears what every process has said so far.
    pub(super) fn hear_all(&mut self, now: Time) {
        if self.is_hearing {
            return; // What is heard is looked for.
        }
        self.is_hearing = true;
        for process in self.peers.keys().copied().collect::<Vec<_>>() {
            self.hear(now, process, ReadCaller::Anybody);
        }
        self.is_hearing = false;
    }

    fn asked(&mut self, now: Time, process: ProcessId, ask: StoreRequest) {
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
            StoreRequest::Release { number } => self.let_go(now, process, number),
            StoreRequest::Fork => self.handle(now, Event::Forked { process }),
            StoreRequest::Save { number, object } => self.save_for(process, number, object),
            StoreRequest::ExplainWait { number } => {
                let error = self.machine.lack_of_room().unwrap_or_else(on_its_way);
                self.answer(process, &StoreReply::Refused { number, error }, None);
            }
        }
    }

    fn asked_under(&mut self, process: ProcessId, number: u64) -> RequestId {
        let request = self.ask(process, ReplyTo::Peer { number });
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

    /// A process does not need what it asked for under this number any more.
    ///
    /// It says so once for each number, unless what it was given is sealed, and it does not matter what it knows by
    /// then. Here it is known, as it is heard after the question: what waits is answered to nobody, what was given is
    /// taken back, of what was refused there is nothing. So nothing is lost, also when the answer is on its way; and
    /// nothing is taken back twice, as the process passes over answers to numbers that it has let go of.
    fn let_go(&mut self, now: Time, process: ProcessId, number: u64) {
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

    /// If nothing of a process is left, what it had is free.
    pub(super) fn see_off(&mut self, now: Time, process: ProcessId) {
        if !self.peers.get(&process).is_some_and(|peer| peer.ended && peer.left) {
            return;
        }
        self.peers.remove(&process);
        self.requests.retain(|_, asker| asker.process != process);
        // What nobody waits for any more is not asked for again.
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
        given: GrantedBlob,
        access: Access,
    ) {
        let (segment, blob) = (given.block.segment, given.blob);
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
        let answer = StoreReply::Given { number, given, passed };
        self.answer(process, &answer, passed.map(|access| (segment, access)));
    }

    pub(super) fn refuse_peer(&mut self, process: ProcessId, number: u64, error: Error) {
        self.take_held(process, number);
        self.answer(process, &StoreReply::Refused { number, error }, None);
    }

    /// A segment is gone: those who were passed it are told with their next answer. Who asks for nothing hears nothing.
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
            (self.arena.segment(number).expect("its block is given out"), access)
        });
        match peer.outgoing.say(bytes, passed) {
            Ok(false) => {}
            Ok(true) => {
                io().spawn(flush(self.me.clone(), process, peer.socket.clone()));
            }
            // It asks and does not listen, or is gone.
            Err(_) => self.end_peer(process),
        }
    }

    /// There is room in the socket of a process: says what there was none for. Says whether something is left.
    fn flush(&mut self, process: ProcessId) -> bool {
        let Some(peer) = self.peers.get_mut(&process).filter(|peer| !peer.ended) else {
            return false;
        };
        peer.outgoing.write(WriteCaller::Flusher).unwrap_or_else(|_| {
            self.end_peer(process);
            false
        })
    }

    /// A process that makes no sense is not spoken to any more. What it has stays until it is gone.
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
    fn who_ends_while_what_it_asked_for_is_looked_for_is_seen_off_afterwards() {
        let store = store();
        let ((mut maker, _), (mut reader, process)) = (peer(&store), peer(&store));
        let object = ObjectId::of(TaskId::from_u128(7), 0);
        let bytes = 1_000;
        maker.write_all(&StoreRequest::Create { number: 1, bytes, ahead: false }.encode()).unwrap();
        maker.read_exact(&mut [0]).unwrap();
        store.left(process); // Its worker knows that it is dead, and its socket has not ended.
        store.enter(|state, now| {
            // Nobody hears them before the reader is: it asks and is gone, and finds what was made meanwhile.
            maker.write_all(&StoreRequest::Seal { number: 1, object }.encode()).unwrap();
            reader.write_all(&StoreRequest::Read { number: 1, object }.encode()).unwrap();
            drop(reader);
            state.hear(now, process, ReadCaller::Anybody);
        });
        let held = store.list(1);
        assert_eq!(
            (held[0].object, held[0].readers),
            (object, 0),
            "its maker has it, and does not read it"
        );
        assert_eq!(store.lock().peers.len(), 1, "the reader is gone");
    }

    #[test]
    fn room_that_was_given_and_let_go_of_is_free_however_often_that_is_said() {
        let store = store();
        let (mut mine, process) = peer(&store);
        for number in 1..=3 {
            mine.write_all(&StoreRequest::Create { number, bytes: 1_000, ahead: false }.encode())
                .unwrap();
            mine.read_exact(&mut [0]).unwrap(); // It is given.
        }
        for number in [1, 2, 1, 7] {
            mine.write_all(&StoreRequest::Release { number }.encode()).unwrap();
        }
        store.hear(process);
        assert_eq!(store.figures().used, 1_000);
    }
}
