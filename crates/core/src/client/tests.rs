//! Stories of a client: the requests of its user, its events, and the effects that follow.

mod streams;

use super::*;
use crate::error::{Error, ErrorKind, Ran};
use crate::id::{Attempt, SessionEpoch, SessionId};
use crate::lease::LeaseTerms;
use crate::message::{
    ActorPlace, CancelMode, FoundActor, FromClient, FromHost, Instance, Refusal, ToClient, ToHost,
};
use crate::output::{Audience, OutputSource};
use crate::payload::{Outcome, Payload, Value};
use crate::spec::{ActorOptions, Budget, Target, TaskSpec};
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const SESSION: Session = session(1);
const HOST: Session = session(2);
const NEXT_HOST: Session = session(3);
const ACTOR: ActorId = ActorId::from_u128(7);

/// A client that joined at time 0 and found [`ACTOR`], the time, and the effects that no test has
/// taken yet.
struct Rig {
    client: Client,
    now: Time,
    effects: Vec<Effect>,
}

impl Rig {
    fn new() -> Rig {
        let (now, effects) = (Time::ZERO, Vec::new());
        let mut rig = Rig { client: Client::new(), now, effects };
        rig.happens(Event::Joined {
            session: SESSION,
            terms: LeaseTerms::default(),
            asked_at: now,
        });
        rig.wants(|client, effects| client.find_actor(1, "".into(), "it".into(), effects)).unwrap();
        let found = FoundActor { id: ACTOR, interface: Default::default() };
        rig.controller_says(ToClient::ActorFound { request: 1, actor: Ok(found) });
        rig.actor_is(ActorPlace::Nowhere);
        rig.take();
        rig
    }

    /// Delivers an event and checks the invariants.
    fn happens(&mut self, event: Event) {
        self.client.handle(self.now, event, &mut self.effects);
        self.client.check_invariants();
    }

    /// Makes a request of the user and checks the invariants.
    fn wants<R>(&mut self, wish: impl FnOnce(&mut Client, &mut Vec<Effect>) -> R) -> R {
        let answer = wish(&mut self.client, &mut self.effects);
        self.client.check_invariants();
        answer
    }

    fn controller_says(&mut self, message: ToClient) {
        self.happens(Event::ControllerMessageReceived { session: SESSION, message });
    }

    fn host_says(&mut self, message: FromHost) {
        self.happens(Event::HostMessageReceived { host: HOST, message });
    }

    fn actor_is(&mut self, place: ActorPlace) {
        self.controller_says(ToClient::ActorChanged { actor: ACTOR, place });
    }

    /// Reports a ready instance of [`ACTOR`] at `host`, with this `max_task_retries`.
    fn actor_is_ready(&mut self, epoch: u64, host: Session, retries: u32) {
        let max_task_retries = Budget::Times(retries);
        let options = Arc::new(ActorOptions { max_task_retries, ..ActorOptions::default() });
        let (epoch, address) = (ActorEpoch(epoch), Some("there".into()));
        self.actor_is(ActorPlace::Ready { epoch, host, address, options });
    }

    fn submit(&mut self, spec: TaskSpec) -> Result<(), Error> {
        self.wants(|client, effects| client.submit(Arc::new(spec), effects))
    }

    fn call(&mut self, number: u128) {
        self.call_by(number, None);
    }

    fn call_by(&mut self, number: u128, deadline: Option<Time>) {
        let spec = Arc::new(method(number));
        self.wants(|client, effects| client.call(spec, Some(Vec::new()), deadline, effects))
            .unwrap();
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.happens(Event::TimePassed);
    }

    /// Reports that the host's session is over. The calls in `unsent` were never sent.
    fn host_is_over(&mut self, unsent: Vec<AttemptId>) {
        self.controller_says(ToClient::SessionEnded { session: HOST });
        assert_eq!(self.take(), [Effect::CloseHost { host: HOST }]);
        self.happens(Event::HostClosed { host: HOST, unsent });
    }

    /// Takes the effects since the last call.
    fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Returns the error of the one task or call that failed since the last call. There must be no
    /// other effects.
    fn fails(&mut self, number: u128) -> Error {
        let effects = self.take();
        let [Effect::Ended { task, outcome: Err(error) }] = &effects[..] else {
            panic!("one failure, not {effects:?}")
        };
        assert_eq!(*task, task_id(number));
        error.clone()
    }
}

