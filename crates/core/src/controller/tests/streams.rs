//! Streams: which session gets and holds an item, how a worker learns how many items were consumed,
//! and how lost items are recomputed.

use super::*;

fn stream(number: u128) -> TaskSpec {
    TaskSpec { stream_window: Some(4), ..task(number) }
}

fn gives(rig: &mut Rig, worker: Session, attempt: AttemptId, to: Option<Session>, index: u32) {
    rig.worker_says(worker, FromWorker::Yielded { attempt, to, index, value: value("item") });
}

fn yielded(number: u128, index: u32) -> ToClient {
    ToClient::Yielded { task: task_id(number), index, value: Ok(value("item")) }
}

fn item(number: u128, index: u32) -> Referent {
    Referent::Object(ObjectId::item(task_id(number), index))
}

#[test]
fn an_item_is_held_by_its_consumer_until_released_and_outlives_its_task() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, stream(1));
    let attempt = rig.assigns(worker, 1);
    gives(&mut rig, worker, attempt, None, 0);
    assert_eq!(rig.next_to_client(client), yielded(1, 0));
    assert!(rig.holds(client, item(1, 0)));
    rig.finish(worker, attempt);
    rig.ends(client, 1).unwrap();
    assert!(rig.holds(client, item(1, 0)));
    rig.client_says(client, FromClient::Release { thing: item(1, 0) });
    assert!(!rig.holds(client, item(1, 0)));
    rig.nothing_left();
}

#[test]
fn items_of_a_stale_attempt_are_ignored_and_their_blobs_are_evicted() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, stream(1));
    let attempt = rig.assigns(worker, 1);
    let old = AttemptId { attempt: Attempt(0), ..attempt };
    gives(&mut rig, worker, old, None, 0);
    rig.nothing_left();
    let object = ObjectId::item(task_id(1), 0);
    let stored: Value = Payload::raw("large").stored_as(object).into();
    rig.worker_says(
        worker,
        FromWorker::Yielded { attempt: old, to: None, index: 0, value: stored },
    );
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object });
    assert_eq!(rig.controller.counters().stale, 2);
}

#[test]
fn items_of_a_task_that_is_not_a_stream_are_ignored() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    gives(&mut rig, worker, attempt, None, 0);
    rig.nothing_left();
}

#[test]
fn the_consumed_count_of_a_stream_reaches_its_worker_across_attempts() {
    let mut rig = Rig::new();
    let (client, other, worker) = (rig.client(1), rig.client(3), rig.worker(2, 1));
    rig.submit(client, stream(1));
    let attempt = rig.assigns(worker, 1);
    gives(&mut rig, worker, attempt, None, 0);
    rig.next_to_client(client);
    let took = |count| FromClient::Took { task: task_id(1), count };
    rig.client_says(client, took(1));
    assert_eq!(rig.next_to_worker(worker), ToWorker::Took { attempt, count: 1 });
    rig.client_says(client, took(1));
    rig.client_says(other, took(9));
    rig.nothing_left();
    rig.end(worker, attempt, AttemptEnd::Lost(crashed()), None);
    rig.client_says(client, took(2));
    rig.nothing_left();
    rig.pass(SECOND);
    let again = rig.assigns(worker, 1);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Took { attempt: again, count: 2 });
    gives(&mut rig, worker, again, None, 0);
    assert_eq!(rig.next_to_client(client), yielded(1, 0), "the client does the counting");
}

#[test]
fn an_item_of_a_direct_call_reaches_its_caller_unless_the_caller_ended() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let attempt = AttemptId { task: task_id(5), attempt: Attempt(1) };
    gives(&mut rig, worker, attempt, Some(client), 0);
    assert_eq!(rig.next_to_client(client), yielded(5, 0));
    assert!(rig.holds(client, item(5, 0)));
    rig.dies(client);
    gives(&mut rig, worker, attempt, Some(client), 1);
    rig.nothing_left();
    assert_eq!(rig.controller.object_count_and_inline_bytes(), (0, 0));
}

#[test]
fn an_object_enclosed_in_an_item_is_released_with_the_item_or_its_task() {
    let mut rig = Rig::new();
    let (client, worker, executor) = (rig.client(1), rig.worker(2, 1), rig.client(3));
    rig.submit(client, stream(1));
    let attempt = rig.assigns(worker, 1);
    let [first, second] = [90, 91].map(|number| ObjectId::of(task_id(number), 0));
    for (index, object) in [first, second].into_iter().enumerate() {
        rig.client_says(executor, FromClient::Put { object, value: value("deep"), at: None });
        let (item, things) = (Some(index as u32), vec![Referent::Object(object)]);
        rig.client_says(executor, FromClient::Enclose { call: attempt, item, things });
        rig.client_says(executor, FromClient::Release { thing: Referent::Object(object) });
    }
    let contains = vec![Referent::Object(first)];
    let named = Value { referents: contains, ..value("a reference") };
    rig.worker_says(worker, FromWorker::Yielded { attempt, to: None, index: 0, value: named });
    rig.next_to_client(client);
    assert!(rig.controller.value(first).is_some(), "the item names it");
    rig.client_says(client, FromClient::Release { thing: item(1, 0) });
    assert_eq!(rig.controller.value(first), None);
    assert!(rig.controller.value(second).is_some(), "its item has not come");
    rig.end(worker, attempt, AttemptEnd::Failed(raised("ValueError")), None);
    rig.ends(client, 1).unwrap_err();
    assert_eq!(rig.controller.value(second), None, "and never will");
}

