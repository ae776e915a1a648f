//! The lock-free parts under a model checker: every interleaving (up to a bound on preemptions) of
//! two or three threads, on the shipped source built with `--cfg marline_model`:
//!
//! `RUSTFLAGS="--cfg marline_model" cargo test --release -p marline-channel-c --lib model`
//!
//! Each model runs once more with one named step left out, and must fail then: see `BROKEN`.

use std::{
    ffi::c_void,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicPtr as StdAtomicPtr, Ordering as StdOrdering},
    },
    task::Waker,
};

use loom::{cell::UnsafeCell, sync::atomic::AtomicBool, thread};

use crate::{
    alert::Alerts,
    calls::Hook,
    exclusive::Exclusive,
    sync::{AtomicUsize, Ordering},
    table::{Object, Table},
};

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Memory that C frees once a callback was revoked. The checker sees an access that is too late.
struct Listener {
    memory: UnsafeCell<u32>,
    told: AtomicUsize,
}

// SAFETY: the models check this.
unsafe impl Sync for Listener {}
// SAFETY: as above.
unsafe impl Send for Listener {}

impl Listener {
    fn new() -> Arc<Listener> {
        Arc::new(Listener { memory: UnsafeCell::new(1), told: AtomicUsize::new(0) })
    }

    fn user(self: &Arc<Listener>) -> *mut c_void {
        Arc::as_ptr(self).cast_mut().cast()
    }

    fn free(&self) {
        // SAFETY: no call reads it any more, which the model checks.
        self.memory.with_mut(|memory| unsafe { *memory = 0 });
    }
}

unsafe extern "C" fn tell(user: *mut c_void) {
    // SAFETY: the model keeps the listener alive.
    let listener = unsafe { &*user.cast::<Listener>() };
    // SAFETY: the memory is not freed yet, which the model checks.
    listener.memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
    listener.told.fetch_add(1, Ordering::AcqRel);
}

/// A peer makes the operation ready and wakes. `finish` checks once, and leaves the operation
/// pending or not.
#[test]
fn wake_fn_is_called_for_an_operation_left_pending() {
    check(|| {
        let listener = Listener::new();
        let ready = Arc::new(AtomicBool::new(false));
        let mut alerts = Alerts::new();
        alerts.begin(Some(tell), listener.user());
        assert!(alerts.arm());
        let waker = Waker::clone(&alerts.waker());
        let peer = {
            let ready = ready.clone();
            thread::spawn(move || {
                ready.store(true, Ordering::Relaxed);
                waker.wake();
            })
        };
        alerts.listen();
        let before = listener.told.load(Ordering::Acquire);
        let mut pending = false;
        while !pending && !ready.load(Ordering::Relaxed) {
            pending = alerts.arm();
            if !pending {
                alerts.listen();
            }
        }
        peer.join().unwrap();
        let told = listener.told.load(Ordering::Acquire);
        assert!(told <= 1 + usize::from(pending));
        assert!(!pending || told > before, "pending, and no call comes");
    });
}

/// An operation that needs two things, each of which wakes, as a select that skips closed channels
/// does: the second wake-up must not be lost because the first was noted and not yet handled.
#[test]
fn a_second_wake_up_before_the_first_is_handled_is_not_lost() {
    check(|| {
        let listener = Listener::new();
        let ready = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let mut alerts = Alerts::new();
        alerts.begin(Some(tell), listener.user());
        let peers = [0, 1].map(|index| {
            let (ready, waker) = (ready.clone(), Waker::clone(&alerts.waker()));
            thread::spawn(move || {
                ready[index].store(true, Ordering::Relaxed);
                waker.wake();
            })
        });
        let mut pending = false;
        while !pending && !ready.iter().all(|ready| ready.load(Ordering::Relaxed)) {
            pending = alerts.arm();
            if !pending {
                alerts.listen();
            }
        }
        peers.into_iter().for_each(|peer| peer.join().unwrap());
        assert_eq!(listener.told.load(Ordering::Acquire), usize::from(pending));
    });
}

/// After an abandon has returned `wake_fn` is not called and does not run.
#[test]
fn wake_fn_is_not_called_after_an_abandon() {
    check(|| {
        let listener = Listener::new();
        let mut alerts = Alerts::new();
        alerts.begin(Some(tell), listener.user());
        assert!(alerts.arm());
        let wakers = [Waker::clone(&alerts.waker()), Waker::clone(&alerts.waker())];
        let peers = wakers.map(|waker| thread::spawn(move || waker.wake()));
        if let Some(calls) = alerts.quiet() {
            calls.wait();
        }
        listener.free();
        peers.into_iter().for_each(|peer| peer.join().unwrap());
        assert!(listener.told.load(Ordering::Acquire) <= 1);
    });
}

