//! Holds: which holder keeps which referent alive. A referent (an object, an actor) lives while at
//! least one holder holds it. Every hold belongs to a session, a task, an actor, an object, or a
//! message in flight, and is released when its holder ends.

use crate::id::{ActorId, ObjectId, Referent, SessionId, TaskId};
use crate::map::{Map, Set};
use crate::message::{AttemptId, Instance};
use crate::table::{Row, Table};

/// A holder of referents.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Holder {
    /// A process, through its handles.
    Session(SessionId),
    /// The cluster itself, for a limited time: the results of callers that have no session.
    Cluster,
    /// A task that has not ended.
    Task(TaskId),
    /// An actor that may be instantiated (again). It holds the arguments of its constructor.
    Actor(ActorId),
    /// An instance of an actor. It holds the references that it has received since and still has.
    Instance(Instance),
    /// A value that contains a reference.
    Object(ObjectId),
    /// A task that may run again to recompute lost results. It holds what its arguments refer to.
    Lineage(TaskId),
    /// The answer of a task or call, or an item, that a process is about to give. It exists from
    /// when the process announces it on its own link until the answer has come through the
    /// process's worker.
    Enclosed {
        /// The task or call that is answered.
        call: AttemptId,
        /// Which of its items this is, or `None` for its final answer.
        item: Option<u32>,
        /// The session of the process that gives the answer.
        by: SessionId,
    },
    /// The answer of a direct call, on its way to this session.
    Message {
        /// The call that is answered.
        call: AttemptId,
        /// The session that receives the answer.
        to: SessionId,
    },
}

/// All holds, indexed by referent and by holder.
#[derive(Debug, Default)]
pub struct Holds {
    by_thing: Table<Referent, Holders>,
    /// The rows in `by_thing` of the referents that each holder holds.
    by_holder: Map<Holder, Set<Row>>,
    /// Calls whose answers are on their way to a session.
    messages: Map<SessionId, Set<AttemptId>>,
}

/// The holders of one referent. Mostly there is one, a session or a task. These two need no
/// allocation.
#[derive(Debug)]
enum Holders {
    Session(SessionId),
    Task(TaskId),
    /// Any other single holder.
    One(Box<Holder>),
    Many(Box<Set<Holder>>),
}

impl Holders {
    fn one(holder: Holder) -> Holders {
        match holder {
            Holder::Session(session) => Holders::Session(session),
            Holder::Task(task) => Holders::Task(task),
            Holder::Cluster
            | Holder::Actor(_)
            | Holder::Instance(_)
            | Holder::Object(_)
            | Holder::Lineage(_)
            | Holder::Enclosed { .. }
            | Holder::Message { .. } => Holders::One(Box::new(holder)),
        }
    }

    /// Returns the only holder, or else all of them.
    fn look(&self) -> Result<Holder, &Set<Holder>> {
        match self {
            Holders::Session(session) => Ok(Holder::Session(*session)),
            Holders::Task(task) => Ok(Holder::Task(*task)),
            Holders::One(holder) => Ok(**holder),
            Holders::Many(many) => Err(many),
        }
    }

    fn insert(&mut self, holder: Holder) {
        if let Holders::Many(many) = self {
            many.insert(holder);
        } else if let Ok(one) = self.look()
            && one != holder
        {
            *self = Holders::Many(Box::new([one, holder].into_iter().collect()));
        }
    }

    /// Removes a holder. Returns whether none is left.
    fn remove(&mut self, holder: Holder) -> bool {
        let Holders::Many(many) = self else { return self.contains(holder) };
        many.remove(&holder);
        if many.len() == 1 {
            *self = Holders::one(*many.iter().next().expect("one holder is left"));
        }
        false
    }

    fn contains(&self, holder: Holder) -> bool {
        match self.look() {
            Ok(one) => one == holder,
            Err(many) => many.contains(&holder),
        }
    }

    fn iter(&self) -> impl Iterator<Item = Holder> {
        let (one, many) = match self.look() {
            Ok(one) => (Some(one), None),
            Err(many) => (None, Some(many)),
        };
        one.into_iter().chain(many.into_iter().flatten().copied())
    }
}

impl Holds {
    /// Adds a hold. Holding twice is holding once.
    pub fn hold(&mut self, holder: Holder, thing: Referent) {
        let row = match self.by_thing.row(&thing) {
            Some(row) => {
                self.by_thing.at_mut(row).insert(holder);
                row
            }
            None => self.by_thing.insert(thing, Holders::one(holder)).0,
        };
        self.by_holder.entry(holder).or_default().insert(row);
        if let Holder::Message { call, to } = holder {
            self.messages.entry(to).or_default().insert(call);
        }
    }

    /// Removes a hold. Returns whether it was the referent's last.
    #[must_use]
    pub fn release(&mut self, holder: Holder, thing: Referent) -> bool {
        let Some(row) = self.by_thing.row(&thing) else { return false };
        let Some(things) = self.by_holder.get_mut(&holder) else { return false };
        if !things.remove(&row) {
            return false;
        }
        if things.is_empty() {
            self.by_holder.remove(&holder);
            self.forget_message(holder);
        }
        self.unlink(holder, thing)
    }

