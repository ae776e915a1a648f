//! Tasks and their attempts, from submission to exactly one end, and warnings about tasks that
//! wait.

use super::*;

#[test]
fn a_task_submitted_twice_runs_once() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 2));
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    rig.submit(client, task(1));
    rig.nothing_left();
    rig.finish(worker, attempt);
    assert_eq!(rig.ends(client, 1), Ok(vec![value("done")]));

    rig.submit(client, task(1));
    assert_eq!(rig.ends(client, 1), Ok(vec![value("done")]), "it is told again how it ended");
    assert_eq!(rig.controller.counters().submitted, 1);
    rig.nothing_left();
}

#[test]
fn the_status_of_an_ended_task_names_its_worker() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    rig.worker_says(worker, FromWorker::Started { attempt });
    rig.finish(worker, attempt);
    rig.ends(client, 1).unwrap();
    assert_eq!(rig.controller.task_status(task_id(1)).unwrap().worker, Some(worker.id));
    rig.nothing_left();
}

#[test]
fn two_sessions_that_submit_one_live_task_both_get_and_hold_its_result() {
    let mut rig = Rig::new();
    let (first, second, worker) = (rig.client(1), rig.client(2), rig.worker(3, 1));
    rig.submit(first, task(1));
    let attempt = rig.assigns(worker, 1);
    let result = ObjectId::of(task_id(1), 0);
    for _ in 0..2 {
        rig.submit(second, task(1));
        rig.nothing_left();
        assert!(rig.holds(second, Referent::Object(result)));
    }

    rig.finish(worker, attempt);
    assert_eq!(rig.ends(first, 1), Ok(vec![value("done")]));
    assert_eq!(rig.ends(second, 1), Ok(vec![value("done")]), "it is told once");
    rig.dies(first);
    assert_eq!(
        rig.controller.object_count_and_inline_bytes().0,
        1,
        "the other session holds the result"
    );
    rig.client_says(second, FromClient::Fetch { object: result });
    let ready = ToClient::ObjectReady { object: result, value: Ok(value("done")) };
    assert_eq!(rig.next_to_client(second), ready);
    rig.client_says(second, FromClient::Release { thing: Referent::Object(result) });
    assert_eq!(rig.controller.object_count_and_inline_bytes(), (0, 0));
    rig.nothing_left();
}

#[test]
fn a_second_submitter_learns_how_a_task_ends_after_its_owner_is_gone() {
    let mut rig = Rig::new();
    let (owner, other, worker) = (rig.client(1), rig.client(2), rig.worker(3, 2));
    for client in [owner, other] {
        (1..=3).for_each(|number| rig.submit(client, task(number)));
    }
    let running = [1, 2].map(|number| rig.assigns(worker, number));
    rig.nothing_left();

    rig.dies(owner);
    for attempt in running {
        let cancel = ToWorker::CancelAttempt { attempt, mode: CancelMode::Force };
        assert_eq!(rig.next_to_worker(worker), cancel);
    }
    let queued = rig.ends(other, 3).unwrap_err();
    assert_eq!(queued.kind(), ErrorKind::Cancelled);
    rig.end(worker, running[0], AttemptEnd::Cancelled, None);
    assert_eq!(rig.ends(other, 1).unwrap_err().kind(), ErrorKind::Cancelled);
    rig.finish(worker, running[1]); // It finished before the cancellation reached it.
    assert_eq!(rig.ends(other, 2), Ok(vec![value("done")]));
    for number in 1..=3 {
        assert!(rig.holds(other, Referent::Object(ObjectId::of(task_id(number), 0))));
    }
    rig.nothing_left();
}

#[test]
fn an_ownerless_result_outlives_its_ttl_if_a_session_submits_the_task_too() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit_ownerless(task(1)).unwrap();
    let attempt = rig.assigns(worker, 1);
    rig.submit(client, task(1));
    rig.finish(worker, attempt);
    assert_eq!(rig.ends(client, 1), Ok(vec![value("done")]));
    rig.pass(rig.controller.config().result_ttl);
    assert_eq!(rig.controller.task_result(task_id(1)), Ok(Ok(vec![value("done")])));
    rig.nothing_left();
}

