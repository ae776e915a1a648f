//! Pulls that the controller starts: away from workers that drain, and back from where data was
//! saved.

use super::copies::{found, looks, loses, made, released, result, stored};
use super::*;
use crate::error::Ran;

fn drained(rig: &mut Rig, worker: Session) {
    rig.worker_says(worker, FromWorker::Draining);
}

fn brings(rig: &mut Rig, worker: Session, object: ObjectId, from: &[Session]) {
    let ToWorker::Bring { object: other, from: copies } = rig.next_to_worker(worker) else {
        panic!("the worker is told to pull data")
    };
    assert_eq!(other, object);
    assert_eq!(copies.iter().map(|copy| copy.worker).collect::<Vec<_>>(), from);
}

fn fails(rig: &mut Rig, worker: Session, object: ObjectId) {
    let error = Error::exhausted("no room");
    rig.worker_says(worker, FromWorker::NotBrought { object, error });
}

/// Returns the value of an object whose data was saved.
fn durable(object: ObjectId) -> Value {
    let mut value = stored(object);
    value.payload.stored.as_mut().expect("it is stored").durable = true;
    value
}

/// Lets a client put a value that is saved, into the store of a worker.
fn saved(rig: &mut Rig, client: Session, worker: Session, number: u128) -> ObjectId {
    let object = result(number);
    rig.client_says(client, FromClient::Put { object, value: durable(object), at: Some(worker) });
    assert_eq!(rig.next_to_worker(worker), ToWorker::Keep { object });
    object
}

#[test]
fn a_draining_worker_leaves_only_after_its_last_copies_are_moved() {
    let mut rig = Rig::new();
    let (client, leaving) = (rig.client(1), rig.worker(2, 1));
    let objects: Vec<ObjectId> =
        (1..=6).map(|number| made(&mut rig, client, leaving, number)).collect();
    let other = rig.worker(3, 1);
    rig.worker_says(other, FromWorker::Copied { object: objects[0] });
    drained(&mut rig, leaving);
    // Another worker has the first already. The others are moved four at a time.
    for object in &objects[1..5] {
        brings(&mut rig, other, *object, &[leaving]);
    }
    rig.worker_says(leaving, FromWorker::Emptied);
    rig.nothing_left();
    rig.worker_says(other, FromWorker::Copied { object: objects[1] });
    brings(&mut rig, other, objects[5], &[leaving]);
    released(&mut rig, client, objects[2]);
    assert_eq!(rig.next_to_worker(leaving), ToWorker::Forget { object: objects[2] });
    for object in &objects[3..] {
        rig.nothing_left();
        rig.worker_says(other, FromWorker::Copied { object: *object });
    }
    assert_eq!(rig.next_to_worker(leaving), ToWorker::Leave);
    rig.worker_says(leaving, FromWorker::Leaving);
    rig.effects.clear();
    looks(&mut rig, other, objects[4]);
    assert_eq!(found(&mut rig, other).unwrap(), other, "it is there");
}

#[test]
fn a_failed_move_is_tried_at_another_worker_and_then_given_up() {
    let mut rig = Rig::new();
    let (client, leaving) = (rig.client(1), rig.worker(2, 1));
    let object = made(&mut rig, client, leaving, 1);
    let (first, second) = (rig.worker(3, 1), rig.worker(4, 1));
    drained(&mut rig, leaving);
    rig.worker_says(leaving, FromWorker::Emptied);
    brings(&mut rig, first, object, &[leaving]);
    fails(&mut rig, first, object);
    brings(&mut rig, second, object, &[leaving]);
    fails(&mut rig, first, object); // The worker reported that before: nothing happens.
    rig.nothing_left();
    rig.dies(second);
    rig.effects.retain(|effect| matches!(effect, Effect::ToWorker { to, .. } if *to == leaving));
    assert_eq!(rig.next_to_worker(leaving), ToWorker::Leave, "no other worker could pull it");
}

