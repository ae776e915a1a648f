//! Values whose data is in workers' stores: where the data is, when it is forgotten, and how lost
//! data is recomputed.

use super::*;

/// Returns the value of an object whose data is in a store.
pub(super) fn stored(object: ObjectId) -> Value {
    Payload::raw("large").stored_as(object).into()
}

pub(super) fn result(number: u128) -> ObjectId {
    ObjectId::of(task_id(number), 0)
}

/// Runs a task that leaves its result in the store of its worker. Returns the result.
pub(super) fn made(rig: &mut Rig, client: Session, worker: Session, number: u128) -> ObjectId {
    rig.submit(client, task(number));
    let attempt = rig.assigns(worker, number);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(number))]), None);
    assert_eq!(rig.ends(client, number).unwrap(), [stored(result(number))]);
    result(number)
}

pub(super) fn released(rig: &mut Rig, client: Session, object: ObjectId) {
    rig.client_says(client, FromClient::Release { thing: Referent::Object(object) });
}

#[test]
fn a_worker_retains_a_result_until_its_last_hold_is_released() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let object = made(&mut rig, client, worker, 1);
    assert_eq!(rig.controller.copies(object).unwrap()[0].worker, worker);
    rig.submit(client, TaskSpec { needs: vec![object], ..task(2) });
    released(&mut rig, client, object);
    let (attempt, values) = rig.gives(worker, 2, true);
    assert_eq!(values, [stored(object)], "the task holds it");
    rig.finish(worker, attempt);
    rig.ends(client, 2).unwrap();
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object });
    rig.nothing_left();
}

#[test]
fn a_task_goes_to_the_worker_that_has_most_of_its_arguments() {
    let mut rig = Rig::new();
    let (client, first) = (rig.client(1), rig.worker(2, 2));
    let (here, there) = (made(&mut rig, client, first, 1), made(&mut rig, client, first, 2));
    let second = rig.worker(3, 8);
    rig.submit(client, TaskSpec { needs: vec![here], ..task(3) });
    let attempt = rig.assigns(first, 3);
    rig.finish(first, attempt);
    rig.ends(client, 3).unwrap();
    // The second worker has a copy of one value. The first still has more bytes.
    rig.worker_says(second, FromWorker::Copied { object: here });
    rig.submit(client, TaskSpec { needs: vec![here, there], ..task(4) });
    let attempt = rig.assigns(first, 4);
    rig.finish(first, attempt);
    rig.ends(client, 4).unwrap();
    // The number of bytes counts, not the number of values.
    let large = result(90);
    let value = Payload::raw(vec![0; 100]).stored_as(large).into();
    rig.client_says(client, FromClient::Put { object: large, value, at: Some(second) });
    assert_eq!(rig.next_to_worker(second), ToWorker::Keep { object: large });
    rig.submit(client, TaskSpec { needs: vec![here, there, large], ..task(6) });
    rig.assigns(second, 6);
    // A task without large arguments goes to the worker with most room.
    rig.submit(client, task(5));
    rig.assigns(second, 5);
}

#[test]
fn blobs_of_unheld_stale_or_surplus_results_are_evicted_at_once() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    released(&mut rig, client, result(1));
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(1))]), None);
    rig.ends(client, 1).unwrap();
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object: result(1) });
    // The same report again: the attempt is not current any more.
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(1))]), None);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object: result(1) });
    // More results than the task declares.
    rig.submit(client, task(2));
    let attempt = rig.assigns(worker, 2);
    let two = vec![stored(result(2)), stored(ObjectId::of(task_id(2), 1))];
    rig.end(worker, attempt, AttemptEnd::Finished(two), None);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object: result(2) });
    rig.next_to_worker(worker);
    assert_eq!(rig.ends(client, 2).unwrap_err().kind(), ErrorKind::Invalid);
    rig.nothing_left();
}

#[test]
fn a_result_stored_under_the_id_of_another_object_is_rejected() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(9))]), None);
    let _ = rig.ends(client, 1);
    let kind = rig.controller.object(result(1)).unwrap().unwrap().unwrap_err().kind();
    assert_eq!(kind, ErrorKind::Invalid);
}

