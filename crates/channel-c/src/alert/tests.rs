//! An alert by itself: told once, at the right moment, and from any thread.

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
    // SAFETY: the tests hand in a counter that outlives the alert.
    unsafe { &*user.cast::<AtomicU32>() }.fetch_add(1, SeqCst);
}

fn begun(told: &AtomicU32) -> Alerts {
    let mut alerts = Alerts::new();
    alerts.begin(Some(count), ptr::from_ref(told).cast_mut().cast());
    alerts
}

#[test]
fn wake_ups_are_noted_until_armed_told_once_then_and_nothing_when_quiet() {
    let told = AtomicU32::new(0);
    let alerts = begun(&told);
    let waker = Waker::clone(&alerts.waker());
    waker.wake_by_ref();
    assert!(!alerts.arm(), "noted");
    alerts.listen();
    assert!(alerts.arm());
    assert_eq!(told.load(SeqCst), 0);
    waker.wake_by_ref();
    waker.wake_by_ref();
    assert_eq!(told.load(SeqCst), 1, "told once");
    alerts.listen();
    assert!(alerts.arm(), "what was told before is not noted again");
    waker.wake_by_ref();
    assert_eq!(told.load(SeqCst), 2, "told again after it was left pending again");
    assert!(alerts.quiet().is_none());
    waker.wake_by_ref();
    assert_eq!(told.load(SeqCst), 2);
}

#[test]
fn a_late_waker_belongs_to_the_operation_it_was_made_for() {
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

/// Something becomes true and is woken for, at every moment of `finish`: whoever leaves the
/// operation pending is told.
#[test]
fn no_wake_up_is_lost_between_listening_and_arming() {
    const ROUNDS: u32 = 100_000;
    let (told, go, ready) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let mut alerts = Alerts::new();
    let waker = Mutex::new(None::<Waker>);
    let pause = |steps: u32| (0..steps).for_each(|_| std::hint::spin_loop());
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                backoff(|| go.load(Ordering::Acquire) == round);
                let waker = waker.lock().unwrap().take().expect("left for this round");
                pause(round * 7 % 13);
                ready.store(round, Ordering::Relaxed);
                waker.wake();
            }
        });
        for round in 1..=ROUNDS {
            alerts.begin(Some(count), ptr::from_ref(&told).cast_mut().cast());
            *waker.lock().unwrap() = Some(Waker::clone(&alerts.waker()));
            told.store(0, SeqCst);
            assert!(alerts.arm());
            go.store(round, Ordering::Release);
            pause(round * 5 % 11);
            alerts.listen();
            let told_before = told.load(SeqCst);
            while ready.load(Ordering::Relaxed) != round {
                if !alerts.arm() {
                    alerts.listen();
                    continue;
                }
                let start = Instant::now();
                while told.load(SeqCst) == told_before {
                    assert!(start.elapsed().as_secs() < 20, "round {round}: nobody tells");
                    thread::yield_now();
                }
                alerts.listen();
            }
            alerts.quiet();
        }
    });
}
