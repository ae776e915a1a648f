//! The thread that wakes a node when a timer is due. It has a lock of its own, so that it never
//! holds up threads that need the node's lock.

use super::Node;
use marline_core::time::Time;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

/// How long the thread sleeps at most. Then it checks whether its node still exists.
const IDLE: Duration = Duration::from_secs(60);

/// When the thread wakes.
#[derive(Default)]
pub(super) struct Alarm {
    set: Mutex<Set>,
    bell: Condvar,
}

#[derive(Default)]
struct Set {
    at: Option<Time>,
    closed: bool,
}

impl Alarm {
    fn lock(&self) -> MutexGuard<'_, Set> {
        self.set.lock().expect("nothing panics under it")
    }

    /// Wakes the thread at `at`, which is earlier than any time set before.
    pub fn set(&self, at: Time) {
        self.lock().at = Some(at);
        self.bell.notify_one();
    }

    /// Ends the thread.
    pub fn close(&self) {
        self.lock().closed = true;
        self.bell.notify_all();
    }
}

/// Starts the timer thread of a node.
pub(super) fn start(node: &Arc<Node>) {
    let node = Arc::downgrade(node);
    let run = move || while turn(&node) {};
    thread::Builder::new()
        .name("marline-timer".into())
        .spawn(run)
        .expect("a thread can be started");
}

/// Sleeps until a timer is due, and then has every machine look at the clock. Returns whether to go
/// on.
fn turn(node: &Weak<Node>) -> bool {
    let Some(node) = node.upgrade() else { return false };
    let mut set = node.alarm.lock();
    if set.closed {
        return false;
    }
    let wait = set.at.map_or(IDLE, |at| node.clock.until(at).min(IDLE));
    if !wait.is_zero() {
        let waited = node.alarm.bell.wait_timeout(set, wait);
        let (set, _) = waited.expect("nothing panics under it");
        return !set.closed;
    }
    set.at = None;
    drop(set);
    node.with_state(|state, _| {
        state.alarm_at = None;
        state.time_passed();
    });
    true
}
