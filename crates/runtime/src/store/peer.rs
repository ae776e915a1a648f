//! Processes that use the store over a socket: what they ask is heard as soon as it comes, and before it is acted
//! on what they said elsewhere after it.

use super::words::{Answer, Ask, Given};
use super::{Shared, State, Store, To};
use crate::net::io;
use bytes::BytesMut;
use marline_core::map::Set;
use marline_core::store::{Event, Process};
use marline_core::time::Time;
use marline_objects::{Access, pass};
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use tokio::io::Interest;

/// How much is read at a time.
const READ_BYTES: usize = 16 << 10;

/// See the [module](self).
pub(super) struct Peer {
    socket: Arc<tokio::net::UnixStream>,
    received: BytesMut,
    /// Segments that were passed on to it.
    knows: Set<(u32, Access)>,
    /// Nothing more will come from it, or from any fork of it.
    ended: bool,
    /// Its worker has seen to all that it said.
    left: bool,
}

impl Store {
    /// Another process asks over this socket from now on, of which nobody says when it is dead: when the socket
    /// ends, nothing of it is left.
    pub fn add_stranger(&self, socket: UnixStream) -> std::io::Result<()> {
        let process = self.add_peer(socket)?;
        self.left(process);
        Ok(())
    }

    /// An executor asks over this socket from now on.
    pub fn add_peer(&self, socket: UnixStream) -> std::io::Result<Process> {
        socket.set_nonblocking(true)?;
        let runtime = io();
        let socket = {
            let _guard = runtime.enter();
            Arc::new(tokio::net::UnixStream::from_std(socket)?)
        };
        let process = self.enter(|state, _| {
            state.next_process += 1;
            let process = Process(state.next_process);
            let peer = Peer {
                socket: socket.clone(),
                received: BytesMut::new(),
                knows: Set::default(),
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
    pub fn hear(&self, process: Process) {
        self.enter(|state, now| state.hear(now, process, Who::Anybody));
    }

    /// The worker has seen to everything that a process said, which is dead.
    pub fn left(&self, process: Process) {
        self.enter(|state, now| {
            state.hear(now, process, Who::Anybody);
            if let Some(peer) = state.peers.get_mut(&process) {
                peer.left = true;
                state.see_off(now, process);
            }
        });
    }
}

async fn listen(store: Weak<Shared>, process: Process, socket: Arc<tokio::net::UnixStream>) {
    loop {
        if socket.readable().await.is_err() {
            return;
        }
        let Some(store) = store.upgrade().map(Store) else { return };
        if !store.enter(|state, now| state.hear(now, process, Who::Listener)) {
            return;
        }
    }
}

/// Who hears what a process asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// The one that is told when something has come, and has to say that it has read everything.
    Listener,
    /// Somebody who knows that something has come, perhaps before the listener is told.
    Anybody,
}

impl State {
    /// Says whether more may come.
    fn hear(&mut self, now: Time, process: Process, who: Who) -> bool {
        let mut buffer = [0; READ_BYTES];
        loop {
            let Some(peer) = self.peers.get_mut(&process).filter(|peer| !peer.ended) else {
                return false;
            };
            let socket = peer.socket.clone();
            let mut receive = || pass::receive(&*socket, &mut buffer);
            let received = match who {
                Who::Listener => socket.try_io(Interest::READABLE, receive),
                Who::Anybody => receive(),
            };
            match received {
                Ok((count, _)) if count > 0 => peer.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Ok(_) | Err(_) => {
                    peer.ended = true;
                    self.see_off(now, process);
                    return false;
                }
            }
            while let Some(peer) = self.peers.get_mut(&process) {
                match Ask::next(&mut peer.received) {
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
            self.hear(now, process, Who::Anybody);
        }
        self.is_hearing = false;
    }

    fn asked(&mut self, now: Time, process: Process, ask: Ask) {
        match ask {
            Ask::Create { number, bytes } => {
                let request = self.ask(process, To::Peer { number });
                self.handle(now, Event::CreateAsked { request, process, bytes });
            }
            Ask::Seal { blob, object } => {
                if self.makers.get(&blob) == Some(&process) {
                    self.sealed(now, blob, object);
                }
            }
            Ask::Abandon { blob } => {
                if self.makers.get(&blob) == Some(&process) {
                    self.abandon(now, process, blob);
                }
            }
            Ask::Discard { object } => {
                let maker = self.names.get(&object).and_then(|blob| self.makers.get(blob));
                if maker == Some(&process) {
                    self.let_go_of(now, object);
                }
            }
            Ask::Read { number, object } => {
                let request = self.ask(process, To::Peer { number });
                self.read(now, request, object);
            }
            Ask::Unpin { blob } => self.handle(now, Event::Unpinned { process, blob }),
            Ask::Fork => self.handle(now, Event::Forked { process }),
            Ask::Save { number, object } => self.save_for(process, number, object),
        }
    }

    /// If nothing of a process is left, what it had is free.
    fn see_off(&mut self, now: Time, process: Process) {
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
        process: Process,
        number: u64,
        given: Given,
        access: Access,
    ) {
        let segment = given.block.segment;
        let peer = self.peers.get_mut(&process);
        let segment_follows = peer.is_some_and(|peer| peer.knows.insert((segment, access)));
        let answer = Answer::Given { number, given, segment_follows };
        self.answer(process, &answer, segment_follows.then_some((segment, access)));
    }

    pub(super) fn answer(
        &mut self,
        process: Process,
        answer: &Answer,
        passed: Option<(u32, Access)>,
    ) {
        let Some(peer) = self.peers.get(&process).filter(|peer| !peer.ended) else { return };
        let segment =
            passed.map(|(number, _)| self.arena.segment(number).expect("its block is given out"));
        let descriptors: Vec<BorrowedFd<'_>> = segment
            .as_ref()
            .zip(passed)
            .map(|(segment, (_, access))| segment.descriptor(access))
            .into_iter()
            .collect();
        let bytes = answer.encode();
        // Nobody asks so much that a socket has no room for the answers: it is broken, or gone.
        let sent = pass::send(&*peer.socket, &bytes, &descriptors);
        if !sent.is_ok_and(|count| count == bytes.len()) {
            self.end_peer(process);
        }
    }

    /// A process that makes no sense is not spoken to any more. What it has stays until it is gone.
    fn end_peer(&mut self, process: Process) {
        if let Some(peer) = self.peers.get(&process) {
            let _ = rustix::net::shutdown(&*peer.socket, rustix::net::Shutdown::Write);
        }
    }
}
