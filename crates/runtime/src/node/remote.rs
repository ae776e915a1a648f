//! Processes elsewhere: those that join this node's controller, and the controller that this node's
//! workers and clients join.

use super::links::{End, Which};
use super::{Node, Outside, SESSIONS_LOST, SESSIONS_LOST_BEFORE, Seat, State, Todo, Warn};
use crate::executor::Executors;
use crate::net::outbox::Outbox;
use crate::net::secret::{Secret, Token};
use crate::proof::Process;
use crate::store::Store;
use crate::upstream::Upstream;
use crate::wire::frame::{Direction, Frame};
use crate::wire::join::{Join, Joined, check_protocol};
use crate::wire::message::Message;
use crate::wire::v1;
use marline_channel::oneshot;
use marline_core::client;
use marline_core::controller::{Event, Role};
use marline_core::error::Error;
use marline_core::id::{Session, SessionId};
use marline_core::message::ToHost;
use marline_core::time::Time;
use marline_core::worker;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Whether to join.
pub(crate) enum Wish {
    /// The request is made at this time.
    Now(Time),
    /// Executors of the session before may still act.
    Later,
    /// It is to leave.
    Never,
}

/// What becomes of a connection that a process elsewhere makes.
pub(crate) enum Attached {
    /// It carries this link.
    To(Which),
    /// A later connection of its link came before it.
    Late,
    /// The session it was made by, or for, is over.
    Over,
}

/// A seat of this node that belongs to a controller elsewhere.
pub(crate) struct Membership {
    pub seat: Seat,
    pub session_id: SessionId,
    pub role: Role,
    pub upstream: Upstream,
    /// What those who connect to this process must say: the token of the cluster it belongs to.
    pub secret: Secret,
    /// Which process it is, so that its death can be seen.
    pub process: Option<Process>,
}

impl Node {
    /// A process elsewhere joins this node's controller.
    pub fn join(&self, join: Join) -> Result<Joined, Error> {
        self.enter(|state, now| state.join(now, join))
    }

    /// Makes a seat for a worker of a controller elsewhere.
    pub fn seat_worker(
        self: &Arc<Node>,
        executors: Executors,
        store: Option<Store>,
        config: worker::Config,
    ) -> Seat {
        let me = Arc::downgrade(self);
        self.enter(|state, _| state.seat_worker(&me, executors, store, config))
    }

    /// Makes a seat for a client of a controller elsewhere.
    pub fn seat_client(&self, address: &str, token: Token) -> usize {
        self.enter(|state, _| {
            state.token = token;
            state.seat_client(client::Client::of(address.into()))
        })
    }

    /// A client of this node joins a controller that is elsewhere than the one before.
    pub fn move_client(&self, index: usize, address: &str, token: Token) {
        self.enter(|state, _| {
            state.token = token;
            state.client(index).machine.is_at(address.into());
        });
    }

    /// Whether a seat of this node wants to join.
    pub fn wants_to_join(&self, seat: Seat) -> Wish {
        self.enter(|state, now| match seat {
            _ if state.closed => Wish::Never,
            Seat::Worker(index) if state.workers[index].drained => Wish::Never,
            Seat::Worker(index) if !state.workers[index].is_still() => Wish::Later,
            Seat::Client(index) if state.has_left(index) => Wish::Never,
            Seat::Worker(_) | Seat::Client(_) => Wish::Now(now),
            Seat::RemoteWorker | Seat::RemoteClient => panic!("others join for themselves"),
        })
    }

    /// Has a worker of this node finish what it has, move what is left after `grace`, and leave; what is
    /// given says when it has.
    pub fn drain(&self, seat: Seat, grace: Duration) -> oneshot::Receiver<()> {
        let left = self.left(seat);
        self.enter(|state, _| {
            if let Seat::Worker(index) = seat {
                state.todo.push_back(Todo::Worker(index, worker::Event::DrainAsked { grace }));
            }
        });
        left
    }

