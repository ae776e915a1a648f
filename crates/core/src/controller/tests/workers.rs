//! Workers: what they say, and what happens when they go.

use super::*;

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
    rig.pass(5 * SECOND); // Pinged at 20, and answers.
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
fn a_task_lost_once_more_than_it_may_be_retried_fails_and_may_have_run() {
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
fn refused_work_costs_nothing() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, once(1));
    let attempt = rig.assigns(worker, 1);
    rig.worker_says(worker, FromWorker::Refused { attempt, reason: Refusal::Full });
    rig.nothing_left(); // The worker could not start an executor: it is left alone for a while.

    rig.pass(rig.controller.config().full_pause);
    let again = rig.assigns(worker, 1);
    rig.finish(worker, again);
    assert_eq!(rig.ends(client, 1), Ok(vec![value("done")]));
    assert_eq!(rig.controller.counters().refused, 1);
    rig.nothing_left();
}

#[test]
fn a_worker_that_is_full_twice_is_left_alone_until_the_later_pause_is_over() {
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
    rig.nothing_left(); // The first pause was over at 4, the second is at 7.
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

    // Its grace is over: the worker killed the attempt, and gives it back.
    rig.worker_says(leaving, FromWorker::Refused { attempt, reason: Refusal::Draining });
    rig.assigns(staying, 1);
    rig.nothing_left();
}

#[test]
fn what_must_not_be_preempted_avoids_preemptible_workers() {
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
    assert_eq!(rig.orders(leaving), ToWorker::Drain { grace });

    rig.worker_says(leaving, FromWorker::ActorDestroyed { instance, idle: false });
    rig.is_nowhere(client, instance.actor);
    let moved = rig.instantiates(staying, instance.actor);
    assert_eq!(moved.epoch, instance.epoch.next());
    assert_eq!(rig.controller.actor_status(instance.actor).unwrap().restarts, 0);

    rig.worker_says(leaving, FromWorker::Leaving);
    assert_eq!(rig.next(), Effect::Over { session: leaving, cause: EndCause::Closed });
    rig.nothing_left();
}
