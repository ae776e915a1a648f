//! Large values from Rust: in shared memory, read in place, held by references, freed with the last
//! reference.

use crate::harness::{cluster, is_shared, program, start_worker, sum, until};
use marline::{Budget, Bytes, Client, Cluster, Controller, ErrorKind, Resources};
use serde::{Deserialize, Serialize};

const MIB: usize = 1 << 20;

/// Starts a cluster with one worker, whose executors are processes.
fn with_worker() -> (Controller, Client, crate::harness::Process) {
    let (controller, client) = cluster();
    let worker = start_worker(&controller, &[]);
    (controller, client, worker)
}

#[test]
fn bytes_that_are_put_are_read_in_shared_memory_by_tasks_and_clients() {
    let (_controller, client, _worker) = with_worker();
    let data: Vec<u8> = (0..MIB).map(|index| index as u8).collect();
    let expected = data.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    let put = client.put_bytes(&data).unwrap();
    let tasks: Vec<_> =
        (0..100).map(|_| client.task("sum").submit::<u64>((&put,)).unwrap()).collect();
    for task in tasks {
        assert_eq!(task.wait().unwrap(), expected);
    }
    assert!(client.task("is shared").submit::<bool>((&put,)).unwrap().wait().unwrap());
    let (one, other) = (client.get(&put).unwrap(), client.get(&put).unwrap());
    assert!(one == data && is_shared(&one));
    assert_eq!(one.as_ptr(), other.as_ptr());
}

#[test]
fn the_controllers_client_reads_the_store_of_a_worker_on_its_machine() {
    let (controller, _client, mut worker) = with_worker();
    let client = controller.client();
    let put = client.put_bytes(vec![1; 80 * MIB]).unwrap();
    assert_eq!(client.task("sum").submit::<u64>((&put,)).unwrap().wait().unwrap(), 80 << 20);
    assert!(is_shared(&client.get(&put).unwrap()));
    worker.kill();
    until("the loss is seen", || controller.workers().is_empty());
    assert_eq!(client.get(&put).unwrap_err().kind(), ErrorKind::Gone);
    // No object store is left, so the value travels with messages.
    let put = client.put_bytes(vec![1; MIB]).unwrap();
    assert_eq!(sum(&client.get(&put).unwrap()), MIB as u64);
}

#[test]
fn dropping_the_last_reference_frees_the_object() {
    let (controller, client, _worker) = with_worker();
    let put = client.put_bytes(vec![1; MIB]).unwrap();
    let same = put.clone();
    drop(put);
    assert_eq!(sum(&client.get(&same).unwrap()), MIB as u64);
    assert_eq!(controller.load().objects, 1);
    drop(same);
    until("nothing is kept any more", || controller.load().objects == 0);
}

#[test]
fn a_client_that_cannot_reach_a_store_gets_copies() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &["threads"]);
    let made = client.task("make").submit::<Bytes>((MIB, 2_u8)).unwrap();
    let summed = client.task("sum").submit::<u64>((made.result(),)).unwrap();
    assert_eq!(summed.wait().unwrap(), 2 * MIB as u64);
    let made = made.wait().unwrap();
    assert!(!is_shared(&made) && sum(&made) == 2 * MIB as u64);
    let put = client.put_bytes(&made).unwrap();
    assert_eq!(client.task("sum").submit::<u64>((&put,)).unwrap().wait().unwrap(), 2 * MIB as u64);
    assert_eq!(client.task("sum").submit::<u64>((&made,)).unwrap().wait().unwrap(), 2 * MIB as u64);
    let error = client.put_bytes(vec![0; 100 * MIB]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("no worker can take it"), "{error}");
}

#[test]
fn small_bytes_can_be_put_read_passed_and_returned() {
    let (_controller, client, _worker) = with_worker();
    let put = client.put_bytes(b"abc").unwrap();
    assert_eq!(client.get(&put).unwrap(), "abc");
    assert_eq!(client.task("sum").submit::<u64>((&put,)).unwrap().wait().unwrap(), 294);
    assert_eq!(
        client.task("sum").submit::<u64>((Bytes::from("abc"),)).unwrap().wait().unwrap(),
        294
    );
    let made = client.task("make").submit::<Bytes>((3_usize, 7_u8)).unwrap();
    assert_eq!(made.wait().unwrap(), [7; 3].as_slice());
}

#[test]
fn bytes_that_were_read_outlive_their_reference_worker_and_cluster() {
    let (controller, client, mut worker) = with_worker();
    let read = client.get(&client.put_bytes(vec![3; MIB]).unwrap()).unwrap();
    let made = client.task("make").submit::<Bytes>((MIB, 5_u8)).unwrap().wait().unwrap();
    until("nothing is kept any more", || controller.load().objects == 0);
    assert!(is_shared(&read) && is_shared(&made));
    // New values reuse memory that is free. Memory that is still read must not be reused.
    for byte in 10..30 {
        let other = client.put_bytes(vec![byte; MIB]).unwrap();
        assert_eq!(sum(&client.get(&other).unwrap()), u64::from(byte) * MIB as u64);
    }
    worker.kill();
    drop((client, controller));
    assert!(read.iter().all(|byte| *byte == 3) && made.iter().all(|byte| *byte == 5));
}

