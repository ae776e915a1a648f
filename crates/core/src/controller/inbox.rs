//! Passes each message of a client or a worker to the file that decides about it.

use super::{Controller, Effect, Owner};
use crate::hold::Holder;
use crate::id::{Referent, Session};
use crate::message::{ActorExitReason, FoundActor, FromClient, FromWorker, ToClient, ToWorker};
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

    pub(super) fn handle_worker_message(
        &mut self,
        now: Time,
        session: Session,
        message: FromWorker,
        effects: &mut Vec<Effect>,
    ) {
        if !self.workers.contains_key(&session.id) {
            return; // A client sent a worker's message: ignored.
        }
        match message {
            FromWorker::Joined => self.worker_is_ready(session, effects),
            FromWorker::Refused { attempt, reason } => {
                self.attempt_refused(now, session, attempt, reason, effects);
            }
            FromWorker::Unable { runtime, error } => self.runtime_unable(session, runtime, error),
            FromWorker::Able { runtime } => self.runtime_able(session, &runtime),
            FromWorker::Started { attempt } => self.attempt_started(now, session, attempt),
            FromWorker::Ended { attempt, end, kept, ran_for, next } => {
                self.attempt_ended(now, session, attempt, end, kept, ran_for, next, effects);
            }
            FromWorker::Yielded { attempt, to, index, value } => {
                self.yielded(now, session, attempt, to, index, value, effects);
            }
            FromWorker::Blocked { attempt } => self.attempt_blocked(session, attempt, true),
            FromWorker::Resumed { attempt } => self.attempt_blocked(session, attempt, false),
            FromWorker::ActorReady { instance } => {
                self.actor_ready(now, session, instance, effects)
            }
            FromWorker::ActorFailed { instance, error } => {
                self.actor_failed(now, session, instance, error, effects);
            }
            FromWorker::ActorDied { instance, error } => {
                self.actor_died(now, session, instance, error, effects);
            }
            FromWorker::ActorDestroyed { instance, exit: why } => {
                self.actor_destroyed(now, session, instance, why, effects);
            }
            FromWorker::Checkpoint { instance, sequence, payload } => {
                self.checkpoint(session, instance, sequence, payload, effects);
            }
            FromWorker::Watch { session: watched } => {
                let alive = self.watch(session, watched);
                let message = ToWorker::Watched { session: watched, alive };
                effects.push(Effect::ToWorker { to: session, message });
            }
            FromWorker::ActorRefused { instance, reason } => {
                self.note_refusal(now, session, reason, effects);
                self.actor_destroyed(now, session, instance, ActorExitReason::Requested, effects);
            }
            FromWorker::Entrust { call, to, contains, stored, instance, kept } => {
                self.entrust(now, session, call, to, contains, stored, instance, kept, effects);
            }
            FromWorker::Locate { object } => self.locate(now, session, object, effects),
            FromWorker::Copied { object } => self.copied(session, object, effects),
            FromWorker::CopyLost { object, error } => self.copy_lost(session, object, error),
            FromWorker::NotBrought { object, error } => {
                self.not_brought(now, session, object, error, effects);
            }
            FromWorker::Dropped { instance, things } => self.dropped(instance, things),
            FromWorker::CallsEnded(reports) => self.calls_ended(now, session, reports),
            FromWorker::Printed { source, output } => {
                self.printed(session, source, output, effects);
            }
            FromWorker::Draining => self.start_draining(session.id, effects),
            FromWorker::Emptied => self.emptied(session.id, effects),
            FromWorker::Leaving => self.worker_leaves(now, session, effects),
        }
    }
}
