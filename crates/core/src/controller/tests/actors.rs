//! Actors: names, epochs, restarts, calls, checkpoints, and their ends.

use super::*;
use crate::message::FoundActor;
use crate::output::{Audience, OutputSource};
use crate::spec::CheckpointPolicy;
use bytes::Bytes;

#[test]
fn a_taken_name_fails_with_already_exists_unless_get_if_exists_is_set() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 4));
    let name = Some(Arc::from("the counter"));
    let first = rig.create(client, worker, ActorSpec { name: name.clone(), ..actor(7) });

    let other = rig.client(3);
    let second = ActorSpec { name: name.clone(), ..actor(8) };
    rig.client_says(other, FromClient::CreateActor(Arc::new(second)));
    let ToClient::ActorCreated { actor: Err(error), .. } = rig.next_to_client(other) else {
        panic!("the name is taken")
    };
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);

    let found = ActorOptions { get_if_exists: true, ..ActorOptions::default() };
    let third = ActorSpec { name: name.clone(), ..actor_with(9, found) };
    let requested = third.id;
    rig.client_says(other, FromClient::CreateActor(Arc::new(third)));
    let created = ToClient::ActorCreated { requested, actor: Ok(first.actor) };
    assert_eq!(rig.next_to_client(other), created);
    rig.is_nowhere(other, first.actor);
    assert!(
        rig.controller.holds().holds(Holder::Session(other.id), Referent::Actor(first.actor)),
        "the client that finds the actor holds it"
    );

    // A name is unique only within its namespace.
    rig.create(client, worker, ActorSpec { name, namespace: "mine".into(), ..actor(10) });
    rig.nothing_left();
}

#[test]
fn finding_an_actor_returns_its_interface_and_large_interfaces_are_rejected() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 4));
    let interface = Bytes::from_static(b"two methods");
    let name = Some("the counter".into());
    let spec = ActorSpec { name, interface: interface.clone(), ..actor(7) };
    let id = rig.create(client, worker, spec).actor;
    let other = rig.client(3);
    let (namespace, name) = ("".into(), "the counter".into());
    rig.client_says(other, FromClient::FindActor { request: 9, namespace, name });
    let actor = Ok(FoundActor { id, interface });
    assert_eq!(rig.next_to_client(other), ToClient::ActorFound { request: 9, actor });

    let interface = vec![0; crate::spec::MAX_INTERFACE_BYTES + 1].into();
    let error = ActorSpec { interface, ..actor_with(8, ActorOptions::default()) }.validate();
    assert_eq!(error.unwrap_err().kind(), ErrorKind::TooLarge);
}

#[test]
fn an_actor_that_two_sessions_create_is_held_by_both() {
    let mut rig = Rig::new();
    let (first, second, worker) = (rig.client(1), rig.client(2), rig.worker(3, 4));
    let instance = rig.create(first, worker, actor(7));
    let id = instance.actor;
    rig.client_says(second, FromClient::CreateActor(Arc::new(actor(7))));
    let created = ToClient::ActorCreated { requested: id, actor: Ok(id) };
    assert_eq!(rig.next_to_client(second), created);
    rig.is_nowhere(second, id);
    assert!(rig.holds(second, Referent::Actor(id)));

    rig.dies(first);
    rig.nothing_left();
    assert_eq!(rig.controller.actor_status(id).unwrap().state, ActorState::Creating);
    rig.client_says(second, FromClient::Release { thing: Referent::Actor(id) });
    assert_eq!(rig.next_to_worker(worker), ToWorker::Destroy(instance));
    assert_eq!(rig.is_dead(second, id).kind(), ErrorKind::Gone);
    rig.nothing_left();
}