#[test]
fn a_result_that_finishes_while_its_worker_drains_is_moved_too() {
    let mut rig = Rig::new();
    let (client, leaving) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let attempt = rig.assigns(leaving, 1);
    let other = rig.worker(3, 1);
    drained(&mut rig, leaving);
    rig.end(leaving, attempt, AttemptEnd::Finished(vec![stored(result(1))]), None);
    rig.worker_says(leaving, FromWorker::Emptied);
    rig.ends(client, 1).unwrap();
    brings(&mut rig, other, result(1), &[leaving]);
    rig.nothing_left();
    rig.worker_says(other, FromWorker::Copied { object: result(1) });
    assert_eq!(rig.next_to_worker(leaving), ToWorker::Leave);
}

#[test]
fn an_item_yielded_by_the_worker_that_should_pull_it_is_not_evicted() {
    let mut rig = Rig::new();
    let (client, leaving) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, TaskSpec { stream_window: Some(4), ..task(1) });
    let attempt = rig.assigns(leaving, 1);
    let object = ObjectId::item(attempt.task, 0);
    let gives = |rig: &mut Rig, worker, attempt| {
        let value = stored(object);
        rig.worker_says(worker, FromWorker::Yielded { attempt, to: None, index: 0, value });
    };
    gives(&mut rig, leaving, attempt);
    rig.effects.clear();
    let other = rig.worker(3, 1);
    // The task runs again at the other worker, and yields the same item while that worker is to
    // pull its data.
    rig.end(leaving, attempt, AttemptEnd::Lost(Error::unavailable(Ran::Maybe, "killed")), None);
    drained(&mut rig, leaving);
    rig.worker_says(leaving, FromWorker::Emptied);
    rig.pass(60 * SECOND);
    let bring = |effect: &Effect| matches!(effect, Effect::ToWorker { to, message: ToWorker::Bring { .. } } if *to == other);
    assert!(rig.effects.iter().any(bring), "{:?}", rig.effects);
    rig.effects.retain(|effect| !bring(effect) && !matches!(effect, Effect::ToClient { .. }));
    let again = rig.assigns(other, 1);
    gives(&mut rig, other, again);
    let forgets = |effect: &Effect| {
        matches!(effect, Effect::ToWorker { message: ToWorker::Forget { .. }, .. })
    };
    assert!(!rig.effects.iter().any(forgets), "its `Copied` is on its way");
    rig.effects.clear();
    rig.worker_says(other, FromWorker::Copied { object });
    assert_eq!(rig.next_to_worker(leaving), ToWorker::Leave);
    rig.worker_says(leaving, FromWorker::Leaving);
    rig.effects.clear();
    looks(&mut rig, other, object);
    assert_eq!(found(&mut rig, other).unwrap(), other);
}

#[test]
fn a_draining_worker_without_last_copies_leaves_at_once() {
    let mut rig = Rig::new();
    let worker = rig.worker(2, 1);
    drained(&mut rig, worker);
    rig.nothing_left();
    rig.worker_says(worker, FromWorker::Emptied);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Leave);
}

#[test]
fn a_durable_object_is_pulled_back_when_its_last_copy_is_lost() {
    let mut rig = Rig::new();
    let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 1));
    let object = saved(&mut rig, client, worker, 90);
    loses(&mut rig, worker, object);
    // The worker that looks for it first pulls it, once.
    looks(&mut rig, other, object);
    brings(&mut rig, other, object, &[]);
    rig.submit(client, TaskSpec { needs: vec![object], ..task(1) });
    rig.nothing_left();
    rig.worker_says(other, FromWorker::Copied { object });
    assert_eq!(found(&mut rig, other).unwrap(), other);
    rig.assigns(other, 1);
    released(&mut rig, client, object);
    rig.nothing_left();
}

#[test]
fn a_durable_object_waits_for_a_worker_that_can_read_it() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let object = saved(&mut rig, client, worker, 90);
    rig.dies(worker);
    rig.effects.clear();
    rig.submit(client, TaskSpec { needs: vec![object], ..task(1) });
    rig.nothing_left();
    let second = rig.worker(3, 1);
    brings(&mut rig, second, object, &[]);
    rig.dies(second);
    rig.effects.clear();
    let third = rig.worker(4, 1);
    brings(&mut rig, third, object, &[]);
    rig.worker_says(third, FromWorker::Copied { object });
    rig.assigns(third, 1);
}

