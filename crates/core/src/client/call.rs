//! Actors as a client sees them, and its calls to them.

use super::stream::StreamState;
use super::{Client, Effect, Timer};
use crate::error::{Error, ErrorKind, Ran};
use crate::id::{ActorEpoch, ActorId, Attempt, Referent, Session, TaskId};
use crate::message::{ActorPlace, AttemptId, CancelMode, FoundActor, FromClient, ToHost};
use crate::payload::{Outcome, Value};
use crate::spec::{ActorSpec, Budget, Target, TaskOptions, TaskSpec};
use crate::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An actor as a client knows it.
#[derive(Debug)]
pub(super) struct ActorView {
    place: ActorPlace,
    /// How often a call that may have run is sent again.
    retries: Budget,
    /// The latest instance that is over, or that refused a call. Calls wait for the next instance.
    pub stalled: Option<ActorEpoch>,
    /// Calls that have not ended, in the order in which the user made them.
    pub order: BTreeMap<u64, TaskId>,
    next_order: u64,
    /// The calls of `order` that wait. `sent` counts those sent to each instance, `relayed` those
    /// that the controller has.
    pub waiting: BTreeMap<u64, TaskId>,
    sent: BTreeMap<ActorEpoch, u32>,
    pub relayed: u32,
}

/// A call that has not ended.
#[derive(Debug)]
pub(super) struct Call {
    spec: Arc<TaskSpec>,
    /// The values of the objects that the call needs, once they are there.
    values: Option<Vec<Value>>,
    pub actor: ActorId,
    order: u64,
    attempt: Attempt,
    spent: u32,
    deadline: Option<Time>,
    pub state: CallState,
    cancelled: bool,
    /// The number of items and the outcome that its host has reported, while some of the items are
    /// still on their way.
    pub ending: Option<(u32, Outcome)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallState {
    /// The call certainly did not run.
    Waiting,
    /// The call was sent and may have run.
    Sent { host: Session, epoch: ActorEpoch },
    /// The call went through the controller.
    Relayed,
}

impl Call {
    pub fn may_have_run(&self) -> Ran {
        match self.state {
            CallState::Waiting if self.spent == 0 => Ran::No,
            CallState::Waiting | CallState::Sent { .. } | CallState::Relayed => Ran::Maybe,
        }
    }
}

impl Client {
    /// Creates an actor, or finds the one that has its name. The client holds it.
    pub fn create_actor(
        &mut self,
        spec: Arc<ActorSpec>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        self.must_be_joined()?;
        spec.validate()?;
        self.creating.insert(spec.id);
        effects.push(Effect::ToController(FromClient::CreateActor(spec)));
        Ok(())
    }

    /// Finds an actor by its name. The client holds it.
    pub fn find_actor(
        &mut self,
        request: u64,
        namespace: Arc<str>,
        name: Arc<str>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        self.must_be_joined()?;
        self.finding.insert(request);
        effects.push(Effect::ToController(FromClient::FindActor { request, namespace, name }));
        Ok(())
    }

    /// Asks for [`Effect::Synced`] when the controller has processed everything that this client
    /// sent before. If the session ends, no answer comes.
    pub fn sync(&mut self, request: u64, effects: &mut Vec<Effect>) -> Result<(), Error> {
        self.must_be_joined()?;
        effects.push(Effect::ToController(FromClient::Sync { request }));
        Ok(())
    }

    /// Holds `things`, which the answer of the call that runs here, or one of its items, names. The
    /// hold lasts until that answer has come through the worker, even if the handles to them are
    /// released first.
    pub fn enclose(
        &mut self,
        call: AttemptId,
        item: Option<u32>,
        things: Vec<Referent>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        self.must_be_joined()?;
        effects.push(Effect::ToController(FromClient::Enclose { call, item, things }));
        Ok(())
    }

    /// Deletes an actor for good.
    pub fn delete_actor(&mut self, actor: ActorId, effects: &mut Vec<Effect>) -> Result<(), Error> {
        self.must_be_joined()?;
        effects.push(Effect::ToController(FromClient::DeleteActor { actor }));
        Ok(())
    }

    /// Kills the current instance of an actor. The actor restarts if it may.
    pub fn kill_actor(&mut self, actor: ActorId, effects: &mut Vec<Effect>) -> Result<(), Error> {
        self.must_be_joined()?;
        effects.push(Effect::ToController(FromClient::KillActor { actor }));
        Ok(())
    }

