//! Actors in processes of their own, from creation to their end.

use crate::harness::{MINUTE, cluster, impatient_cluster, is_alive, signal, start_worker, until};
use marline::{Amount, Budget, ErrorKind, Lifetime, Program, Resources, Worker};

#[test]
fn an_actor_is_created_called_restarted_and_deleted() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &[]);
    let cpu = Resources::cpus(1);
    let counter = client.actor("Counter").resources(cpu).max_restarts(Budget::Times(1));
    let counter = counter.create((10_u64,)).unwrap();
    for total in 11..20 {
        assert_eq!(counter.call::<u64>("add", (1_u64,)).unwrap().wait().unwrap(), total);
    }
    let pid: u32 = counter.call("pid", ()).unwrap().wait().unwrap();
    let free = || controller.workers()[0].free.cpu;
    assert_eq!(free(), Amount::ONE, "it takes one of two");
    signal(pid, "KILL");
    until("it lives again, with fresh state", || {
        counter.call::<u64>("add", (1_u64,)).unwrap().wait().is_ok_and(|total| total == 11)
    });
    let pid: u32 = counter.call("pid", ()).unwrap().wait().unwrap();
    counter.delete().unwrap();
    until("it is gone", || {
        // A call may overtake the deletion, or run when the actor ends.
        match counter.call::<u64>("add", (1_u64,)).unwrap().wait() {
            Ok(_) => false,
            Err(error) => {
                assert!(error.kind() == ErrorKind::Gone || error.may_have_run(), "{error}");
                error.kind() == ErrorKind::Gone
            }
        }
    });
    until("its executor is gone, and its CPU free", || {
        !is_alive(pid) && free() == Amount::whole(2)
    });
}

#[test]
fn a_name_has_one_actor_even_while_it_is_created_or_restarted() {
    let (controller, client) = cluster();
    let other = marline::Client::connect(controller.address()).unwrap();
    // No worker can host it yet, so it is being created.
    let only = client.actor("Counter").name("only").max_restarts(Budget::Unlimited);
    let only = only.create((100_u64,)).unwrap();
    let same = other.actor("Counter").name("only").get_if_exists().create((0_u64,)).unwrap();
    assert_eq!(same.id(), only.id());
    let taken = other.actor("Counter").name("only").create((0_u64,)).err().unwrap();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists, "{taken}");
    let elsewhere = other.actor("Counter").name("only").namespace("elsewhere");
    assert_ne!(elsewhere.create((0_u64,)).unwrap().id(), only.id());
    let call = same.call::<u64>("add", (1_u64,)).unwrap();
    let mut worker = start_worker(&controller, &[]);
    assert_eq!(call.wait().unwrap(), 101, "created once, with the first arguments");
    assert_eq!(only.call::<u64>("add", (1_u64,)).unwrap().wait().unwrap(), 102);
    worker.kill();
    until("the loss is seen", || controller.workers().is_empty());
    // The actor is being restarted, and still has its name.
    let same = other.actor("Counter").name("only").get_if_exists().create((0_u64,)).unwrap();
    assert_eq!(same.id(), only.id());
    assert_eq!(other.get_actor("default", "only").unwrap().id(), only.id());
    let taken = other.actor("Counter").name("only").create((0_u64,)).err().unwrap();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists, "{taken}");
    let _worker = start_worker(&controller, &[]);
    assert_eq!(same.call::<u64>("add", (1_u64,)).unwrap().wait().unwrap(), 101);
    only.delete().unwrap();
    until("its name is free", || client.get_actor("default", "only").is_err());
    let again = client.actor("Counter").name("only").create((1_u64,)).unwrap();
    assert_ne!(again.id(), only.id());
}

#[test]
fn a_constructor_that_fails_runs_once_and_frees_the_name() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tries").display().to_string();
    let fails = client.actor("Fails").name("it").max_restarts(Budget::Times(5));
    let fails = fails.create((file.clone(),)).unwrap();
    let error = fails.call::<()>("any", ()).unwrap().wait().unwrap_err();
    assert!(error.message().contains("not today"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "tried\n", "it ran once");
    let works = client.actor("Counter").name("it").create((1_u64,)).unwrap();
    assert_eq!(works.call::<u64>("add", (1_u64,)).unwrap().wait().unwrap(), 2);
}

#[test]
fn a_task_that_no_worker_provides_waits_for_a_worker_that_does() {
    let (controller, client) = cluster();
    let other = Worker::of(Program::new().task("other", || 1_u64)).threads();
    let _other = other.join(controller.address()).unwrap();
    let mut late = client.task("late").submit::<u64>(()).unwrap();
    until("the controller has seen that no worker provides it", || {
        late.status().unwrap().waits_for.contains("provides \"late\"")
    });
    let worker = Worker::of(Program::new().task("late", || 2_u64)).threads();
    let _worker = worker.join(controller.address()).unwrap();
    assert_eq!(late.wait_timeout(MINUTE).unwrap(), 2);
}