#[test]
fn an_item_that_is_too_large_arrives_as_an_error() {
    let mut rig = Rig::with(Config { max_payload_bytes: 3, ..Config::default() });
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, stream(1));
    let attempt = rig.assigns(worker, 1);
    gives(&mut rig, worker, attempt, None, 0);
    let ToClient::Yielded { value: Err(error), .. } = rig.next_to_client(client) else {
        panic!("the client gets an item all the same")
    };
    assert_eq!(error.kind(), ErrorKind::TooLarge);
}

#[test]
fn a_stream_needs_a_valid_window_one_result_and_a_connected_client() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let wrong = [
        TaskSpec { stream_window: Some(0), ..task(1) },
        TaskSpec { stream_window: Some(u32::MAX), ..task(2) },
        TaskSpec { returns: 2, ..stream(3) },
    ];
    for spec in wrong {
        let number = spec.id.as_u128();
        rig.submit(client, spec);
        let error = rig.ends(client, number).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::TooLarge), "{error}");
        rig.effects.clear(); // A grant of more credit.
    }
    let error = rig.submit_ownerless(stream(4)).unwrap_err();
    assert!(error.message().contains("a client that is connected"), "{error}");
}

fn gives_stored(rig: &mut Rig, worker: Session, attempt: AttemptId, index: u32) -> ObjectId {
    let object = ObjectId::item(attempt.task, index);
    let value = Payload::raw("large").stored_as(object).into();
    rig.worker_says(worker, FromWorker::Yielded { attempt, to: None, index, value });
    rig.effects.retain(|effect| !matches!(effect, Effect::ToClient { .. }));
    object
}

#[test]
fn a_lookup_of_a_lost_item_waits_while_its_stream_is_retried() {
    let mut rig = Rig::new();
    let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 0));
    rig.submit(client, stream(1));
    let attempt = rig.assigns(worker, 1);
    let items = [0, 1].map(|index| gives_stored(&mut rig, worker, attempt, index));
    rig.dies(worker);
    let worker = rig.worker(4, 1);
    rig.effects.clear();
    copies::looks(&mut rig, other, items[1]);
    rig.nothing_left();
    rig.pass(RETRY_DELAY * 2);
    let attempt = rig.assigns(worker, 1);
    gives_stored(&mut rig, worker, attempt, 0);
    rig.nothing_left();
    gives_stored(&mut rig, worker, attempt, 1);
    assert_eq!(copies::found(&mut rig, other).unwrap(), worker);
    // An item that the running attempt has yielded is not recomputed before that attempt ends.
    copies::loses(&mut rig, worker, items[0]);
    copies::looks(&mut rig, other, items[0]);
    let error = copies::found(&mut rig, other).unwrap_err();
    assert!(error.message().contains("still runs"), "{error}");
}

#[test]
fn lost_items_of_an_ended_stream_are_recomputed_by_running_it_again() {
    let mut rig = Rig::new();
    let (client, worker, other) = (rig.client(1), rig.worker(2, 1), rig.worker(3, 0));
    rig.submit(client, stream(1));
    let attempt = rig.assigns(worker, 1);
    let items = [0, 1, 2].map(|index| gives_stored(&mut rig, worker, attempt, index));
    rig.finish(worker, attempt);
    rig.ends(client, 1).unwrap();
    copies::released(&mut rig, client, items[0]);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Forget { object: items[0] });
    for item in &items[1..] {
        copies::loses(&mut rig, worker, *item);
    }
    copies::looks(&mut rig, other, items[2]);
    let attempt = rig.assigns(worker, 1);
    assert_eq!(attempt.attempt, Attempt(2));
    for (index, item) in items.iter().enumerate() {
        assert_eq!(gives_stored(&mut rig, worker, attempt, index as u32), *item);
        if index == 0 {
            assert_eq!(
                rig.next_to_worker(worker),
                ToWorker::Forget { object: *item },
                "nothing holds it"
            );
        }
        let took = ToWorker::Took { attempt, count: index as u32 + 1 };
        if index < 2 {
            assert_eq!(rig.next_to_worker(worker), took, "there is room for the next");
        }
    }
    assert_eq!(copies::found(&mut rig, other).unwrap(), worker);
    rig.effects.clear();
    rig.finish(worker, attempt);
    assert_eq!(rig.controller.copies(items[1]).unwrap()[0].worker, worker);
    // An item stays lost if the stream yields fewer items than before.
    copies::loses(&mut rig, worker, items[2]);
    copies::looks(&mut rig, other, items[2]);
    let attempt = rig.assigns(worker, 1);
    rig.finish(worker, attempt);
    let error = copies::found(&mut rig, other).unwrap_err();
    assert!(error.message().contains("not yielded again"), "{error}");
    for item in &items[1..] {
        copies::released(&mut rig, client, *item);
    }
    rig.effects.clear();
    copies::released(&mut rig, client, ObjectId::of(task_id(1), 0));
    assert_eq!(rig.controller.holds().all_things().count(), 0);
}