#[test]
fn a_stored_put_is_retained_once_and_evicted_when_it_is_released() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let object = result(90);
    let put = || FromClient::Put { object, value: stored(object), at: Some(worker) };
    rig.client_says(client, put());
    assert_eq!(rig.next_to_worker(worker), ToWorker::Keep { object });
    rig.client_says(client, put());
    assert_eq!(rig.controller.copies(object).unwrap().len(), 1, "putting it twice is once");
    released(&mut rig, client, object);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object });
    rig.nothing_left();
}

#[test]
fn an_object_put_into_the_store_of_an_ended_worker_is_lost() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.dies(worker);
    let object = result(90);
    rig.client_says(client, FromClient::Put { object, value: stored(object), at: Some(worker) });
    let error = rig.controller.object(object).unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    rig.client_says(
        client,
        FromClient::Put { object: result(91), value: stored(result(91)), at: None },
    );
    assert!(rig.controller.object(result(91)).unwrap().unwrap().is_err(), "no store has it");
}

#[test]
fn a_worker_that_locates_an_object_gets_its_copies_and_adds_its_own() {
    let mut rig = Rig::new();
    let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 0));
    let object = made(&mut rig, client, worker, 1);
    rig.worker_says(other, FromWorker::Locate { object });
    let ToWorker::Located { copies: Ok(copies), .. } = rig.next_to_worker(other) else {
        panic!("the data is in a store")
    };
    assert_eq!(copies.iter().map(|copy| copy.worker).collect::<Vec<_>>(), [worker]);
    rig.worker_says(other, FromWorker::Copied { object });
    rig.dies(worker);
    assert_eq!(rig.controller.copies(object).unwrap()[0].worker, other, "the copy is left");
    released(&mut rig, client, object);
    assert_eq!(rig.next_to_worker(other), ToWorker::Forget { object });
    // A copy that is reported when nothing holds the object any more is forgotten.
    rig.worker_says(other, FromWorker::Copied { object });
    assert_eq!(rig.next_to_worker(other), ToWorker::Forget { object });
    rig.nothing_left();
}

#[test]
fn the_error_for_a_lost_object_says_why_it_was_lost_and_not_recomputed() {
    let mut rig = Rig::new();
    let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 0));
    let object = result(1);
    let options = TaskOptions { max_retries: Budget::Times(0), ..TaskOptions::default() };
    rig.submit(client, TaskSpec { options: Arc::new(options), ..task(1) });
    let attempt = rig.assigns(worker, 1);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(object)]), None);
    rig.ends(client, 1).unwrap();
    rig.worker_says(worker, FromWorker::CopyLost { object, error: Error::internal("a bad disk") });
    rig.worker_says(other, FromWorker::Locate { object });
    let ToWorker::Located { copies: Err(error), .. } = rig.next_to_worker(other) else {
        panic!("the data is lost")
    };
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.message().contains("a bad disk"), "{error}");
    assert!(error.message().contains("max_retries"), "{error}");
    rig.worker_says(other, FromWorker::Locate { object: result(80) });
    let ToWorker::Located { copies: Err(error), .. } = rig.next_to_worker(other) else {
        panic!("the object never existed")
    };
    assert_eq!(error.kind(), ErrorKind::Gone);
}

#[test]
fn a_stored_result_of_a_direct_call_is_held_for_its_caller() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let instance = rig.create(client, worker, actor(7));
    let call = AttemptId { task: task_id(5), attempt: Attempt(1) };
    let object = result(5);
    let thing = Referent::Object(object);
    let entrust = |to| FromWorker::Entrust {
        call,
        to,
        contains: vec![thing],
        stored: vec![stored(object)],
        instance,
        kept: vec![],
    };
    // The result was announced, and a task waits for it.
    rig.client_says(client, FromClient::Announce { object });
    rig.submit(client, TaskSpec { needs: vec![object], ..task(6) });
    rig.worker_says(worker, entrust(client));
    assert_eq!(rig.next_to_worker(worker), ToWorker::Entrusted { call });
    let (attempt, values) = rig.gives(worker, 6, true);
    assert_eq!(values, [stored(object)]);
    rig.finish(worker, attempt);
    rig.ends(client, 6).unwrap();
    rig.client_says(client, FromClient::Hold { thing });
    rig.client_says(client, FromClient::Accept { call });
    assert!(rig.controller.copies(object).is_ok(), "the client has it");
    rig.client_says(client, FromClient::Release { thing });
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object });
    // The caller is gone, so nothing holds the value.
    rig.dies(client);
    rig.worker_says(worker, entrust(client));
    let messages: Vec<ToWorker> = (0..3).map(|_| rig.next_to_worker(worker)).collect();
    assert!(messages.contains(&ToWorker::Forget { object }), "{messages:?}");
}

