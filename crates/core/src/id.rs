//! Identities. An id names one thing for ever. The client that asks for the thing creates the id (a
//! UUIDv7), so asking twice is asking for the same thing. Epochs and attempts tell the lives of one
//! thing apart: a message with an old epoch or attempt is refused.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)+) => { $(
        $(#[$doc])*
        // Bytes instead of a `u128`: they have no alignment, so they stand beside smaller fields
        // without gaps. Tables hold many ids.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
        pub struct $name([u8; 16]);

        impl $name {
            /// Builds the id with these 128 bits.
            pub const fn from_u128(bits: u128) -> Self {
                $name(bits.to_be_bytes())
            }

            /// Returns the id's 128 bits.
            pub const fn as_u128(self) -> u128 {
                u128::from_be_bytes(self.0)
            }
        }

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                let bits = self.as_u128();
                state.write_u64((bits >> 64) as u64);
                state.write_u64(bits as u64);
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                uuid::Uuid::from_u128(self.as_u128()).as_hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = crate::Error;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                uuid::Uuid::parse_str(text).map(|id| Self::from_u128(id.as_u128())).map_err(|_| {
                    crate::Error::invalid(format!(
                        "{text:?} is not an id: pass an id as `marline tasks` prints it"
                    ))
                })
            }
        }
    )+ };
}

ids! {
    /// Names a cluster for as long as its record exists.
    ClusterId
    /// Names a process that joined the cluster. A worker's id is its session's id.
    SessionId
    /// Names a task, or a call to an actor.
    TaskId
    /// Names an actor through all its epochs.
    ActorId
}

/// The first hexadecimal digits of an id's text. The empty prefix matches every id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IdPrefix {
    /// The digits, from the most significant bit down, followed by zeros.
    bits: u128,
    digits: u32,
}

/// The number of hexadecimal digits in a whole id.
const ID_DIGITS: u32 = u128::BITS / 4;

impl IdPrefix {
    /// Returns whether an id with these 128 bits begins with this prefix.
    pub const fn begins(self, bits: u128) -> bool {
        match self.digits {
            0 => true,
            digits => (bits ^ self.bits) >> ((ID_DIGITS - digits) * 4) == 0,
        }
    }
}

impl FromStr for IdPrefix {
    type Err = crate::Error;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut prefix = IdPrefix::default();
        for letter in text.chars().filter(|letter| *letter != '-') {
            let digit = letter.to_digit(16).filter(|_| prefix.digits < ID_DIGITS);
            let Some(digit) = digit else {
                return Err(crate::Error::invalid(format!(
                    "no id begins with {text:?}: expected at most {ID_DIGITS} hexadecimal digits"
                )));
            };
            prefix.digits += 1;
            prefix.bits |= u128::from(digit) << ((ID_DIGITS - prefix.digits) * 4);
        }
        Ok(prefix)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident)+) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// Returns the number that follows this one.
            pub const fn next(self) -> Self {
                $name(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+ };
}

counters! {
    /// Counts the controllers that started for one cluster.
    ControllerEpoch
    /// Counts the sessions of a cluster, also across restarts of the controller. When a process
    /// joins again it gets a new epoch, and its earlier session is over.
    SessionEpoch
    /// Counts the instances of an actor.
    ActorEpoch
    /// Counts the attempts at a task: 1, 2, …
    Attempt
}

/// How many low bits of a session's epoch count the sessions that one controller opened. The bits
/// above them hold the controller's epoch.
const SESSIONS_BITS: u32 = 24;

impl SessionEpoch {
    /// Returns an epoch below every epoch that this controller assigns and above every epoch that
    /// earlier controllers assigned.
    pub const fn first_of(controller: ControllerEpoch) -> SessionEpoch {
        SessionEpoch(controller.0 << SESSIONS_BITS)
    }

    /// Returns the epoch of the controller that assigned this session epoch.
    pub const fn controller(self) -> ControllerEpoch {
        ControllerEpoch(self.0 >> SESSIONS_BITS)
    }
}

