//! Joining across processes: processes elsewhere that join this node's controller, and the
//! controller elsewhere that this node's workers and clients join.
//!
//! The request and answer are in `join.rs` of `marline-wire`; `net/dial.rs` sends and repeats the request.

use super::links::{LinkEnd, LinkId};
use super::{
    DeferredAction, Node, NodeState, SESSIONS_LOST, SESSIONS_LOST_AT_JOIN, Shell, Todo, Warn,
};
use crate::executor::Executors;
use crate::net::credentials::{Credentials, Token};
use crate::net::outbox::Outbox;
use crate::object_store::ObjectStore;
use crate::process_identity::{can_be_seen, this_process};
use crate::upstream::Upstream;
use marline_channel::oneshot;
use marline_core::client;
use marline_core::controller::{Event, Role};
use marline_core::error::Error;
use marline_core::id::{Session, SessionId};
use marline_core::message::ToHost;
use marline_core::time::Time;
use marline_core::worker;
use marline_wire::frame::{Direction, Frame};
use marline_wire::join::{Join, Joined, ProcessIdentity, check_protocol};
use marline_wire::message::Message;
use marline_wire::v1;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Whether a worker or client of this node joins now.
pub(crate) enum JoinDecision {
    /// Join. The time is when the request is made, from which a lease counts.
    Now(Time),
    /// Try later: executors of the previous session may still act.
    Later,
    /// Do not join again: the worker or client is leaving.
    Never,
}

/// The fate of a connection that another process makes.
pub(crate) enum AttachOutcome {
    /// The connection carries this link.
    To(LinkId),
    /// A later connection of the same link arrived before this one.
    Late,
    /// The session that it belongs to, or the one that it calls, is over.
    Over,
}

/// A worker or client of this node that belongs to a controller elsewhere, and what it needs to
/// join again.
pub(crate) struct Membership {
    pub shell: Shell,
    pub session_id: SessionId,
    pub role: Role,
    pub upstream: Upstream,
    /// The token of the cluster that this process belongs to. Peers that connect must prove that
    /// they know it.
    pub secret: Credentials,
    /// The identity of this process, so that its death can be seen.
    pub process: Option<ProcessIdentity>,
}

impl Node {
    /// Lets a process elsewhere join this node's controller.
    pub fn join(&self, join: Join) -> Result<Joined, Error> {
        self.with_state(|state, now| state.join(now, join))
    }

    /// Adds a worker whose controller is elsewhere.
    pub fn add_worker_shell(
        self: &Arc<Node>,
        executors: Executors,
        store: Option<ObjectStore>,
        config: worker::Config,
    ) -> Shell {
        let me = Arc::downgrade(self);
        self.with_state(|state, _| state.add_worker_shell(&me, executors, store, config))
    }

    /// Adds a client whose controller is elsewhere.
    pub fn add_client_shell(&self, address: &str, token: Token) -> usize {
        self.with_state(|state, _| {
            state.token = token;
            state.add_client_shell(client::Client::of(address.into()))
        })
    }

    /// Sets the address and token of a client whose controller is at another address than before.
    pub fn move_client(&self, index: usize, address: &str, token: Token) {
        self.with_state(|state, _| {
            state.token = token;
            state.client(index).machine.set_address(address.into());
        });
    }

    /// Returns whether a worker or client of this node wants to join now.
    pub fn wants_to_join(&self, shell: Shell) -> JoinDecision {
        self.with_state(|state, now| match shell {
            _ if state.closed => JoinDecision::Never,
            Shell::Worker(index) if state.workers[index].drained => JoinDecision::Never,
            Shell::Worker(index) if !state.workers[index].all_executors_dead() => {
                JoinDecision::Later
            }
            Shell::Client(index) if state.has_left(index) => JoinDecision::Never,
            Shell::Worker(_) | Shell::Client(_) => JoinDecision::Now(now),
            Shell::RemoteWorker | Shell::RemoteClient => panic!("a remote shell joins elsewhere"),
        })
    }

    /// Drains a worker of this node: it finishes its work, gives back what is not done after
    /// `grace`, and leaves. The receiver settles when it has left.
    pub fn drain(&self, shell: Shell, grace: Duration) -> oneshot::Receiver<()> {
        let left = self.worker_left(shell);
        self.with_state(|state, _| {
            if let Shell::Worker(index) = shell {
                state.todo.push_back(Todo::Worker(index, worker::Event::DrainRequested { grace }));
            }
        });
        left
    }

