//! Checkpoints, and actors that exit.

use super::*;

/// The options of an actor that is saved after every `calls` calls.
fn saved_every(calls: u32) -> ActorOptions {
    let checkpoints = Some(CheckpointPolicy { every_calls: Some(calls), interval: None });
    ActorOptions { checkpoints, ..ActorOptions::default() }
}

/// The id of the call by which a worker saves [`ACTOR`].
const SAVE: u128 = ACTOR.actor.as_u128();

fn is_save(effect: &Effect) -> bool {
    matches!(effect, Effect::Call { spec, .. } if &**spec.target.name() == SAVE_METHOD)
}

fn stored(sequence: u64) -> ToWorker {
    ToWorker::Checkpointed { instance: ACTOR, sequence }
}

#[test]
fn after_the_set_number_of_calls_the_next_call_waits_for_a_checkpoint() {
    let mut rig = Rig::new();
    let executor = rig.host(saved_every(2));
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call(method(2), 1);
    rig.call(method(3), 2);
    assert_eq!(rig.take(), [calls(executor, method(1)), calls(executor, method(2))]);
    rig.call_ends(executor, 1, value());
    assert_eq!(rig.take(), [answered(1, value())]);
    rig.call_ends(executor, 2, value());
    let effects = rig.take();
    assert!(effects.len() == 2 && is_save(&effects[1]), "{effects:?}");
    rig.call_ends(executor, SAVE, value());
    let payload = value().payload;
    let checkpoint = FromWorker::Checkpoint { instance: ACTOR, sequence: 0, payload };
    assert_eq!(rig.take(), [tell(checkpoint)]);
    rig.controller_says(stored(0));
    assert_eq!(rig.take(), [calls(executor, method(3))]);
}

#[test]
fn a_failed_checkpoint_does_not_stop_the_actor() {
    let mut rig = Rig::new();
    let executor = rig.host(saved_every(1));
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call(method(2), 1);
    rig.call_ends(executor, 1, value());
    rig.take();
    let end = UserCodeResult { outcome: Err(raised()), still_held: Vec::new() };
    rig.happens(Event::CallEnded { executor, call: task_id(SAVE), end });
    assert_eq!(rig.take(), [calls(executor, method(2))]);
}

#[test]
fn a_caller_that_requests_a_checkpoint_is_answered_when_it_is_stored() {
    let mut rig = Rig::new();
    let executor = rig.host(saved_every(10));
    let target = Target::Method { actor: ACTOR.actor, method: SAVE_METHOD.into() };
    rig.call(TaskSpec { target, ..method(1) }, 0);
    rig.trust_caller();
    rig.take();
    rig.call_ends(executor, 1, value());
    assert!(matches!(rig.take()[..], [Effect::ToController(FromWorker::Checkpoint { .. })]));
    rig.controller_says(stored(0));
    assert_eq!(rig.take(), [answered(1, value())]);
}

#[test]
fn a_checkpoint_is_taken_after_its_interval_only_if_there_were_calls() {
    let mut rig = Rig::new();
    let checkpoints = Some(CheckpointPolicy { every_calls: None, interval: Some(SECOND) });
    let executor = rig.host(ActorOptions { checkpoints, ..ActorOptions::default() });
    rig.pass(SECOND);
    assert_eq!(rig.take(), [], "there were no calls");
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call_ends(executor, 1, value());
    rig.take();
    rig.pass(SECOND);
    assert!(rig.take().iter().any(is_save));
}

#[test]
fn an_actor_of_a_draining_worker_is_saved_before_it_moves() {
    let mut rig = Rig::new();
    let executor = rig.host(saved_every(10));
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call_ends(executor, 1, value());
    rig.take();
    rig.controller_says(ToWorker::Drain { grace: SECOND });
    assert!(rig.take().iter().any(is_save));
    rig.call_ends(executor, SAVE, value());
    rig.take();
    rig.controller_says(stored(0));
    assert_eq!(rig.take(), [Effect::Kill { executor }]);
}

#[test]
fn an_actor_that_exits_refuses_its_waiting_calls_and_reports_its_exit() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call(method(2), 1);
    rig.take();
    rig.call_ends(executor, 1, value());
    rig.happens(Event::ActorExited { executor });
    assert_eq!(rig.take(), [answered(1, value()), Effect::Kill { executor }]);
    rig.dies(executor);
    let waited = FromHost::CallRefused { attempt: tried(2), reason: Refusal::NotHere };
    let gone = FromWorker::ActorDestroyed { instance: ACTOR, exit: ActorExitReason::Exited };
    assert_eq!(rig.take(), [answer(waited), tell(gone)]);
}