#[test]
fn a_revoked_callback_is_not_called() {
    check(|| {
        let listener = Listener::new();
        let hook = Arc::new(Hook::new(tell as unsafe extern "C" fn(*mut c_void), listener.user()));
        let callers = [hook.clone(), hook.clone()].map(|hook| {
            // SAFETY: the model keeps the listener alive.
            thread::spawn(move || hook.call(|function, user| unsafe { function(user) }))
        });
        hook.revoke();
        listener.free();
        let called = callers.map(|caller| usize::from(caller.join().unwrap()));
        assert_eq!(called.iter().sum::<usize>(), listener.told.load(Ordering::Acquire));
    });
}

#[test]
fn an_exclusive_lock_admits_one_thread_at_a_time() {
    check(|| {
        let count = Arc::new(Exclusive::new(UnsafeCell::new(0)));
        let add = |count: &Exclusive<UnsafeCell<u32>>| {
            let inside = count.lock().unwrap();
            assert!(count.lock().is_err(), "this thread is inside already");
            // SAFETY: the access is exclusive, which the model checks.
            inside.with_mut(|count| unsafe { *count += 1 });
        };
        let other = count.clone();
        let thread = thread::spawn(move || add(&other));
        add(&count);
        thread.join().unwrap();
        // SAFETY: as above.
        count.lock().unwrap().with(|count| assert_eq!(unsafe { *count }, 2));
    });
}

/// An object whose end the checker sees.
struct Watched {
    alive: UnsafeCell<bool>,
    ends: Arc<AtomicUsize>,
}

// SAFETY: the model checks this.
unsafe impl Sync for Watched {}
// SAFETY: as above.
unsafe impl Send for Watched {}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: nothing else refers to it, which the model checks.
        self.alive.with_mut(|alive| unsafe { *alive = false });
        self.ends.fetch_add(1, Ordering::AcqRel);
    }
}

/// The table of this run of the model: slots do not outlive a run.
static TABLE: StdAtomicPtr<Table<Watched>> = StdAtomicPtr::new(ptr::null_mut());

impl Object for Watched {
    const ID_TAG: u64 = 1;

    fn table() -> &'static Table<Watched> {
        // SAFETY: the model sets and leaks the table.
        unsafe { &*TABLE.load(StdOrdering::Relaxed) }
    }
}

#[test]
fn an_object_in_use_outlives_its_handle_and_is_dropped_once() {
    check(|| {
        TABLE.store(Box::leak(Box::new(Table::new())), StdOrdering::Relaxed);
        let ends = Arc::new(AtomicUsize::new(0));
        let watched = Watched { alive: UnsafeCell::new(true), ends: ends.clone() };
        let id = Watched::table().insert(watched).ok().unwrap();
        let user = thread::spawn(move || {
            if let Some(held) = Watched::table().get(id) {
                // SAFETY: the object is alive while it is held, which the model checks.
                held.alive.with(|alive| assert!(unsafe { *alive }));
            }
        });
        let destroyer = thread::spawn(move || Watched::table().remove(id).is_some());
        let here = Watched::table().remove(id).is_some();
        assert!(here ^ destroyer.join().unwrap(), "exactly one of them ends it");
        user.join().unwrap();
        assert_eq!(ends.load(Ordering::Acquire), 1);
        assert!(Watched::table().get(id).is_none());
    });
}

/// Steps that a run can leave out, each with the model that must notice.
const BROKEN: [(&str, &str); 6] = [
    ("tell-or-note", "model::wake_fn_is_called_for_an_operation_left_pending"),
    ("note-again", "model::a_second_wake_up_before_the_first_is_handled_is_not_lost"),
    ("wait-for-running-calls", "model::wake_fn_is_not_called_after_an_abandon"),
    ("a-closed-callback-is-not-called", "model::a_revoked_callback_is_not_called"),
    ("exclusive-excludes", "model::an_exclusive_lock_admits_one_thread_at_a_time"),
    ("check-open", "model::an_object_in_use_outlives_its_handle_and_is_dropped_once"),
];

#[test]
fn each_step_left_out_makes_its_model_fail() {
    if std::env::var("MARLINE_BROKEN").is_ok() {
        return;
    }
    for (step, model) in BROKEN {
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", model])
            .env("MARLINE_BROKEN", step)
            .output()
            .unwrap();
        assert!(!run.status.success(), "`{model}` does not notice that `{step}` is left out");
        let ran = String::from_utf8_lossy(&run.stdout).contains("running 1 test");
        assert!(ran, "`{model}` is not the name of a test");
    }
}
