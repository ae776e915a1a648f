//! The thread that wakes a node when something is due.

use super::Node;
use marline_core::time::Time;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// Without anything due, the thread looks this often whether its node is still there.
const IDLE: Duration = Duration::from_secs(60);

pub(super) fn start(node: &Arc<Node>) {
    let node = Arc::downgrade(node);
    let run = move || while turn(&node) {};
    thread::Builder::new()
        .name("marline-timer".into())
        .spawn(run)
        .expect("a thread can be started");
}

/// Sleeps until something is due, and has it done. Says whether to go on.
fn turn(node: &Weak<Node>) -> bool {
    let Some(node) = node.upgrade() else { return false };
    let mut state = node.lock();
    if state.closed {
        return false;
    }
    state.alarm_at = state.next_wake();
    let wait = state.alarm_at.map_or(IDLE, |at| node.clock.until(at).min(IDLE));
    if !wait.is_zero() {
        let (state, _) =
            node.alarm.wait_timeout(state, wait).expect("no user code runs under a node's lock");
        return !state.closed;
    }
    drop(state);
    node.enter(|state, _: Time| state.time_passed());
    true
}