#[test]
fn a_durable_object_is_erased_when_nothing_holds_it() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let object = saved(&mut rig, client, worker, 90);
    released(&mut rig, client, object);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object });
    assert_eq!(rig.next_to_worker(worker), ToWorker::Erase { object });
    // A result that nothing holds.
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    released(&mut rig, client, result(1));
    rig.end(worker, attempt, AttemptEnd::Finished(vec![durable(result(1))]), None);
    rig.ends(client, 1).unwrap();
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object: result(1) });
    assert_eq!(rig.next_to_worker(worker), ToWorker::Erase { object: result(1) });
    // While no worker is here, the erasures wait for one.
    let last = saved(&mut rig, client, worker, 91);
    rig.dies(worker);
    rig.effects.clear();
    released(&mut rig, client, last);
    rig.nothing_left();
    let worker = rig.worker(5, 1);
    for object in [object, result(1), last] {
        assert_eq!(rig.next_to_worker(worker), ToWorker::Erase { object });
    }
    rig.nothing_left();
}

#[test]
fn an_unreadable_durable_object_is_recomputed_or_fails_with_gone() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let object = saved(&mut rig, client, worker, 90);
    loses(&mut rig, worker, object);
    looks(&mut rig, worker, object);
    brings(&mut rig, worker, object, &[]);
    fails(&mut rig, worker, object);
    let error = found(&mut rig, worker).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.message().contains("no room"), "{error}");
    // The saved data still exists: the next session that looks for it makes a worker try again.
    looks(&mut rig, worker, object);
    brings(&mut rig, worker, object, &[]);
    rig.worker_says(worker, FromWorker::Copied { object });
    assert_eq!(found(&mut rig, worker).unwrap(), worker);
    // The result of a task is recomputed.
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![durable(result(1))]), None);
    rig.ends(client, 1).unwrap();
    loses(&mut rig, worker, result(1));
    looks(&mut rig, worker, result(1));
    brings(&mut rig, worker, result(1), &[]);
    fails(&mut rig, worker, result(1));
    let attempt = rig.assigns(worker, 1);
    rig.end(worker, attempt, AttemptEnd::Finished(vec![stored(result(1))]), None);
    assert_eq!(
        rig.next_to_worker(worker),
        ToWorker::Erase { object: result(1) },
        "the recomputed value is not saved"
    );
    assert_eq!(found(&mut rig, worker).unwrap(), worker);
}

#[test]
fn a_durable_put_into_the_store_of_an_ended_worker_is_not_lost() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.dies(worker);
    rig.effects.clear();
    let object = result(90);
    rig.client_says(client, FromClient::Put { object, value: durable(object), at: Some(worker) });
    let other = rig.worker(3, 1);
    looks(&mut rig, other, object);
    brings(&mut rig, other, object, &[]);
}

#[test]
fn unfinished_moves_from_a_worker_do_not_hold_up_its_next_session() {
    let mut rig = Rig::new();
    let (client, leaving) = (rig.client(1), rig.worker(2, 1));
    let object = made(&mut rig, client, leaving, 1);
    let other = rig.worker(3, 1);
    drained(&mut rig, leaving);
    brings(&mut rig, other, object, &[leaving]);
    rig.worker_says(leaving, FromWorker::Leaving);
    rig.effects.clear();
    let back = rig.worker(2, 1);
    drained(&mut rig, back);
    rig.worker_says(back, FromWorker::Emptied);
    assert_eq!(rig.next_to_worker(back), ToWorker::Leave, "its store is empty");
    fails(&mut rig, other, object); // Nothing looks for the data, so it is not recomputed.
    rig.nothing_left();
}