    pub(super) fn actor_created(
        &mut self,
        requested: ActorId,
        actor: Result<ActorId, Error>,
        effects: &mut Vec<Effect>,
    ) {
        if self.creating.remove(&requested) {
            if let Ok(actor) = actor {
                self.count_held(Referent::Actor(actor));
            }
            effects.push(Effect::ActorCreated { requested, actor });
        }
    }

    pub(super) fn actor_found(
        &mut self,
        request: u64,
        actor: Result<FoundActor, Error>,
        effects: &mut Vec<Effect>,
    ) {
        if self.finding.remove(&request) {
            if let Ok(actor) = &actor {
                self.count_held(Referent::Actor(actor.id));
            }
            effects.push(Effect::ActorFound { request, actor });
        }
    }

    /// Asks for one [`Effect::FirstInstanceReady`]: the actor's first instance is ready, or the
    /// actor is gone. The answer comes even if the last handle to the actor is released first. If
    /// the session ends, no answer comes.
    pub fn await_actor_ready(
        &mut self,
        id: ActorId,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        self.must_be_joined()?;
        self.first_instance_waiters.insert(id);
        let place = self.view(id, effects).place.clone();
        self.note_first_instance(id, &place, effects);
        Ok(())
    }

    /// Answers a request for an actor's first instance, once the instance is ready or the actor is
    /// gone.
    fn note_first_instance(
        &mut self,
        actor: ActorId,
        place: &ActorPlace,
        effects: &mut Vec<Effect>,
    ) {
        let outcome = match place {
            ActorPlace::Nowhere => return,
            ActorPlace::Ready { .. } => Ok(()),
            ActorPlace::Dead(error) => Err(error.clone()),
        };
        if self.first_instance_waiters.remove(&actor) {
            effects.push(Effect::FirstInstanceReady { actor, outcome });
        }
    }

    /// Returns the view of an actor. If there is none, asks the controller to watch the actor.
    fn view(&mut self, id: ActorId, effects: &mut Vec<Effect>) -> &mut ActorView {
        self.actors.entry(id).or_insert_with(|| {
            effects.push(Effect::ToController(FromClient::WatchActor { actor: id }));
            ActorView {
                place: ActorPlace::Nowhere,
                retries: Budget::Times(0),
                stalled: None,
                order: BTreeMap::new(),
                next_order: 0,
                waiting: BTreeMap::new(),
                sent: BTreeMap::new(),
                relayed: 0,
            }
        })
    }

    pub(super) fn forget_actor(&mut self, id: ActorId) {
        self.actors.remove(&id);
    }

    /// Calls an actor. If the values of the objects that the call needs are not there yet,
    /// [`supply`](Client::supply) brings them later. Until then this call waits, and later calls
    /// wait behind it.
    pub fn call(
        &mut self,
        spec: Arc<TaskSpec>,
        values: Option<Vec<Value>>,
        deadline: Option<Time>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        self.must_be_joined()?;
        spec.validate()?;
        let Target::Method { actor, .. } = spec.target else {
            return Err(Error::invalid(
                "only methods of actors are called; functions are submitted",
            ));
        };
        let id = spec.id;
        self.must_be_new(id)?;
        self.open_stream(&spec);
        let view = self.view(actor, effects);
        view.next_order += 1;
        let order = view.next_order;
        view.order.insert(order, id);
        view.waiting.insert(order, id);
        if let Some(deadline) = deadline {
            self.timers.insert((deadline, Timer::Call(id)));
        }
        for thing in spec.referents_to_hold().chain([Referent::Actor(actor)]) {
            self.begin_use(thing);
        }
        let attempt = Attempt(0);
        let state = CallState::Waiting;
        self.calls.insert(
            id,
            Call {
                spec,
                values,
                actor,
                order,
                attempt,
                spent: 0,
                deadline,
                state,
                cancelled: false,
                ending: None,
            },
        );
        self.send_calls(actor, effects);
        Ok(())
    }

