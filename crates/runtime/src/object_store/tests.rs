//! A store and the processes that use it, over sockets and without, all in one process.

use super::*;
use crate::net::credentials::Credentials;
use marline_core::error::ErrorKind;
use marline_core::id::TaskId;
use marline_core::payload::Payload;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The size of a value in these tests, without its layout.
const BYTES: usize = 200_000;
/// A timeout that no correct run reaches, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn store(limit: u64) -> ObjectStore {
    let options = StoreOptions { limit, spill: None, ..StoreOptions::default() };
    ObjectStore::new(&options, Credentials::new(None))
}

/// Connects a client that looks like another process to the store.
fn other(store: &ObjectStore) -> Arc<ObjectStoreClient> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    store.add_unsupervised_process(theirs).unwrap();
    ObjectStoreClient::new(ours)
}

fn object(number: u128) -> ObjectId {
    ObjectId::of(TaskId::from_u128(number), 0)
}

/// Writes an object and retains it.
fn fill(store: &ObjectStore, object: ObjectId, bytes: usize) {
    store.write(object, &[&vec![7; bytes]], &mut || true).unwrap();
    store.retain(object);
}

fn stored(object: ObjectId) -> Payload {
    Payload::default().stored_as(object)
}

/// Returns how many processes read the object.
fn readers(store: &ObjectStore, object: ObjectId) -> u32 {
    store.list(usize::MAX).iter().find(|held| held.object == object).unwrap().readers
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "waited a minute: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_process_that_requests_many_values_before_it_reads_gets_all() {
    let store = store(10 << 20);
    fill(&store, object(1), BYTES);
    let objects = ObjectStoreHandle::elsewhere(other(&store));
    let asked: Vec<_> =
        (0..5_000).map(|_| objects.read(&stored(object(1))).unwrap().unwrap()).collect();
    for mut reading in asked {
        let came = reading.wait(Some(PATIENCE)).expect("the data arrives").unwrap();
        assert_eq!(came.inline.len(), BYTES);
    }
    assert!(!objects.is_over());
    until("nobody reads it", || readers(&store, object(1)) == 0);
}

#[test]
fn a_fork_keeps_the_pins_of_its_process_in_every_store() {
    let stores = [store(1 << 20), store(1 << 20)];
    let remote = other(&stores[1]);
    let known = forks::StoreRegistry::default();
    known.add(forks::RegisteredStore::Here(Arc::downgrade(&stores[0].0)));
    known.add(forks::RegisteredStore::Elsewhere(Arc::downgrade(&remote)));
    let all = [ObjectStoreHandle::here(stores[0].clone()), ObjectStoreHandle::elsewhere(remote)];
    for (store, objects) in stores.iter().zip(&all) {
        fill(store, object(1), BYTES);
        fill(store, object(2), BYTES);
        let view = objects.open(&stored(object(1))).unwrap();
        known.tell_all();
        drop(view);
        // The fork does not get pins that come later. The store read `Fork` before the requests
        // that it answers.
        drop(objects.open(&stored(object(2))).unwrap());
        until("nobody reads it", || readers(store, object(2)) == 0);
        assert_eq!(readers(store, object(1)), 1, "the fork may still read it");
    }
}

#[test]
fn a_pin_or_room_that_no_thread_waits_for_any_more_is_freed() {
    let store = store(1 << 20);
    fill(&store, object(1), BYTES);
    // The pin is granted, and no thread takes it.
    drop(ObjectStoreHandle::here(store.clone()).read(&stored(object(1))).unwrap().unwrap());
    assert_eq!(readers(&store, object(1)), 0);
    // The room is granted while the thread that waits for it decides to wait no longer.
    let large = vec![7; 900_000];
    let stopped = store.write(object(2), &[&large], &mut || {
        store.evict(object(1));
        false
    });
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(store.usage().used, 0);
}

#[test]
fn room_that_a_process_no_longer_waits_for_goes_to_others() {
    let store = store(1 << 20);
    fill(&store, object(1), BYTES);
    let (remote, large) = (other(&store), vec![7; 900_000]);
    // The client does not read its socket after this.
    let stopped = remote.write(object(2), &[&large], false, &mut || false);
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
    store.evict(object(1));
    until("all is free", || store.usage().used == 0);
    fill(&store, object(3), large.len());
}

#[test]
fn a_pin_in_a_reply_that_no_thread_took_is_released() {
    let store = store(1 << 20);
    fill(&store, object(1), BYTES);
    let objects = ObjectStoreHandle::elsewhere(other(&store));
    let reading = objects.read(&stored(object(1))).unwrap().unwrap();
    until("the pin is granted", || readers(&store, object(1)) == 1);
    drop(reading);
    until("nobody reads it", || readers(&store, object(1)) == 0);
    // The segment came with the reply that no thread took.
    assert_eq!(objects.open(&stored(object(1))).unwrap().inline[..], vec![7; BYTES]);
}

#[test]
fn racing_requests_and_cancels_neither_leak_nor_free_twice() {
    let store = store(2 << 20);
    fill(&store, object(1), BYTES);
    let objects = ObjectStoreHandle::elsewhere(other(&store));
    let view = objects.open(&stored(object(1))).unwrap();
    for round in 0..2_000 {
        let mut reading = objects.read(&stored(object(1))).unwrap().unwrap();
        match round % 4 {
            0 => {}
            1 => drop(reading.wait(Some(Duration::ZERO))),
            2 => drop(reading.wait(Some(Duration::from_micros(round)))),
            _ => drop(reading.wait(None).unwrap().unwrap()),
        }
        // Either there is room, or the client cancels before it knows.
        let mut looks = 0;
        let written = objects.write(object(2), &[&[1; BYTES]], || {
            looks += 1;
            looks < 2
        });
        if written.is_ok() {
            objects.discard(object(2));
        }
    }
    store.evict(object(1));
    let read = Layout::of([BYTES]).unwrap().bytes() as u64;
    until("only the pinned blob is left", || store.usage().used == read);
    assert_eq!(view.inline[..], vec![7; BYTES]);
    drop(view);
    until("all is free", || store.usage().used == 0);
    assert!(!objects.is_over());
}