    /// Shuts down this node's controller: it takes no new work, and every worker finishes what it
    /// has until `grace` is over. The receiver settles when that is done.
    pub fn shut_down(&self, grace: Duration) -> oneshot::Receiver<()> {
        let (waiter, done) = oneshot::oneshot();
        self.with_state(|state, now| {
            state.ending.push(waiter);
            let mut effects = Vec::new();
            if let Some(controller) = &mut state.controller {
                controller.shut_down(now, grace, &mut effects);
            }
            state.controller_effects(now, effects);
        });
        done
    }

    /// Returns a receiver that settles when a worker of this node has left, because it drained or
    /// because the node was closed.
    pub fn worker_left(&self, shell: Shell) -> oneshot::Receiver<()> {
        let (waiter, left) = oneshot::oneshot();
        self.with_state(|state, _| match shell {
            Shell::Worker(index) if !state.closed && !state.workers[index].has_left() => {
                state.workers[index].leaving.push(waiter);
            }
            Shell::Worker(_) | Shell::Client(_) | Shell::RemoteWorker | Shell::RemoteClient => {}
        });
        left
    }

    /// Shows a note to the operator of a worker of this node.
    pub fn note(&self, shell: Shell, words: String) {
        self.with_state(|state, _| {
            if let Shell::Worker(index) = shell {
                let note = state.workers[index].note.clone();
                state.outside.push(DeferredAction::Warn(note, words));
            }
        });
    }

    /// Sets the function that shows notes of a worker of this node.
    pub fn on_note(&self, shell: Shell, note: Warn) {
        self.with_state(|state, _| {
            if let Shell::Worker(index) = shell {
                state.workers[index].note = note;
            }
        });
    }

    /// Returns the session of a worker of this node, while it has one.
    pub fn worker_session(&self, shell: Shell) -> Option<Session> {
        self.with_state(|state, _| match shell {
            Shell::Worker(index) => state.workers[index].machine.session(),
            Shell::Client(_) | Shell::RemoteWorker | Shell::RemoteClient => None,
        })
    }

    /// Notes that a worker or client of this node has a session.
    pub fn joined(&self, shell: Shell, joined: Joined, asked_at: Time) {
        self.with_state(|state, _| state.joined(shell, joined, asked_at));
    }

    /// Attaches a connection that a process elsewhere made to its link.
    pub fn attach(
        &self,
        session: Session,
        number: u64,
        host: Option<Session>,
        outbox: Outbox,
    ) -> AttachOutcome {
        self.with_state(|state, _| state.attach(session, number, host, outbox))
    }

    /// Attaches a connection that this node made to its link. Returns whether the link wants it.
    pub fn connected(&self, which: LinkId, number: u64, outbox: Outbox) -> bool {
        self.with_state(|state, _| state.link_connected(which, number, outbox))
    }

    /// Notes that a connection ended. If it belonged to a session elsewhere whose process can be
    /// watched, returns the session and the process.
    pub fn disconnected(&self, which: LinkId, number: u64) -> Option<(Session, ProcessIdentity)> {
        self.with_state(|state, _| {
            state.link_disconnected(which, number);
            let LinkId::Session(session) = which else { return None };
            state.processes.get(&session).map(|process| (session, process.clone()))
        })
    }

    /// Returns whether a session exists and has no connection.
    pub fn is_cut_off(&self, session: Session) -> bool {
        self.with_state(|state, _| state.is_cut_off(session))
    }

    /// Ends a session of this process: its controller is dead.
    pub fn controller_died(&self, session: Session) {
        self.with_state(|state, _| state.fence(session));
    }

    /// Tells the controller that a session's process is certainly dead.
    pub fn process_died(&self, session: Session, how: String) {
        self.with_state(|state, _| {
            state.todo.push_back(Todo::Controller(Event::ProcessDied { session, how }));
        });
    }

    /// Returns the direction in which messages that arrive on a link travel.
    pub fn direction(&self, which: LinkId) -> Direction {
        self.with_state(|state, _| state.direction(which))
    }

    /// Handles frames that a connection brought. Fails if the peer broke a rule.
    pub fn received(
        &self,
        which: LinkId,
        number: u64,
        direction: Direction,
        frames: Vec<v1::Frame>,
    ) -> Result<(), Error> {
        let frames = frames.into_iter().map(|frame| Frame::from_wire(frame, direction));
        let frames = frames.collect::<Result<Vec<Frame>, Error>>()?;
        self.with_state(|state, now| {
            for frame in frames {
                state.link_received(which, number, frame)?;
                self.run_to_completion(state, now);
            }
            Ok(())
        })
    }

    /// Acknowledges received messages to the peer of a link, unless a message that was sent
    /// meanwhile did so.
    pub fn acknowledge(&self, which: LinkId) {
        self.with_state(|state, _| state.link_acknowledge(which));
    }

    /// Returns whether there is such a link, so that it needs a connection.
    pub fn wants_connection(&self, which: LinkId) -> bool {
        self.with_state(|state, _| state.has_link(which))
    }
}

