//! Bugs planted for the simulator to find. Without the feature `planted-bugs`, which no shipped
//! build turns on, `planted!` is `false` at compile time.

/// The bugs. The code asks for each at the one place that the bug makes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "planted-bugs"), allow(dead_code))]
pub enum Bug {
    /// The controller accepts a result from an attempt that is not the current one.
    StaleResultAccepted,
    /// A task that ended keeps its holds.
    HoldNotReleased,
    /// A task's holds are released when the task is assigned, and again when it ends.
    HoldReleasedTwice,
    /// The retry budget is not enforced.
    RetryPastBudget,
    /// An actor is restarted as soon as its worker is suspected.
    TwoEpochs,
    /// The resources of some finished attempts stay taken.
    LeakedResources,
    /// A task whose last missing value arrives is not queued.
    WaitingTaskNeverWoken,
    /// The holder counts its lease from the ping that confirms its pong, instead of from when it
    /// sent the pong.
    LeaseFromWrongEnd,
    /// A link transmits again messages that its peer has seen, and delivers messages that it has
    /// seen already.
    MessageDeliveredTwice,
    /// A host does not ask the controller whether a caller's session is alive.
    UnwatchedCaller,
    /// Calls that may have run are sent again beyond their retry budget.
    CallRepeated,
    /// A call is sent to a new instance while an earlier call to the old instance is unsettled.
    CallOvertakes,
    /// A worker that keeps the blob of an object is not told that the last hold on the object is
    /// gone.
    DataNeverForgotten,
    /// A worker reports a result without telling its object store to retain the blob.
    DataNotKept,
    /// When a task runs again and yields an item again, the client delivers it again.
    ItemRepeated,
    /// A task that runs is not told how many of its items were consumed, and neither is its next
    /// attempt.
    TookLost,
    /// A session is pinged three times per lease, so it survives a silence of only a quarter of its
    /// lease.
    SparsePings,
    /// Saved data is erased when the last copy is lost, instead of when the last hold is gone.
    SavedErasedEarly,
}

impl Bug {
    /// All bugs.
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

    /// Plants a bug for this thread, or removes it.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// Returns whether this bug is planted.
    pub fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted-bugs")]
pub use switch::{is_planted, plant};

/// Returns whether the named bug is planted: `false` at compile time in every shipped build.
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
