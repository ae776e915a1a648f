//! Identities. An id names one thing for ever and is made by whoever asks for the thing (a UUIDv7 made
//! by the client), so that asking twice is asking for the same thing. Epochs and attempts tell the
//! lives of one thing apart; whoever speaks with an old one is refused.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)+) => { $(
        $(#[$doc])*
        // As bytes, which stand beside smaller fields without gaps: tables have many of them.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The id with these 128 bits.
            pub const fn from_u128(bits: u128) -> Self {
                $name(bits.to_be_bytes())
            }

            /// Its 128 bits.
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
                        "{text:?} is not an id: expected one as `marline tasks` prints it"
                    ))
                })
            }
        }
    )+ };
}

ids! {
    /// Names a cluster for as long as its record lives.
    ClusterId
    /// Names a process that joined the cluster. A worker is known by its session's id.
    SessionId
    /// Names a task, or a call to an actor.
    TaskId
    /// Names an actor through all its epochs.
    ActorId
}

/// How ids begin: the first hexadecimal digits of their text. Every id begins with the empty one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IdPrefix {
    /// The digits at the top, zeros below them.
    bits: u128,
    digits: u32,
}

/// The digits of a whole id.
const ID_DIGITS: u32 = u128::BITS / 4;

impl IdPrefix {
    /// Whether an id with these 128 bits begins so.
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
            /// The one after this.
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
    /// Grows each time a controller starts for the same cluster.
    ControllerEpoch
    /// Grows each time a process joins, also across starts of the controller; a session is over when
    /// its process joined again.
    SessionEpoch
    /// Grows each time an actor is instantiated.
    ActorEpoch
    /// One try at a task: 1, 2, …
    Attempt
}

/// How many bits of a session's epoch count the sessions of one start of a controller.
const SESSIONS_BITS: u32 = 24;

impl SessionEpoch {
    /// Below all that this start of a controller gives out, above all that earlier ones did.
    pub const fn first_of(controller: ControllerEpoch) -> SessionEpoch {
        SessionEpoch(controller.0 << SESSIONS_BITS)
    }

    /// Which start of the controller gave it out.
    pub const fn controller(self) -> ControllerEpoch {
        ControllerEpoch(self.0 >> SESSIONS_BITS)
    }
}

/// One life of a process in the cluster: what every message says about its sender.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Session {
    /// The process.
    pub id: SessionId,
    /// Which of its memberships.
    pub epoch: SessionEpoch,
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.id, self.epoch)
    }
}

/// Names an immutable value: the `index`th result of a task, or a value that was put (`index` 0 of an
/// id of its own).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId {
    /// The task, or the id made for the put.
    pub origin: TaskId,
    /// Which of the task's results.
    pub index: u32,
}

impl ObjectId {
    /// The `index`th result of `task`.
    pub const fn of(task: TaskId, index: u32) -> ObjectId {
        ObjectId { origin: task, index }
    }

    /// The `index`th item of a task that [streams](crate::spec::TaskSpec::stream): they come after its one
    /// result, and there are at most [`MAX_ITEMS`](crate::spec::MAX_ITEMS).
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
    /// `TASK#INDEX`, or `TASK` for the first result.
    fn from_str(text: &str) -> Result<ObjectId, crate::Error> {
        let (origin, index) = text.split_once('#').unwrap_or((text, "0"));
        let index = index.parse().map_err(|_| {
            crate::Error::invalid(format!(
                "{text:?} is not an object: expected a task's id, #, and which of its results"
            ))
        })?;
        Ok(ObjectId::of(origin.parse()?, index))
    }
}

/// Something that lives as long as it is held.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Referent {
    /// A value.
    Object(ObjectId),
    /// An actor, through its handles.
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
    fn sessions_of_a_later_controller_are_later_than_all_of_an_earlier_one() {
        let first = SessionEpoch::first_of(ControllerEpoch(7));
        let many = SessionEpoch(first.0 + 1_000_000);
        let later = SessionEpoch::first_of(ControllerEpoch(8));
        assert!(first < many && many < later);
        assert_eq!([first, many, later].map(|epoch| epoch.controller().0), [7, 7, 8]);
    }

    #[test]
    fn a_prefix_is_how_ids_begin() {
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
    fn an_object_prints_as_it_parses_and_is_the_first_unless_said() {
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
