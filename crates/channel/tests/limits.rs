//! Deadlines and cancel tokens: on every operation, async and blocking; trees of tokens; signals.

mod conformance;

#[path = "conformance/limits/edges.rs"]
mod edges;
#[path = "conformance/limits/operations.rs"]
mod operations;
#[cfg(target_os = "linux")]
#[path = "conformance/limits/signals.rs"]
mod signals;
#[path = "conformance/limits/tokens.rs"]
mod tokens;

use std::time::{Duration, Instant};

use conformance::until;
use marline_channel::{Error, ErrorKind, SendError, Sent};

/// Short enough to wait for.
const MOMENT: Duration = Duration::from_millis(2);
/// How often a test tries to poll before a deadline that is a `MOMENT` away.
const MOST_TRIES: u32 = 1_000;

fn past() -> Instant {
    Instant::now()
}

fn wait_for(deadline: Instant) {
    until("the deadline passed", || Instant::now() > deadline);
}

/// Why an operation failed.
trait Failed {
    fn kind(self) -> ErrorKind;
}

impl<T> Failed for Result<T, Error> {
    #[track_caller]
    fn kind(self) -> ErrorKind {
        self.err().expect("the operation fails").kind()
    }
}

impl Failed for Result<Sent, SendError<u32>> {
    #[track_caller]
    fn kind(self) -> ErrorKind {
        let error = self.expect_err("the operation fails");
        assert_eq!(*error.value(), 7, "the value comes back");
        error.kind()
    }
}