#[test]
fn a_view_of_an_object_outlives_its_local_cluster() {
    let cluster = Cluster::local(program()).unwrap();
    let client = cluster.client();
    let put = client.put_bytes(vec![3; MIB]).unwrap();
    let (one, other) = (client.get(&put).unwrap(), client.get(&put).unwrap());
    assert!(is_shared(&one) && one.as_ptr() == other.as_ptr());
    drop((put, client, cluster));
    assert!(one.iter().all(|byte| *byte == 3));
}

#[test]
fn large_results_go_to_the_next_task_by_reference() {
    let (_controller, client, _worker) = with_worker();
    let made = client.task("make").submit::<Bytes>((MIB, 2_u8)).unwrap();
    let summed = client.task("sum").submit::<u64>((made.result(),)).unwrap();
    assert_eq!(summed.wait().unwrap(), 2 * MIB as u64);
    let made = made.wait().unwrap();
    assert!(is_shared(&made) && made.len() == MIB);
}

#[test]
fn large_arguments_by_value_are_in_shared_memory() {
    let (controller, client, _worker) = with_worker();
    // More than a message may have.
    let bytes = Bytes::from(vec![1; 80 * MIB]);
    assert_eq!(
        client.task("sum").submit::<u64>((&bytes,)).unwrap().wait().unwrap(),
        bytes.len() as u64
    );
    assert!(client.task("is shared").submit::<bool>((&bytes,)).unwrap().wait().unwrap());
    let shelf = client.actor("Shelf").create(()).unwrap();
    assert_eq!(shelf.call::<usize>("keep", (&bytes,)).unwrap().wait().unwrap(), 1);
    assert_eq!(shelf.call::<u64>("sum", ()).unwrap().wait().unwrap(), bytes.len() as u64);
    let text = "a".repeat(MIB);
    assert_eq!(client.task("length").submit::<usize>((&text,)).unwrap().wait().unwrap(), MIB);
    until("nothing is kept any more", || controller.load().objects == 0);
}

#[test]
fn an_actor_keeps_bytes_passed_by_reference_after_the_reference_is_dropped() {
    let (controller, client, _worker) = with_worker();
    let shelf = client.actor("Shelf").create(()).unwrap();
    for byte in 1..=4 {
        let put = client.put_bytes(vec![byte; MIB]).unwrap();
        shelf.call::<usize>("keep", (&put,)).unwrap().wait().unwrap();
    }
    until("nobody holds them", || controller.load().objects == 0);
    assert_eq!(shelf.call::<u64>("sum", ()).unwrap().wait().unwrap(), 10 * MIB as u64);
}

#[test]
fn the_result_of_a_call_is_an_argument_before_and_after_it_is_ready() {
    let (controller, client, _worker) = with_worker();
    let folder = tempfile::tempdir().unwrap();
    for bytes in [10, MIB] {
        let shelf = client.actor("Shelf").create(()).unwrap();
        let told = folder.path().join(format!("told {bytes}")).display().to_string();
        let made = shelf.call::<Bytes>("make when", (&told, bytes)).unwrap();
        let other = client.actor("Shelf").create(()).unwrap();
        let before = client.task("sum").submit::<u64>((made.result(),)).unwrap();
        let kept = other.call::<usize>("keep", (made.result(),)).unwrap();
        let summed = other.call::<u64>("sum", ()).unwrap();
        std::fs::write(&told, "").unwrap();
        assert_eq!(before.wait().unwrap(), bytes as u64);
        assert_eq!((kept.wait().unwrap(), summed.wait().unwrap()), (1, bytes as u64));
        until("it has come", || made.is_done());
        let after = client.task("sum").submit::<u64>((made.result(),)).unwrap();
        assert_eq!(after.wait().unwrap(), bytes as u64);
        assert_eq!(sum(&client.get(&made.result()).unwrap()), bytes as u64);
        assert_eq!(sum(&made.wait().unwrap()), bytes as u64);
    }
    until("nothing is kept any more", || controller.load().objects == 0);
}

