//! The controller's shell: carries out the effects of the controller's state machine. Messages go
//! to the machines of this process, or to links to others.

use super::links::{LinkEnd, LinkId};
use super::{DeferredAction, NodeState, Shell, Todo};
use crate::runtime_log::{self, CONTROLLER, Machine};
use marline_core::client;
use marline_core::controller::{Effect, Event, SessionEndCause};
use marline_core::id::Session;
use marline_core::lease::LeaseTerms;
use marline_core::time::Time;
use marline_core::worker;
use marline_wire::frame::Frame;
use marline_wire::message::Message;
use tracing::{debug, info, warn};

impl NodeState {
    pub(super) fn controller_event(&mut self, now: Time, event: Event) {
        let Some(controller) = &mut self.controller else { return };
        runtime_log::event(Machine::Controller, || event.summary());
        let mut effects = Vec::new();
        controller.handle(now, event, &mut effects);
        self.controller_effects(now, effects);
    }

    pub(super) fn controller_effects(&mut self, now: Time, effects: Vec<Effect>) {
        for effect in effects {
            self.controller_effect(now, effect);
        }
    }

    fn controller_effect(&mut self, now: Time, effect: Effect) {
        match effect {
            Effect::OpenSession(session) => self.session_opened(now, session),
            Effect::EndSession { session, cause } => {
                self.log_session_end(session, &cause);
                self.fence(session);
                self.drop_link(LinkId::Session(session), session);
                self.shells.remove(&session);
                self.processes.remove(&session);
            }
            Effect::Fence(session) => {
                debug!(target: CONTROLLER, %session, "rejected a message of a session that is over");
                self.fence(session);
            }
            Effect::Ping { to, ping } => self.link_urgent(LinkId::Session(to), Frame::Ping(ping)),
            Effect::ToClient { to, message } => match self.shells.get(&to) {
                Some(Shell::Client(index)) => {
                    let event = client::Event::ControllerMessageReceived { session: to, message };
                    self.todo.push_back(Todo::Client(*index, event));
                }
                _ => self.link_send(LinkId::Session(to), Message::ToClient(message)),
            },
            Effect::ToWorker { to, message } => match self.shells.get(&to) {
                Some(Shell::Worker(index)) => {
                    let event = worker::Event::ControllerMessageReceived { session: to, message };
                    self.todo.push_back(Todo::Worker(*index, event));
                }
                _ => self.link_send(LinkId::Session(to), Message::ToWorker(message)),
            },
            Effect::WakeTaskWaiters(task) => self.task_ended(task),
            Effect::AllowExit => {
                info!(target: CONTROLLER, "every worker has finished");
                self.outside.extend(self.ending.drain(..).map(DeferredAction::SendDone))
            }
        }
    }

    fn log_session_end(&self, session: Session, cause: &SessionEndCause) {
        let role = self.shells.get(&session).map(|shell| shell.role());
        // Many clients end without a farewell, as every `marline run` does. A worker does not.
        let is_usual = match cause {
            SessionEndCause::Closed => true,
            SessionEndCause::Died(_) => role == Some("client"),
            SessionEndCause::LeaseOver | SessionEndCause::Replaced => false,
        };
        if is_usual {
            info!(target: CONTROLLER, %session, role, "a session ended: {cause}");
        } else {
            warn!(target: CONTROLLER, %session, role, "a session ended: {cause}");
        }
    }

    /// Notes that the controller has opened a session, for a machine of this process or for another
    /// process.
    fn session_opened(&mut self, now: Time, session: Session) {
        let shell = self.joining.take().expect("only a joining shell gets a session");
        info!(target: CONTROLLER, %session, role = shell.role(), "a session opened");
        self.shells.insert(session, shell);
        let (terms, asked_at) = (LeaseTerms::FOREVER, now);
        match shell {
            Shell::Worker(index) => {
                self.workers[index].set_cluster(self.cluster);
                let event = worker::Event::Joined { session, terms, asked_at };
                self.todo.push_back(Todo::Worker(index, event));
            }
            Shell::Client(index) => {
                let event = client::Event::Joined { session, terms, asked_at };
                self.todo.push_back(Todo::Client(index, event));
            }
            Shell::RemoteWorker | Shell::RemoteClient => {
                let controller = self.controller.as_ref().expect("it opened the session");
                let end = LinkEnd::new(controller.config().epoch.0);
                self.links.insert(LinkId::Session(session), end);
                self.opened = Some(session);
            }
        }
    }
}