    /// Supplies the values that a call needs, or the error why they never come.
    pub fn supply(
        &mut self,
        id: TaskId,
        values: Result<Vec<Value>, Error>,
        effects: &mut Vec<Effect>,
    ) {
        // The call may have been cancelled, or its session may have ended.
        let Some(call) = self.calls.get_mut(&id).filter(|call| call.values.is_none()) else {
            return;
        };
        let actor = call.actor;
        match values {
            Ok(values) => call.values = Some(values),
            Err(error) => self.end_call(id, Err(error.passed_on()), effects),
        }
        self.send_calls(actor, effects);
    }

    /// Removes and returns the waiting calls that can be sent: those before the first that misses a
    /// value.
    fn take_ready(&mut self, id: ActorId) -> BTreeMap<u64, TaskId> {
        let view = self.actors.get_mut(&id).expect("a ready actor has a view");
        let unready = view.waiting.iter().find(|(_, call)| self.calls[*call].values.is_none());
        let rest = match unready.map(|(order, _)| *order) {
            Some(order) => view.waiting.split_off(&order),
            None => BTreeMap::new(),
        };
        std::mem::replace(&mut view.waiting, rest)
    }

    /// Sends the waiting calls, in order, if the actor is ready and no call to an earlier instance
    /// is unsettled.
    pub(super) fn send_calls(&mut self, id: ActorId, effects: &mut Vec<Effect>) {
        let Some(view) = self.actors.get_mut(&id) else { return };
        let (epoch, host, address) = match &view.place {
            ActorPlace::Ready { epoch, host, address, .. } => (*epoch, *host, address.clone()),
            ActorPlace::Nowhere => return,
            ActorPlace::Dead(error) => {
                let error = error.clone();
                return self.fail_calls(id, error, effects);
            }
        };
        if view.stalled == Some(epoch) {
            return;
        }
        let direct = address.is_some();
        let unsettled = view.sent.keys().any(|sent| *sent != epoch) || direct && view.relayed > 0;
        if unsettled && !crate::planted!(CallOvertakes) {
            return;
        }
        let Some(address) = address else { return self.relay_calls(id, effects) };
        // The numbers belong to the session, not to the handle. So they outlive the view.
        let numbered = self.numbered.entry(id).or_default();
        if numbered.0 != epoch {
            *numbered = (epoch, 0);
        }
        let ready = self.take_ready(id);
        if !ready.is_empty() {
            let view = self.actors.get_mut(&id).expect("it is ready");
            *view.sent.entry(epoch).or_default() += ready.len() as u32;
        }
        let numbered = self.numbered.get_mut(&id).expect("it was inserted above");
        for call in ready.values() {
            let call = self.calls.get_mut(call).expect("a call that waits has not ended");
            if self.hosts.insert(host, address.clone()).is_none() {
                effects.push(Effect::ToController(FromClient::Watch { session: host }));
            }
            call.attempt = call.attempt.next();
            call.state = CallState::Sent { host, epoch };
            let (spec, attempt) = (call.spec.clone(), call.attempt);
            let values = call.values.clone().expect("it is ready");
            let took = self.streams.get(&spec.id).map_or(0, StreamState::consumed);
            let number = numbered.1;
            let message = ToHost::Call { spec, attempt, epoch, number, values, took };
            effects.push(Effect::ToHost { host, address: address.clone(), message });
            numbered.1 += 1;
        }
    }

    /// Fails the waiting calls of an actor that is gone for good.
    fn fail_calls(&mut self, id: ActorId, error: Error, effects: &mut Vec<Effect>) {
        self.numbered.remove(&id);
        let waiting = self.actors[&id].waiting.clone();
        for call in waiting.into_values() {
            let ran = self.calls[&call].may_have_run();
            self.end_call(call, Err(error.clone().ran(ran)), effects);
        }
    }

    /// Sends the waiting calls through the controller, since the host listens nowhere.
    fn relay_calls(&mut self, id: ActorId, effects: &mut Vec<Effect>) {
        let ready = self.take_ready(id);
        let view = self.actors.get_mut(&id).expect("it is ready");
        view.relayed += ready.len() as u32;
        for id in ready.into_values() {
            let call = self.calls.get_mut(&id).expect("a call that waits has not ended");
            call.state = CallState::Relayed;
            // The controller counts retries from zero, so it gets the rest of the budget.
            let mut spec = call.spec.clone();
            if call.spent > 0 {
                let budget = self.actors[&call.actor].retries.min(spec.options.max_retries);
                let max_retries = budget.less(call.spent);
                let options = TaskOptions { max_retries, ..(*spec.options).clone() };
                spec = Arc::new(TaskSpec { options: Arc::new(options), ..(*spec).clone() });
            }
            self.send_task(spec, effects);
            self.send_consumed(id, effects);
        }
    }

