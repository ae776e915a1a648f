//! An alert by itself: it calls once, at the right moment, and from any thread.

use super::*;
use crate::sync::backoff;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::Instant,
};

unsafe extern "C" fn count(user: *mut c_void) {
    // SAFETY: the tests pass a counter that outlives the alert.
    unsafe { &*user.cast::<AtomicU32>() }.fetch_add(1, SeqCst);
}

fn begun(calls: &AtomicU32) -> Alerts {
    let mut alerts = Alerts::new();
    alerts.begin(Some(count), ptr::from_ref(calls).cast_mut().cast());
    alerts
}

#[test]
fn an_alert_notes_early_wake_ups_calls_once_when_armed_and_never_when_quiet() {
    let calls = AtomicU32::new(0);
    let alerts = begun(&calls);
    let waker = Waker::clone(&alerts.waker());
    waker.wake_by_ref();
    assert!(!alerts.arm(), "noted");
    alerts.listen();
    assert!(alerts.arm());
    assert_eq!(calls.load(SeqCst), 0);
    waker.wake_by_ref();
    waker.wake_by_ref();
    assert_eq!(calls.load(SeqCst), 1, "called once");
    alerts.listen();
    assert!(alerts.arm(), "a wake-up that was called for is not noted again");
    waker.wake_by_ref();
    assert_eq!(calls.load(SeqCst), 2, "called again after it was left pending again");
    assert!(alerts.quiet().is_none());
    waker.wake_by_ref();
    assert_eq!(calls.load(SeqCst), 2);
}

#[test]
fn a_late_waker_does_not_call_for_a_later_operation() {
    let (first, second) = (AtomicU32::new(0), AtomicU32::new(0));
    let mut alerts = begun(&first);
    let late = Waker::clone(&alerts.waker());
    assert!(alerts.arm());
    alerts.quiet();
    for _ in 0..5 {
        alerts.begin(Some(count), ptr::from_ref(&second).cast_mut().cast());
        assert!(alerts.arm());
        late.wake_by_ref();
        alerts.quiet();
    }
    assert_eq!((first.load(SeqCst), second.load(SeqCst)), (0, 0));
    alerts.begin(Some(count), ptr::from_ref(&second).cast_mut().cast());
    assert!(alerts.arm());
    Waker::clone(&alerts.waker()).wake();
    assert_eq!(second.load(SeqCst), 1);
}

/// An operation becomes ready and wakes, at every moment of `finish`: if the operation was left
/// pending, a call comes.
#[test]
fn no_wake_up_is_lost_between_listening_and_arming() {
    const ROUNDS: u32 = 100_000;
    let (calls, go, ready) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let mut alerts = Alerts::new();
    let waker = Mutex::new(None::<Waker>);
    let pause = |steps: u32| (0..steps).for_each(|_| std::hint::spin_loop());
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                backoff(|| go.load(Ordering::Acquire) == round);
                let waker = waker.lock().unwrap().take().expect("a waker for this round");
                pause(round * 7 % 13);
                ready.store(round, Ordering::Relaxed);
                waker.wake();
            }
        });
        for round in 1..=ROUNDS {
            alerts.begin(Some(count), ptr::from_ref(&calls).cast_mut().cast());
            *waker.lock().unwrap() = Some(Waker::clone(&alerts.waker()));
            calls.store(0, SeqCst);
            assert!(alerts.arm());
            go.store(round, Ordering::Release);
            pause(round * 5 % 11);
            alerts.listen();
            let calls_before = calls.load(SeqCst);
            while ready.load(Ordering::Relaxed) != round {
                if !alerts.arm() {
                    alerts.listen();
                    continue;
                }
                let start = Instant::now();
                while calls.load(SeqCst) == calls_before {
                    assert!(start.elapsed().as_secs() < 20, "round {round}: no call comes");
                    thread::yield_now();
                }
                alerts.listen();
            }
            alerts.quiet();
        }
    });
}