const fn session(number: u128) -> Session {
    Session { id: SessionId::from_u128(number), epoch: SessionEpoch(1) }
}

fn task_id(number: u128) -> TaskId {
    TaskId::from_u128(number)
}

fn task(number: u128) -> TaskSpec {
    TaskSpec {
        id: task_id(number),
        target: Target::Function("add".into()),
        args: Payload::default(),
        needs: Vec::new(),
        referents: Vec::new(),
        returns: 1,
        stream_window: None,
        options: Arc::default(),
    }
}

fn method(number: u128) -> TaskSpec {
    TaskSpec { target: Target::Method { actor: ACTOR, method: "get".into() }, ..task(number) }
}

fn tried(number: u128, attempt: u64) -> AttemptId {
    AttemptId { task: task_id(number), attempt: Attempt(attempt) }
}

fn done() -> Outcome {
    let value: Value = Payload::raw("done").into();
    Ok(vec![value])
}

fn crashed() -> Error {
    Error::unavailable(Ran::Maybe, "its executor died: killed by signal 9")
}

fn call_ended(number: u128, attempt: u64) -> FromHost {
    FromHost::CallEnded { attempt: tried(number, attempt), outcome: done(), items: 0 }
}

fn call_refused(number: u128, attempt: u64) -> FromHost {
    FromHost::CallRefused { attempt: tried(number, attempt), reason: Refusal::NotHere }
}

fn call_lost(number: u128, attempt: u64) -> FromHost {
    FromHost::CallLost { attempt: tried(number, attempt), error: crashed() }
}

// Expected effects.

fn tell(message: FromClient) -> Effect {
    Effect::ToController(message)
}

fn watch(host: Session) -> Effect {
    tell(FromClient::Watch { session: host })
}

/// A call is sent to the instance of this epoch, with this number among the calls to it.
fn sends(call: u128, attempt: u64, host: Session, epoch: u64, number: u64) -> Effect {
    let (spec, attempt, epoch) = (Arc::new(method(call)), Attempt(attempt), ActorEpoch(epoch));
    let message = ToHost::Call { spec, attempt, epoch, number, values: Vec::new(), took: 0 };
    Effect::ToHost { host, address: "there".into(), message }
}

fn ended(number: u128) -> Effect {
    Effect::Ended { task: task_id(number), outcome: done() }
}

// Tasks.

#[test]
fn a_task_submitted_without_credit_fails_with_exhausted() {
    let mut rig = Rig::new();
    let submit = |rig: &mut Rig, number| {
        rig.wants(|client, effects| client.submit(Arc::new(task(number)), effects))
    };
    let error = submit(&mut rig, 1).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Exhausted, false));
    assert!(error.message().contains("max_pending_tasks"), "{error}");

    rig.controller_says(ToClient::Credit { tasks: 1, bytes: 100 });
    submit(&mut rig, 1).unwrap();
    let sent = tell(FromClient::Submit(Arc::new(task(1))));
    assert_eq!(rig.take(), [Effect::CreditGranted, sent]);
    assert_eq!(submit(&mut rig, 2).unwrap_err().kind(), ErrorKind::Exhausted);
    let outcome = done();
    rig.controller_says(ToClient::TaskEnded { task: task_id(1), outcome: outcome.clone() });
    rig.controller_says(ToClient::TaskEnded { task: task_id(1), outcome });
    assert_eq!(rig.take(), [ended(1)], "a task ends once");
}

#[test]
fn a_second_submission_of_a_live_task_or_call_fails_with_already_exists() {
    let mut rig = Rig::new();
    rig.controller_says(ToClient::Credit { tasks: 2, bytes: 100 });
    rig.submit(task(1)).unwrap();
    rig.call(2);
    rig.take();
    for number in [1, 2] {
        let submitted = rig.submit(task(number)).unwrap_err();
        let again = Arc::new(method(number));
        let called =
            rig.wants(|client, effects| client.call(again, Some(Vec::new()), None, effects));
        for error in [submitted, called.unwrap_err()] {
            assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::AlreadyExists, false));
        }
        assert_eq!(rig.take(), []);
    }

    // The earlier ones go on, and the rejected ones used up neither credit nor handles.
    rig.actor_is_ready(1, HOST, 0);
    assert_eq!(rig.take(), [watch(HOST), sends(2, 1, HOST, 1, 0)]);
    rig.host_says(call_ended(2, 1));
    rig.controller_says(ToClient::TaskEnded { task: task_id(1), outcome: done() });
    assert_eq!(rig.take(), [ended(2), ended(1)]);
    for thing in [Referent::Object(ObjectId::of(task_id(1), 0)), Referent::Actor(ACTOR)] {
        rig.wants(|client, effects| client.release(thing, effects));
        assert_eq!(rig.take(), [tell(FromClient::Release { thing })]);
    }
    rig.submit(task(3)).unwrap();
}

