//! Work that would wait for its own results.

use super::*;

/// Returns the second result of a task. A client may announce it before it submits the task.
fn second(number: u128) -> ObjectId {
    ObjectId::of(task_id(number), 1)
}

fn first(number: u128) -> ObjectId {
    ObjectId::of(task_id(number), 0)
}

/// Returns a task with two results that needs these objects.
fn pair(number: u128, needs: Vec<ObjectId>) -> TaskSpec {
    TaskSpec { needs, returns: 2, ..task(number) }
}

fn refused(rig: &mut Rig, client: Session, number: u128) -> String {
    let error = rig.ends(client, number).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    error.message().to_owned()
}

#[test]
fn a_task_that_needs_its_own_result_is_rejected() {
    let mut rig = Rig::new();
    let (client, _) = (rig.client(1), rig.worker(2, 1));
    let error = rig.submit_ownerless(pair(1, vec![first(1)])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("needs its own result"), "{error:?}");

    rig.client_says(client, FromClient::Announce { object: second(2) });
    rig.submit(client, pair(2, vec![second(2)]));
    let words = refused(&mut rig, client, 2);
    assert!(words.contains(&second(2).to_string()), "{words}");
    rig.nothing_left();
}

#[test]
fn a_task_that_closes_a_cycle_is_rejected_and_the_others_fail_with_it() {
    let mut rig = Rig::new();
    let (client, _) = (rig.client(1), rig.worker(2, 1));
    rig.client_says(client, FromClient::Announce { object: second(3) });
    rig.submit(client, pair(1, vec![second(3)]));
    rig.submit(client, pair(2, vec![first(1)]));
    rig.nothing_left();

    rig.submit(client, pair(3, vec![first(2)]));
    let words = refused(&mut rig, client, 3);
    for object in [first(2), first(1), second(3)] {
        assert!(words.contains(&object.to_string()), "{words}");
    }
    for number in [1, 2] {
        let error = rig.ends(client, number).unwrap_err();
        assert_eq!((error.kind(), error.is_passed_on()), (ErrorKind::Invalid, true));
    }
    rig.nothing_left();
}

#[test]
fn a_task_that_others_wait_for_runs_if_it_closes_no_cycle() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.client_says(client, FromClient::Announce { object: second(3) });
    rig.submit(client, pair(1, vec![second(3)]));
    rig.submit(client, task(2));
    let attempt = rig.assigns(worker, 2);
    rig.submit(client, pair(3, vec![first(2)]));
    rig.finish(worker, attempt);
    rig.ends(client, 2).unwrap();
    for number in [3, 1] {
        let attempt = rig.assigns(worker, number);
        rig.end(worker, attempt, AttemptEnd::Finished(vec![value("one"), value("two")]), None);
        rig.ends(client, number).unwrap();
    }
    rig.nothing_left();
}

#[test]
fn a_call_that_its_actors_constructor_needs_is_rejected() {
    let mut rig = Rig::new();
    let (client, _) = (rig.client(1), rig.worker(2, 1));
    let id = ActorId::from_u128(70);
    rig.client_says(client, FromClient::Announce { object: first(9) });
    // The call waits for a value first. Its actor is looked up only when that has come.
    rig.submit(client, TaskSpec { needs: vec![first(9)], ..call(1, id) });
    let spec = ActorSpec { needs: vec![first(1)], ..actor(70) };
    rig.client_says(client, FromClient::CreateActor(Arc::new(spec)));
    let created = ToClient::ActorCreated { requested: id, actor: Ok(id) };
    assert_eq!(rig.next_to_client(client), created);
    rig.is_nowhere(client, id);

    let value = Ok(value("came"));
    rig.client_says(client, FromClient::Resolve { object: first(9), value });
    let words = refused(&mut rig, client, 1);
    assert!(words.contains(&first(1).to_string()), "{words}");
    assert!(rig.is_dead(client, id).is_passed_on());
    rig.nothing_left();
}

#[test]
fn a_task_that_closes_a_cycle_through_an_actor_is_rejected() {
    let mut rig = Rig::new();
    let (client, _) = (rig.client(1), rig.worker(2, 1));
    let id = ActorId::from_u128(70);
    rig.client_says(client, FromClient::Announce { object: second(3) });
    let spec = ActorSpec { needs: vec![second(3)], ..actor(70) };
    rig.client_says(client, FromClient::CreateActor(Arc::new(spec)));
    rig.submit(client, call(1, id));
    rig.effects.clear(); // The actor is created, and waits.

    rig.submit(client, pair(3, vec![first(1)]));
    let words = refused(&mut rig, client, 3);
    assert!(words.contains(&second(3).to_string()), "{words}");
    rig.ends(client, 1).unwrap_err();
    rig.is_dead(client, id);
    rig.nothing_left();
}

#[test]
fn a_task_with_too_many_needs_to_check_for_cycles_is_rejected() {
    let mut rig = Rig::new();
    let (client, _) = (rig.client(1), rig.worker(2, 1));
    rig.client_says(client, FromClient::Announce { object: second(9) });
    let needs: Vec<ObjectId> = (0..20_001).map(|index| ObjectId::of(task_id(8), index)).collect();
    for object in &needs {
        rig.controller.handle(
            rig.now,
            Event::ClientMessageReceived {
                session: client,
                message: FromClient::Announce { object: *object },
            },
            &mut Vec::new(),
        );
    }
    rig.submit(client, pair(1, vec![second(9)]));
    rig.submit(client, pair(9, needs));
    let words = refused(&mut rig, client, 9);
    assert!(words.contains("MAX_OBJECTS_WALKED"), "{words}");
    rig.ends(client, 1).unwrap_err();
    rig.nothing_left();
}
