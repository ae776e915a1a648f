//! Workers: suspicion, refusals, draining, loss, and the shutdown of the controller.

use super::*;
use crate::message::SystemLimit;

#[test]
fn a_suspect_worker_gets_no_new_work_and_is_trusted_again() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.silent = vec![worker];
    rig.pass(15 * SECOND); // Pinged at 10, silent for `suspect_after` at 15.
    assert_eq!(rig.controller.list_workers()[0].state, WorkerState::Suspect);
    rig.submit(client, task(1));
    rig.nothing_left();

    rig.silent.clear();
    rig.pass(5 * SECOND); // Pinged at 20, and answered.
    assert_eq!(rig.controller.list_workers()[0].state, WorkerState::Healthy);
    rig.assigns(worker, 1);
    rig.nothing_left();
}

#[test]
fn lost_worker_requeues_its_running_tasks() {
    let mut rig = Rig::new();
    let (client, first) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let attempt = rig.assigns(first, 1);
    rig.worker_says(first, FromWorker::Started { attempt });
    let second = rig.worker(3, 1);

    rig.dies(first);
    rig.nothing_left();
    rig.pass(RETRY_DELAY);
    let again = rig.assigns(second, 1);
    assert_eq!((attempt.attempt, again.attempt), (Attempt(1), Attempt(2)));
    rig.finish(second, again);
    assert_eq!(rig.ends(client, 1), Ok(vec![value("done")]));
    rig.nothing_left();
}

#[test]
fn a_task_lost_after_its_last_retry_fails_and_may_have_run() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let options = TaskOptions { max_retries: Budget::Times(1), ..TaskOptions::default() };
    rig.submit(client, task_with(1, options));
    let first = rig.worker(2, 1);
    rig.assigns(first, 1);
    rig.dies(first);
    let second = rig.worker(3, 1);
    rig.pass(RETRY_DELAY);
    rig.assigns(second, 1);

    rig.dies(second);
    let error = rig.ends(client, 1).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Unavailable, true));
    assert!(error.message().contains("on node-3 was lost: its process died"), "{error}");
    rig.nothing_left();
}

#[test]
fn a_refused_task_spends_no_retry() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, once(1));
    let attempt = rig.assigns(worker, 1);
    rig.worker_says(worker, FromWorker::Refused { attempt, reason: Refusal::Full });
    rig.nothing_left(); // The worker could not start an executor, so it is paused.

    rig.pass(rig.controller.config().full_pause);
    let again = rig.assigns(worker, 1);
    rig.finish(worker, again);
    assert_eq!(rig.ends(client, 1), Ok(vec![value("done")]));
    assert_eq!(rig.controller.counters().refused, 1);
    rig.nothing_left();
}

#[test]
fn a_waiting_task_names_the_system_limit_that_its_worker_reached() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let lacking = |attempt| {
        let reason = Refusal::SystemLimit(SystemLimit::Descriptors);
        FromWorker::Refused { attempt, reason }
    };
    let attempt = rig.assigns(worker, 1);
    rig.worker_says(worker, lacking(attempt));
    let why = rig.why_waits(1);
    assert!(why.starts_with("no worker can start an executor: "), "{why}");
    assert!(why.ends_with("it has no file descriptor left (`ulimit -n` is the limit)"), "{why}");

    // After a pause the worker starts an executor, so what it lacked is no longer the reason.
    rig.pass(rig.controller.config().full_pause);
    let again = rig.assigns(worker, 1);
    rig.worker_says(worker, FromWorker::Started { attempt: again });
    rig.submit(client, task(2));
    assert_eq!(rig.why_waits(2), "cpu 1 to be free at a worker");
}

#[test]
fn a_worker_that_is_full_twice_gets_work_only_after_the_later_pause() {
    let mut rig = Rig::with(Config { full_pause: 4 * SECOND, ..Config::default() });
    let (client, worker) = (rig.client(1), rig.worker(2, 2));
    rig.submit(client, task(1));
    rig.submit(client, task(2));
    let [first, second] = [1, 2].map(|number| rig.assigns(worker, number));
    let full = |attempt| FromWorker::Refused { attempt, reason: Refusal::Full };
    rig.worker_says(worker, full(first));
    rig.pass(3 * SECOND);
    rig.worker_says(worker, full(second));
    rig.pass(4 * SECOND - Duration::from_millis(1));
    rig.nothing_left(); // The first pause ended at 4 s, the second ends at 7 s.
    rig.pass(Duration::from_millis(1));
    rig.assigns(worker, 2);
    rig.assigns(worker, 1);
    rig.nothing_left();
}

#[test]
fn a_preempted_task_runs_elsewhere_at_no_cost() {
    let mut rig = Rig::new();
    let (client, leaving) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, once(1));
    let attempt = rig.assigns(leaving, 1);
    let staying = rig.worker(3, 1);
    rig.worker_says(leaving, FromWorker::Draining);
    rig.worker_says(leaving, FromWorker::Started { attempt });
    rig.nothing_left();

    // The grace is over: the worker killed the attempt, and gives the task back.
    rig.worker_says(leaving, FromWorker::Refused { attempt, reason: Refusal::Draining });
    rig.assigns(staying, 1);
    rig.nothing_left();
}