/// One membership of a process in the cluster. Every message names the session of its sender.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Session {
    /// The process.
    pub id: SessionId,
    /// Which membership of the process this is.
    pub epoch: SessionEpoch,
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.id, self.epoch)
    }
}

/// Names an immutable value: the `index`th result of a task, or a value that a client put (an id of
/// its own, with `index` 0).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId {
    /// The task, or the id that was created for the put.
    pub origin: TaskId,
    /// Which of the task's results this is.
    pub index: u32,
}

impl ObjectId {
    /// Returns the id of the `index`th result of `task`.
    pub const fn of(task: TaskId, index: u32) -> ObjectId {
        ObjectId { origin: task, index }
    }

    /// Returns the id of the `index`th item of a task that
    /// [streams](crate::spec::TaskSpec::stream_window). Items follow the task's one result, and a
    /// task has at most [`MAX_ITEMS`](crate::spec::MAX_ITEMS).
    pub const fn item(task: TaskId, index: u32) -> ObjectId {
        ObjectId { origin: task, index: index.saturating_add(1) }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.origin, self.index)
    }
}

impl FromStr for ObjectId {
    type Err = crate::Error;
    /// Parses `TASK#INDEX`, or `TASK` for the first result.
    fn from_str(text: &str) -> Result<ObjectId, crate::Error> {
        let (origin, index) = text.split_once('#').unwrap_or((text, "0"));
        let index = index.parse().map_err(|_| {
            crate::Error::invalid(format!(
                "{text:?} is not an object: expected TASK#INDEX: a task's id and the index of a result"
            ))
        })?;
        Ok(ObjectId::of(origin.parse()?, index))
    }
}

/// The thing that a reference names. It lives while a hold on it exists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Referent {
    /// A value.
    Object(ObjectId),
    /// An actor, held through its handles.
    Actor(ActorId),
}

impl fmt::Display for Referent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Referent::Object(id) => write!(f, "value {id}"),
            Referent::Actor(id) => write!(f, "actor {id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_epochs_of_a_later_controller_are_larger_than_all_earlier_ones() {
        let first = SessionEpoch::first_of(ControllerEpoch(7));
        let many = SessionEpoch(first.0 + 1_000_000);
        let later = SessionEpoch::first_of(ControllerEpoch(8));
        assert!(first < many && many < later);
        assert_eq!([first, many, later].map(|epoch| epoch.controller().0), [7, 7, 8]);
    }

    #[test]
    fn a_prefix_matches_ids_that_begin_with_it() {
        let id = TaskId::from_u128(0x0190_abcd_0000_7000_8000_0000_0000_0001);
        let begins = |text: &str| text.parse::<IdPrefix>().unwrap().begins(id.as_u128());
        assert!(["", "0", "0190ABCD", "0190abcd-0000-7"].iter().all(|text| begins(text)));
        assert!(begins(&id.to_string()));
        assert!(["1", "0190abce", "0190abcd-0000-7001"].iter().all(|text| !begins(text)));
        for wrong in ["x", "0190 abcd", &format!("{id}0")] {
            assert!(wrong.parse::<IdPrefix>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_object_id_prints_as_it_parses_and_its_index_defaults_to_0() {
        let task = TaskId::from_u128(7);
        let object = ObjectId::of(task, 3);
        assert_eq!(object.to_string().parse::<ObjectId>().unwrap(), object);
        assert_eq!(task.to_string().parse::<ObjectId>().unwrap(), ObjectId::of(task, 0));
        for wrong in ["seven#0", "00000000-0000-0000-0000-000000000007#x", ""] {
            assert_eq!(wrong.parse::<ObjectId>().unwrap_err().kind(), crate::ErrorKind::Invalid);
        }
    }

    #[test]
    fn an_id_prints_as_it_parses() {
        let id = TaskId::from_u128(0x0192_0000_1111_7222_8333_4444_5555_6666);
        assert_eq!(id.to_string().parse::<TaskId>().unwrap(), id);
        assert_eq!(id.to_string(), "01920000-1111-7222-8333-444455556666");
        assert!(
            "seven".parse::<TaskId>().unwrap_err().to_string().contains("\"seven\" is not an id")
        );
    }
}