#[test]
fn submitting_an_ended_task_answers_at_once_and_holds_its_results() {
    let mut rig = Rig::new();
    let (first, second, worker) = (rig.client(1), rig.client(2), rig.worker(3, 1));
    rig.submit(first, task(1));
    let attempt = rig.assigns(worker, 1);
    rig.finish(worker, attempt);
    rig.ends(first, 1).unwrap();

    rig.submit(second, task(1));
    assert_eq!(rig.ends(second, 1), Ok(vec![value("done")]));
    assert!(rig.holds(second, Referent::Object(ObjectId::of(task_id(1), 0))));
    rig.dies(first);
    assert_eq!(rig.controller.task_result(task_id(1)), Ok(Ok(vec![value("done")])));
    rig.dies(second);
    assert_eq!(rig.controller.object_count_and_inline_bytes(), (0, 0));
    rig.nothing_left();
}

#[test]
fn task_result_returns_all_results_or_not_found() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    for (number, values) in [(1, vec![]), (2, vec![value("one"), value("two")])] {
        rig.submit(client, TaskSpec { returns: values.len() as u32, ..task(number) });
        let attempt = rig.assigns(worker, number);
        rig.end(worker, attempt, AttemptEnd::Finished(values.clone()), None);
        assert_eq!(rig.ends(client, number), Ok(values.clone()));
        assert_eq!(rig.controller.task_result(task_id(number)), Ok(Ok(values)));
    }

    let thing = Referent::Object(ObjectId::of(task_id(2), 1));
    rig.client_says(client, FromClient::Release { thing });
    assert_eq!(
        rig.controller.object_count_and_inline_bytes().0,
        1,
        "the first result is still here"
    );
    let error = rig.controller.task_result(task_id(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    rig.nothing_left();
}

#[test]
fn a_raised_exception_fails_the_task_unless_retry_on_names_its_class() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let retry_on = RetryOn::Classes(vec!["IOError".into()]);
    let options = TaskOptions { retry_on, max_retries: Budget::Times(1), ..TaskOptions::default() };
    let mut fails = |spec: TaskSpec, class: &str| {
        let number = spec.id.as_u128();
        rig.submit(client, spec);
        let mut attempts = 0;
        while rig.state_of(number) != TaskState::Failed {
            rig.pass(RETRY_DELAY);
            let attempt = rig.assigns(worker, number);
            rig.end(worker, attempt, AttemptEnd::Failed(raised(class)), None);
            attempts += 1;
        }
        assert_eq!(rig.ends(client, number).unwrap_err().failure().unwrap().class, class);
        rig.nothing_left();
        attempts
    };
    assert_eq!(fails(task(1), "IOError"), 1);
    assert_eq!(fails(task_with(2, options.clone()), "ValueError"), 1);
    assert_eq!(fails(task_with(3, options), "IOError"), 2);
}

#[test]
fn retry_on_covers_subclasses_of_its_exception_classes() {
    let retry_on = RetryOn::Classes(vec!["LookupError".into()]);
    let raised = |bases: &[&str]| {
        let bases = bases.iter().map(|base| (*base).to_owned()).collect();
        let failure = Failure { class: "KeyError".into(), bases, ..Failure::default() };
        Error::failed("no such key", failure)
    };
    assert!(retry_on.covers(&raised(&["LookupError", "Exception"])));
    assert!(!retry_on.covers(&raised(&["Exception"])));
}

#[test]
fn a_task_gets_the_values_it_waited_for() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 2));
    rig.submit(client, task(1));
    let feeder = rig.assigns(worker, 1);
    rig.submit(client, TaskSpec { needs: vec![ObjectId::of(task_id(1), 0)], ..task(2) });
    assert_eq!(rig.why_waits(2), "1 values that it needs");
    rig.nothing_left();

    // The client releases the object at once. The waiting task holds it.
    let fed = Referent::Object(ObjectId::of(task_id(1), 0));
    rig.client_says(client, FromClient::Release { thing: fed });
    rig.finish(worker, feeder);
    rig.ends(client, 1).unwrap();
    let (attempt, values) = rig.gives(worker, 2, true);
    assert_eq!(values, [value("done")]);
    rig.finish(worker, attempt);
    rig.ends(client, 2).unwrap();
    assert!(!rig.controller.holds().is_held(fed));
    rig.nothing_left();
}