#[test]
fn a_constructor_that_raises_frees_the_name_and_runs_once() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let name: Arc<str> = "the counter".into();
    let eager = ActorOptions { max_restarts: Budget::Unlimited, ..ActorOptions::default() };
    let spec = ActorSpec { name: Some(name.clone()), ..actor_with(7, eager) };
    let instance = rig.create(client, worker, spec);
    rig.submit(client, call(1, instance.actor));

    let error = raised("ValueError");
    rig.worker_says(worker, FromWorker::ActorFailed { instance, error: error.clone() });
    let failed = rig.ends(client, 1).unwrap_err();
    assert_eq!((failed.kind(), failed.may_have_run()), (ErrorKind::Failed, false));
    assert_eq!(rig.is_dead(client, instance.actor), error);
    let state = rig.controller.actor_status(instance.actor).unwrap().state;
    assert_eq!(state, ActorState::Dead(DeathCause::ConstructorFailed));
    rig.pass(60 * SECOND);
    rig.nothing_left();
    rig.create(client, worker, ActorSpec { name: Some(name), ..actor(8) });
    rig.nothing_left();
}

#[test]
fn an_actor_restarts_at_once_then_after_a_delay_up_to_max_restarts() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let options = ActorOptions { max_restarts: Budget::Times(2), ..ActorOptions::default() };
    let first = rig.create(client, worker, actor_with(7, options));
    let died = |instance| FromWorker::ActorDied { instance, error: crashed() };

    rig.worker_says(worker, died(first));
    rig.is_nowhere(client, first.actor);
    let second = rig.instantiates(worker, first.actor);
    rig.worker_says(worker, died(first)); // A report about an epoch that is over costs nothing.
    rig.nothing_left();

    rig.worker_says(worker, died(second));
    rig.is_nowhere(client, first.actor);
    rig.nothing_left();
    rig.pass(RETRY_DELAY);
    let third = rig.instantiates(worker, first.actor);
    assert_eq!(third.epoch, ActorEpoch(3));

    rig.worker_says(worker, died(third));
    assert_eq!(rig.is_dead(client, first.actor).kind(), ErrorKind::Gone);
    let state = rig.controller.actor_status(first.actor).unwrap().state;
    assert_eq!(state, ActorState::Dead(DeathCause::RestartsUsedUp));
    rig.nothing_left();
}

#[test]
fn an_actor_ends_with_its_last_handle_unless_it_is_detached() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 2));
    let mortal = rig.create(client, worker, actor(7));
    let detached = ActorOptions { lifetime: Lifetime::Detached, ..ActorOptions::default() };
    let lasting = rig.create(client, worker, actor_with(8, detached.clone()));
    for instance in [mortal, lasting] {
        let thing = Referent::Actor(instance.actor);
        rig.client_says(client, FromClient::Release { thing });
    }
    assert_eq!(rig.next_to_worker(worker), ToWorker::Destroy(mortal));
    assert_eq!(rig.is_dead(client, mortal.actor).kind(), ErrorKind::Gone);
    let state = |actor| rig.controller.actor_status(actor).unwrap().state;
    assert_eq!(state(mortal.actor), ActorState::Dead(DeathCause::OwnerGone));
    assert_eq!(state(lasting.actor), ActorState::Creating);
    rig.nothing_left();

    // Without a session there is no handle, so only detached actors can be created.
    let mut create = |spec| {
        rig.ask(|controller, now, effects| {
            controller.create_actor(now, Owner::Cluster, Arc::new(spec), effects)
        })
    };
    assert_eq!(create(actor(9)).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(create(actor_with(10, detached)).is_ok());
}

#[test]
fn calls_wait_for_their_actor_and_reach_it_in_order() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let instance = rig.create(client, worker, actor(7));
    rig.submit(client, call(2, instance.actor));
    rig.submit(client, call(1, instance.actor));
    assert_eq!(rig.why_waits(1), "its actor to be ready");
    rig.nothing_left();

    rig.worker_says(worker, FromWorker::ActorReady { instance });
    let ToClient::ActorChanged { place: ActorPlace::Ready { host, .. }, .. } =
        rig.next_to_client(client)
    else {
        panic!("it is ready")
    };
    assert_eq!(host, worker);
    rig.executes(worker, 2);
    rig.executes(worker, 1);
    rig.nothing_left();
}