    /// Takes a call out of the bookkeeping of its state.
    fn leave_state(&mut self, id: TaskId) {
        let call = &self.calls[&id];
        let view = self.actors.get_mut(&call.actor).expect("a call's actor is known");
        match call.state {
            CallState::Waiting => drop(view.waiting.remove(&call.order)),
            CallState::Sent { epoch, .. } => {
                let count = view.sent.get_mut(&epoch).expect("it was sent there");
                *count -= 1;
                if *count == 0 {
                    view.sent.remove(&epoch);
                }
            }
            CallState::Relayed => view.relayed -= 1,
        }
    }

    pub(super) fn actor_changed(
        &mut self,
        id: ActorId,
        place: ActorPlace,
        effects: &mut Vec<Effect>,
    ) {
        let place = match place {
            ActorPlace::Dead(error)
                if error.kind() == ErrorKind::NotFound
                    && error.what_is_gone() == Some(Referent::Actor(id)) =>
            {
                ActorPlace::Dead(self.unknown(id))
            }
            place @ (ActorPlace::Nowhere | ActorPlace::Ready { .. } | ActorPlace::Dead(_)) => place,
        };
        if matches!(place, ActorPlace::Dead(_)) {
            self.numbered.remove(&id);
        }
        self.note_first_instance(id, &place, effects);
        if !self.is_held(Referent::Actor(id)) {
            return; // The last handle was released meanwhile.
        }
        // Discarded: this message answers a watch, so the actor is watched already.
        let mut discarded = Vec::new();
        let view = self.view(id, &mut discarded);
        if let ActorPlace::Ready { options, .. } = &place {
            view.retries = options.max_task_retries;
        }
        view.place = place;
        self.send_calls(id, effects);
    }

    /// Returns the error for an actor that the controller does not know. This client has a handle
    /// to it, so it existed.
    fn unknown(&self, id: ActorId) -> Error {
        let now = self.membership.session().map(|session| session.epoch.controller());
        let why = if self.former.is_some() && self.former != now {
            "the controller was started again since this process first joined, and an actor ends with the \
             controller that created it: create the actor again"
        } else {
            "the controller does not know it: it ended too long ago, or with an earlier controller"
        };
        Error::gone(Referent::Actor(id), format!("actor {id} is gone: {why}"))
    }

    /// Returns whether this attempt was sent to this host and is unsettled.
    fn is_sent(&self, host: Session, tried: AttemptId) -> bool {
        self.calls.get(&tried.task).is_some_and(|call| {
            call.attempt == tried.attempt
                && matches!(call.state, CallState::Sent { host: sent, .. } if sent == host)
        })
    }

    /// The host of a call answers it.
    pub(super) fn call_ended(
        &mut self,
        host: Session,
        attempt: AttemptId,
        outcome: Outcome,
        items: u32,
        effects: &mut Vec<Effect>,
    ) {
        let contains: Vec<Referent> =
            outcome.iter().flatten().flat_map(Value::referents_to_hold).collect();
        let wanted = self.is_sent(host, attempt);
        self.abandoned.remove(&attempt);
        if !contains.is_empty() {
            for thing in contains.iter().filter(|_| wanted) {
                self.hold(*thing, effects);
            }
            effects.push(Effect::ToController(FromClient::Accept { call: attempt }));
        }
        if wanted {
            let call = self.calls.get_mut(&attempt.task).expect("it was sent");
            let outcome = outcome.and_then(|values| call.spec.check_results(values));
            call.ending = Some((items, outcome));
            self.end_if_all_came(attempt.task, effects);
        }
    }

    /// The host of a call refuses it: the call never reached the actor.
    pub(super) fn call_refused(
        &mut self,
        host: Session,
        attempt: AttemptId,
        effects: &mut Vec<Effect>,
    ) {
        self.abandoned.remove(&attempt);
        if self.is_sent(host, attempt) {
            self.stall(attempt.task);
            self.wait_again(attempt.task, effects);
        }
    }

