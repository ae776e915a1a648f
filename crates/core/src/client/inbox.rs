//! Passes each message to the file that decides about it: messages of the controller, and those of
//! the workers that host the actors this client calls.

use super::{Client, Effect};
use crate::id::{Referent, Session};
use crate::message::{FromHost, ToClient};

impl Client {
    pub(super) fn handle_controller_message(
        &mut self,
        message: ToClient,
        effects: &mut Vec<Effect>,
    ) {
        match message {
            ToClient::Credit { tasks, bytes } => {
                self.task_credit = self.task_credit.max(tasks);
                self.promised_bytes = self.promised_bytes.max(bytes);
                effects.push(Effect::CreditGranted);
            }
            ToClient::TaskEnded { task, outcome } => self.task_ended(task, outcome, effects),
            ToClient::Yielded { task, index, value } => self.yielded(task, index, value, effects),
            ToClient::ObjectReady { object, value } => {
                if self.fetching.remove(&object) {
                    effects.push(Effect::ObjectReady { object, value });
                    self.end_use(Referent::Object(object), effects);
                }
            }
            ToClient::Located { object, copies } => {
                if self.locating.remove(&object) {
                    effects.push(Effect::Located { object, copies });
                    self.end_use(Referent::Object(object), effects);
                }
            }
            ToClient::ActorCreated { requested, actor } => {
                self.actor_created(requested, actor, effects);
            }
            ToClient::ActorFound { request, actor } => self.actor_found(request, actor, effects),
            ToClient::ActorChanged { actor, place } => self.actor_changed(actor, place, effects),
            ToClient::SessionEnded { session } => {
                if self.hosts.contains_key(&session) {
                    effects.push(Effect::CloseHost { host: session });
                }
            }
            ToClient::Synced { request } => effects.push(Effect::Synced { request }),
            ToClient::Warning { words } => effects.push(Effect::Warn(words)),
            ToClient::Printed(shown) => effects.push(Effect::Show(shown)),
        }
    }

    pub(super) fn handle_host_message(
        &mut self,
        host: Session,
        message: FromHost,
        effects: &mut Vec<Effect>,
    ) {
        match message {
            FromHost::CallEnded { attempt, outcome, items } => {
                self.call_ended(host, attempt, outcome, items, effects);
            }
            FromHost::CallRefused { attempt, reason: _ } => {
                self.call_refused(host, attempt, effects);
            }
            FromHost::CallLost { attempt, error } => {
                self.sent_call_lost(host, attempt, error, effects);
            }
        }
    }
}
