//! The controller's shell: what it says goes to the machines of this process.

use super::{Seat, State, Todo};
use marline_core::client;
use marline_core::controller::{Effect, Event};
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
            Effect::Opened(session) => {
                let seat = self.joining.expect("only who asks is let in");
                self.seats.insert(session, seat);
                let (terms, asked_at) = (Terms::FOREVER, now);
                self.todo.push_back(match seat {
                    Seat::Worker(index) => {
                        Todo::Worker(index, worker::Event::Joined { session, terms, asked_at })
                    }
                    Seat::Client(index) => {
                        Todo::Client(index, client::Event::Joined { session, terms, asked_at })
                    }
                });
            }
            Effect::Over { session, .. } | Effect::Fence(session) => {
                match self.seats.remove(&session) {
                    Some(Seat::Worker(index)) => {
                        self.todo.push_back(Todo::Worker(index, worker::Event::Fenced { session }));
                    }
                    Some(Seat::Client(index)) => {
                        self.todo.push_back(Todo::Client(index, client::Event::Fenced { session }));
                    }
                    None => {}
                }
            }
            Effect::Ping { .. } => unreachable!("a session of this process has no lease"),
            Effect::ToClient { to, message } => {
                if let Some(Seat::Client(index)) = self.seats.get(&to) {
                    let event = client::Event::ControllerSaid { session: to, message };
                    self.todo.push_back(Todo::Client(*index, event));
                }
            }
            Effect::ToWorker { to, message } => {
                if let Some(Seat::Worker(index)) = self.seats.get(&to) {
                    let event = worker::Event::ControllerSaid { session: to, message };
                    self.todo.push_back(Todo::Worker(*index, event));
                }
            }
            Effect::Ended(_) => {}
        }
    }
}
