//! Conversion of requests to types of `marline-core`, and of statuses to answers.

use super::super::sample;
use super::*;
use crate::wall_clock::WallClock;
use marline_core::ErrorKind;
use marline_core::controller::{
    ActorState, ActorStatus, DeathCause, TaskState, TaskStatus, WorkerState, WorkerStatus,
};
use marline_core::id::{ActorEpoch, ActorId, Attempt, SessionId, TaskId};
use marline_core::resources::Resources;
use marline_core::spec::{Target, TaskOptions};
use marline_core::time::Time;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

const TASK: &str = "00000000-0000-0000-0000-000000000007";
const ACTOR: &str = "00000000-0000-0000-0000-000000000008";

/// Returns the ids 1, 2, 3, … in the tests of one thread.
fn new_id() -> u128 {
    thread_local!(static LAST: Cell<u128> = const { Cell::new(0) });
    LAST.set(LAST.get() + 1);
    LAST.get()
}

fn new_task_id() -> TaskId {
    TaskId::from_u128(new_id())
}

fn new_actor_id() -> ActorId {
    ActorId::from_u128(new_id())
}

#[track_caller]
fn refused<T: std::fmt::Debug>(decoded: Result<T, Error>, kind: ErrorKind, words: &str) {
    let error = decoded.expect_err(words);
    assert_eq!(error.kind(), kind);
    assert!(error.message().contains(words), "{words:?} expected in {:?}", error.message());
}

fn submit() -> v1::SubmitTaskRequest {
    v1::SubmitTaskRequest { function: "add".into(), ..Default::default() }
}

#[test]
fn a_minimal_task_has_defaults_and_an_id_of_its_own() {
    let [first, second] = [submit(), submit()].map(|wire| decode_task(wire, new_task_id).unwrap());
    assert_ne!(first.spec.id, second.spec.id);
    assert_eq!(first.session, None);
    let spec = &first.spec;
    assert_eq!((&spec.target, spec.returns), (&Target::Function("add".into()), 1));
    assert_eq!(spec.args, Payload::message_pack(&[0x90][..]), "an empty list");
    assert_eq!(*spec.options, TaskOptions::default());
}

#[test]
fn every_field_of_a_submitted_task_is_read() {
    let session = sample::session();
    let wire = v1::SubmitTaskRequest {
        task_id: TASK.into(),
        args: Some(sample::task_spec().args.into()),
        needs: vec![format!("{TASK}#3"), ACTOR.into()],
        returns: Some(0),
        options: Some((*sample::task_spec().options).clone().into()),
        session: Some(session_name(session)),
        protocol: "1".into(),
        ..submit()
    };
    let asked = decode_task(wire, new_task_id).unwrap();
    assert_eq!(asked.session, Some(session));
    assert_eq!((asked.spec.id, asked.spec.returns), (TaskId::from_u128(7), 0));
    assert_eq!(asked.spec.args, sample::task_spec().args);
    assert_eq!(asked.spec.options, sample::task_spec().options);
    let needs = [ObjectId::of(TaskId::from_u128(7), 3), ObjectId::of(TaskId::from_u128(8), 0)];
    assert_eq!(asked.spec.needs, needs);
}

#[test]
fn a_call_is_decoded_with_its_actor_and_an_actor_with_its_name() {
    let wire = v1::CallActorRequest {
        actor_id: ACTOR.into(),
        method: "count".into(),
        ..Default::default()
    };
    let asked = decode_call(wire, new_task_id).unwrap();
    let target = Target::Method { actor: ActorId::from_u128(8), method: "count".into() };
    assert_eq!(asked.spec.target, target);

    let wire = v1::CreateActorRequest { class: "Counter".into(), ..Default::default() };
    let nameless = decode_actor(wire.clone(), new_actor_id).unwrap().spec;
    assert_eq!((nameless.name.clone(), &*nameless.namespace), (None, "default"));
    let named = v1::CreateActorRequest { name: "one".into(), namespace: "mine".into(), ..wire };
    let named = decode_actor(named, new_actor_id).unwrap().spec;
    assert_eq!((named.name.as_deref(), &*named.namespace), (Some("one"), "mine"));
}

