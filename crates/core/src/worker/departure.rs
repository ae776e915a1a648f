//! How far a worker is with leaving its cluster.
//!
//! ```text
//! Staying ── drain ──▶ Draining ── no work is left ──▶ Emptied ── the data is elsewhere ──▶ Left
//! ```

/// See the [module](self). [`AfterDrain`] says what follows at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Departure {
    /// The worker takes work.
    #[default]
    Staying,
    /// The worker takes no new work, and finishes what it has.
    Draining(AfterDrain),
    /// No work is left, and the controller knows. The worker waits for the data that only it has to
    /// be copied elsewhere.
    Emptied(AfterDrain),
    /// The worker goes, and the controller knows.
    Left(AfterDrain),
}

/// The next step of a worker that has drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AfterDrain {
    /// It leaves for good.
    Leave,
    /// It joins the next controller: its own is about to end.
    Rejoin,
}

impl Departure {
    /// Returns whether the worker takes no new work.
    pub fn has_begun(self) -> bool {
        self != Departure::Staying
    }

    /// Returns what the worker does after it has drained, if it drains.
    pub fn then(self) -> Option<AfterDrain> {
        match self {
            Departure::Staying => None,
            Departure::Draining(then) | Departure::Emptied(then) | Departure::Left(then) => {
                Some(then)
            }
        }
    }

    /// Begins the departure, or changes what follows it. If both were asked for, the worker leaves
    /// for good.
    pub fn drain(self, asked: AfterDrain) -> Departure {
        let then = match self.then() {
            Some(AfterDrain::Leave) => AfterDrain::Leave,
            Some(AfterDrain::Rejoin) | None => asked,
        };
        match self {
            Departure::Staying | Departure::Draining(_) => Departure::Draining(then),
            Departure::Emptied(_) => Departure::Emptied(then),
            Departure::Left(_) => Departure::Left(then),
        }
    }
}