// Calls.

#[test]
fn calls_wait_for_the_actor_and_are_numbered_per_instance() {
    let mut rig = Rig::new();
    rig.call(12);
    rig.call(11);
    assert_eq!(rig.take(), []);
    rig.actor_is_ready(1, HOST, 0);
    let first = sends(12, 1, HOST, 1, 0);
    assert_eq!(rig.take(), [watch(HOST), first, sends(11, 1, HOST, 1, 1)]);
    rig.host_says(call_ended(12, 1));
    rig.host_says(call_ended(11, 1));
    assert_eq!(rig.take(), [ended(12), ended(11)]);

    rig.actor_is_ready(2, HOST, 0);
    rig.call(13);
    assert_eq!(rig.take(), [sends(13, 1, HOST, 2, 0)]);
}

#[test]
fn a_call_waits_for_its_values_and_later_calls_wait_behind_it() {
    let mut rig = Rig::new();
    rig.actor_is_ready(1, HOST, 0);
    rig.take();
    let later = |rig: &mut Rig, number| {
        let spec = Arc::new(method(number));
        rig.wants(|client, effects| client.call(spec, None, None, effects)).unwrap();
    };
    let supply = |rig: &mut Rig, number, values| {
        rig.wants(|client, effects| client.supply(task_id(number), values, effects));
    };
    later(&mut rig, 1);
    rig.call(2);
    later(&mut rig, 3);
    rig.call(4);
    assert_eq!(rig.take(), []);
    supply(&mut rig, 1, Ok(Vec::new()));
    assert_eq!(rig.take(), [watch(HOST), sends(1, 1, HOST, 1, 0), sends(2, 1, HOST, 1, 1)]);
    supply(&mut rig, 3, Err(Error::cancelled("it was")));
    let effects = rig.take();
    let [Effect::Ended { task, outcome: Err(error) }, last] = &effects[..] else {
        panic!("the failed call ends, and the last is sent: {effects:?}")
    };
    assert_eq!((*task, error.may_have_run()), (task_id(3), false));
    assert_eq!(*last, sends(4, 1, HOST, 1, 2));
    supply(&mut rig, 3, Ok(Vec::new()));
    assert_eq!(rig.take(), [], "the call has ended");

    later(&mut rig, 5);
    rig.call(6);
    rig.wants(|client, effects| client.cancel(task_id(5), CancelMode::Graceful, effects));
    assert_eq!(rig.take().last(), Some(&sends(6, 1, HOST, 1, 3)));
}

#[test]
fn a_refused_call_goes_to_the_next_instance_even_without_retries() {
    let mut rig = Rig::new();
    rig.actor_is_ready(1, HOST, 0);
    rig.call(1);
    rig.take();
    rig.host_says(call_refused(1, 1));
    assert_eq!(rig.take(), [], "the instance that refused gets no more");
    rig.actor_is_ready(2, NEXT_HOST, 0);
    assert_eq!(rig.take(), [watch(NEXT_HOST), sends(1, 2, NEXT_HOST, 2, 0)]);
}

#[test]
fn a_lost_call_is_sent_again_only_while_it_has_retries() {
    let mut rig = Rig::new();
    rig.actor_is_ready(1, HOST, 0);
    rig.call(1);
    rig.take();
    rig.host_says(call_lost(1, 1));
    assert_eq!(rig.fails(1), crashed());

    rig.actor_is_ready(2, HOST, 1);
    rig.call(2);
    assert_eq!(rig.take(), [sends(2, 1, HOST, 2, 0)]);
    rig.host_says(call_lost(2, 1));
    assert_eq!(rig.take(), []);
    rig.actor_is_ready(3, HOST, 1);
    assert_eq!(rig.take(), [sends(2, 2, HOST, 3, 0)]);
    rig.host_says(call_lost(2, 2));
    assert!(rig.fails(2).may_have_run(), "its one retry is spent");
}