#[test]
fn unknown_tasks_actors_and_methods_fail_and_missing_resources_are_named() {
    let (controller, client) = impatient_cluster();
    let _worker = start_worker(&controller, &[]);
    let error = client.task("triple").submit::<u64>((1_u64,)).unwrap().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("\"triple\""), "{error}");
    let actor = client.actor("Abacus").create(()).unwrap();
    let error = actor.call::<u64>("add", ()).unwrap().wait().unwrap_err();
    assert!(error.message().contains("\"Abacus\""), "{error}");
    let counter = client.actor("Counter").create((0_u64,)).unwrap();
    let error = counter.call::<u64>("subtract", (1_u64,)).unwrap().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("\"subtract\""), "{error}");
    let gpus = Resources { gpu: Amount::whole(8), ..Resources::cpus(1) };
    let huge = client.task("double").resources(gpus).submit::<u64>((1_u64,)).unwrap();
    let why = huge.status().unwrap().waits_for;
    assert!(why.contains("no worker offers gpu"), "{why}");
    huge.cancel();
    assert_eq!(huge.wait().unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn a_call_that_may_have_run_is_retried_only_within_its_retry_budget() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &[]);
    let folder = tempfile::tempdir().unwrap();
    for (retries, times) in [(Budget::Times(0), 1), (Budget::Times(1), 2)] {
        let file = folder.path().join(format!("{times}")).display().to_string();
        let diary = client.actor("Diary").max_restarts(Budget::Times(3)).max_task_retries(retries);
        let diary = diary.create((file.clone(),)).unwrap();
        // The call counts itself in the file, and then ends the process of its actor.
        let outcome = diary.call::<u64>("write and die", (times as u64,)).unwrap().wait();
        let written = std::fs::read_to_string(&file).unwrap();
        assert_eq!(written.lines().count(), times, "it ran as often as it may");
        match retries {
            Budget::Times(0) => assert!(outcome.unwrap_err().may_have_run()),
            Budget::Times(_) | Budget::Unlimited => {
                assert_eq!(outcome.unwrap(), 2, "the second time it found that it had run");
            }
        }
    }
}

#[test]
fn calls_submitted_while_an_actor_restarts_wait_and_run_once_in_order() {
    let (controller, client) = cluster();
    let mut worker = start_worker(&controller, &[]);
    let counter = client.actor("Counter").max_restarts(Budget::Times(1)).create((0_u64,)).unwrap();
    assert_eq!(counter.call::<u64>("add", (1_u64,)).unwrap().wait().unwrap(), 1);
    worker.kill();
    until("the loss is seen", || controller.workers().is_empty());
    // No worker is left, so the calls wait. They were never sent, so they are no retries, which
    // this actor does not allow.
    let calls: Vec<_> = (0..10).map(|_| counter.call::<u64>("add", (1_u64,)).unwrap()).collect();
    let _worker = start_worker(&controller, &[]);
    let answers: Vec<u64> = calls.into_iter().map(|call| call.wait().unwrap()).collect();
    assert_eq!(answers, (1..=10).collect::<Vec<_>>(), "each once, in order");
}

#[test]
fn a_killed_client_releases_its_tasks_and_actors_but_not_detached_ones() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("held").display().to_string();
    let words = format!("{} {file}", controller.address());
    let mut holder = crate::harness::Process(crate::harness::start_self(
        "client_process",
        "MARLINE_TEST_HOLD",
        &words,
    ));
    until("it holds an actor and runs a task", || std::fs::exists(&file).unwrap());
    let kept = || (controller.workers()[0].actors, controller.workers()[0].tasks);
    until("both are there", || kept() == (2, 1));
    holder.kill();
    until("only what is detached is left", || kept() == (1, 0));
    let left = client.get_actor("default", "detached").unwrap();
    assert_eq!(left.call::<u64>("add", (1_u64,)).unwrap().wait().unwrap(), 8);
    let _ = Lifetime::Detached;
}

#[test]
fn a_call_that_runs_when_its_actor_is_deleted_fails_with_gone() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &[]);
    let folder = tempfile::tempdir().unwrap();
    let begun = folder.path().join("begun").display().to_string();
    let counter = client.actor("Counter").create((0_u64,)).unwrap();
    let call = counter.call::<()>("hang", (begun.clone(),)).unwrap();
    until("it runs", || std::fs::exists(&begun).unwrap());
    counter.delete().unwrap();
    let error = call.wait().unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Gone, true), "{error}");
    let expected = format!("actor {} was deleted while this call ran", counter.id());
    assert_eq!(error.message(), expected);
}
