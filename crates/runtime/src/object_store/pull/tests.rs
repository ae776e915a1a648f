//! Pulls: requests for objects that the store does not have, and what becomes of them.

use super::super::*;
use super::{KEEP_FOR, MAX_PULLS, Pull, PullResult};
use crate::net::transfer::tests::start_proxy;
use marline_core::error::Ran;
use marline_core::id::{SessionEpoch, SessionId, TaskId};

const LIMIT: u64 = 256 << 20;

fn store() -> ObjectStore {
    let options = StoreOptions { limit: LIMIT, spill: None, ..StoreOptions::default() };
    ObjectStore::new(&options, Credentials::new(None))
}

fn session(epoch: u64) -> Session {
    Session { id: SessionId::from_u128(1), epoch: SessionEpoch(epoch) }
}

fn object(number: u128) -> ObjectId {
    ObjectId::of(TaskId::from_u128(number), 0)
}

impl ObjectStore {
    /// Runs `what` on the state. Returns the events for the worker.
    fn tells(&self, what: impl FnOnce(&mut ObjectStoreState, Time)) -> Vec<worker::Event> {
        let now = self.0.clock.now();
        self.says(|state| what(state, now)).0
    }

    /// Runs `what` on the state. Returns the events for the worker, and the pause before the next
    /// lookup.
    fn says(
        &self,
        what: impl FnOnce(&mut ObjectStoreState),
    ) -> (Vec<worker::Event>, Option<Duration>) {
        let outside = {
            let mut state = self.lock();
            what(&mut state);
            std::mem::take(&mut state.outside)
        };
        let (mut events, mut pause) = (Vec::new(), None);
        for action in outside {
            match action {
                DeferredAction::DeliverToWorker(event) => events.push(event),
                DeferredAction::LookUpLater(_, after) => pause = Some(after),
                action => self.carry_out(action),
            }
        }
        (events, pause)
    }

    /// Requests an object for this process. Returns the receiver of the result, and the events for
    /// the worker.
    fn wants(
        &self,
        object: ObjectId,
    ) -> (oneshot::Receiver<Result<Pinned, Error>>, Vec<worker::Event>) {
        let (answer, given) = oneshot();
        let events = self.tells(|state, now| {
            let request = state.new_request(OWN_PROCESS, ReplyTo::Read(answer));
            state.read(now, request, object);
        });
        (given, events)
    }
}

fn pull(session: Option<Session>, object: ObjectId) -> Pull {
    Pull { session, object, copies: vec![at("127.0.0.1:1")] }
}

/// Returns a copy of a worker at this address.
fn at(address: &str) -> CopyLocation {
    let worker = Session { id: SessionId::from_u128(2), epoch: SessionEpoch(1) };
    CopyLocation { worker, address: Some(address.into()) }
}

fn came((blob, room): (BlobId, Writable)) -> PullResult {
    PullResult { came: Ok((blob, room, None)), coming: None, progressed: true }
}

/// Returns the kind of the error with which a read failed.
fn refused(mut given: oneshot::Receiver<Result<Pinned, Error>>) -> ErrorKind {
    given.recv().wait().expect("the request is answered").err().expect("the read failed").kind()
}