#[test]
fn a_task_fed_by_a_failed_task_fails_with_its_cause() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 2));
    rig.submit(client, task(1));
    let feeder = rig.assigns(worker, 1);
    rig.submit(client, TaskSpec { needs: vec![ObjectId::of(task_id(1), 0)], ..task(2) });
    rig.end(worker, feeder, AttemptEnd::Failed(raised("ValueError")), None);
    assert_eq!(rig.ends(client, 1), Err(raised("ValueError")));
    let error = rig.ends(client, 2).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Failed, false));
    assert_eq!(error.cause(), Some(&raised("ValueError")));
    rig.nothing_left();
}

#[test]
fn the_cancel_of_a_queued_task_ends_it_at_once() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    rig.assigns(worker, 1);
    rig.submit(client, task(2));
    rig.client_says(client, FromClient::Cancel { task: task_id(2), mode: CancelMode::Graceful });
    assert_eq!(rig.ends(client, 2).unwrap_err().kind(), ErrorKind::Cancelled);
    rig.nothing_left();
}

#[test]
fn a_task_that_finishes_before_its_cancel_arrives_ends_once() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    let mode = CancelMode::GracefulAlone;
    let cancel = FromClient::Cancel { task: task_id(1), mode };
    rig.client_says(client, cancel.clone());
    assert_eq!(rig.next_to_worker(worker), ToWorker::CancelAttempt { attempt, mode });

    rig.finish(worker, attempt); // It finished before the cancellation reached it.
    assert_eq!(rig.ends(client, 1), Ok(vec![value("done")]));
    rig.client_says(client, cancel);
    let counters = rig.controller.counters();
    assert_eq!((counters.finished, counters.cancelled), (1, 0));
    rig.nothing_left();
}

#[test]
fn a_cancelled_task_is_not_retried_when_its_worker_is_lost() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    rig.client_says(client, FromClient::Cancel { task: task_id(1), mode: CancelMode::Graceful });
    assert_eq!(
        rig.next_to_worker(worker),
        ToWorker::CancelAttempt { attempt, mode: CancelMode::Graceful }
    );
    rig.dies(worker);
    assert_eq!(rig.ends(client, 1).unwrap_err().kind(), ErrorKind::Cancelled);
    rig.nothing_left();
}

#[test]
fn stale_reports_change_nothing() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let old = rig.assigns(worker, 1);
    rig.worker_says(worker, FromWorker::Refused { attempt: old, reason: Refusal::TakenBack });
    let current = rig.assigns(worker, 1);
    let other = rig.worker(3, 1);

    rig.finish(worker, old);
    rig.finish(other, current); // This worker never had the attempt.
    assert_eq!(rig.state_of(1), TaskState::Assigned);
    rig.finish(worker, current);
    rig.ends(client, 1).unwrap();
    rig.finish(worker, current);
    assert_eq!(rig.controller.counters().stale, 3);
    rig.nothing_left();
}

#[test]
fn blocked_task_lends_its_cpu() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let parent = rig.assigns(worker, 1);
    rig.submit(client, task(2));
    rig.nothing_left();

    rig.worker_says(worker, FromWorker::Blocked { attempt: parent });
    let child = rig.assigns(worker, 2);
    rig.worker_says(worker, FromWorker::Resumed { attempt: parent });
    rig.submit(client, task(3));
    rig.finish(worker, child);
    rig.ends(client, 2).unwrap();
    rig.nothing_left(); // The account is balanced again, and no CPU is free.
    rig.finish(worker, parent);
    rig.ends(client, 1).unwrap();
    rig.assigns(worker, 3);
    rig.nothing_left();
}