    /// Has the controller of this node take no new work, and every worker finish what it has until `grace`
    /// is over; what is given says when that is done.
    pub fn wind_up(&self, grace: Duration) -> oneshot::Receiver<()> {
        let (waiter, done) = oneshot::oneshot();
        self.enter(|state, now| {
            state.ending.push(waiter);
            let mut effects = Vec::new();
            if let Some(controller) = &mut state.controller {
                controller.wind_up(now, grace, &mut effects);
            }
            state.controller_effects(now, effects);
        });
        done
    }

    /// Says when a worker of this node has left, because it drained or because the node was closed.
    pub fn left(&self, seat: Seat) -> oneshot::Receiver<()> {
        let (waiter, left) = oneshot::oneshot();
        self.enter(|state, _| match seat {
            Seat::Worker(index) if !state.closed && !state.workers[index].has_left() => {
                state.workers[index].leaving.push(waiter);
            }
            Seat::Worker(_) | Seat::Client(_) | Seat::RemoteWorker | Seat::RemoteClient => {}
        });
        left
    }

    /// Tells whoever started a worker of this node something.
    pub fn note(&self, seat: Seat, words: String) {
        self.enter(|state, _| {
            if let Seat::Worker(index) = seat {
                let note = state.workers[index].note.clone();
                state.outside.push(Outside::Warn(note, words));
            }
        });
    }

    /// What is done with what a worker of this node has to say.
    pub fn on_note(&self, seat: Seat, note: Warn) {
        self.enter(|state, _| {
            if let Seat::Worker(index) = seat {
                state.workers[index].note = note;
            }
        });
    }

    /// The session of a worker of this node, while it has one.
    pub fn worker_session(&self, seat: Seat) -> Option<Session> {
        self.enter(|state, _| match seat {
            Seat::Worker(index) => state.workers[index].machine.session(),
            Seat::Client(_) | Seat::RemoteWorker | Seat::RemoteClient => None,
        })
    }

    /// A seat of this node has a session.
    pub fn joined(&self, seat: Seat, joined: Joined, asked_at: Time) {
        self.enter(|state, _| state.joined(seat, joined, asked_at));
    }

    /// A process elsewhere connects a link.
    pub fn attach(
        &self,
        session: Session,
        number: u64,
        host: Option<Session>,
        outbox: Outbox,
    ) -> Attached {
        self.enter(|state, _| state.attach(session, number, host, outbox))
    }

    /// This node connects a link. Says whether it is wanted.
    pub fn connected(&self, which: Which, number: u64, outbox: Outbox) -> bool {
        self.enter(|state, _| state.link_connected(which, number, outbox))
    }

    /// A connection ended. If it was a session's elsewhere whose process could be seen to die, says
    /// which.
    pub fn disconnected(&self, which: Which, number: u64) -> Option<(Session, Process)> {
        self.enter(|state, _| {
            state.link_disconnected(which, number);
            let Which::Session(session) = which else { return None };
            state.processes.get(&session).map(|process| (session, process.clone()))
        })
    }

    /// Whether a session is here and has no connection.
    pub fn is_cut_off(&self, session: Session) -> bool {
        self.enter(|state, _| state.is_cut_off(session))
    }

    /// The controller that a session of this process belongs to is dead.
    pub fn controller_died(&self, session: Session) {
        self.enter(|state, _| state.fence(session));
    }

    /// There is proof that a session's process is dead.
    pub fn process_died(&self, session: Session, how: String) {
        self.enter(|state, _| {
            state.todo.push_back(Todo::Controller(Event::ProcessDied { session, how }));
        });
    }

    /// In which direction what arrives on a link travels.
    pub fn direction(&self, which: Which) -> Direction {
        self.enter(|state, _| state.direction(which))
    }

    /// A connection brought frames. Says what the peer did wrong, if it did.
    pub fn received(
        &self,
        which: Which,
        number: u64,
        direction: Direction,
        frames: Vec<v1::Frame>,
    ) -> Result<(), Error> {
        let frames = frames.into_iter().map(|frame| Frame::from_wire(frame, direction));
        let frames = frames.collect::<Result<Vec<Frame>, Error>>()?;
        self.enter(|state, now| {
            for frame in frames {
                state.link_received(which, number, frame)?;
                self.run_to_completion(state, now);
            }
            Ok(())
        })
    }