#[test]
fn a_reader_waits_for_the_next_session_of_its_worker_but_not_forever() {
    let (store, wanted) = (store(), object(7));
    let missing = [worker::Event::DataMissing { object: wanted }];
    let at = |time| move |state: &mut ObjectStoreState| state.ask_again(time, object(7));
    let joins = |epoch| {
        move |state: &mut ObjectStoreState, now: Time| {
            state.worker = Some(session(epoch));
            state.look_up_all(now);
        }
    };
    store.set_session(Some(session(1)));
    let (mut first, events) = store.wants(wanted);
    assert_eq!(events, missing);
    let (second, events) = store.wants(wanted);
    assert_eq!(events, [], "a lookup is under way");
    store.set_session(None);
    assert!(first.try_recv().is_err(), "the reader's own session may live");
    assert_eq!(store.tells(joins(2)), missing, "the next session looks the object up");
    let room = store.room(1_000).unwrap().taken();
    store.lock().pulls.running += 1;
    store.tells(|state, now| state.pulled(now, &pull(Some(session(2)), wanted), came(room)));
    assert!(first.recv().wait().unwrap().is_ok());
    drop(second);

    // Without a session the worker itself answers lookups. The wait is as long as for any missing
    // value.
    store.set_session(None);
    let (given, _) = store.wants(wanted);
    let mut now = store.0.clock.now();
    let began = now;
    loop {
        let nowhere =
            Error::unavailable(Ran::No, "this worker is not part of a cluster at the moment");
        let (events, pause) = store.says(|state| state.located(now, wanted, Err(nowhere)));
        assert_eq!(events, []);
        let Some(pause) = pause else { break };
        now = now + pause;
        assert_eq!(store.says(at(now)).0, missing);
    }
    assert!(now.since(began) > marline_core::lease::LeaseTerms::default().lease);
    assert_eq!(refused(given), ErrorKind::Unavailable);
}

#[test]
fn a_pull_of_an_ended_session_is_dropped() {
    let (store, wanted) = (store(), object(7));
    store.set_session(Some(session(1)));
    let (mut first, _) = store.wants(wanted);
    let begun = store.lock().worker;
    let room = store.room(1_000).unwrap().taken();
    store.lock().pulls.running += 1; // The pull is under way.
    store.set_session(None);
    store.set_session(Some(session(2)));
    let (mut second, _) = store.wants(wanted);
    let events = store.tells(|state, now| {
        state.pulled(now, &pull(begun, wanted), came(room));
    });
    assert_eq!(events, []);
    assert_eq!(store.usage().used, 0, "the room was returned");
    let room = store.room(1_000).unwrap().taken();
    store.lock().pulls.running += 1;
    let events = store.tells(|state, now| {
        state.pulled(now, &pull(Some(session(2)), wanted), came(room));
    });
    assert_eq!(events, [worker::Event::DataCopied { object: wanted }]);
    for given in [&mut first, &mut second] {
        assert!(given.recv().wait().unwrap().is_ok());
    }
}

#[test]
fn a_value_made_here_completes_its_ordered_pull_once_and_is_retained() {
    let (store, wanted) = (store(), object(7));
    store.set_session(Some(session(1)));
    let events = store.tells(|state, now| {
        state.pulls.running = MAX_PULLS; // The pull waits for its turn.
        state.pull_ordered(now, wanted, vec![at("127.0.0.1:1")]);
    });
    assert_eq!(events, []);
    let (blob, room) = store.room(1_000).unwrap().taken();
    let events = store.tells(|state, now| {
        state.bodies.set_memory(blob, room);
        state.sealed(now, blob, wanted);
    });
    assert_eq!(events, [worker::Event::DataCopied { object: wanted }]);
    assert!(store.retains(wanted));

    // The pull that was under way brings the data once more, and reports nothing.
    let brought = store.room(1_000).unwrap().taken();
    let events = store.tells(|state, now| {
        state.pulls.waiting.clear();
        state.pulled(now, &pull(Some(session(1)), wanted), came(brought));
    });
    assert_eq!(events, []);
}