#[test]
fn short_tasks_wait_in_a_backlog_and_take_over_the_grant() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let quickly = Duration::from_micros(100);
    let done = || AttemptEnd::Finished(vec![value("done")]);
    rig.submit(client, task(1));
    let first = rig.assigns(worker, 1);
    rig.end_after(quickly, worker, first, done(), None);
    rig.ends(client, 1).unwrap();

    for number in 2..=4 {
        rig.submit(client, task(number));
    }
    let second = rig.assigns(worker, 2);
    let third = rig.backlogs(worker, 3);
    let fourth = rig.backlogs(worker, 4);
    rig.end_after(quickly, worker, second, done(), Some(third));
    rig.ends(client, 2).unwrap();
    assert_eq!(rig.state_of(3), TaskState::Running);

    // Another worker is idle: the task that has not started is taken back for it, at no cost.
    let idle = rig.worker(3, 1);
    assert_eq!(rig.next_to_worker(worker), ToWorker::TakeBack(fourth));
    rig.nothing_left();
    rig.worker_says(worker, FromWorker::Refused { attempt: fourth, reason: Refusal::TakenBack });
    rig.assigns(idle, 4);
    rig.nothing_left();
}

#[test]
fn a_task_that_is_taken_back_too_late_finishes_at_its_worker() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let done = || AttemptEnd::Finished(vec![value("done")]);
    rig.submit(client, task(1));
    let first = rig.assigns(worker, 1);
    rig.end_after(Duration::from_micros(100), worker, first, done(), None);
    rig.ends(client, 1).unwrap();
    rig.submit(client, task(2));
    rig.submit(client, task(3));
    let second = rig.assigns(worker, 2);
    let third = rig.backlogs(worker, 3);
    rig.worker(3, 1);
    assert_eq!(rig.next_to_worker(worker), ToWorker::TakeBack(third));

    rig.end(worker, second, done(), Some(third)); // The third has started, and does not go back.
    rig.ends(client, 2).unwrap();
    rig.finish(worker, third);
    rig.ends(client, 3).unwrap();
    rig.nothing_left();
}

#[test]
fn a_worker_whose_only_slot_is_blocked_gets_no_backlog() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let gpu = Resources::one_cpu().with_gpus(Amount::ONE);
    let worker = rig.worker_offering(2, gpu.clone(), false);
    let options = TaskOptions { resources: gpu, ..TaskOptions::default() };
    let quickly = Duration::from_micros(100);
    let done = || AttemptEnd::Finished(vec![value("done")]);
    rig.submit(client, task_with(1, options.clone()));
    let first = rig.assigns(worker, 1);
    rig.end_after(quickly, worker, first, done(), None);
    rig.ends(client, 1).unwrap();
    rig.submit(client, task_with(2, options.clone()));
    rig.submit(client, task_with(3, options.clone()));
    let second = rig.assigns(worker, 2);
    let third = rig.backlogs(worker, 3);

    // The CPU is lent now, the GPU is not. Tasks that need the GPU wait with the controller.
    rig.worker_says(worker, FromWorker::Blocked { attempt: second });
    rig.nothing_left();
    rig.worker_says(worker, FromWorker::Refused { attempt: third, reason: Refusal::TakenBack });
    rig.submit(client, task_with(4, options));
    rig.nothing_left();
    rig.submit(client, task(5));
    let child = rig.assigns(worker, 5);
    rig.end_after(quickly, worker, child, done(), None);
    rig.ends(client, 5).unwrap();
    rig.nothing_left();

    rig.worker_says(worker, FromWorker::Resumed { attempt: second });
    let third = rig.backlogs(worker, 3);
    rig.backlogs(worker, 4);
    rig.end_after(quickly, worker, second, done(), Some(third));
    rig.ends(client, 2).unwrap();
    rig.nothing_left();
}

#[test]
fn infeasible_resources_are_named_in_status() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let worker = rig.worker(2, 2);
    let asking = |resources| TaskOptions { resources, ..TaskOptions::default() };
    rig.submit(client, task_with(1, asking(Resources::cpus(8))));
    assert_eq!(rig.why_waits(1), "no worker is large enough for cpu 8: the largest offers cpu 2");
    rig.submit(client, task_with(2, asking(Resources::one_cpu().with_gpus(Amount::ONE))));
    assert_eq!(rig.why_waits(2), "no worker offers gpu");
    rig.submit(client, task(3));
    rig.assigns(worker, 3); // Work that cannot run does not hold up work that can.
    rig.nothing_left();
}