    /// Removes all holds of `holder`. Returns the referents whose last hold this removed, in order.
    #[must_use]
    pub fn release_all(&mut self, holder: Holder) -> Vec<Referent> {
        let mut free = Vec::new();
        if let Holder::Session(session) = holder {
            for call in self.messages.remove(&session).into_iter().flatten() {
                free.extend(self.release_all(Holder::Message { call, to: session }));
            }
        }
        let rows = self.by_holder.remove(&holder).unwrap_or_default();
        self.forget_message(holder);
        let things: Vec<Referent> = rows.into_iter().map(|row| *self.by_thing.at(row).0).collect();
        free.extend(things.into_iter().filter(|thing| self.unlink(holder, *thing)));
        free.sort_unstable();
        free
    }

    fn forget_message(&mut self, holder: Holder) {
        if let Holder::Message { call, to } = holder
            && let Some(calls) = self.messages.get_mut(&to)
        {
            calls.remove(&call);
            if calls.is_empty() {
                self.messages.remove(&to);
            }
        }
    }

    fn unlink(&mut self, holder: Holder, thing: Referent) -> bool {
        let holders = self.by_thing.get_mut(&thing).expect("a hold is in both indexes");
        let free = holders.remove(holder);
        if free {
            self.by_thing.remove(&thing);
        }
        free
    }

    /// Returns whether any holder holds `thing`.
    pub fn is_held(&self, thing: Referent) -> bool {
        self.by_thing.contains_key(&thing)
    }

    /// Returns whether `holder` holds `thing`.
    pub fn holds(&self, holder: Holder, thing: Referent) -> bool {
        self.by_thing.get(&thing).is_some_and(|holders| holders.contains(holder))
    }

    /// Returns the holders of `thing`, in order.
    pub fn holders(&self, thing: Referent) -> Vec<Holder> {
        let holders = self.by_thing.get(&thing).into_iter().flat_map(Holders::iter);
        let mut holders: Vec<Holder> = holders.collect();
        holders.sort_unstable();
        holders
    }

    /// Returns every holder that holds something.
    pub fn all_holders(&self) -> impl Iterator<Item = Holder> {
        self.by_holder.keys().copied()
    }

    /// Returns every referent that is held.
    pub fn all_things(&self) -> impl Iterator<Item = Referent> {
        self.by_thing.keys().copied()
    }

    /// Panics if the two indexes differ.
    pub fn check_invariants(&self) {
        let mut there = 0;
        for (thing, holders) in self.by_thing.iter() {
            there += holders.iter().count();
            if let Holders::Many(many) = holders {
                assert!(many.len() > 1, "{thing:?} has Holders::Many with {many:?}");
            }
        }
        let mut back = 0;
        for (holder, rows) in &self.by_holder {
            back += rows.len();
            for row in rows {
                let (thing, holders) = self.by_thing.at(*row);
                assert!(holders.contains(*holder), "{thing:?} lacks its holder {holder:?}");
            }
            if let Holder::Message { call, to } = holder {
                let known = self.messages.get(to).is_some_and(|calls| calls.contains(call));
                assert!(known, "{holder:?} is not in `messages`");
            }
        }
        // Neither index lists a hold twice. Every hold of `by_holder` is in `by_thing`, so equal
        // counts mean that the two agree.
        assert_eq!(there, back, "holds in both indexes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Attempt;

    fn object(number: u128) -> Referent {
        Referent::Object(ObjectId::of(TaskId::from_u128(number), 0))
    }

    #[test]
    fn a_hold_record_is_small_and_works_for_every_kind_of_holder() {
        assert!(size_of::<(Referent, Holders)>() <= 48, "{}", size_of::<(Referent, Holders)>());
        let holders = [
            Holder::Session(SessionId::from_u128(1)),
            Holder::Task(TaskId::from_u128(1)),
            Holder::Cluster,
            Holder::Lineage(TaskId::from_u128(1)),
        ];
        for (one, two) in holders.iter().zip(holders.iter().cycle().skip(1)) {
            let mut holds = Holds::default();
            holds.hold(*one, object(1));
            holds.hold(*one, object(1));
            assert_eq!(holds.holders(object(1)), [*one]);
            holds.hold(*two, object(1));
            holds.check_invariants();
            assert!(!holds.release(*one, object(1)));
            assert_eq!(holds.holders(object(1)), [*two]);
            holds.check_invariants();
            assert!(holds.release(*two, object(1)));
        }
    }

    #[test]
    fn a_referent_is_free_only_after_its_last_holder_releases_it() {
        let session = SessionId::from_u128(1);
        let task = TaskId::from_u128(9);
        let call = AttemptId { task, attempt: Attempt(1) };
        let mut holds = Holds::default();
        holds.hold(Holder::Session(session), object(1));
        holds.hold(Holder::Session(session), object(1));
        holds.hold(Holder::Session(session), object(2));
        holds.hold(Holder::Task(task), object(1));
        holds.hold(Holder::Message { call, to: session }, object(3));
        holds.check_invariants();
        assert!(!holds.release(Holder::Session(session), object(1)), "the task holds it too");
        assert!(!holds.release(Holder::Session(session), object(1)), "releasing twice counts once");
        assert!(holds.release(Holder::Task(task), object(1)));
        assert_eq!(holds.release_all(Holder::Session(session)), [object(2), object(3)]);
        holds.check_invariants();
        assert_eq!(holds.all_things().count() + holds.all_holders().count(), 0);
    }
}