#[test]
fn no_call_overtakes_an_earlier_one_across_a_restart() {
    let mut rig = Rig::new();
    rig.actor_is_ready(1, HOST, 1);
    rig.call(1);
    rig.call(2);
    rig.take();
    // There is a new instance already, but the calls to the first are unsettled.
    rig.actor_is_ready(2, NEXT_HOST, 1);
    rig.call(3);
    assert_eq!(rig.take(), []);
    rig.host_says(call_lost(1, 1));
    assert_eq!(rig.take(), []);
    rig.host_says(call_refused(2, 1));
    let again = [(1, 2, 0), (2, 2, 1), (3, 1, 2)]
        .map(|(call, attempt, number)| sends(call, attempt, NEXT_HOST, 2, number));
    assert_eq!(rig.take(), [vec![watch(NEXT_HOST)], again.into()].concat());

    rig.host_says(call_ended(1, 1)); // A late answer to an earlier attempt.
    assert_eq!(rig.take(), []);
}

#[test]
fn when_a_host_ends_its_sent_calls_fail_and_its_unsent_calls_wait() {
    let mut rig = Rig::new();
    rig.actor_is_ready(1, HOST, 0);
    rig.call(1);
    rig.call(2);
    rig.take();
    rig.host_is_over(vec![tried(2, 1)]);
    let mut effects = rig.take();
    assert_eq!(effects.remove(0), tell(FromClient::Accept { call: tried(1, 1) }));
    let [Effect::Ended { task, outcome: Err(error) }] = &effects[..] else {
        panic!("one call ends, not {effects:?}")
    };
    assert_eq!((*task, error.kind()), (task_id(1), ErrorKind::Unavailable));
    assert!(error.may_have_run());

    rig.actor_is_ready(2, NEXT_HOST, 0);
    assert_eq!(rig.take(), [watch(NEXT_HOST), sends(2, 2, NEXT_HOST, 2, 0)]);
}

#[test]
fn a_dead_actor_fails_its_waiting_calls_as_not_run() {
    let mut rig = Rig::new();
    rig.call(1);
    rig.actor_is(ActorPlace::Dead(
        Error::gone(Referent::Actor(ACTOR), "it was deleted").ran(Ran::Maybe),
    ));
    let error = rig.fails(1);
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Gone, false));
    rig.call(2);
    assert!(!rig.fails(2).may_have_run());
}

#[test]
fn a_call_that_was_sent_is_settled_by_its_host_even_if_its_actor_is_dead() {
    let mut rig = Rig::new();
    rig.actor_is_ready(1, HOST, 0);
    rig.call(1);
    rig.take();
    rig.actor_is(ActorPlace::Dead(Error::gone(Referent::Actor(ACTOR), "it was deleted")));
    assert_eq!(rig.take(), []);
    rig.host_says(call_ended(1, 1));
    assert_eq!(rig.take(), [ended(1)]);
}

#[test]
fn a_deadline_ends_a_call_and_says_whether_it_may_have_run() {
    let mut rig = Rig::new();
    let deadline = Some(rig.now + SECOND);
    rig.call_by(1, deadline);
    rig.pass(SECOND);
    let error = rig.fails(1);
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Timeout, false));

    rig.actor_is_ready(1, HOST, 0);
    let deadline = Some(rig.now + SECOND);
    rig.call_by(2, deadline);
    assert_eq!(rig.take(), [watch(HOST), sends(2, 1, HOST, 1, 0)], "the first was never numbered");
    rig.pass(SECOND);
    let cancel = ToHost::CancelCall { call: task_id(2), mode: CancelMode::Graceful };
    let cancel = Effect::ToHost { host: HOST, address: "there".into(), message: cancel };
    assert_eq!(rig.effects.remove(0), cancel);
    let error = rig.fails(2);
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Timeout, true));
    rig.host_says(call_ended(2, 1));
    assert_eq!(rig.take(), [], "a call ends once");
}

#[test]
fn a_cancelled_call_that_waits_ends_at_once() {
    let mut rig = Rig::new();
    rig.call(1);
    rig.wants(|client, effects| client.cancel(task_id(1), CancelMode::Graceful, effects));
    let error = rig.fails(1);
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Cancelled, false));
    rig.actor_is_ready(1, HOST, 0);
    assert_eq!(rig.take(), []);
}

