//! Dispatch of client messages: each goes to the module that decides about it.

use super::{Controller, Effect, Owner};
use crate::hold::Holder;
use crate::id::{Referent, Session};
use crate::message::{FoundActor, FromClient, ToClient};
use crate::time::Time;

impl Controller {
    pub(super) fn handle_client_message(
        &mut self,
        now: Time,
        session: Session,
        message: FromClient,
        effects: &mut Vec<Effect>,
    ) {
        match message {
            FromClient::Submit(spec) => self.client_submits(now, session, spec, effects),
            FromClient::Cancel { task, mode } => {
                self.cancel(now, task, mode, effects);
            }
            FromClient::Put { object, value, at } => {
                self.put(now, session, object, value, at, effects);
            }
            FromClient::Announce { object } => self.announce(session, object),
            FromClient::Resolve { object, value } => {
                self.resolve(now, session, object, value, effects);
            }
            FromClient::Fetch { object } => self.fetch(session, object, effects),
            FromClient::Locate { object } => self.locate(now, session, object, effects),
            FromClient::Hold { thing } => self.hold(session, thing),
            FromClient::Enclose { call, item, things } => self.enclose(session, call, item, things),
            FromClient::Accept { call } => self.accept(session, call),
            FromClient::Release { thing } => {
                self.release(Holder::Session(session.id), thing);
            }
            FromClient::Took { task, count } => self.took(session, task, count, effects),
            FromClient::CreateActor(spec) => {
                let requested = spec.id;
                let actor = self.create_actor(now, Owner::Session(session), spec, effects);
                let message = ToClient::ActorCreated { requested, actor: actor.clone() };
                effects.push(Effect::ToClient { to: session, message });
                if let Ok(actor) = actor {
                    self.watch_actor(session, actor, effects);
                }
            }
            FromClient::FindActor { request, namespace, name } => {
                let actor = self.find_actor(&namespace, &name);
                let found = actor.clone().map(|id| {
                    let interface = self.actors[&id].spec.interface.clone();
                    FoundActor { id, interface }
                });
                let message = ToClient::ActorFound { request, actor: found };
                effects.push(Effect::ToClient { to: session, message });
                if let Ok(actor) = actor {
                    self.hold(session, Referent::Actor(actor));
                    self.watch_actor(session, actor, effects);
                }
            }
            FromClient::WatchActor { actor } => self.watch_actor(session, actor, effects),
            FromClient::Watch { session: watched } => {
                if !self.watch(session, watched) {
                    let message = ToClient::SessionEnded { session: watched };
                    effects.push(Effect::ToClient { to: session, message });
                }
            }
            FromClient::Sync { request } => {
                let message = ToClient::Synced { request };
                effects.push(Effect::ToClient { to: session, message });
            }
            FromClient::DeleteActor { actor } => {
                let _ = self.delete_actor(now, actor, effects);
            }
            FromClient::KillActor { actor } => self.kill_actor(actor, effects),
            FromClient::ShowOutput { to } => self.show_output(session, to),
        }
    }
}
