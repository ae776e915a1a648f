//! Stories of a store: who looks for what it does not have, and what becomes of them.

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
    /// Does something with the state, and says what the worker is told because of it.
    fn tells(&self, what: impl FnOnce(&mut ObjectStoreState, Time)) -> Vec<worker::Event> {
        let now = self.0.clock.now();
        self.says(|state| what(state, now)).0
    }

    /// Does something with the state: says what the worker is told because of it, and after which pause it is asked
    /// again.
    fn says(
        &self,
        what: impl FnOnce(&mut ObjectStoreState),
    ) -> (Vec<worker::Event>, Option<Duration>) {
        let outside = {
            let mut state = self.lock();
            what(&mut state);
            std::mem::take(&mut state.outside)
        };
        let (mut told, mut pause) = (Vec::new(), None);
        for one in outside {
            match one {
                DeferredAction::DeliverToWorker(event) => told.push(event),
                DeferredAction::AskLater(_, after) => pause = Some(after),
                other => self.carry_out(other),
            }
        }
        (told, pause)
    }

    /// Somebody of this process wants to read it: how that is answered, and what the worker is told.
    fn wants(
        &self,
        object: ObjectId,
    ) -> (oneshot::Receiver<Result<Pinned, Error>>, Vec<worker::Event>) {
        let (answer, given) = oneshot();
        let told = self.tells(|state, now| {
            let request = state.ask(OWN_PROCESS, ReplyTo::Read(answer));
            state.read(now, request, object);
        });
        (given, told)
    }
}

fn pull(session: Option<Session>, object: ObjectId) -> Pull {
    Pull { session, object, copies: vec![at("127.0.0.1:1")] }
}

/// A worker that is said to have data.
fn at(address: &str) -> CopyLocation {
    let worker = Session { id: SessionId::from_u128(2), epoch: SessionEpoch(1) };
    CopyLocation { worker, address: Some(address.into()) }
}

fn came((blob, room): (BlobId, Writable)) -> PullResult {
    PullResult { came: Ok((blob, room, None)), coming: None, progressed: true }
}

/// How a reading that failed did.
fn refused(mut given: oneshot::Receiver<Result<Pinned, Error>>) -> ErrorKind {
    given.recv().wait().expect("it is answered").err().expect("it is not there").kind()
}

#[test]
fn a_reader_waits_for_the_next_session_of_its_worker_and_not_for_ever() {
    let (store, wanted) = (store(), object(7));
    let missing = [worker::Event::DataMissing { object: wanted }];
    let at = |time| move |state: &mut ObjectStoreState| state.ask_again(time, object(7));
    let joins = |epoch| {
        move |state: &mut ObjectStoreState, now: Time| {
            state.worker = Some(session(epoch));
            state.look_anew(now);
        }
    };
    store.set_session(Some(session(1)));
    let (mut first, told) = store.wants(wanted);
    assert_eq!(told, missing);
    let (second, told) = store.wants(wanted);
    assert_eq!(told, [], "it was asked already");
    store.set_session(None);
    assert!(first.try_recv().is_err(), "its own session may live");
    assert_eq!(store.tells(joins(2)), missing, "the next session is asked");
    let room = store.room(1_000).unwrap().taken();
    store.lock().pulls.running += 1;
    store.tells(|state, now| state.pulled(now, &pull(Some(session(2)), wanted), came(room)));
    assert!(first.recv().wait().unwrap().is_ok());
    drop(second);

    // Without a session, the worker itself answers; the wait ends like that for any value that does not come.
    store.set_session(None);
    let (given, _) = store.wants(wanted);
    let mut now = store.0.clock.now();
    let began = now;
    loop {
        let nowhere =
            Error::unavailable(Ran::No, "this worker is not part of a cluster at the moment");
        let (told, pause) = store.says(|state| state.located(now, wanted, Err(nowhere)));
        assert_eq!(told, []);
        let Some(pause) = pause else { break };
        now = now + pause;
        assert_eq!(store.says(at(now)).0, missing);
    }
    assert!(now.since(began) > marline_core::lease::LeaseTerms::default().lease);
    assert_eq!(refused(given), ErrorKind::Unavailable);
}