#[test]
fn a_call_to_an_unknown_or_deleted_actor_fails_without_running() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, call(1, ActorId::from_u128(99)));
    let unknown = rig.ends(client, 1).unwrap_err();
    assert_eq!((unknown.kind(), unknown.may_have_run()), (ErrorKind::NotFound, false));

    let instance = rig.create(client, worker, actor(7));
    rig.client_says(client, FromClient::DeleteActor { actor: instance.actor });
    assert_eq!(rig.next_to_worker(worker), ToWorker::Destroy(instance));
    rig.is_dead(client, instance.actor);
    rig.submit(client, call(2, instance.actor));
    let deleted = rig.ends(client, 2).unwrap_err();
    assert_eq!((deleted.kind(), deleted.may_have_run()), (ErrorKind::Gone, false));
    rig.nothing_left();
}

#[test]
fn a_lost_call_is_retried_only_if_the_actor_and_the_call_allow_it() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let options = ActorOptions {
        max_restarts: Budget::Unlimited,
        max_task_retries: Budget::Times(1),
        ..ActorOptions::default()
    };
    let first = rig.create(client, worker, actor_with(7, options));
    rig.worker_says(worker, FromWorker::ActorReady { instance: first });
    rig.next_to_client(client);
    rig.submit(client, call(1, first.actor));
    rig.submit(client, TaskSpec { target: call(2, first.actor).target, ..once(2) });
    rig.executes(worker, 1);
    rig.executes(worker, 2);

    rig.worker_says(worker, FromWorker::ActorDied { instance: first, error: crashed() });
    let lost = rig.ends(client, 2).unwrap_err();
    assert_eq!((lost.kind(), lost.may_have_run()), (ErrorKind::Unavailable, true));
    rig.is_nowhere(client, first.actor);
    let second = rig.instantiates(worker, first.actor);
    rig.worker_says(worker, FromWorker::ActorReady { instance: second });
    rig.next_to_client(client);
    assert_eq!(rig.executes(worker, 1).attempt, Attempt(2));
    rig.nothing_left();
}

#[test]
fn a_client_is_warned_when_its_actor_cannot_be_placed() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let spec = actor(1);
    let id = spec.id;
    rig.client_says(client, FromClient::CreateActor(Arc::new(spec)));
    assert!(matches!(rig.next_to_client(client), ToClient::ActorCreated { .. }));
    rig.is_nowhere(client, id);
    rig.pass(10 * SECOND);
    let ToClient::Warning { words } = rig.next_to_client(client) else {
        panic!("the actor waited for 10 s")
    };
    assert!(words.contains("no worker is here"), "{words}");
    rig.nothing_left();
}

#[test]
fn a_running_call_of_a_deleted_actor_fails_with_gone_and_may_have_run() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let instance = rig.create(client, worker, actor(7));
    rig.worker_says(worker, FromWorker::ActorReady { instance });
    rig.next_to_client(client);
    rig.submit(client, call(1, instance.actor));
    let attempt = rig.executes(worker, 1);
    rig.worker_says(worker, FromWorker::Started { attempt });
    rig.submit(client, call(2, instance.actor));
    rig.executes(worker, 2);
    rig.client_says(client, FromClient::DeleteActor { actor: instance.actor });
    assert_eq!(rig.next_to_worker(worker), ToWorker::Destroy(instance));
    let error = rig.ends(client, 1).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Gone, true));
    let expected = format!("actor {} was deleted while this call ran", instance.actor);
    assert_eq!(error.message(), expected);
    let error = rig.ends(client, 2).unwrap_err();
    assert_eq!(error.message(), format!("actor {} was deleted", instance.actor));
    rig.is_dead(client, instance.actor);
    rig.nothing_left();
}