#[test]
fn a_failed_call_fails_the_tasks_and_calls_that_need_its_result() {
    let (_controller, client, _worker) = with_worker();
    let shelf = client.actor("Shelf").create(()).unwrap();
    let mut failed = shelf.call::<Bytes>("no such method", ()).unwrap();
    let early = client.task("sum").submit::<u64>((failed.result(),)).unwrap();
    let error = failed.wait_timeout(std::time::Duration::from_secs(60)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let late = client.task("sum").submit::<u64>((failed.result(),)).unwrap();
    let called = shelf.call::<usize>("keep", (failed.result(),)).unwrap();
    for error in [early.wait().unwrap_err(), late.wait().unwrap_err(), called.wait().unwrap_err()] {
        assert!(error.message().contains("no such method"), "{error}");
    }
}

#[test]
fn the_large_result_of_a_call_is_released_when_its_handle_is_dropped() {
    let (controller, client, _worker) = with_worker();
    let shelf = client.actor("Shelf").create(()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told").display().to_string();
    let handles: Vec<_> =
        (0..4).map(|_| shelf.call::<Bytes>("make when", (&told, MIB)).unwrap()).collect();
    drop(handles);
    std::fs::write(&told, "").unwrap();
    // Answers arrive in the order of their calls, so the answers of the dropped handles arrived
    // before this one.
    assert_eq!(shelf.call::<u64>("sum", ()).unwrap().wait().unwrap(), 0);
    until("nothing is kept any more", || controller.load().objects == 0);
    let mut taken = shelf.call::<Bytes>("make", (MIB, 1_u8)).unwrap();
    until("it has come", || taken.is_done());
    assert_eq!(controller.load().objects, 1);
    let view = taken.wait_timeout(std::time::Duration::from_secs(60)).unwrap();
    drop(taken);
    until("nothing is kept any more", || controller.load().objects == 0);
    assert_eq!(sum(&view), MIB as u64);
}

#[test]
fn a_value_larger_than_the_store_is_rejected_with_the_limit() {
    let cluster = Cluster::builder()
        .resources(Resources::cpus(1))
        .object_store_memory(4 << 20)
        .start(program())
        .unwrap();
    let client = cluster.client();
    let put = client.put_bytes(vec![0; 5 * MIB]).unwrap_err();
    let made = client.task("make").submit::<Bytes>((5 * MIB, 1_u8)).unwrap().wait().unwrap_err();
    let given = client.task("length").submit::<usize>(("a".repeat(5 * MIB),)).unwrap_err();
    for error in [put, made, given] {
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        assert!(error.message().contains("which may take 4 MiB in all"), "{error}");
    }
    assert_eq!(client.get(&client.put_bytes(vec![0; MIB]).unwrap()).unwrap().len(), MIB);
}

#[test]
fn a_put_value_that_is_lost_fails_with_gone_and_its_id() {
    let (controller, client) = cluster();
    let mut first = start_worker(&controller, &[]);
    let put = client.put_bytes(vec![1; MIB]).unwrap();
    let unread = client.put_bytes(vec![1; MIB]).unwrap();
    let made = client.task("make").submit::<Bytes>((MIB, 4_u8)).unwrap();
    until("it is made", || made.is_done());
    let view = client.get(&put).unwrap();
    let _second = start_worker(&controller, &[]);
    first.kill();
    until("the loss is seen", || controller.workers().len() == 1);
    for lost in [&put, &unread] {
        let error = client.get(lost).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
        assert!(error.message().contains(&lost.id().to_string()), "{error}");
        let task = client.task("sum").max_retries(Budget::Times(0)).submit::<u64>((lost,)).unwrap();
        assert_eq!(task.wait().unwrap_err().kind(), ErrorKind::Gone);
    }
    assert_eq!(sum(&view), MIB as u64);
    // A value that a task made is made again.
    assert_eq!(sum(&client.get(&made.result()).unwrap()), 4 * MIB as u64);
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Frame {
    width: u32,
    pixels: Bytes,
}

#[test]
fn durable_values_outlive_their_worker() {
    let (controller, client) = cluster();
    let folder = std::env::temp_dir().join(format!("marline-durable-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let words = format!("durable={}", folder.display());
    let mut worker = start_worker(&controller, &[&words]);
    let numbers: Vec<u64> = (0..1_000_000).collect();
    let put = client.put_durable(&numbers).unwrap();
    let made = client.task("make").durable().max_retries(Budget::Times(0));
    let made = made.submit::<Bytes>((MIB, 3_u8)).unwrap();
    until("it is made", || made.is_done());
    worker.kill();
    let _other = start_worker(&controller, &[&words]);
    assert_eq!(client.get(&put).unwrap(), numbers);
    let summed = client.task("sum").submit::<u64>((made.result(),)).unwrap();
    assert_eq!(summed.wait().unwrap(), 3 * MIB as u64);
    drop((put, made));
    until("it is erased", || std::fs::read_dir(&folder).unwrap().next().is_none());
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn bytes_inside_other_values_are_read_and_wrong_types_are_rejected() {
    let cluster = Cluster::local(program()).unwrap();
    let client = cluster.client();
    let frame = Frame { width: 1_000, pixels: vec![1; MIB].into() };
    let put = client.put(&frame).unwrap();
    assert!(client.get(&put).unwrap() == frame);
    // Bytes that were put as one plain value are read in place, too.
    let put = client.put(&frame.pixels).unwrap();
    let (one, other) = (client.get(&put).unwrap(), client.get(&put).unwrap());
    assert!(one == frame.pixels && one.as_ptr() == other.as_ptr() && is_shared(&one));
    let error =
        client.task("make").submit::<String>((3_usize, 200_u8)).unwrap().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().starts_with("the value cannot be read as String: "), "{error}");
}