#[test]
fn a_task_that_must_not_be_preempted_avoids_preemptible_workers() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.worker_offering(2, Resources::cpus(8), true);
    rig.submit(client, task_with(1, TaskOptions { preemptible: false, ..TaskOptions::default() }));
    rig.nothing_left();
    let safe = rig.worker(3, 1);
    rig.assigns(safe, 1);
    rig.nothing_left();
}

#[test]
fn drain_moves_actors_at_no_cost() {
    let mut rig = Rig::new();
    let (client, leaving) = (rig.client(1), rig.worker(2, 1));
    let instance = rig.create(client, leaving, actor(7));
    let staying = rig.worker(3, 1);
    let grace = 60 * SECOND;
    rig.ask(|controller, now, effects| controller.drain(now, leaving.id, grace, effects)).unwrap();
    assert_eq!(rig.next_to_worker(leaving), ToWorker::Drain { grace });

    rig.worker_says(
        leaving,
        FromWorker::ActorDestroyed { instance, exit: ActorExitReason::Requested },
    );
    rig.is_nowhere(client, instance.actor);
    let moved = rig.instantiates(staying, instance.actor);
    assert_eq!(moved.epoch, instance.epoch.next());
    assert_eq!(rig.controller.actor_status(instance.actor).unwrap().restarts, 0);

    rig.worker_says(leaving, FromWorker::Leaving);
    assert_eq!(rig.next(), Effect::EndSession { session: leaving, cause: SessionEndCause::Closed });
    rig.nothing_left();
}

fn winds_up(rig: &mut Rig, grace: Duration) {
    rig.ask(|controller, now, effects| controller.shut_down(now, grace, effects));
}

#[test]
fn a_controller_that_shuts_down_lets_workers_finish_and_takes_no_new_work() {
    let mut rig = Rig::new();
    let (client, one) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let finishes = rig.assigns(one, 1);
    let other = rig.worker(3, 1);
    rig.submit(client, task(2));
    let goes_back = rig.assigns(other, 2);
    rig.submit(client, task(3));
    let grace = 60 * SECOND;
    winds_up(&mut rig, grace);
    for worker in [one, other] {
        assert_eq!(rig.next_to_worker(worker), ToWorker::WindUp { grace });
    }
    rig.nothing_left();

    rig.submit(client, task(4));
    let refused = rig.ends(client, 4).unwrap_err();
    assert_eq!((refused.kind(), refused.may_have_run()), (ErrorKind::Unavailable, false));
    assert!(refused.message().contains("shutting down"), "{refused}");
    assert_eq!(rig.submit_ownerless(task(5)).unwrap_err().kind(), ErrorKind::Unavailable);
    let detached = ActorOptions { lifetime: Lifetime::Detached, ..ActorOptions::default() };
    let create = ActorSpec { name: Some("taken?".into()), ..actor_with(7, detached) };
    let created = rig.ask(|controller, now, effects| {
        controller.create_actor(now, Owner::Cluster, Arc::new(create), effects)
    });
    assert_eq!(created.unwrap_err().kind(), ErrorKind::Unavailable);

    rig.finish(one, finishes);
    rig.ends(client, 1).unwrap();
    rig.worker_says(one, FromWorker::Leaving);
    assert_eq!(rig.next(), Effect::EndSession { session: one, cause: SessionEndCause::Closed });
    let reason = Refusal::Draining;
    rig.worker_says(other, FromWorker::Refused { attempt: goes_back, reason });
    rig.nothing_left();
    rig.worker_says(other, FromWorker::Leaving);
    assert_eq!(rig.next(), Effect::EndSession { session: other, cause: SessionEndCause::Closed });
    assert_eq!(rig.next(), Effect::AllowExit);
    assert_eq!([2, 3].map(|task| rig.state_of(task)), [TaskState::Pending; 2]);
    rig.pass(grace);
    rig.nothing_left();
}

#[test]
fn a_controller_that_shuts_down_waits_no_longer_than_its_grace() {
    let mut rig = Rig::new();
    let worker = rig.worker(2, 1);
    winds_up(&mut rig, 60 * SECOND);
    assert_eq!(rig.next_to_worker(worker), ToWorker::WindUp { grace: 60 * SECOND });
    rig.pass(59 * SECOND);
    rig.nothing_left();
    rig.pass(SECOND);
    assert_eq!(rig.next(), Effect::AllowExit);
    rig.nothing_left();
}

#[test]
fn a_controller_without_workers_shuts_down_at_once_and_rejects_workers() {
    let mut rig = Rig::new();
    winds_up(&mut rig, 60 * SECOND);
    assert_eq!(rig.next(), Effect::AllowExit);
    let role = Role::Worker(WorkerInfo::default());
    rig.happens(joins(SessionId::from_u128(2), 1, role.clone()));
    rig.nothing_left();
    assert!(rig.controller.join_rejection(&role).message().contains("takes no more workers"));
    rig.client(3);
}