#[test]
fn malformed_control_requests_are_rejected_by_name() {
    let invalid = ErrorKind::Invalid;
    let wire = v1::SubmitTaskRequest { task_id: "seven".into(), ..submit() };
    refused(
        decode_task(wire, new_task_id),
        invalid,
        "SubmitTaskRequest.task_id: \"seven\" is not an id",
    );
    let wire = v1::SubmitTaskRequest { needs: vec![format!("{TASK}#x")], ..submit() };
    refused(decode_task(wire, new_task_id), invalid, "SubmitTaskRequest.needs: ");
    let wire = v1::SubmitTaskRequest { args: Some(v1::Payload::default()), ..submit() };
    refused(
        decode_task(wire, new_task_id),
        invalid,
        "SubmitTaskRequest.args: Payload.encoding is missing",
    );
    let nobody = Some(v1::SessionName::default());
    let wire = v1::SubmitTaskRequest { session: nobody.clone(), ..submit() };
    refused(
        decode_task(wire, new_task_id),
        invalid,
        "SubmitTaskRequest.session: SessionName.id is missing",
    );
    refused(session(None, "KeepAliveRequest.session"), invalid, "session is missing");
    refused(session(nobody, "KeepAliveRequest.session"), invalid, "SessionName.id is missing");
    let wire = v1::CallActorRequest::default();
    refused(decode_call(wire, new_task_id), invalid, "CallActorRequest.actor_id is missing");
    refused(
        decode_filter(&of_state(99)),
        invalid,
        "ListTasksRequest.states: TaskState has the unknown value 99",
    );
    refused(decode_filter(&of_state(0)), invalid, "TaskState is missing");
    let wire = v1::ListTasksRequest { actor_id: "x".into(), ..Default::default() };
    refused(decode_filter(&wire), invalid, "ListTasksRequest.actor_id: \"x\" is not an id");
    let wire = v1::ListTasksRequest { id_prefix: "x".into(), ..Default::default() };
    refused(decode_filter(&wire), invalid, "ListTasksRequest.id_prefix: no id begins with \"x\"");
}

fn of_state(state: i32) -> v1::ListTasksRequest {
    v1::ListTasksRequest { states: vec![state], ..Default::default() }
}

#[test]
fn a_request_may_omit_the_protocol_version_but_not_name_another() {
    assert_eq!(check_version(""), Ok(()));
    assert_eq!(check_version("1"), Ok(()));
    let incompatible = ErrorKind::Incompatible;
    let protocol = || "2".to_owned();
    let wire = v1::SubmitTaskRequest { protocol: protocol(), ..submit() };
    refused(decode_task(wire, new_task_id), incompatible, "speaks protocol 1, not \"2\"");
    let wire = v1::CallActorRequest { protocol: protocol(), ..Default::default() };
    refused(decode_call(wire, new_task_id), incompatible, "not \"2\"");
    let wire = v1::CreateActorRequest { protocol: protocol(), ..Default::default() };
    refused(decode_actor(wire, new_actor_id), incompatible, "not \"2\"");
}

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

#[test]
fn a_task_status_has_its_state_times_and_a_whole_or_bounded_error() {
    let wall = WallClock::new(Time::ZERO);
    let states = [
        TaskState::Pending,
        TaskState::Assigned,
        TaskState::Running,
        TaskState::Finished,
        TaskState::Failed,
        TaskState::Cancelled,
    ];
    for (number, state) in states.into_iter().enumerate() {
        let error = Error::failed("é".repeat(5_000), sample::failure());
        let status = TaskStatus {
            id: TaskId::from_u128(7),
            name: "add".into(),
            actor: Some(ActorId::from_u128(8)),
            state,
            worker: Some(SessionId::from_u128(9)),
            returns: 2,
            attempts: Attempt(3),
            created: at(1),
            started: Some(at(2)),
            finished: None,
            error: Some(error.clone()),
            waits_for: Some("a reason".into()),
        };
        let whole = encode_task(status.clone(), Detail::Whole, wall);
        assert_eq!(whole.state, number as i32 + 1);
        assert_eq!((&whole.task_id[..], &whole.actor_id[..]), (TASK, ACTOR));
        assert_eq!(whole.started_at.unwrap() - whole.created_at.unwrap(), 1_000);
        assert_eq!((whole.finished_at, &whole.waits_for[..]), (None, "a reason"));
        assert_eq!(Error::try_from(whole.error.unwrap()).unwrap(), error);
        let brief = encode_task(status, Detail::Brief, wall).error.unwrap();
        assert_eq!(brief.message, "é".repeat(MAX_LISTED_BYTES / 2));
        assert!(brief.failure.is_none() && brief.may_have_run);
        let actor_id = ACTOR.into();
        let wire = v1::ListTasksRequest { actor_id, ..of_state(number as i32 + 1) };
        let filter = decode_filter(&wire).unwrap();
        assert_eq!((filter.states, filter.actor), (vec![state], Some(ActorId::from_u128(8))));
    }
}

