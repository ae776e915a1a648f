//! Stories of a store: who looks for what it does not have, and what becomes of them.

use super::*;
use marline_core::error::ErrorKind;
use marline_core::id::{SessionEpoch, SessionId, TaskId};

const LIMIT: u64 = 256 << 20;

fn store() -> Store {
    let options = StoreOptions { limit: LIMIT, spill: None, ..StoreOptions::default() };
    Store::new(&options, Secret::new(None))
}

fn session(epoch: u64) -> Session {
    Session { id: SessionId::from_u128(1), epoch: SessionEpoch(epoch) }
}

fn object(number: u128) -> ObjectId {
    ObjectId::of(TaskId::from_u128(number), 0)
}

impl Store {
    /// Does something with the state, and says what the worker is told because of it.
    fn tells(&self, what: impl FnOnce(&mut State, Time)) -> Vec<worker::Event> {
        let (told, rest): (Vec<_>, Vec<_>) = {
            let mut state = self.lock();
            what(&mut state, self.0.clock.now());
            let outside = std::mem::take(&mut state.outside);
            outside.into_iter().partition(|one| matches!(one, Outside::Tell(_)))
        };
        rest.into_iter().for_each(|one| self.carry_out(one));
        let event = |one| if let Outside::Tell(event) = one { Some(event) } else { None };
        told.into_iter().filter_map(event).collect()
    }

    /// Somebody of this process wants to read it: how that is answered, and what the worker is told.
    fn wants(
        &self,
        object: ObjectId,
    ) -> (oneshot::Receiver<Result<Given, Error>>, Vec<worker::Event>) {
        let (answer, given) = oneshot();
        let told = self.tells(|state, now| {
            let request = state.ask(THIS, To::Read(answer));
            state.read(now, request, object);
        });
        (given, told)
    }
}

/// How a reading that failed did.
fn refused(mut given: oneshot::Receiver<Result<Given, Error>>) -> ErrorKind {
    given.recv().wait().expect("it is answered").expect_err("it is not there").kind()
}

#[test]
fn whoever_looks_when_the_session_ends_is_told_and_whoever_looks_in_the_next_is_not_forgotten() {
    let (store, wanted) = (store(), object(7));
    let missing = [worker::Event::DataMissing { object: wanted }];
    store.works_under(Some(session(1)));
    let (first, told) = store.wants(wanted);
    assert_eq!(told, missing);
    let (second, told) = store.wants(wanted);
    assert_eq!(told, [], "it was asked already");
    store.works_under(None);
    assert_eq!([first, second].map(refused), [ErrorKind::Unavailable; 2]);

    store.works_under(Some(session(2)));
    let (third, told) = store.wants(wanted);
    assert_eq!(told, missing);
    store.works_under(None);
    assert_eq!(refused(third), ErrorKind::Unavailable);
}

#[test]
fn what_was_brought_under_a_session_that_has_ended_counts_for_nothing() {
    let (store, wanted) = (store(), object(7));
    store.works_under(Some(session(1)));
    let (first, _) = store.wants(wanted);
    let begun = store.lock().worker;
    let room = store.room(1_000).unwrap().taken();
    store.lock().pulls.running += 1; // It is on its way.
    store.works_under(None);
    assert_eq!(refused(first), ErrorKind::Unavailable);

    store.works_under(Some(session(2)));
    let (mut second, _) = store.wants(wanted);
    let told = store.tells(|state, now| {
        state.pulled(now, begun, wanted, Ok(room));
    });
    assert_eq!(told, []);
    assert_eq!(store.figures().used, 0, "it was given back");
    let room = store.room(1_000).unwrap().taken();
    store.lock().pulls.running += 1;
    let told = store.tells(|state, now| {
        state.pulled(now, Some(session(2)), wanted, Ok(room));
    });
    assert_eq!(told, [worker::Event::DataCopied { object: wanted }]);
    assert!(second.recv().wait().unwrap().is_ok());
}