    /// The host of a call reports that the actor's executor is lost. The call may have run.
    pub(super) fn sent_call_lost(
        &mut self,
        host: Session,
        attempt: AttemptId,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        self.abandoned.remove(&attempt);
        if self.is_sent(host, attempt) {
            self.stall(attempt.task);
            self.call_lost(attempt.task, error, effects);
        }
    }

    /// Drops the outcome that a call's host has reported, since the call ends otherwise before all
    /// its items have arrived. Releases the referents that the outcome names.
    fn drop_ending(&mut self, id: TaskId, effects: &mut Vec<Effect>) {
        let ending = self.calls.get_mut(&id).and_then(|call| call.ending.take());
        if let Some((_, Ok(values))) = ending {
            for thing in values.iter().flat_map(Value::referents_to_hold) {
                self.release(thing, effects);
            }
        }
    }

    /// Notes that the instance to which a call was sent accepts no more calls.
    fn stall(&mut self, id: TaskId) {
        let call = &self.calls[&id];
        if let CallState::Sent { epoch, .. } = call.state {
            let view = self.actors.get_mut(&call.actor).expect("a call's actor is known");
            view.stalled = view.stalled.max(Some(epoch));
        }
    }

    /// Queues a call that certainly did not run for the next instance, unless it was cancelled.
    fn wait_again(&mut self, id: TaskId, effects: &mut Vec<Effect>) {
        self.drop_ending(id, effects);
        self.leave_state(id);
        let call = self.calls.get_mut(&id).expect("it was sent");
        call.state = CallState::Waiting;
        let (actor, order) = (call.actor, call.order);
        self.actors.get_mut(&actor).expect("a call's actor is known").waiting.insert(order, id);
        let call = &self.calls[&id];
        if call.cancelled {
            let error = cancelled(&call.spec).ran(call.may_have_run());
            self.end_call(id, Err(error), effects);
        }
        // This call may have been the last unsettled one, for which later calls waited.
        self.send_calls(actor, effects);
    }

    /// Settles a call that may have run and has no answer. It is sent again only if the retry
    /// budgets allow it.
    fn call_lost(&mut self, id: TaskId, error: Error, effects: &mut Vec<Effect>) {
        let call = self.calls.get_mut(&id).expect("it was sent");
        let budget = self.actors[&call.actor].retries.min(call.spec.options.max_retries);
        let allowed = budget.allows(call.spent) || crate::planted!(CallRepeated);
        if allowed && !call.cancelled {
            call.spent += 1;
            return self.wait_again(id, effects);
        }
        let actor = call.actor;
        let error = if call.cancelled { cancelled(&call.spec) } else { error };
        self.end_call(id, Err(error.ran(Ran::Maybe)), effects);
        self.send_calls(actor, effects);
    }

    /// Settles all calls to a host whose session is over and whose link is closed. They may have
    /// run, except those that were never sent.
    pub(super) fn host_closed(
        &mut self,
        host: Session,
        unsent: &[AttemptId],
        effects: &mut Vec<Effect>,
    ) {
        self.hosts.remove(&host);
        let given_up = self.abandoned.iter().filter(|(_, at)| **at == host);
        let mut given_up: Vec<AttemptId> = given_up.map(|(call, _)| *call).collect();
        given_up.sort_unstable();
        for call in given_up {
            self.abandoned.remove(&call);
            effects.push(Effect::ToController(FromClient::Accept { call }));
        }
        let sent = self.calls.iter().filter(
            |(_, call)| matches!(call.state, CallState::Sent { host: sent, .. } if sent == host),
        );
        let mut sent: Vec<(ActorId, u64, TaskId)> =
            sent.map(|(id, call)| (call.actor, call.order, *id)).collect();
        sent.sort_unstable();
        // All of the calls stay unsettled until the last is handled, so that none overtakes
        // another.
        for (_, _, id) in &sent {
            self.stall(*id);
        }
        for (_, _, id) in sent {
            let Some(call) = self.calls.get(&id) else { continue };
            if unsent.contains(&AttemptId { task: id, attempt: call.attempt }) {
                self.wait_again(id, effects);
            } else {
                // The answer may have been on its way. The controller holds what it names until
                // `Accept`.
                let call = AttemptId { task: id, attempt: call.attempt };
                effects.push(Effect::ToController(FromClient::Accept { call }));
                let error = Error::unavailable(Ran::Maybe, format!("worker {} is gone", host.id));
                self.call_lost(id, error, effects);
            }
        }
    }