/// Lets a worker look for the data of an object.
pub(super) fn looks(rig: &mut Rig, worker: Session, object: ObjectId) {
    rig.worker_says(worker, FromWorker::Locate { object });
}

pub(super) fn loses(rig: &mut Rig, worker: Session, object: ObjectId) {
    rig.worker_says(worker, FromWorker::CopyLost { object, error: Error::internal("a bad disk") });
}

pub(super) fn found(rig: &mut Rig, worker: Session) -> Result<Session, Error> {
    let ToWorker::Located { copies, .. } = rig.next_to_worker(worker) else {
        panic!("the worker looked for data")
    };
    copies.map(|copies| copies[0].worker)
}

#[test]
fn a_lost_result_is_recomputed_once_for_all_workers_that_locate_it() {
    let mut rig = Rig::new();
    let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 0));
    let object = made(&mut rig, client, worker, 1);
    loses(&mut rig, worker, object);
    looks(&mut rig, other, object);
    let attempt = rig.assigns(worker, 1);
    assert_eq!(attempt.attempt, Attempt(2));
    looks(&mut rig, worker, object);
    rig.nothing_left();
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(object)]), None);
    assert_eq!((found(&mut rig, other), found(&mut rig, worker)), (Ok(worker), Ok(worker)));
    rig.nothing_left();
    released(&mut rig, client, object);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object });
    assert_eq!(rig.controller.holds().all_things().count(), 0);
}

#[test]
fn recomputing_a_lost_object_recomputes_its_released_inputs_too() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.client_says(
        client,
        FromClient::Put { object: result(80), value: value("small"), at: None },
    );
    rig.submit(client, TaskSpec { needs: vec![result(80)], ..task(1) });
    let (attempt, _) = rig.gives(worker, 1, true);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(1))]), None);
    rig.ends(client, 1).unwrap();
    rig.submit(client, TaskSpec { needs: vec![result(1)], ..task(2) });
    let (attempt, _) = rig.gives(worker, 2, true);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(2))]), None);
    rig.ends(client, 2).unwrap();
    released(&mut rig, client, result(80));
    released(&mut rig, client, result(1));
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object: result(1) });
    loses(&mut rig, worker, result(2));
    // A task needs the lost data: the tasks that it takes run again, in their order.
    rig.submit(client, TaskSpec { needs: vec![result(2)], ..task(3) });
    let (attempt, values) = rig.gives(worker, 1, true);
    assert_eq!(values, [value("small")]);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(1))]), None);
    let (attempt, values) = rig.gives(worker, 2, true);
    assert_eq!(values, [stored(result(1))]);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(2))]), None);
    assert_eq!(
        rig.next_to_worker(worker),
        ToWorker::Forget { object: result(1) },
        "nothing needs it now"
    );
    let (attempt, values) = rig.gives(worker, 3, true);
    assert_eq!(values, [stored(result(2))]);
    rig.finish(worker, attempt);
    rig.ends(client, 3).unwrap();
    // With the last hold, the tasks leave the lineage.
    released(&mut rig, client, result(2));
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object: result(2) });
    released(&mut rig, client, result(3));
    assert_eq!(rig.controller.holds().all_things().count(), 0);
    rig.nothing_left();
}

#[test]
fn a_failed_recomputation_fails_every_task_and_lookup_that_waits_for_it() {
    let mut rig = Rig::new();
    let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 0));
    let object = made(&mut rig, client, worker, 1);
    loses(&mut rig, worker, object);
    looks(&mut rig, other, object);
    let attempt = rig.assigns(worker, 1);
    rig.submit(client, TaskSpec { needs: vec![object], ..task(2) });
    rig.end(worker, attempt, AttemptEnd::Failed(raised("ValueError")), None);
    assert_eq!(found(&mut rig, other).unwrap_err().kind(), ErrorKind::Failed);
    assert_eq!(rig.ends(client, 2).unwrap_err().kind(), ErrorKind::Failed);
    rig.nothing_left();
    // A session that looks for it later makes the task run again.
    looks(&mut rig, other, object);
    assert_eq!(rig.assigns(worker, 1).attempt, Attempt(3));
}

