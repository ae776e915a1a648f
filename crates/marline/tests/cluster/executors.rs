//! Executors that are processes: user code that crashes, hangs or takes too much memory hurts only
//! itself.

use crate::harness::{cluster, is_alive, parent, signal, start_worker, until};
use marline::{Budget, ErrorKind};

#[test]
fn tasks_run_in_executor_processes_that_are_reused() {
    let (controller, client) = cluster();
    let worker = start_worker(&controller, &[]);
    let pid = || client.task("pid").submit::<u32>(()).unwrap().wait().unwrap();
    let first = pid();
    assert_ne!(first, worker.id());
    assert_eq!(parent(first), worker.id());
    assert_eq!(pid(), first, "it is used again");
    let doubled: Vec<_> =
        (0..1_000_u64).map(|x| client.task("double").submit::<u64>((x,)).unwrap()).collect();
    for (x, doubled) in doubled.into_iter().enumerate() {
        assert_eq!(doubled.wait().unwrap(), x as u64 * 2);
    }
}

#[test]
fn a_panic_fails_its_task_and_the_executor_goes_on() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &[]);
    let before: u32 = client.task("pid").submit(()).unwrap().wait().unwrap();
    let error = client.task("panic").submit::<()>(()).unwrap().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert!(error.message().contains("as it was told to"), "{error}");
    assert_eq!(client.task("pid").submit::<u32>(()).unwrap().wait().unwrap(), before);
    assert_eq!(controller.counters().lost, 0);
}

#[test]
fn a_task_that_always_ends_its_executor_fails_after_its_retries_and_says_how() {
    let (controller, client) = cluster();
    let worker = start_worker(&controller, &[]);
    for (task, how) in [("die", "signal 6 (SIGABRT)"), ("exit", "exited with status 7")] {
        let lost = controller.counters().lost;
        let dies = client.task(task).max_retries(Budget::Times(2));
        let dies = if task == "exit" { dies.submit::<()>((7,)) } else { dies.submit::<()>(()) };
        let error = dies.unwrap().wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.may_have_run() && error.message().contains(how), "{error}");
        assert_eq!(controller.counters().lost - lost, 3);
    }
    assert_eq!(client.task("double").submit::<u64>((21_u64,)).unwrap().wait().unwrap(), 42);
    assert!(is_alive(worker.id()));
    assert_eq!(controller.workers().len(), 1, "its worker was not lost");
}

#[test]
fn the_error_of_a_dead_executor_has_its_last_output() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &[]);
    let dies = client.task("last words").max_retries(Budget::Times(0));
    let error = dies.submit::<()>(("the key is under the mat",)).unwrap().wait().unwrap_err();
    assert!(error.message().contains("the key is under the mat"), "{error}");
}

#[test]
fn a_task_that_takes_too_much_memory_fails_alone() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &["small"]);
    let devour = client.task("devour").max_retries(Budget::Times(0)).submit::<usize>(()).unwrap();
    let error = devour.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("memory allocation"), "its last words say why: {error}");
    assert_eq!(client.task("double").submit::<u64>((3_u64,)).unwrap().wait().unwrap(), 6);
}

#[test]
fn a_task_that_ignores_being_cancelled_is_killed() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &["impatient"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid").display().to_string();
    let deaf = client.task("deaf").submit::<()>((file.clone(),)).unwrap();
    until("it runs", || std::fs::exists(&file).unwrap());
    let pid: u32 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    deaf.cancel();
    assert_eq!(deaf.wait().unwrap_err().kind(), ErrorKind::Cancelled);
    until("its executor is gone", || !is_alive(pid));
    assert_eq!(controller.counters().lost, 0, "nothing was lost: the end was asked for");
    until("its CPU is free", || controller.workers()[0].tasks == 0);
}

#[test]
fn child_processes_of_a_task_end_with_its_executor() {
    let (controller, client) = cluster();
    let mut worker = start_worker(&controller, &[]);
    let child: u32 = client.task("offspring").submit((true,)).unwrap().wait().unwrap();
    assert!(is_alive(child));
    let executor: u32 = client.task("pid").submit(()).unwrap().wait().unwrap();
    signal(executor, "KILL");
    until("it goes with an executor that was killed", || !is_alive(child));
    let child: u32 = client.task("offspring").submit((true,)).unwrap().wait().unwrap();
    assert!(is_alive(child));
    worker.kill();
    until("it goes when the worker was killed", || !is_alive(child));
}

#[test]
fn a_killed_executor_restarts_its_actor_and_fails_its_task() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &[]);
    let counter = client.actor("Counter").max_restarts(Budget::Times(1)).create((10_u64,)).unwrap();
    let pid: u32 = counter.call("pid", ()).unwrap().wait().unwrap();
    assert_eq!(counter.call::<u64>("add", (1_u64,)).unwrap().wait().unwrap(), 11);
    signal(pid, "KILL");
    until("the loss is seen", || {
        // A call may run when the old instance ends. Then its error says that it may have run.
        let answer = counter.call::<u64>("add", (1_u64,)).unwrap().wait();
        answer.inspect_err(|error| assert!(error.may_have_run(), "{error}")).is_ok()
    });
    assert_ne!(counter.call::<u32>("pid", ()).unwrap().wait().unwrap(), pid);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid").display().to_string();
    let deaf = client.task("deaf").max_retries(Budget::Times(0));
    let deaf = deaf.submit::<()>((file.clone(),)).unwrap();
    until("it runs", || std::fs::exists(&file).unwrap());
    signal(std::fs::read_to_string(&file).unwrap().parse().unwrap(), "KILL");
    let error = deaf.wait().unwrap_err();
    assert!(error.message().contains("signal 9 (SIGKILL)"), "{error}");
}

#[test]
fn a_killed_worker_is_lost_only_after_its_executors_ended() {
    let (controller, client) = cluster();
    let mut worker = start_worker(&controller, &[]);
    let counter = client.actor("Counter").max_restarts(Budget::Times(1)).create((10_u64,)).unwrap();
    let pid: u32 = counter.call("pid", ()).unwrap().wait().unwrap();
    let _second = start_worker(&controller, &[]);
    worker.kill();
    until("the loss is seen", || controller.workers().len() == 1);
    assert!(!is_alive(pid), "it is lost when its executors are");
    until("the actor lives again", || {
        counter.call::<u64>("add", (1_u64,)).unwrap().wait().is_ok_and(|answer| answer >= 11)
    });
}

#[test]
fn a_worker_on_sigterm_finishes_its_tasks_moves_the_rest_and_leaves() {
    let (controller, client) = cluster();
    let mut first = start_worker(&controller, &["run"]);
    let tasks: Vec<_> = (0..200_u64)
        .map(|x| client.task("double").max_retries(Budget::Times(0)).submit::<u64>((x,)).unwrap())
        .collect();
    let _second = start_worker(&controller, &[]);
    first.signal("TERM");
    let status = first.0.wait().unwrap();
    assert!(status.success(), "{status}");
    for (x, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.wait().unwrap(), x as u64 * 2);
    }
    assert_eq!(controller.counters().lost, 0);
    until("it has left", || controller.workers().len() == 1);
}