    pub(super) fn cancel_call(&mut self, id: TaskId, mode: CancelMode, effects: &mut Vec<Effect>) {
        let call = self.calls.get_mut(&id).expect("it has not ended");
        call.cancelled = true;
        match call.state {
            CallState::Waiting => {
                let error = cancelled(&call.spec).ran(call.may_have_run());
                let actor = call.actor;
                self.end_call(id, Err(error), effects);
                self.send_calls(actor, effects); // Later calls may have waited for its values.
            }
            CallState::Sent { host, .. } => {
                let address = self.hosts[&host].clone();
                let message = ToHost::CancelCall { call: id, mode };
                effects.push(Effect::ToHost { host, address, message });
            }
            CallState::Relayed => {
                effects.push(Effect::ToController(FromClient::Cancel { task: id, mode }))
            }
        }
    }

    pub(super) fn call_is_late(&mut self, now: Time, id: TaskId, effects: &mut Vec<Effect>) {
        let Some(call) = self.calls.get(&id) else { return };
        if call.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        let ran = call.may_have_run();
        let actor = call.actor;
        let error = Error::timeout(format!(
            "call {id} ({}) did not end by its deadline",
            call.spec.target.name()
        ));
        if let CallState::Sent { host, .. } = call.state
            && call.ending.is_none()
        {
            self.abandoned.insert(AttemptId { task: id, attempt: call.attempt }, host);
        }
        if self.calls[&id].state != CallState::Waiting {
            self.cancel_call(id, CancelMode::Graceful, effects);
        }
        if self.calls[&id].state == CallState::Relayed {
            self.late.insert(id, actor);
            self.actors.get_mut(&actor).expect("a call's actor is known").relayed += 1;
            self.begin_use(Referent::Actor(actor));
        }
        self.tasks.remove(&id);
        self.end_call(id, Err(error.ran(ran)), effects);
        self.send_calls(actor, effects);
    }

    /// Notes that the controller has reported the end of a call that was given up. It does not run
    /// any more.
    pub(super) fn late_call_ended(&mut self, actor: ActorId, effects: &mut Vec<Effect>) {
        self.actors.get_mut(&actor).expect("its actor is in use").relayed -= 1;
        self.send_calls(actor, effects);
        self.end_use(Referent::Actor(actor), effects);
    }

    /// Ends a call that went through the controller. Waiting calls may be sent directly now.
    pub(super) fn relayed_call_ended(
        &mut self,
        id: TaskId,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        let actor = self.calls[&id].actor;
        for thing in outcome.iter().flatten().flat_map(Value::referents_to_hold) {
            self.hold(thing, effects);
        }
        self.end_call(id, outcome, effects);
        self.send_calls(actor, effects);
    }

    /// Ends a call. Every call ends here, and ends once.
    pub(super) fn end_call(&mut self, id: TaskId, outcome: Outcome, effects: &mut Vec<Effect>) {
        self.drop_ending(id, effects);
        self.leave_state(id);
        let call = self.calls.remove(&id).expect("a call ends once");
        if call.state == CallState::Relayed {
            // The controller has created objects of the results. No reference names them, since the
            // user has the values.
            call.spec.results().for_each(|object| self.release(Referent::Object(object), effects));
        }
        if let Some(deadline) = call.deadline {
            self.timers.remove(&(deadline, Timer::Call(id)));
        }
        let view = self.actors.get_mut(&call.actor).expect("a call's actor is known");
        view.order.remove(&call.order);
        self.streams.remove(&id);
        // If an earlier attempt was lost, the call may have run, whatever happened to this attempt.
        let outcome =
            outcome.map_err(|error| if call.spent > 0 { error.ran(Ran::Maybe) } else { error });
        effects.push(Effect::Ended { task: id, outcome });
        for thing in call.spec.referents_to_hold().chain([Referent::Actor(call.actor)]) {
            self.end_use(thing, effects);
        }
    }
}

fn cancelled(spec: &TaskSpec) -> Error {
    Error::cancelled(format!("call {} ({}) was cancelled", spec.id, spec.target.name()))
}