impl NodeState {
    fn join(&mut self, now: Time, join: Join) -> Result<Joined, Error> {
        let Some(controller) = &self.controller else {
            return Err(Error::unsupported("this is a worker: join its controller"));
        };
        check_protocol(&join.protocol)?;
        if let Role::Worker(info) = &join.role {
            info.validate()?;
        }
        let role = join.role.clone();
        let (terms, controller_epoch) = (controller.config().terms, controller.config().epoch);
        self.joining = Some(match join.role {
            Role::Client => Shell::RemoteClient,
            Role::Worker(_) => Shell::RemoteWorker,
        });
        let event = Event::JoinRequested {
            id: join.id,
            request: join.request,
            local: false,
            role: join.role,
        };
        self.controller_event(now, event);
        self.joining = None;
        let controller = self.controller.as_ref().expect("it was asked");
        let session = self.opened.take().ok_or_else(|| controller.join_rejection(&role))?;
        if let Some(process) = join.process.filter(can_be_seen) {
            self.processes.insert(session, process);
        }
        let (cluster, process) = (self.cluster, this_process());
        Ok(Joined { session, terms, cluster, controller_epoch, process })
    }

    fn joined(&mut self, shell: Shell, joined: Joined, asked_at: Time) {
        let (session, terms) = (joined.session, joined.terms);
        self.shells.insert(session, shell);
        self.links.insert(LinkId::Upstream(session), LinkEnd::new(session.epoch.0));
        match shell {
            Shell::Worker(index) => {
                self.workers[index].set_cluster(joined.cluster);
                self.todo.push_back(Todo::Worker(
                    index,
                    worker::Event::Joined { session, terms, asked_at },
                ));
            }
            Shell::Client(index) => {
                SESSIONS_LOST_AT_JOIN.store(SESSIONS_LOST.load(Relaxed), Relaxed);
                self.todo.push_back(Todo::Client(
                    index,
                    client::Event::Joined { session, terms, asked_at },
                ));
                if self.has_left(index) {
                    // It left while the controller opened its session.
                    self.todo.push_back(Todo::Client(index, client::Event::Fenced { session }));
                }
            }
            Shell::RemoteWorker | Shell::RemoteClient => panic!("a remote shell joins elsewhere"),
        }
    }

    fn attach(
        &mut self,
        session: Session,
        number: u64,
        host: Option<Session>,
        outbox: Outbox,
    ) -> AttachOutcome {
        let which = match host {
            None => LinkId::Session(session),
            Some(host) => {
                // Only a worker's session of this process takes calls. After that worker has joined
                // again, its session is another one.
                if !matches!(self.shells.get(&host), Some(Shell::Worker(_))) {
                    return AttachOutcome::Over;
                }
                let which = LinkId::Caller(host, session);
                self.links.entry(which).or_insert_with(|| LinkEnd::new(host.epoch.0));
                which
            }
        };
        if !self.links.contains_key(&which) {
            return AttachOutcome::Over;
        }
        if self.link_connected(which, number, outbox) {
            AttachOutcome::To(which)
        } else {
            AttachOutcome::Late
        }
    }

    /// Sends a message from a client of this process to a worker elsewhere. Connects to the worker
    /// if there is no link yet.
    pub(super) fn call_host(
        &mut self,
        me: Session,
        host: Session,
        address: Arc<str>,
        message: ToHost,
    ) {
        let which = LinkId::Host(me, host);
        if let Entry::Vacant(vacant) = self.links.entry(which) {
            vacant.insert(LinkEnd::new(me.epoch.0));
            let token = self.token.clone();
            self.outside.push(DeferredAction::Call { me, host, address, token });
        }
        self.link_send(which, Message::ToHost(message));
    }

    /// Drops the links of a session of this process that is over.
    pub(super) fn session_stopped(&mut self, session: Session) {
        let mine = self.links.keys().copied().filter(|which| match which {
            LinkId::Upstream(me) | LinkId::Host(me, _) | LinkId::Caller(me, _) => *me == session,
            LinkId::Session(_) => false,
        });
        for which in mine.collect::<Vec<_>>() {
            self.drop_link(which, session);
        }
        self.shells.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_has_left_does_not_join_again() {
        let node = Node::new();
        let shell = Shell::Client(node.add_client_shell("127.0.0.1:1", None));
        assert!(matches!(node.wants_to_join(shell), JoinDecision::Now(_)));
        node.end_client(0);
        assert!(matches!(node.wants_to_join(shell), JoinDecision::Never));
        node.leave_client(0);
        assert!(matches!(node.wants_to_join(shell), JoinDecision::Never));
    }
}
