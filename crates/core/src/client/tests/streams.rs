//! Items on their way to a client.

use super::*;
use crate::id::ObjectId;

fn stream(spec: TaskSpec) -> TaskSpec {
    TaskSpec { stream_window: Some(4), ..spec }
}

fn item(number: u128, index: u32) -> Referent {
    Referent::Object(ObjectId::item(task_id(number), index))
}

fn comes(rig: &mut Rig, number: u128, index: u32) {
    let value = Ok(Payload::raw("item").into());
    rig.controller_says(ToClient::Yielded { task: task_id(number), index, value });
}

fn given(number: u128, index: u32) -> Effect {
    let value = Ok(Payload::raw("item").into());
    Effect::Yielded { task: task_id(number), index, value }
}

fn let_go(number: u128, index: u32) -> Effect {
    tell(FromClient::Release { thing: item(number, index) })
}

fn took(rig: &mut Rig, number: u128, count: u32) {
    rig.wants(|client, effects| client.report_consumed(task_id(number), count, effects));
}

/// A client that submitted a task that streams.
fn submitted(number: u128) -> Rig {
    let mut rig = Rig::new();
    rig.controller_says(ToClient::Credit { tasks: 1, bytes: 100 });
    rig.submit(stream(task(number))).unwrap();
    rig.take();
    rig
}

/// A client with a call that streams at the first instance, with this `max_task_retries`.
fn called(number: u128, retries: u32) -> Rig {
    let mut rig = Rig::new();
    rig.actor_is_ready(1, HOST, retries);
    let spec = Arc::new(stream(method(number)));
    rig.wants(|client, effects| client.call(spec, Some(Vec::new()), None, effects)).unwrap();
    rig.take();
    rig
}

fn ends_after(rig: &mut Rig, number: u128, attempt: u64, items: u32) {
    rig.host_says(FromHost::CallEnded { attempt: tried(number, attempt), outcome: done(), items });
}

#[test]
fn each_item_is_yielded_once_and_held_until_it_is_released() {
    let mut rig = submitted(1);
    comes(&mut rig, 1, 0);
    comes(&mut rig, 1, 1);
    assert_eq!(rig.take(), [given(1, 0), given(1, 1)]);
    rig.wants(|client, effects| client.release(item(1, 0), effects));
    assert_eq!(rig.take(), [let_go(1, 0)]);
    // The task runs again. The controller holds repeated items for this client.
    comes(&mut rig, 1, 0);
    comes(&mut rig, 1, 1);
    comes(&mut rig, 1, 2);
    assert_eq!(rig.take(), [let_go(1, 0), given(1, 2)], "the second is still held");
    rig.controller_says(ToClient::TaskEnded { task: task_id(1), outcome: done() });
    assert_eq!(rig.take(), [ended(1)]);
    rig.wants(|client, effects| client.release(item(1, 2), effects));
    assert_eq!(rig.take(), [let_go(1, 2)]);
}

#[test]
fn the_controller_or_host_of_a_stream_hears_how_many_items_were_consumed() {
    let mut rig = submitted(1);
    comes(&mut rig, 1, 0);
    rig.take();
    took(&mut rig, 1, 1);
    assert_eq!(rig.take(), [tell(FromClient::Took { task: task_id(1), count: 1 })]);
    took(&mut rig, 1, 1);
    assert_eq!(rig.take(), []);

    let mut rig = called(1, 0);
    comes(&mut rig, 1, 0);
    rig.take();
    took(&mut rig, 1, 1);
    let message = ToHost::Took { call: task_id(1), count: 1 };
    assert_eq!(rig.take(), [Effect::ToHost { host: HOST, address: "there".into(), message }]);
}

#[test]
fn closing_a_stream_cancels_its_task_and_releases_late_items() {
    let mut rig = submitted(1);
    comes(&mut rig, 1, 0);
    rig.take();
    rig.wants(|client, effects| client.close_stream(task_id(1), effects));
    rig.wants(|client, effects| client.close_stream(task_id(1), effects));
    let cancel = FromClient::Cancel { task: task_id(1), mode: CancelMode::Graceful };
    assert_eq!(rig.take(), [tell(cancel)]);
    comes(&mut rig, 1, 1);
    assert_eq!(rig.take(), [let_go(1, 1)]);
    let outcome = Err(Error::cancelled("it was"));
    rig.controller_says(ToClient::TaskEnded { task: task_id(1), outcome });
    rig.fails(1);
    comes(&mut rig, 1, 2);
    assert_eq!(rig.take(), [let_go(1, 2)]);
}

#[test]
fn the_end_of_a_direct_call_waits_for_its_late_items() {
    let mut rig = called(1, 0);
    comes(&mut rig, 1, 0);
    ends_after(&mut rig, 1, 1, 2);
    assert_eq!(rig.take(), [given(1, 0)]);
    comes(&mut rig, 1, 1);
    assert_eq!(rig.take(), [given(1, 1), ended(1)]);
}

#[test]
fn a_retried_stream_continues_after_the_items_that_were_consumed() {
    let mut rig = called(1, 1);
    comes(&mut rig, 1, 0);
    comes(&mut rig, 1, 1);
    took(&mut rig, 1, 2);
    // The call has ended, but its last item was lost with its host: the call counts as lost.
    ends_after(&mut rig, 1, 1, 3);
    rig.take();
    rig.host_is_over(Vec::new());
    rig.take();
    rig.actor_is_ready(2, NEXT_HOST, 1);
    let effects = rig.take();
    let told = effects.iter().any(|effect| {
        matches!(effect, Effect::ToHost { message: ToHost::Call { took: 2, .. }, .. })
    });
    assert!(told, "{effects:?}");
    comes(&mut rig, 1, 0);
    comes(&mut rig, 1, 1);
    comes(&mut rig, 1, 2);
    let outcome = done();
    let message = FromHost::CallEnded { attempt: tried(1, 2), outcome, items: 3 };
    rig.happens(Event::HostMessageReceived { host: NEXT_HOST, message });
    assert_eq!(rig.take(), [given(1, 2), ended(1)], "the earlier items are still held");
}

#[test]
fn a_stream_ends_with_the_session() {
    let mut rig = submitted(1);
    comes(&mut rig, 1, 0);
    rig.take();
    rig.happens(Event::Fenced { session: SESSION });
    let effects = rig.take();
    assert!(matches!(&effects[0], Effect::Ended { outcome: Err(_), .. }), "{effects:?}");
    took(&mut rig, 1, 1);
    rig.wants(|client, effects| client.close_stream(task_id(1), effects));
    assert_eq!(rig.take(), []);
}

#[test]
fn referents_of_a_result_are_released_if_the_call_is_lost_before_its_items() {
    let mut rig = called(1, 0);
    let thing = Referent::Object(ObjectId::of(task_id(1), 0));
    let value = Value { referents: vec![thing], ..Payload::raw("named").into() };
    let attempt = tried(1, 1);
    rig.host_says(FromHost::CallEnded { attempt, outcome: Ok(vec![value]), items: 1 });
    assert!(rig.take().contains(&tell(FromClient::Hold { thing })), "its item is on its way");
    let error = Error::unavailable(Ran::Maybe, "the executor died");
    rig.host_says(FromHost::CallLost { attempt, error });
    let effects = rig.take();
    assert!(effects.contains(&tell(FromClient::Release { thing })), "{effects:?}");
}