#[test]
fn a_durable_item_that_is_yielded_again_before_its_pull_ends_is_erased() {
    let mut rig = Rig::new();
    let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 0));
    rig.submit(client, TaskSpec { stream_window: Some(4), ..task(1) });
    let attempt = rig.assigns(worker, 1);
    let object = ObjectId::item(task_id(1), 0);
    let gives = |rig: &mut Rig, attempt: AttemptId, value: Value| {
        rig.worker_says(worker, FromWorker::Yielded { attempt, to: None, index: 0, value });
        rig.effects.retain(|effect| !matches!(effect, Effect::ToClient { .. }));
    };
    gives(&mut rig, attempt, durable(object));
    loses(&mut rig, worker, object);
    looks(&mut rig, other, object);
    brings(&mut rig, other, object, &[]);
    // Meanwhile the task runs again, and the item that it yields is small this time.
    rig.end(worker, attempt, AttemptEnd::Lost(Error::internal("killed")), None);
    rig.pass(Duration::from_secs(60));
    let attempt = rig.assigns(worker, 1);
    gives(&mut rig, attempt, value("item"));
    assert_eq!(
        rig.next_to_worker(worker),
        ToWorker::Erase { object },
        "the saved data is not the value any more"
    );
    let ToWorker::Located { copies: Err(_), .. } = rig.next_to_worker(other) else {
        panic!("the worker that looked is answered")
    };
    fails(&mut rig, other, object);
    rig.nothing_left();
}

#[test]
fn a_copy_that_becomes_the_last_while_its_worker_drains_is_moved_too() {
    let mut rig = Rig::new();
    let (client, leaving) = (rig.client(1), rig.worker(2, 1));
    let object = made(&mut rig, client, leaving, 1);
    let other = rig.worker(3, 1);
    rig.worker_says(other, FromWorker::Copied { object });
    drained(&mut rig, leaving);
    rig.dies(other);
    let third = rig.worker(4, 1);
    rig.effects.clear();
    rig.worker_says(leaving, FromWorker::Emptied);
    brings(&mut rig, third, object, &[leaving]);
    rig.nothing_left();
    rig.worker_says(third, FromWorker::Copied { object });
    assert_eq!(rig.next_to_worker(leaving), ToWorker::Leave);
}

#[test]
fn at_shutdown_the_last_worker_erases_durable_objects_before_it_leaves() {
    let mut rig = Rig::new();
    let (client, one, two) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 1));
    let object = saved(&mut rig, client, one, 90);
    rig.ask(|controller, now, effects| controller.shut_down(now, SECOND, effects));
    rig.effects.clear();
    for worker in [one, two] {
        drained(&mut rig, worker);
        rig.worker_says(worker, FromWorker::Emptied);
    }
    assert_eq!(rig.next_to_worker(one), ToWorker::Leave);
    assert_eq!(rig.next_to_worker(two), ToWorker::Erase { object });
    assert_eq!(rig.next_to_worker(two), ToWorker::Leave);
}

#[test]
fn durable_results_of_a_lost_attempt_are_erased_when_its_task_fails() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let options = TaskOptions { durable: true, ..TaskOptions::default() };
    rig.submit(client, TaskSpec { options: options.into(), ..task(1) });
    let attempt = rig.assigns(worker, 1);
    rig.end(worker, attempt, AttemptEnd::Lost(Error::internal("killed")), None);
    rig.pass(RETRY_DELAY * 2);
    let attempt = rig.assigns(worker, 1);
    rig.end(worker, attempt, AttemptEnd::Failed(raised("ValueError")), None);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Erase { object: result(1) });
    rig.ends(client, 1).unwrap_err();
    rig.nothing_left();
}

#[test]
fn erasures_of_an_ended_worker_go_to_another_worker() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let object = saved(&mut rig, client, worker, 90);
    released(&mut rig, client, object);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object });
    assert_eq!(rig.next_to_worker(worker), ToWorker::Erase { object });
    rig.dies(worker); // The message may not have arrived.
    rig.effects.clear();
    let other = rig.worker(3, 1);
    assert_eq!(rig.next_to_worker(other), ToWorker::Erase { object });
    rig.nothing_left();
}