#[test]
fn an_actor_status_has_its_cause_of_death_and_a_worker_its_resources() {
    let wall = WallClock::new(Time::ZERO);
    let causes = [
        DeathCause::Deleted,
        DeathCause::ConstructorFailed,
        DeathCause::RestartsUsedUp,
        DeathCause::OwnerGone,
        DeathCause::Idle,
        DeathCause::Exited,
    ];
    let dead = causes.map(ActorState::Dead);
    let states = [ActorState::Creating, ActorState::Ready, ActorState::Restarting];
    let shown = states.into_iter().chain(dead).map(|state| {
        let status = ActorStatus {
            spec: Arc::new(sample::actor_spec()),
            state,
            error: None,
            worker: None,
            worker_address: Some("there:7".into()),
            epoch: ActorEpoch(2),
            restarts: 1,
            created: at(1),
            last_used: at(3),
            pending_calls: 4,
            waits_for: None,
        };
        let shown = encode_actor(status, Detail::Whole, wall);
        assert_eq!(shown.last_used_at.unwrap() - shown.created_at.unwrap(), 2_000);
        assert_eq!((shown.epoch, shown.restarts, shown.pending_calls), (2, 1, 4));
        assert_eq!(shown.worker_address, "there:7");
        (shown.state, shown.cause)
    });
    let expected = [(1, 0), (2, 0), (3, 0), (4, 1), (4, 2), (4, 3), (4, 4), (4, 5), (4, 6)];
    assert_eq!(shown.collect::<Vec<_>>(), expected);

    let marline_core::controller::Role::Worker(info) = sample::worker_role() else {
        panic!("the sample is a worker's role")
    };
    let states =
        [WorkerState::Joining, WorkerState::Healthy, WorkerState::Suspect, WorkerState::Draining];
    for (number, state) in states.into_iter().enumerate() {
        let status = WorkerStatus {
            session: sample::session(),
            info: info.clone(),
            state,
            joined: at(1),
            free: Resources::cpus(1),
            tasks: 5,
            actors: 6,
            unable: vec![("python".into(), sample::error())],
        };
        let shown = encode_worker(status, wall);
        assert_eq!(shown.unable[0].runtime, "python");
        assert_eq!(shown.unable[0].reason, sample::error().message());
        assert_eq!(shown.python_minor, info.provides.code_version);
        assert_eq!(shown.state, number as i32 + 1);
        assert_eq!((shown.tasks, shown.actors), (5, 6));
        assert_eq!(shown.worker_id, sample::session().id.to_string());
        assert_eq!(Resources::try_from(shown.total.unwrap()).unwrap(), info.resources);
    }
}

#[test]
fn a_workers_view_of_an_actor_counts_only_for_the_same_instance() {
    let view = |epoch, pending_calls, last_used_at| v1::ActorStatus {
        actor_id: "a".into(),
        epoch,
        pending_calls,
        last_used_at: Some(last_used_at),
        ..v1::ActorStatus::default()
    };
    let combined = |here: &v1::ActorStatus| {
        let mut status = view(2, 1, 50);
        add_worker_view(&mut status, here);
        (status.pending_calls, status.last_used_at)
    };
    assert_eq!(combined(&view(2, 3, 70)), (3, Some(70)));
    assert_eq!(combined(&view(2, 0, 40)), (1, Some(50)), "calls on their way count");
    assert_eq!(combined(&view(1, 3, 70)), (1, Some(50)), "another epoch");
    let other = v1::ActorStatus { actor_id: "b".into(), ..view(2, 3, 70) };
    assert_eq!(combined(&other), (1, Some(50)), "another actor");
}