#[test]
fn the_cancel_of_a_sent_call_goes_to_its_host_even_if_the_actor_moved() {
    let mut rig = Rig::new();
    rig.actor_is_ready(1, HOST, 0);
    rig.call(1);
    rig.take();
    let (epoch, host, address) = (ActorEpoch(2), NEXT_HOST, Some("elsewhere".into()));
    let moved = ActorPlace::Ready { epoch, host, address, options: Arc::default() };
    let dead = ActorPlace::Dead(Error::gone(Referent::Actor(ACTOR), "it was deleted"));
    for place in [ActorPlace::Nowhere, moved, dead] {
        rig.actor_is(place);
        let mode = CancelMode::GracefulAlone;
        rig.wants(|client, effects| client.cancel(task_id(1), mode, effects));
        let message = ToHost::CancelCall { call: task_id(1), mode };
        let cancel = Effect::ToHost { host: HOST, address: "there".into(), message };
        assert_eq!(rig.take(), [cancel]);
    }
    rig.host_says(call_ended(1, 1));
    assert_eq!(rig.take(), [ended(1)], "the call ended before it heard of the cancel");
}

#[test]
fn a_cancelled_call_ends_when_its_host_refuses_it_and_other_calls_go_on() {
    let mut rig = Rig::new();
    rig.actor_is_ready(1, HOST, 0);
    rig.call(1);
    rig.call(2);
    rig.wants(|client, effects| client.cancel(task_id(2), CancelMode::Graceful, effects));
    rig.host_says(call_refused(1, 1));
    rig.actor_is_ready(2, NEXT_HOST, 0);
    rig.take(); // The first waits until the second is settled.
    rig.host_says(call_refused(2, 1));
    let effects = rig.take();
    assert!(matches!(effects[0], Effect::Ended { .. }), "{effects:?}");
    assert_eq!(effects[1..], [watch(NEXT_HOST), sends(1, 2, NEXT_HOST, 2, 0)]);
}

#[test]
fn calls_to_a_host_without_an_address_go_through_the_controller() {
    let mut rig = Rig::new();
    rig.call(1);
    let (epoch, options) = (ActorEpoch(1), Arc::default());
    rig.actor_is(ActorPlace::Ready { epoch, host: HOST, address: None, options });
    assert_eq!(rig.take(), [tell(FromClient::Submit(Arc::new(method(1))))]);
    rig.controller_says(ToClient::TaskEnded { task: task_id(1), outcome: done() });
    let result = Referent::Object(ObjectId::of(task_id(1), 0));
    let let_go = tell(FromClient::Release { thing: result });
    assert_eq!(rig.take(), [let_go, ended(1)], "its user has the value");
    // If the data is in an object store, the user holds the result.
    rig.call(2);
    rig.take();
    let result = ObjectId::of(task_id(2), 0);
    let outcome = Ok(vec![Payload::raw("large").stored_as(result).into()]);
    rig.controller_says(ToClient::TaskEnded { task: task_id(2), outcome: outcome.clone() });
    assert_eq!(rig.take(), [Effect::Ended { task: task_id(2), outcome }]);
    rig.wants(|client, effects| client.release(Referent::Object(result), effects));
    assert_eq!(rig.take(), [tell(FromClient::Release { thing: Referent::Object(result) })]);
}

#[test]
fn a_direct_call_does_not_overtake_a_timed_out_call_at_the_controller() {
    let mut rig = Rig::new();
    let (epoch, options) = (ActorEpoch(1), Arc::default());
    rig.actor_is(ActorPlace::Ready { epoch, host: HOST, address: None, options });
    let deadline = rig.now + Duration::from_secs(1);
    rig.wants(|client, effects| {
        client.call(Arc::new(method(1)), Some(Vec::new()), Some(deadline), effects).unwrap();
    });
    rig.take();
    rig.pass(Duration::from_secs(1));
    let effects = rig.take();
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Ended { .. })), "{effects:?}");
    // The late call may still run, also in the next instance, which is called directly.
    rig.actor_is_ready(2, NEXT_HOST, 0);
    rig.call(2);
    assert_eq!(rig.take(), []);
    rig.controller_says(ToClient::TaskEnded { task: task_id(1), outcome: done() });
    assert_eq!(rig.take(), [watch(NEXT_HOST), sends(2, 1, NEXT_HOST, 2, 0)]);
}