#[test]
fn get_if_exists_needs_a_name_and_finds_only_actors_of_the_same_class() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let options = ActorOptions { get_if_exists: true, ..ActorOptions::default() };
    let named = |number, class: &str, name: Option<&str>| ActorSpec {
        class: class.into(),
        name: name.map(Into::into),
        ..actor_with(number, options.clone())
    };
    rig.create(client, worker, named(7, "Counter", Some("only")));
    let mut asks = |spec: ActorSpec| {
        rig.client_says(client, FromClient::CreateActor(Arc::new(spec)));
        let ToClient::ActorCreated { actor, .. } = rig.next_to_client(client) else {
            panic!("an answer")
        };
        rig.effects.clear();
        actor
    };
    assert_eq!(asks(named(8, "Counter", Some("only"))), Ok(ActorId::from_u128(7)));
    let error = asks(named(9, "Diary", Some("only"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.message().contains("is a Counter, not a Diary"), "{error}");
    let error = asks(named(10, "Counter", None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[test]
fn get_if_exists_finds_an_actor_of_any_version_of_its_class() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let named = |number, class: &str| {
        let options = ActorOptions { get_if_exists: true, ..ActorOptions::default() };
        let name = Some("the one".into());
        ActorSpec { class: class.into(), name, ..actor_with(number, options) }
    };
    let mut create = |spec: ActorSpec| {
        rig.client_says(client, FromClient::CreateActor(Arc::new(spec)));
        let ToClient::ActorCreated { actor, .. } = rig.next_to_client(client) else {
            panic!("answered")
        };
        rig.effects.clear();
        actor
    };
    let first = create(named(1, "python:m.Counter#1")).unwrap();
    assert_eq!(create(named(2, "python:m.Counter#2")), Ok(first));
    assert_eq!(create(named(4, "python/77aa:m.Counter#2")), Ok(first), "in another environment");
    let error = create(named(3, "python:m.Diary#1")).unwrap_err();
    assert!(error.message().contains("is a python:m.Counter, not a python:m.Diary"), "{error}");
}

#[test]
fn a_class_of_a_script_matches_the_class_imported_from_its_module() {
    for (first, same, different) in [
        (
            "python:__main__.Outer.Inner#1",
            ["python:app.Outer.Inner#2", "python:package.app.Outer.Inner#2"],
            ["python:app.Inner#1", "python:app.AnOuter.Inner#1"],
        ),
        (
            "python:package.app.Counter#1",
            ["python:__main__.Counter#2", "python/77aa:__main__.Counter#2"],
            ["python:other.Counter#1", "rust:__main__.Counter"],
        ),
    ] {
        let mut rig = Rig::new();
        let client = rig.client(1);
        let mut create = |number, class: &str| {
            let options = ActorOptions { get_if_exists: true, ..ActorOptions::default() };
            let name = Some("the one".into());
            let spec = ActorSpec { class: class.into(), name, ..actor_with(number, options) };
            rig.client_says(client, FromClient::CreateActor(Arc::new(spec)));
            let ToClient::ActorCreated { actor, .. } = rig.next_to_client(client) else {
                panic!("answered")
            };
            rig.effects.clear();
            actor
        };
        let created = create(1, first).unwrap();
        for class in same {
            assert_eq!(create(2, class), Ok(created), "{first} and {class}");
        }
        for class in different {
            let error = create(3, class).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{first} and {class}");
        }
    }
}

#[test]
fn a_restart_gets_the_two_newest_checkpoints_and_stale_ones_are_ignored() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let options = ActorOptions {
        max_restarts: Budget::Unlimited,
        checkpoints: Some(CheckpointPolicy::default()),
        ..ActorOptions::default()
    };
    let first = rig.create(client, worker, actor_with(7, options));
    let saved = |number: u8| Payload::raw(vec![number]);
    for number in 0..3 {
        let (sequence, payload) = (number.into(), saved(number));
        rig.worker_says(worker, FromWorker::Checkpoint { instance: first, sequence, payload });
        let stored = ToWorker::Checkpointed { instance: first, sequence };
        assert_eq!(rig.next_to_worker(worker), stored);
    }
    rig.worker_says(worker, FromWorker::ActorDied { instance: first, error: crashed() });
    rig.is_nowhere(client, first.actor);
    let ToWorker::Instantiate { checkpoints, .. } = rig.next_to_worker(worker) else {
        panic!("the instance is created again")
    };
    assert_eq!(checkpoints, [saved(2), saved(1)]);
    let late = FromWorker::Checkpoint { instance: first, sequence: 3, payload: saved(3) };
    rig.worker_says(worker, late);
    rig.nothing_left();
}

#[test]
fn an_actor_that_exits_is_not_restarted() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let options = ActorOptions { max_restarts: Budget::Unlimited, ..ActorOptions::default() };
    let instance = rig.create(client, worker, actor_with(7, options));
    rig.worker_says(worker, FromWorker::ActorDestroyed { instance, exit: ActorExitReason::Exited });
    assert!(rig.is_dead(client, instance.actor).message().contains("exit_actor"));
    let state = rig.controller.actor_status(instance.actor).unwrap().state;
    assert_eq!(state, ActorState::Dead(DeathCause::Exited));
    rig.nothing_left();
}

#[test]
fn killing_an_actor_kills_only_its_instance() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let instance = rig.create(client, worker, actor(7));
    rig.client_says(client, FromClient::KillActor { actor: instance.actor });
    assert_eq!(rig.next_to_worker(worker), ToWorker::Kill(instance));
    rig.nothing_left();
}

