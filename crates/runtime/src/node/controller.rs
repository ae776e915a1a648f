//! The controller's shell: what it says goes to the machines of this process.

use super::links::{End, Which};
use super::{Outside, Seat, State, Todo};
use crate::wire::frame::Frame;
use crate::wire::message::Message;
use marline_core::client;
use marline_core::controller::{Effect, Event};
use marline_core::id::Session;
use marline_core::lease::Terms;
use marline_core::time::Time;
use marline_core::worker;

impl State {
    pub(super) fn controller_event(&mut self, now: Time, event: Event) {
        let Some(controller) = &mut self.controller else { return };
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
            Effect::Opened(session) => self.session_opened(now, session),
            Effect::Over { session, .. } => {
                self.fence(session);
                self.drop_link(Which::Session(session), session);
                self.seats.remove(&session);
                self.processes.remove(&session);
            }
            Effect::Fence(session) => self.fence(session),
            Effect::Ping { to, ping } => self.link_urgent(Which::Session(to), Frame::Ping(ping)),
            Effect::ToClient { to, message } => match self.seats.get(&to) {
                Some(Seat::Client(index)) => {
                    let event = client::Event::ControllerSaid { session: to, message };
                    self.todo.push_back(Todo::Client(*index, event));
                }
                _ => self.link_send(Which::Session(to), Message::ToClient(message)),
            },
            Effect::ToWorker { to, message } => match self.seats.get(&to) {
                Some(Seat::Worker(index)) => {
                    let event = worker::Event::ControllerSaid { session: to, message };
                    self.todo.push_back(Todo::Worker(*index, event));
                }
                _ => self.link_send(Which::Session(to), Message::ToWorker(message)),
            },
            Effect::Ended(task) => self.task_ended(task),
            Effect::WoundUp => self.outside.extend(self.ending.drain(..).map(Outside::Left)),
        }
    }

    /// A session was let in: of this process, or of another.
    fn session_opened(&mut self, now: Time, session: Session) {
        let seat = self.joining.take().expect("only who asks is let in");
        self.seats.insert(session, seat);
        let (terms, asked_at) = (Terms::FOREVER, now);
        match seat {
            Seat::Worker(index) => {
                self.workers[index].works_for(self.cluster);
                let event = worker::Event::Joined { session, terms, asked_at };
                self.todo.push_back(Todo::Worker(index, event));
            }
            Seat::Client(index) => {
                let event = client::Event::Joined { session, terms, asked_at };
                self.todo.push_back(Todo::Client(index, event));
            }
            Seat::RemoteWorker | Seat::RemoteClient => {
                let controller = self.controller.as_ref().expect("it let somebody in");
                let end = End::new(controller.config().epoch.0);
                self.links.insert(Which::Session(session), end);
                self.opened = Some(session);
            }
        }
    }
}