// Handles and the session.

#[test]
fn a_handle_is_released_only_after_its_calls_ended() {
    let mut rig = Rig::new();
    rig.actor_is_ready(1, HOST, 0);
    rig.call(1);
    rig.take();
    rig.wants(|client, effects| client.release(Referent::Actor(ACTOR), effects));
    assert_eq!(rig.take(), []);
    rig.host_says(call_ended(1, 1));
    let release = tell(FromClient::Release { thing: Referent::Actor(ACTOR) });
    assert_eq!(rig.take(), [ended(1), release]);
}

#[test]
fn a_stored_result_of_a_direct_call_is_held_until_the_user_releases_it() {
    let mut rig = Rig::new();
    rig.actor_is_ready(1, HOST, 0);
    rig.call(1);
    rig.take();
    let object = ObjectId::of(task_id(1), 0);
    let thing = Referent::Object(object);
    // The user may drop the result before the answer arrives: there is no handle to release yet.
    rig.wants(|client, effects| client.release(thing, effects));
    let outcome = Ok(vec![Payload::raw("large").stored_as(object).into()]);
    let attempt = tried(1, 1);
    let message = FromHost::CallEnded { attempt, outcome: outcome.clone(), items: 0 };
    rig.host_says(message);
    let ended = Effect::Ended { task: task_id(1), outcome };
    let accept = tell(FromClient::Accept { call: attempt });
    assert_eq!(rig.take(), [tell(FromClient::Hold { thing }), accept, ended]);
    rig.wants(|client, effects| client.release(thing, effects));
    assert_eq!(rig.take(), [tell(FromClient::Release { thing })]);
}