/// Creates an actor of this driver. Returns its instance, and the session of its process.
fn lives(rig: &mut Rig, driver: Session, worker: Session, number: u128) -> (Instance, Session) {
    let instance = rig.create(driver, worker, actor(number));
    rig.worker_says(worker, FromWorker::ActorReady { instance });
    rig.effects.clear();
    let process = rig.client(number + 100);
    let to = Audience::OfSource(OutputSource::Actor(instance));
    rig.client_says(process, FromClient::ShowOutput { to });
    (instance, process)
}

fn holds(rig: &mut Rig, session: Session, instance: Instance) {
    rig.client_says(session, FromClient::Hold { thing: Referent::Actor(instance.actor) });
}

fn destroyed(rig: &mut Rig) -> Vec<Instance> {
    let destroyed = std::mem::take(&mut rig.effects).into_iter().filter_map(|effect| {
        let Effect::ToWorker { message: ToWorker::Destroy(instance), .. } = effect else {
            return None;
        };
        Some(instance)
    });
    destroyed.collect()
}

#[test]
fn actors_that_are_held_only_by_each_other_end_with_their_driver() {
    let mut rig = Rig::new();
    let (driver, worker) = (rig.client(1), rig.worker(2, 4));
    let (first, in_first) = lives(&mut rig, driver, worker, 10);
    let (second, in_second) = lives(&mut rig, driver, worker, 11);
    // An actor that another actor created belongs to the same driver.
    let (third, in_third) = lives(&mut rig, in_second, worker, 12);
    holds(&mut rig, in_first, second);
    holds(&mut rig, in_second, first);
    holds(&mut rig, in_third, third);
    rig.dies(driver);
    assert_eq!(destroyed(&mut rig), [first, second, third]);
}

#[test]
fn an_actor_that_another_client_holds_outlives_its_driver() {
    let mut rig = Rig::new();
    let (driver, other, worker) = (rig.client(1), rig.client(2), rig.worker(3, 4));
    let (shared, process) = lives(&mut rig, driver, worker, 10);
    holds(&mut rig, process, shared);
    holds(&mut rig, other, shared);
    rig.dies(driver);
    assert_eq!(destroyed(&mut rig), []);
    // The driver is gone. From now on the actor ends with its last handle.
    rig.dies(process);
    rig.dies(other);
    assert_eq!(destroyed(&mut rig), [shared]);
}

#[test]
fn an_actor_created_by_a_detached_actor_outlives_the_driver() {
    let mut rig = Rig::new();
    let (driver, worker) = (rig.client(1), rig.worker(2, 4));
    let detached = ActorOptions { lifetime: Lifetime::Detached, ..ActorOptions::default() };
    let instance = rig.create(driver, worker, actor_with(10, detached));
    rig.worker_says(worker, FromWorker::ActorReady { instance });
    rig.effects.clear();
    let process = rig.client(20);
    let to = Audience::OfSource(OutputSource::Actor(instance));
    rig.client_says(process, FromClient::ShowOutput { to });
    let _made = rig.create(process, worker, actor(11));
    rig.dies(driver);
    assert_eq!(destroyed(&mut rig), []);
}
