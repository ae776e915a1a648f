//! Bugs planted for the simulator to find. Without the feature `planted-bugs`, which nothing that is
//! shipped turns on, every question is answered `false` at compile time.

/// The bugs. Each is asked for at the one place that would be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "planted-bugs"), allow(dead_code))]
pub enum Bug {
    /// The controller takes a result from an attempt that is not the current one.
    StaleResultAccepted,
    /// A task that ended keeps its holds.
    HoldNotReleased,
    /// A task's holds are released when it is handed out, and again when it ends.
    HoldReleasedTwice,
    /// Retries are not counted.
    RetryPastBudget,
    /// An actor is restarted as soon as its worker is suspected.
    TwoEpochs,
    /// The resources of a lost attempt stay taken.
    LeakedResources,
    /// A task whose last missing value arrives is not queued.
    WaitingTaskNeverWoken,
    /// The holder counts its lease from when it heard that it was heard.
    LeaseFromWrongEnd,
    /// A link transmits what its peer has seen, and delivers what it has seen.
    MessageDeliveredTwice,
    /// A host does not ask whether a caller's session lives.
    UnwatchedCaller,
    /// Calls that may have run are sent again though nobody allowed it.
    CallRepeated,
    /// A call goes to a new instance while an earlier one to the old is unsettled.
    CallOvertakes,
    /// A worker is not told that nobody holds an object any more whose data it keeps.
    DataNeverForgotten,
    /// A worker passes on a result whose data its store does not keep.
    DataNotKept,
    /// Items that a task gives once more when it runs again are delivered once more.
    ItemRepeated,
    /// A task that runs again is not told how many of its items were taken, nor is one that runs.
    TookLost,
    /// A session is pinged three times a lease, so that it survives a silence of a quarter of its lease only.
    SparsePings,
    /// What was saved is erased when the last copy is lost, not when nobody holds it any more.
    SavedErasedEarly,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 18] = [
        Bug::StaleResultAccepted,
        Bug::HoldNotReleased,
        Bug::HoldReleasedTwice,
        Bug::RetryPastBudget,
        Bug::TwoEpochs,
        Bug::LeakedResources,
        Bug::WaitingTaskNeverWoken,
        Bug::LeaseFromWrongEnd,
        Bug::MessageDeliveredTwice,
        Bug::UnwatchedCaller,
        Bug::CallRepeated,
        Bug::CallOvertakes,
        Bug::DataNeverForgotten,
        Bug::DataNotKept,
        Bug::ItemRepeated,
        Bug::TookLost,
        Bug::SparsePings,
        Bug::SavedErasedEarly,
    ];
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug, or none, for this thread.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// Whether this bug is planted.
    pub fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted-bugs")]
pub use switch::{is_planted, plant};

/// Whether the named bug is planted; `false` at compile time in everything that is shipped.
#[doc(hidden)]
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {{
        #[cfg(feature = "planted-bugs")]
        let planted = $crate::planted::is_planted($crate::planted::Bug::$bug);
        #[cfg(not(feature = "planted-bugs"))]
        let planted = false;
        planted
    }};
}