#[test]
fn what_was_brought_under_a_session_that_has_ended_counts_for_nothing() {
    let (store, wanted) = (store(), object(7));
    store.set_session(Some(session(1)));
    let (mut first, _) = store.wants(wanted);
    let begun = store.lock().worker;
    let room = store.room(1_000).unwrap().taken();
    store.lock().pulls.running += 1; // It is on its way.
    store.set_session(None);
    store.set_session(Some(session(2)));
    let (mut second, _) = store.wants(wanted);
    let told = store.tells(|state, now| {
        state.pulled(now, &pull(begun, wanted), came(room));
    });
    assert_eq!(told, []);
    assert_eq!(store.figures().used, 0, "it was given back");
    let room = store.room(1_000).unwrap().taken();
    store.lock().pulls.running += 1;
    let told = store.tells(|state, now| {
        state.pulled(now, &pull(Some(session(2)), wanted), came(room));
    });
    assert_eq!(told, [worker::Event::DataCopied { object: wanted }]);
    for given in [&mut first, &mut second] {
        assert!(given.recv().wait().unwrap().is_ok());
    }
}

#[test]
fn what_is_to_be_brought_and_is_made_here_meanwhile_is_answered_once_and_kept() {
    let (store, wanted) = (store(), object(7));
    store.set_session(Some(session(1)));
    let told = store.tells(|state, now| {
        state.pulls.running = MAX_PULLS; // It waits for its turn.
        state.told_to_bring(now, wanted, vec![at("127.0.0.1:1")]);
    });
    assert_eq!(told, []);
    let (blob, room) = store.room(1_000).unwrap().taken();
    let told = store.tells(|state, now| {
        state.bodies.set_memory(blob, room);
        state.sealed(now, blob, wanted);
    });
    assert_eq!(told, [worker::Event::DataCopied { object: wanted }]);
    assert!(store.keeps(wanted));

    // The pull that was under way brings it once more, and says nothing.
    let brought = store.room(1_000).unwrap().taken();
    let told = store.tells(|state, now| {
        state.pulls.waiting.clear();
        state.pulled(now, &pull(Some(session(1)), wanted), came(brought));
    });
    assert_eq!(told, []);
}

#[test]
fn what_does_not_come_is_asked_for_after_pauses_until_a_lease_would_be_over_and_then_refused() {
    let (store, wanted) = (store(), object(7));
    store.set_session(Some(session(1)));
    let (given, _) = store.wants(wanted);
    let mut now = store.0.clock.now();
    let began = now;
    let mut last = Duration::ZERO;
    loop {
        let failed = || Err(Error::unavailable(Ran::No, "nobody listens there"));
        let ended = PullResult { came: failed(), coming: None, progressed: false };
        store.lock().pulls.running += 1;
        store.lock().missing.get_mut(&wanted).expect("somebody waits").waits = false;
        let (told, pause) = store.says(|state| {
            state.pulled(now, &pull(Some(session(1)), wanted), ended);
        });
        assert_eq!(told, [], "it is not asked at once");
        let Some(pause) = pause else { break };
        assert!(pause >= last);
        (last, now) = (pause, now + pause);
        let (told, _) = store.says(|state| state.ask_again(now, wanted));
        assert_eq!(told, [worker::Event::DataMissing { object: wanted }]);
    }
    assert!(now.since(began) > 2 * marline_core::lease::LeaseTerms::default().lease);
    assert_eq!(refused(given), ErrorKind::Unavailable);
    assert!(store.lock().missing.is_empty());
}

#[test]
fn a_worker_that_cannot_bring_what_it_was_told_to_says_so_before_others_give_up_waiting() {
    let (store, wanted) = (store(), object(7));
    store.set_session(Some(session(1)));
    let mut now = store.0.clock.now();
    let began = now;
    store.lock().missing.insert(
        wanted,
        MissingObject { begun: true, is_ordered: true, ..MissingObject::default() },
    );
    let told = loop {
        let came = Err(Error::unavailable(Ran::No, "nobody listens there"));
        let ended = PullResult { came, coming: None, progressed: false };
        store.lock().pulls.running += 1;
        store.lock().missing.get_mut(&wanted).expect("it was told").waits = false;
        let (told, pause) = store.says(|state| {
            state.pulled(now, &pull(Some(session(1)), wanted), ended);
        });
        let Some(pause) = pause else { break told };
        now = now + pause;
        store.says(|state| state.ask_again(now, wanted));
    };
    assert!(matches!(told[..], [worker::Event::DataPullFailed { .. }]), "{told:?}");
    assert!(now.since(began) < Duration::from_secs(20), "another may have to be told");
}