#[test]
fn a_client_is_warned_once_of_tasks_that_no_worker_can_run() {
    let mut rig = Rig::new();
    let (client, other) = (rig.client(1), rig.client(2));
    let worker = rig.worker(3, 1);
    let large = |number| {
        let resources = Resources::cpus(8);
        task_with(number, TaskOptions { resources, ..TaskOptions::default() })
    };
    rig.submit(client, large(1));
    rig.submit(client, large(2));
    rig.pass(5 * SECOND);
    // The worker is only busy for these tasks. No session is warned of work that waits for its
    // turn.
    rig.submit(other, task(3));
    let running = rig.assigns(worker, 3);
    rig.submit(other, task(4));
    rig.pass(4 * SECOND);
    rig.nothing_left();

    rig.pass(SECOND);
    let ToClient::Warning { words } = rig.next_to_client(client) else {
        panic!("the task waited for 10 s")
    };
    assert_eq!(
        words,
        "\"add\" waits: no worker is large enough for cpu 8: the largest offers cpu 1"
    );
    rig.pass(60 * SECOND);
    rig.nothing_left();

    rig.submit(other, large(5));
    rig.pass(20 * SECOND);
    assert!(matches!(rig.next_to_client(other), ToClient::Warning { .. }), "its first warning");
    rig.nothing_left();
    rig.finish(worker, running);
    rig.ends(other, 3).unwrap();
    rig.assigns(worker, 4);
}

#[test]
fn no_client_is_warned_of_tasks_that_were_cancelled_or_placed_in_time() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.submit(client, task(1));
    rig.submit(client, task(2));
    rig.client_says(client, FromClient::Cancel { task: task_id(1), mode: CancelMode::Graceful });
    rig.ends(client, 1).unwrap_err();
    rig.pass(9 * SECOND);
    let worker = rig.worker(2, 1);
    rig.assigns(worker, 2);
    rig.pass(60 * SECOND);
    rig.nothing_left();
}

#[test]
fn each_warning_comes_10_s_after_its_task_even_if_other_tasks_wait() {
    let mut rig = Rig::new();
    let (client, other) = (rig.client(1), rig.client(2));
    let worker = rig.worker(3, 1);
    rig.submit(other, task(1));
    rig.assigns(worker, 1);
    rig.submit(other, task(2)); // This task could run, and waits for its turn.
    let large = |number| {
        let resources = Resources::cpus(8);
        task_with(number, TaskOptions { resources, ..TaskOptions::default() })
    };
    for (number, to) in [(3, client), (4, other)] {
        rig.pass(3 * SECOND);
        rig.submit(to, large(number));
    }
    rig.pass(7 * SECOND - Duration::from_millis(1));
    rig.nothing_left();
    rig.pass(Duration::from_millis(1)); // The first large task was submitted after 3 s.
    assert!(matches!(rig.next_to_client(client), ToClient::Warning { .. }));
    rig.pass(3 * SECOND - Duration::from_millis(1));
    rig.nothing_left();
    rig.pass(Duration::from_millis(1));
    assert!(matches!(rig.next_to_client(other), ToClient::Warning { .. }));
    rig.nothing_left();
}

#[test]
fn new_tasks_of_a_warned_shape_schedule_no_extra_warning_checks() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.worker(3, 1);
    let large = |number| {
        let resources = Resources::cpus(8);
        task_with(number, TaskOptions { resources, ..TaskOptions::default() })
    };
    let mut looks = std::collections::BTreeSet::new();
    for number in 1..=200 {
        rig.submit(client, large(number));
        rig.effects.clear(); // The warning, and room for more.
        let warns = rig.controller.timers.iter().filter(|(_, timer)| *timer == Timer::WarnUnplaced);
        looks.extend(warns.map(|(time, _)| *time));
        rig.pass(SECOND / 2);
    }
    assert!(looks.len() <= 12, "every 10 s of 100 s, and once for the warning: {looks:?}");
}

#[test]
fn an_error_names_the_missing_value_that_the_task_needs() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let gone = crate::id::ObjectId::of(task_id(9), 0);
    rig.submit(client, TaskSpec { needs: vec![gone], ..task(1) });
    let error = rig.ends(client, 1).unwrap_err();
    let expected = format!("value {}#0, which the task needs, is lost", task_id(9));
    assert_eq!(
        (error.kind(), error.what_is_gone()),
        (ErrorKind::Gone, Some(Referent::Object(gone)))
    );
    assert!(error.message().starts_with(&expected), "{error}");
}
