//! Leases: processes that are frozen for longer than their lease.

use crate::harness::{is_alive, parent, quick_cluster, signal, start_worker, until};
use marline::{Budget, Counters, ErrorKind};

#[test]
fn a_frozen_workers_executors_end_and_it_rejoins_with_a_new_session() {
    let (controller, client) = quick_cluster();
    let worker = start_worker(&controller, &[]);
    let before = controller.workers()[0].session;
    let counter = client.actor("Counter").max_restarts(Budget::Times(1)).create((10_u64,)).unwrap();
    let actor: u32 = counter.call("pid", ()).unwrap().wait().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid").display().to_string();
    let deaf =
        client.task("deaf").max_retries(Budget::Times(0)).submit::<()>((file.clone(),)).unwrap();
    until("it runs", || std::fs::exists(&file).unwrap());
    let task: u32 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    worker.signal("STOP");
    until("its lease is over", || controller.workers().is_empty());
    assert!(!is_alive(actor) && !is_alive(task), "executors end before their work is given away");
    let error = deaf.wait().unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Unavailable, true), "{error}");
    signal(worker.id(), "CONT");
    until("it joins again", || controller.workers().len() == 1);
    assert_ne!(controller.workers()[0].session, before, "as another session");
    until("the actor has a new life", || {
        counter.call::<u64>("add", (1_u64,)).unwrap().wait().is_ok_and(|answer| answer == 11)
    });
}

#[test]
fn a_result_from_a_worker_whose_lease_ended_changes_nothing() {
    let (controller, client) = quick_cluster();
    let frozen = start_worker(&controller, &[]);
    let folder = tempfile::tempdir().unwrap();
    let [begun, told, file] =
        ["begun", "told", "file"].map(|name| folder.path().join(name).display().to_string());
    let task = client.task("sign when told").max_retries(Budget::Times(1));
    let task = task.submit::<u32>((begun.clone(), told.clone(), file.clone())).unwrap();
    until("it runs", || std::fs::exists(&begun).unwrap());
    let signed = || std::fs::read_to_string(&file).unwrap_or_default().lines().count();
    frozen.signal("STOP");
    std::fs::write(&told, "").unwrap();
    until("the executor has finished, while its worker is frozen", || signed() == 1);
    until("the lease is over", || controller.workers().is_empty());
    let other = start_worker(&controller, &[]);
    let signer = task.wait().unwrap();
    assert_eq!(parent(signer), other.id(), "the second attempt's answer counts");
    frozen.signal("CONT");
    until("the frozen one joins again", || controller.workers().len() == 2);
    let Counters { submitted, finished, lost, .. } = controller.counters();
    assert_eq!((submitted, finished, lost, signed()), (1, 1, 1, 2));
}
