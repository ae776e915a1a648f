//! Tasks and values: requests to the controller and its answers.

use super::{Client, Effect};
use crate::error::Error;
use crate::id::{ObjectId, Referent, Session, TaskId};
use crate::message::{CancelMode, FromClient};
use crate::output::Audience;
use crate::payload::{Outcome, Value};
use crate::spec::TaskSpec;
use std::sync::Arc;

impl Client {
    /// Submits a task and holds its results. Fails with `Exhausted` if the controller has granted
    /// no more submissions: wait for [`Effect::CreditGranted`].
    pub fn submit(&mut self, spec: Arc<TaskSpec>, effects: &mut Vec<Effect>) -> Result<(), Error> {
        self.must_be_joined()?;
        spec.validate()?;
        self.must_be_new(spec.id)?;
        if self.submitted >= self.task_credit || self.submitted_bytes >= self.promised_bytes {
            return Err(Error::exhausted(
                "the controller takes no more tasks now (max_pending_tasks, max_pending_bytes, max_session_bytes): \
                 submit again when some ended",
            ));
        }
        self.submitted += 1;
        self.submitted_bytes += spec.args.len() as u64;
        self.open_stream(&spec);
        self.send_task(spec, effects);
        Ok(())
    }

    /// Fails if this client has a task or call of this id that has not ended.
    pub(super) fn must_be_new(&self, id: TaskId) -> Result<(), Error> {
        let late = self.late.contains_key(&id);
        if self.tasks.contains(&id) || self.calls.contains_key(&id) || late {
            return Err(Error::already_exists(format!(
                "{id} was submitted before and has not ended: use a new id"
            )));
        }
        Ok(())
    }

    pub(super) fn send_task(&mut self, spec: Arc<TaskSpec>, effects: &mut Vec<Effect>) {
        self.tasks.insert(spec.id);
        for object in spec.results() {
            self.count_held(Referent::Object(object));
        }
        effects.push(Effect::ToController(FromClient::Submit(spec)));
    }

    pub(super) fn task_ended(&mut self, task: TaskId, outcome: Outcome, effects: &mut Vec<Effect>) {
        if self.tasks.remove(&task) {
            if self.calls.contains_key(&task) {
                return self.relayed_call_ended(task, outcome, effects);
            }
            self.streams.remove(&task);
            effects.push(Effect::Ended { task, outcome });
        } else if let Some(actor) = self.late.remove(&task) {
            self.late_call_ended(actor, effects);
        }
    }

    /// Sets who is shown the output of the work that is submitted from now on. `Audience::Me` is
    /// repeated in every later session. The output of a task or actor that this client runs in is
    /// not, since these do not outlive the session.
    pub fn show_output(&mut self, to: Audience, effects: &mut Vec<Effect>) -> Result<(), Error> {
        self.must_be_joined()?;
        self.shows_output = to == Audience::Me;
        effects.push(Effect::ToController(FromClient::ShowOutput { to }));
        Ok(())
    }

    /// Cancels a task or a call.
    pub fn cancel(&mut self, task: TaskId, mode: CancelMode, effects: &mut Vec<Effect>) {
        if self.tasks.contains(&task) {
            effects.push(Effect::ToController(FromClient::Cancel { task, mode }));
        } else if self.calls.contains_key(&task) {
            self.cancel_call(task, mode, effects);
        }
    }

    /// Stores a value and holds it. If its data is in an object store, `at` is the worker of that
    /// store.
    pub fn put(
        &mut self,
        object: ObjectId,
        value: Value,
        at: Option<Session>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        self.must_be_joined()?;
        self.count_held(Referent::Object(object));
        effects.push(Effect::ToController(FromClient::Put { object, value, at }));
        Ok(())
    }

    /// Announces an object whose value comes later, and holds it. Other tasks can need it from now
    /// on. A result of one of this client's own calls may be announced under its own id.
    pub fn announce(&mut self, object: ObjectId, effects: &mut Vec<Effect>) -> Result<(), Error> {
        self.must_be_joined()?;
        self.count_held(Referent::Object(object));
        effects.push(Effect::ToController(FromClient::Announce { object }));
        Ok(())
    }

    /// Gives an announced object its value, or the error why it has none.
    pub fn resolve(
        &mut self,
        object: ObjectId,
        value: Result<Value, Error>,
        effects: &mut Vec<Effect>,
    ) {
        if self.membership.is_open() {
            effects.push(Effect::ToController(FromClient::Resolve { object, value }));
        }
    }

    /// Asks for the value of an object that this client holds.
    pub fn fetch(&mut self, object: ObjectId, effects: &mut Vec<Effect>) -> Result<(), Error> {
        self.must_be_joined()?;
        if self.fetching.insert(object) {
            self.begin_use(Referent::Object(object));
            effects.push(Effect::ToController(FromClient::Fetch { object }));
        }
        Ok(())
    }

    /// Asks for the copies of an object that this client holds.
    pub fn locate(&mut self, object: ObjectId, effects: &mut Vec<Effect>) -> Result<(), Error> {
        self.must_be_joined()?;
        if self.locating.insert(object) {
            self.begin_use(Referent::Object(object));
            effects.push(Effect::ToController(FromClient::Locate { object }));
        }
        Ok(())
    }
}