#[test]
fn what_is_not_where_it_was_said_to_be_is_said_to_be_lost_unless_there_is_no_session() {
    let (store, wanted) = (store(), object(7));
    let error = store.read_to_send(wanted).expect_err("it is not there");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(store.tells(|state, _| state.asked_in_vain(wanted)), []);
    store.set_session(Some(session(1)));
    let told = store.tells(|state, _| state.asked_in_vain(wanted));
    assert!(matches!(told[..], [worker::Event::DataLost { object, .. }] if object == wanted));
    store.write(wanted, &[&[7; 1_000]], &mut || true).unwrap();
    assert!(store.read_to_send(wanted).is_ok() && !store.keeps(wanted));
    store.retain(wanted);
    assert!(store.keeps(wanted), "what was said of it before counts no more");
}

/// A store that has values of these objects, with so many bytes each.
fn has(objects: &[ObjectId], bytes: usize) -> ObjectStore {
    let options = StoreOptions { limit: 1 << 30, spill: None, ..StoreOptions::default() };
    let store = ObjectStore::new(&options, Credentials::new(None));
    for object in objects {
        let value = vec![object.origin.as_u128() as u8; bytes];
        store.write(*object, &[&value], &mut || true).unwrap();
    }
    store
}

/// Whether a value has come as [`has`] made it.
fn is_whole(
    store: &ObjectStore,
    object: ObjectId,
    mut given: oneshot::Receiver<Result<Pinned, Error>>,
) -> bool {
    let given = given.recv().wait().expect("it is answered").expect("it came");
    let (view, layout) = store.show(object, given).unwrap();
    let byte = object.origin.as_u128() as u8;
    view[layout.parts()[0].clone()].iter().all(|one| *one == byte)
}

/// What happens on other threads is looked at until it has.
fn until(what: &str, happened: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !happened() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::yield_now();
    }
}

/// The store of a worker that knows the token of the others.
fn reader() -> ObjectStore {
    let options = StoreOptions { limit: LIMIT, spill: None, ..StoreOptions::default() };
    let store = ObjectStore::new(&options, Credentials::new(Some("a secret".into())));
    store.set_session(Some(session(1)));
    store
}

#[test]
fn of_many_values_a_few_are_brought_at_a_time_and_all_arrive() {
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
    until("nothing is brought any more", || counts() == (0, 0));
    assert_eq!(traffic.connections(), objects.len(), "each is small enough for one");
}

#[test]
fn many_who_read_one_value_have_it_brought_once() {
    let (wanted, bytes) = (object(7), 20 << 20);
    let (address, traffic) = start_proxy(has(&[wanted], bytes), |_, _, _| true);
    let store = reader();
    let asked: Vec<_> = (0..50).map(|_| store.wants(wanted)).collect();
    let told: Vec<_> = asked.iter().flat_map(|(_, told)| told).collect();
    assert_eq!(told, [&worker::Event::DataMissing { object: wanted }]);
    store.located(wanted, Ok(vec![at(&address)]));
    store.located(wanted, Ok(vec![at(&address)])); // As if it had been asked twice.
    for (given, _) in asked {
        assert!(is_whole(&store, wanted, given));
    }
    assert!(traffic.carried() < bytes / 10 * 13, "{} bytes", traffic.carried());
    assert!(is_whole(&store, wanted, store.wants(wanted).0), "it is here");
}

#[test]
fn what_has_come_stays_until_somebody_has_the_rest_and_goes_with_the_session() {
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
        until("it is asked again who has it", asks);
        assert!(store.figures().used > bytes as u64, "what has come is kept");
        (store, given, traffic)
    };
    let (store, given, first) = half_way();
    let (address, second) = start_proxy(source.clone(), |_, _, _| true);
    store.located(wanted, Ok(vec![at(&address)]));
    assert!(is_whole(&store, wanted, given));
    let carried = first.carried() + second.carried();
    assert!(carried < bytes / 10 * 14, "{carried} bytes were carried");
    let making = |store: &ObjectStore| store.read_to_send(wanted).unwrap().1;
    assert_eq!(making(&store), making(&source), "a copy is of the making that it was copied from");

    let (store, mut given, _) = half_way();
    store.enter(|state, now| state.let_go_of_old(now + KEEP_FOR, wanted, Some(session(1))));
    assert_eq!(store.figures().used, 0, "others may need the room");
    assert!(given.try_recv().is_err(), "it is looked for still");

    let (store, mut given, _) = half_way();
    store.set_session(None);
    assert_eq!(store.figures().used, 0);
    assert!(given.try_recv().is_err(), "the next session is asked for it");
}
