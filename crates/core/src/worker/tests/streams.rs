//! Items on their way through a worker.

use super::*;

fn stream(spec: TaskSpec) -> TaskSpec {
    TaskSpec { stream_window: Some(4), ..spec }
}

fn gives(rig: &mut Rig, executor: ExecutorId, task: u128, index: u32) {
    rig.happens(Event::Yielded { executor, task: task_id(task), index, value: value() });
}

fn passed_on(task: u128, to: Option<Session>, index: u32) -> Effect {
    tell(FromWorker::Yielded { attempt: tried(task), to, index, value: value() })
}

fn took(executor: ExecutorId, task: u128, count: u32) -> Effect {
    Effect::ReportConsumed { executor, task: task_id(task), count }
}

#[test]
fn items_are_reported_in_order_and_only_from_the_executor_of_the_task() {
    let mut rig = Rig::new();
    let executor = rig.start(stream(task(1)));
    gives(&mut rig, executor, 1, 0);
    gives(&mut rig, executor, 1, 1);
    assert_eq!(rig.take(), [passed_on(1, None, 0), passed_on(1, None, 1)]);
    gives(&mut rig, executor, 1, 1);
    gives(&mut rig, executor, 2, 0);
    assert_eq!(rig.take(), []);
    rig.ends(executor, 1, Ok(vec![value()]));
    rig.take();
    gives(&mut rig, executor, 1, 2);
    assert_eq!(rig.take(), []);
    assert_eq!(rig.worker.counters().stale, 3);
}

#[test]
fn the_blob_of_an_item_is_retained_before_the_item_is_reported() {
    let mut rig = Rig::new();
    let executor = rig.start(stream(task(1)));
    let object = ObjectId::item(task_id(1), 0);
    let value: Value = Payload::raw("large").stored_as(object).into();
    rig.happens(Event::Yielded { executor, task: task_id(1), index: 0, value: value.clone() });
    let message = FromWorker::Yielded { attempt: tried(1), to: None, index: 0, value };
    assert_eq!(rig.take(), [Effect::Retain { object }, tell(message)]);
}

#[test]
fn an_executor_hears_how_many_items_were_consumed_once_it_has_the_task() {
    let mut rig = Rig::new();
    rig.assign(stream(task(1)), Some(one_cpu()));
    let [Effect::Spawn { executor, .. }] = rig.take()[..] else { panic!("an executor starts") };
    rig.controller_says(ToWorker::Took { attempt: tried(1), count: 3 });
    assert_eq!(rig.take(), []);
    rig.happens(Event::ExecutorReady { executor });
    let started = started(task_id(1));
    assert_eq!(rig.take(), [started, run(executor, stream(task(1))), took(executor, 1, 3)]);
    rig.controller_says(ToWorker::Took { attempt: tried(1), count: 4 });
    assert_eq!(rig.take(), [took(executor, 1, 4)]);
    rig.controller_says(ToWorker::Took { attempt: tried(1), count: 4 });
    assert_eq!(rig.take(), [], "the executor knows already");
}

#[test]
fn items_of_a_direct_call_name_their_caller_and_its_end_counts_them() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(stream(method(1)), 0);
    rig.trust_caller();
    rig.call(stream(method(2)), 1);
    rig.take();
    rig.caller_says(ToHost::Took { call: task_id(2), count: 1 });
    assert_eq!(rig.take(), [took(executor, 2, 1)], "the executor has the prefetched call");
    gives(&mut rig, executor, 1, 0);
    assert_eq!(rig.take(), [passed_on(1, Some(CALLER), 0)]);
    rig.call_ends(executor, 1, value());
    let ended = FromHost::CallEnded { attempt: tried(1), outcome: Ok(vec![value()]), items: 1 };
    assert_eq!(rig.take(), [answer(ended)]);
    // The other call is lost with its executor. Its items are on their way.
    gives(&mut rig, executor, 2, 0);
    rig.take();
    rig.caller_says(ToHost::CancelCall { call: task_id(2), mode: CancelMode::Force });
    rig.take();
    rig.dies(executor);
    let effects = rig.take();
    let Effect::ToCaller { message: FromHost::CallEnded { items, .. }, .. } = &effects[0] else {
        panic!("it was cancelled: {effects:?}")
    };
    assert_eq!(*items, 1);
}
