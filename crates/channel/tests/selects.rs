//! Selects: typed selects, the macros, and the reusable selector, from threads and tasks.

mod conformance;

#[path = "conformance/selects/clauses.rs"]
mod clauses;
#[path = "conformance/selects/closed.rs"]
mod closed;
#[path = "conformance/selects/limits.rs"]
mod limits;
#[path = "conformance/selects/macros.rs"]
mod macros;
#[path = "conformance/selects/others.rs"]
mod others;
#[path = "conformance/selects/selector.rs"]
mod selector;
#[path = "conformance/selects/turns.rs"]
mod turns;

use std::time::{Duration, Instant};

use conformance::PATIENCE;

/// Short enough to wait for.
const MOMENT: Duration = Duration::from_millis(2);

/// Longer than any test waits.
fn far() -> Instant {
    Instant::now() + 10 * PATIENCE
}