#[test]
fn the_end_of_the_session_fails_all_tasks_calls_and_fetches() {
    let mut rig = Rig::new();
    rig.controller_says(ToClient::Credit { tasks: 9, bytes: 1000 });
    rig.wants(|client, effects| client.submit(Arc::new(task(1)), effects)).unwrap();
    rig.actor_is_ready(1, HOST, 0);
    rig.call(2);
    rig.actor_is(ActorPlace::Nowhere);
    rig.call(3);
    rig.wants(|client, effects| client.fetch(ObjectId::of(task_id(1), 0), effects)).unwrap();
    rig.take();

    rig.pass(27 * SECOND); // The lease of thirty seconds, less a tenth.
    let effects = rig.take();
    for (effect, (number, ran)) in effects.iter().zip([(1, true), (2, true), (3, false)]) {
        let Effect::Ended { task, outcome: Err(error) } = effect else { panic!("all fail") };
        assert_eq!((*task, error.may_have_run()), (task_id(number), ran));
    }
    let [Effect::ObjectReady { value: Err(_), .. }, rest @ ..] = &effects[3..] else {
        panic!("the fetch ends")
    };
    assert_eq!(rest, [Effect::CloseHost { host: HOST }, Effect::Stopped(SESSION)]);
    assert_eq!((rig.client.session(), rig.client.outstanding()), (None, 0));

    rig.controller_says(ToClient::TaskEnded { task: task_id(1), outcome: done() });
    rig.host_says(call_ended(2, 1));
    assert_eq!(rig.take(), [], "late messages are ignored");
    let submit = rig.wants(|client, effects| client.submit(Arc::new(task(4)), effects));
    assert_eq!(submit.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn errors_after_the_end_of_a_session_name_the_cluster_and_the_cause() {
    let fenced = Event::Fenced { session: SESSION };
    for (event, later, expected) in [
        (
            fenced,
            Duration::ZERO,
            "the cluster at 127.0.0.1:7420 has ended, or has ended the session",
        ),
        (
            Event::TimePassed,
            60 * SECOND,
            "the cluster at 127.0.0.1:7420 cannot be reached any more",
        ),
    ] {
        let mut client = Client::of("127.0.0.1:7420".into());
        let (terms, asked_at, mut effects) = (LeaseTerms::default(), Time::ZERO, Vec::new());
        client.handle(
            Time::ZERO,
            Event::Joined { session: SESSION, terms, asked_at },
            &mut effects,
        );
        client.find_actor(1, "default".into(), "clerk".into(), &mut effects).unwrap();
        effects.clear();
        client.handle(Time::ZERO + later, event, &mut effects);
        let Effect::ActorFound { actor: Err(error), .. } = &effects[0] else {
            panic!("{effects:?}")
        };
        assert!(error.message().starts_with(expected), "{error}");
        let error = client.find_actor(2, "".into(), "clerk".into(), &mut effects).unwrap_err();
        assert!(error.message().contains("127.0.0.1:7420"), "it is still known: {error}");
    }
}

#[test]
fn a_client_requests_its_output_again_in_the_next_session() {
    let asks = Effect::ToController(FromClient::ShowOutput { to: Audience::Me });
    let part =
        Audience::OfSource(OutputSource::Actor(Instance { actor: ACTOR, epoch: ActorEpoch(1) }));
    for (to, expected) in [(Audience::Me, vec![asks]), (Audience::Nobody, vec![]), (part, vec![])] {
        let mut rig = Rig::new();
        rig.wants(|client, effects| client.show_output(to, effects)).unwrap();
        rig.happens(Event::Fenced { session: SESSION });
        rig.take();
        let (terms, asked_at) = (LeaseTerms::default(), rig.now);
        rig.happens(Event::Joined { session: session(9), terms, asked_at });
        assert_eq!(rig.take(), expected, "{to:?}");
    }
}

#[test]
fn the_first_instance_is_reported_once_even_if_the_handle_is_released() {
    let failed = Error::failed("no licence", Default::default());
    for gone in [false, true] {
        let mut rig = Rig::new();
        rig.wants(|client, effects| client.await_actor_ready(ACTOR, effects)).unwrap();
        assert_eq!(rig.take(), [], "the actor is watched already, and not ready");
        if gone {
            rig.wants(|client, effects| client.release(Referent::Actor(ACTOR), effects));
            rig.take();
        }
        rig.actor_is(ActorPlace::Nowhere);
        assert_eq!(rig.take(), []);
        rig.actor_is(ActorPlace::Dead(failed.clone()));
        let born = Effect::FirstInstanceReady { actor: ACTOR, outcome: Err(failed.clone()) };
        assert_eq!(rig.take(), [born]);
        rig.actor_is(ActorPlace::Dead(failed.clone()));
        assert_eq!(rig.take(), [], "once");
    }
    let mut rig = Rig::new();
    rig.actor_is_ready(1, HOST, 0);
    rig.wants(|client, effects| client.await_actor_ready(ACTOR, effects)).unwrap();
    assert_eq!(
        rig.take(),
        [Effect::FirstInstanceReady { actor: ACTOR, outcome: Ok(()) }],
        "at once"
    );
}

/// Returns the error of a call whose actor the controller of `session` does not know.
fn fails_where_it_is_unknown(rig: &mut Rig, session: Session) -> Error {
    rig.call(1);
    rig.take();
    let error = Error::not_found("no such actor is here").with_gone(Referent::Actor(ACTOR));
    let place = ActorPlace::Dead(error);
    let message = ToClient::ActorChanged { actor: ACTOR, place };
    rig.happens(Event::ControllerMessageReceived { session, message });
    let effects = rig.take();
    let Some(Effect::Ended { outcome: Err(error), .. }) = effects.first() else {
        panic!("it fails: {effects:?}")
    };
    assert_eq!(error.what_is_gone(), Some(Referent::Actor(ACTOR)), "{error:?}");
    assert!(!error.may_have_run());
    error.clone()
}

#[test]
fn an_actor_that_the_controller_does_not_know_is_gone() {
    let mut rig = Rig::new();
    let error = fails_where_it_is_unknown(&mut rig, SESSION);
    assert!(error.message().contains("ended too long ago"), "{error:?}");
}

#[test]
fn an_actor_is_gone_after_its_controller_was_started_again() {
    let mut rig = Rig::new();
    rig.happens(Event::Fenced { session: SESSION });
    let epoch = SessionEpoch::first_of(crate::id::ControllerEpoch(2)).next();
    let session = Session { epoch, ..SESSION };
    rig.happens(Event::Joined { session, terms: LeaseTerms::default(), asked_at: rig.now });
    let error = fails_where_it_is_unknown(&mut rig, session);
    assert!(error.message().contains("the controller was started again"), "{error:?}");
}