#[test]
fn a_failing_pull_is_retried_with_pauses_and_fails_after_two_leases() {
    let (store, wanted) = (store(), object(7));
    store.set_session(Some(session(1)));
    let (given, _) = store.wants(wanted);
    let mut now = store.0.clock.now();
    let began = now;
    let mut last = Duration::ZERO;
    loop {
        let failed = || Err(Error::unavailable(Ran::No, "no process listens there"));
        let ended = PullResult { came: failed(), coming: None, progressed: false };
        store.lock().pulls.running += 1;
        store.lock().missing.get_mut(&wanted).expect("a request waits").waits = false;
        let (events, pause) = store.says(|state| {
            state.pulled(now, &pull(Some(session(1)), wanted), ended);
        });
        assert_eq!(events, [], "the next lookup follows after a pause");
        let Some(pause) = pause else { break };
        assert!(pause >= last);
        (last, now) = (pause, now + pause);
        let (events, _) = store.says(|state| state.ask_again(now, wanted));
        assert_eq!(events, [worker::Event::DataMissing { object: wanted }]);
    }
    assert!(now.since(began) > 2 * marline_core::lease::LeaseTerms::default().lease);
    assert_eq!(refused(given), ErrorKind::Unavailable);
    assert!(store.lock().missing.is_empty());
}

#[test]
fn an_ordered_pull_that_fails_is_reported_before_readers_give_up() {
    let (store, wanted) = (store(), object(7));
    store.set_session(Some(session(1)));
    let mut now = store.0.clock.now();
    let began = now;
    store.lock().missing.insert(
        wanted,
        MissingObject { begun: true, is_ordered: true, ..MissingObject::default() },
    );
    let events = loop {
        let came = Err(Error::unavailable(Ran::No, "no process listens there"));
        let ended = PullResult { came, coming: None, progressed: false };
        store.lock().pulls.running += 1;
        store.lock().missing.get_mut(&wanted).expect("the pull was ordered").waits = false;
        let (events, pause) = store.says(|state| {
            state.pulled(now, &pull(Some(session(1)), wanted), ended);
        });
        let Some(pause) = pause else { break events };
        now = now + pause;
        store.says(|state| state.ask_again(now, wanted));
    };
    assert!(matches!(events[..], [worker::Event::DataPullFailed { .. }]), "{events:?}");
    assert!(now.since(began) < Duration::from_secs(20), "another worker may get the order in time");
}

#[test]
fn a_missing_copy_is_reported_as_lost_only_within_a_session() {
    let (store, wanted) = (store(), object(7));
    let error = store.read_to_send(wanted).expect_err("the store does not have it");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(store.tells(|state, _| state.report_lost(wanted)), []);
    store.set_session(Some(session(1)));
    let events = store.tells(|state, _| state.report_lost(wanted));
    assert!(matches!(events[..], [worker::Event::DataLost { object, .. }] if object == wanted));
    store.write(wanted, &[&[7; 1_000]], &mut || true).unwrap();
    assert!(store.read_to_send(wanted).is_ok() && !store.retains(wanted));
    store.retain(wanted);
    assert!(store.retains(wanted), "the earlier report does not count any more");
}

/// Returns a store with values of this many bytes for these objects.
fn has(objects: &[ObjectId], bytes: usize) -> ObjectStore {
    let options = StoreOptions { limit: 1 << 30, spill: None, ..StoreOptions::default() };
    let store = ObjectStore::new(&options, Credentials::new(None));
    for object in objects {
        let value = vec![object.origin.as_u128() as u8; bytes];
        store.write(*object, &[&value], &mut || true).unwrap();
    }
    store
}

/// Returns whether a value has arrived as [`has`] made it.
fn is_whole(
    store: &ObjectStore,
    object: ObjectId,
    mut given: oneshot::Receiver<Result<Pinned, Error>>,
) -> bool {
    let given = given.recv().wait().expect("the request is answered").expect("the data arrived");
    let (view, layout) = store.show(object, given).unwrap();
    let byte = object.origin.as_u128() as u8;
    view[layout.parts()[0].clone()].iter().all(|one| *one == byte)
}

/// Waits until a condition is true that other threads change.
fn until(what: &str, happened: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !happened() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::yield_now();
    }
}

/// Returns the store of a worker that knows the token of the others.
fn reader() -> ObjectStore {
    let options = StoreOptions { limit: LIMIT, spill: None, ..StoreOptions::default() };
    let store = ObjectStore::new(&options, Credentials::new(Some("a secret".into())));
    store.set_session(Some(session(1)));
    store
}