#[test]
fn an_object_outside_the_lineage_is_lost_with_its_last_copy() {
    let mut rig = Rig::with(Config { max_lineage_bytes: 1_000, ..Config::default() });
    let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 0));
    let put = result(90);
    rig.client_says(client, FromClient::Put { object: put, value: stored(put), at: Some(worker) });
    assert_eq!(rig.next_to_worker(worker), ToWorker::Keep { object: put });
    let old = made(&mut rig, client, worker, 1);
    for number in 2..6 {
        made(&mut rig, client, worker, number);
    }
    for object in [put, old] {
        loses(&mut rig, worker, object);
        looks(&mut rig, other, object);
        let error = found(&mut rig, other).unwrap_err();
        assert!(error.message().contains("is not remembered"), "{error}");
    }
    assert!(rig.controller.copies(old).unwrap_err().message().contains("\"add\""), "what made it");
    loses(&mut rig, worker, result(5));
    looks(&mut rig, other, result(5));
    rig.assigns(worker, 5);
}

#[test]
fn an_input_lost_while_its_task_waits_for_another_input_is_recomputed() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let object = made(&mut rig, client, worker, 1);
    rig.client_says(client, FromClient::Announce { object: result(90) });
    rig.submit(client, TaskSpec { needs: vec![object, result(90)], ..task(2) });
    loses(&mut rig, worker, object);
    rig.client_says(client, FromClient::Resolve { object: result(90), value: Ok(value("late")) });
    let attempt = rig.assigns(worker, 1);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(object)]), None);
    let (_, values) = rig.gives(worker, 2, true);
    assert_eq!(values, [stored(object), value("late")]);
}

#[test]
fn lost_objects_are_recomputed_to_a_depth_of_100_tasks() {
    for (depth, runs) in [(100, true), (101, false)] {
        let mut rig = Rig::new();
        let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 0));
        made(&mut rig, client, worker, 1);
        for number in 2..=depth {
            rig.submit(client, TaskSpec { needs: vec![result(number - 1)], ..task(number) });
            let (attempt, _) = rig.gives(worker, number, true);
            rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(number))]), None);
            rig.effects.clear(); // The end of the task, and a promise of more room.
        }
        for number in 1..=depth {
            loses(&mut rig, worker, result(number));
        }
        looks(&mut rig, other, result(depth));
        if runs {
            rig.assigns(worker, 1);
        } else {
            let error = found(&mut rig, other).unwrap_err();
            assert!(error.message().contains("deeper than are recomputed"), "{error}");
        }
    }
}

#[test]
fn the_error_for_a_lost_object_names_the_object_its_node_and_its_function() {
    let mut rig = Rig::new();
    let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 0));
    let options = TaskOptions { max_retries: Budget::Times(0), ..TaskOptions::default() };
    rig.submit(client, TaskSpec { options: options.into(), ..task(1) });
    let attempt = rig.assigns(worker, 1);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(1))]), None);
    rig.ends(client, 1).unwrap();
    rig.dies(worker);
    rig.effects.clear();
    looks(&mut rig, other, result(1));
    let words = found(&mut rig, other).unwrap_err().message().to_owned();
    let (object, node) = (result(1).to_string(), worker.id.to_string());
    for part in [&*object, &*node, "\"add\"", "max_retries"] {
        assert!(words.contains(part), "{part}: {words}");
    }
}