    /// Tells the peer of a link what was seen, if nothing that left meanwhile did.
    pub fn acknowledge(&self, which: Which) {
        self.enter(|state, _| state.link_acknowledge(which));
    }

    /// Whether there is a link that wants a connection.
    pub fn wants_connection(&self, which: Which) -> bool {
        self.enter(|state, _| state.has_link(which))
    }
}

impl State {
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
            Role::Client => Seat::RemoteClient,
            Role::Worker(_) => Seat::RemoteWorker,
        });
        let event = Event::SessionOpened {
            id: join.id,
            request: join.request,
            local: false,
            role: join.role,
        };
        self.controller_event(now, event);
        self.joining = None;
        let controller = self.controller.as_ref().expect("it was asked");
        let session = self.opened.take().ok_or_else(|| controller.why_refused(&role))?;
        if let Some(process) = join.process.filter(Process::can_be_seen) {
            self.processes.insert(session, process);
        }
        let (cluster, process) = (self.cluster, Process::this());
        Ok(Joined { session, terms, cluster, controller_epoch, process })
    }

    fn joined(&mut self, seat: Seat, joined: Joined, asked_at: Time) {
        let (session, terms) = (joined.session, joined.terms);
        self.seats.insert(session, seat);
        self.links.insert(Which::Upstream(session), End::new(session.epoch.0));
        match seat {
            Seat::Worker(index) => {
                self.workers[index].works_for(joined.cluster);
                self.todo.push_back(Todo::Worker(
                    index,
                    worker::Event::Joined { session, terms, asked_at },
                ));
            }
            Seat::Client(index) => {
                SESSIONS_LOST_BEFORE.store(SESSIONS_LOST.load(Relaxed), Relaxed);
                self.todo.push_back(Todo::Client(
                    index,
                    client::Event::Joined { session, terms, asked_at },
                ));
                if self.has_left(index) {
                    // It left while it was being let in.
                    self.todo.push_back(Todo::Client(index, client::Event::Fenced { session }));
                }
            }
            Seat::RemoteWorker | Seat::RemoteClient => panic!("others join for themselves"),
        }
    }

    fn attach(
        &mut self,
        session: Session,
        number: u64,
        host: Option<Session>,
        outbox: Outbox,
    ) -> Attached {
        let which = match host {
            None => Which::Session(session),
            Some(host) => {
                // Only the session that was called takes the call.
                if !matches!(self.seats.get(&host), Some(Seat::Worker(_))) {
                    return Attached::Over;
                }
                let which = Which::Caller(host, session);
                self.links.entry(which).or_insert_with(|| End::new(host.epoch.0));
                which
            }
        };
        if !self.links.contains_key(&which) {
            return Attached::Over;
        }
        if self.link_connected(which, number, outbox) {
            Attached::To(which)
        } else {
            Attached::Late
        }
    }

    /// A client of this process calls a worker elsewhere.
    pub(super) fn call_host(
        &mut self,
        me: Session,
        host: Session,
        address: Arc<str>,
        message: ToHost,
    ) {
        let which = Which::Host(me, host);
        if let Entry::Vacant(vacant) = self.links.entry(which) {
            vacant.insert(End::new(me.epoch.0));
            let token = self.token.clone();
            self.outside.push(Outside::Call { me, host, address, token });
        }
        self.link_send(which, Message::ToHost(message));
    }

    /// A session of this process is over: its links go.
    pub(super) fn session_stopped(&mut self, session: Session) {
        let mine = self.links.keys().copied().filter(|which| match which {
            Which::Upstream(me) | Which::Host(me, _) | Which::Caller(me, _) => *me == session,
            Which::Session(_) => false,
        });
        for which in mine.collect::<Vec<_>>() {
            self.drop_link(which, session);
        }
        self.seats.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_has_left_does_not_join_again() {
        let node = Node::new();
        let seat = Seat::Client(node.seat_client("127.0.0.1:1", None));
        assert!(matches!(node.wants_to_join(seat), Wish::Now(_)));
        node.end_client(0);
        assert!(matches!(node.wants_to_join(seat), Wish::Never));
        node.leave_client(0);
        assert!(matches!(node.wants_to_join(seat), Wish::Never));
    }
}