#[test]
fn a_few_pulls_run_at_a_time_and_all_values_arrive() {
    let objects: Vec<ObjectId> = (1..=MAX_PULLS as u128 + 3).map(object).collect();
    let (address, traffic) = start_proxy(has(&objects, 300_000), |traffic, _, _| {
        traffic.wait_until_open();
        true
    });
    let store = reader();
    let wanted: Vec<_> = objects.iter().map(|object| (*object, store.wants(*object).0)).collect();
    for object in &objects {
        store.located(*object, Ok(vec![at(&address)]));
    }
    let counts = || {
        let state = store.lock();
        (state.pulls.running, state.pulls.waiting.len())
    };
    assert_eq!(counts(), (MAX_PULLS, 3));
    traffic.open();
    for (object, given) in wanted {
        assert!(is_whole(&store, object, given));
    }
    until("all pulls have ended", || counts() == (0, 0));
    assert_eq!(traffic.connections(), objects.len(), "each value fits one connection");
}

#[test]
fn many_readers_of_one_value_cause_one_pull() {
    let (wanted, bytes) = (object(7), 20 << 20);
    let (address, traffic) = start_proxy(has(&[wanted], bytes), |_, _, _| true);
    let store = reader();
    let asked: Vec<_> = (0..50).map(|_| store.wants(wanted)).collect();
    let events: Vec<_> = asked.iter().flat_map(|(_, events)| events).collect();
    assert_eq!(events, [&worker::Event::DataMissing { object: wanted }]);
    store.located(wanted, Ok(vec![at(&address)]));
    store.located(wanted, Ok(vec![at(&address)])); // As if two lookups had been sent.
    for (given, _) in asked {
        assert!(is_whole(&store, wanted, given));
    }
    assert!(traffic.carried() < bytes / 10 * 13, "{} bytes", traffic.carried());
    assert!(is_whole(&store, wanted, store.wants(wanted).0), "the store has it");
}

#[test]
fn received_pieces_are_reused_and_dropped_after_a_while_or_with_the_session() {
    let (wanted, bytes) = (object(7), 100 << 20);
    let source = has(&[wanted], bytes);
    let half_way = || {
        let (address, traffic) = start_proxy(source.clone(), move |traffic, _, _| {
            let goes_on = traffic.carried() < bytes / 4 * 3;
            if !goes_on {
                traffic.end();
            }
            goes_on
        });
        let store = reader();
        let given = store.wants(wanted).0;
        store.located(wanted, Ok(vec![at(&address)]));
        let asks = || store.lock().missing.get(&wanted).is_some_and(|missing| missing.waits);
        until("the store looks the copies up again", asks);
        assert!(store.usage().used > bytes as u64, "the received pieces stay");
        (store, given, traffic)
    };
    let (store, given, first) = half_way();
    let (address, second) = start_proxy(source.clone(), |_, _, _| true);
    store.located(wanted, Ok(vec![at(&address)]));
    assert!(is_whole(&store, wanted, given));
    let carried = first.carried() + second.carried();
    assert!(carried < bytes / 10 * 14, "{carried} bytes were carried");
    let making = |store: &ObjectStore| store.read_to_send(wanted).unwrap().1;
    assert_eq!(making(&store), making(&source), "a copy has the version of its source");

    let (store, mut given, _) = half_way();
    store.enter(|state, now| state.let_go_of_old(now + KEEP_FOR, wanted, Some(session(1))));
    assert_eq!(store.usage().used, 0, "other requests may need the room");
    assert!(given.try_recv().is_err(), "the search goes on");

    let (store, mut given, _) = half_way();
    store.set_session(None);
    assert_eq!(store.usage().used, 0);
    assert!(given.try_recv().is_err(), "the next session looks the object up");
}