#[test]
fn a_task_that_waits_for_lost_inputs_does_not_block_their_recomputation() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let with_gpu = |rig: &mut Rig, number| {
        let resources = Resources::cpus(4).with_gpus(Amount::ONE);
        rig.worker_offering(number, resources, false)
    };
    let worker = with_gpu(&mut rig, 2);
    let resources = Resources::cpus(1).with_gpus(Amount::ONE);
    let options = Arc::new(TaskOptions { resources, ..TaskOptions::default() });
    rig.submit(client, TaskSpec { options: options.clone(), ..task(1) });
    let attempt = rig.assigns(worker, 1);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(1))]), None);
    rig.ends(client, 1).unwrap();
    rig.submit(client, TaskSpec { options, needs: vec![result(1)], ..task(2) });
    rig.gives(worker, 2, true);
    rig.dies(worker);
    rig.effects.clear();
    let worker = with_gpu(&mut rig, 3);
    rig.pass(RETRY_DELAY * 2);
    let attempt = rig.assigns(worker, 1);
    rig.nothing_left();
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(1))]), None);
    rig.gives(worker, 2, true);
}

#[test]
fn a_recomputation_stops_when_its_result_is_released() {
    let mut rig = Rig::new();
    let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 0));
    let object = made(&mut rig, client, worker, 1);
    rig.submit(client, TaskSpec { needs: vec![object], ..task(2) });
    let (attempt, _) = rig.gives(worker, 2, true);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(2))]), None);
    rig.ends(client, 2).unwrap();
    released(&mut rig, client, object);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object });
    rig.dies(worker);
    rig.effects.clear();
    looks(&mut rig, other, result(2));
    assert_eq!(rig.controller.pending_tasks(), 2, "there is no CPU for them");
    released(&mut rig, client, result(2));
    assert_eq!(rig.controller.pending_tasks(), 0);
    assert_eq!(rig.controller.holds().all_things().count(), 0);
}

#[test]
fn small_inputs_count_towards_max_lineage_bytes() {
    let mut rig = Rig::with(Config { max_lineage_bytes: 10_000, ..Config::default() });
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    for number in 1..=5 {
        let (object, value) = (result(number + 80), Payload::raw(vec![0; 4_000]).into());
        rig.client_says(client, FromClient::Put { object, value, at: None });
        rig.submit(client, TaskSpec { needs: vec![object], ..task(number) });
        let (attempt, _) = rig.gives(worker, number, true);
        rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(number))]), None);
        rig.ends(client, number).unwrap();
        released(&mut rig, client, object);
    }
    let kept = |number: u128| rig.controller.value(result(number + 80)).is_some();
    assert_eq!([1, 2, 3, 4, 5].map(kept), [false, false, false, true, true]);
}

#[test]
fn results_of_dropped_lineage_entries_are_evicted_when_released() {
    // There is room for two tasks.
    let mut rig = Rig::with(Config { max_lineage_bytes: 700, ..Config::default() });
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    made(&mut rig, client, worker, 1);
    for number in 2..=4 {
        rig.submit(client, TaskSpec { needs: vec![result(number - 1)], ..task(number) });
        let (attempt, _) = rig.gives(worker, number, true);
        rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(number))]), None);
        rig.ends(client, number).unwrap();
    }
    for number in (1..=4).rev() {
        released(&mut rig, client, result(number));
        assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object: result(number) });
    }
    assert_eq!(rig.controller.holds().all_things().count(), 0);
}

#[test]
fn locating_an_object_that_is_recomputed_small_fails_with_unavailable() {
    let mut rig = Rig::new();
    let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 0));
    let object = made(&mut rig, client, worker, 1);
    loses(&mut rig, worker, object);
    looks(&mut rig, other, object);
    let attempt = rig.assigns(worker, 1);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![value("small")]), None);
    assert_eq!(found(&mut rig, other).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(rig.controller.value(object), Some(value("small")));
}

#[test]
fn a_recomputation_of_several_results_stops_when_all_are_released() {
    let mut rig = Rig::new();
    let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 0));
    rig.submit(client, TaskSpec { returns: 2, ..task(1) });
    let attempt = rig.assigns(worker, 1);
    let results = [0, 1].map(|index| ObjectId::of(task_id(1), index));
    rig.end(worker, attempt, AttemptEnd::Finished(results.map(stored).to_vec()), None);
    rig.ends(client, 1).unwrap();
    rig.dies(worker);
    rig.effects.clear();
    looks(&mut rig, other, results[0]);
    rig.happens(Event::SessionClosed { session: client });
    assert_eq!(rig.controller.pending_tasks(), 0);
    assert_eq!(rig.controller.holds().all_things().count(), 0);
}
