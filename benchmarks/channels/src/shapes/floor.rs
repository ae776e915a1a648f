//! Floors: what a hop costs on this machine and runtime without any channel. A
//! channel can only be cheaper if it saves hops.
//!
//! The hop that a ping is compared with is a contestant of the ping, and runs in turn
//! with the others: on a shared machine, measurements that are minutes apart cannot
//! be compared. The other floors are shapes of their own, for orientation.

use crate::contestant::{Contestant, Outcome, Shape};
use crate::context::{TaskRuntime, run_tasks, run_threads};
use std::future::poll_fn;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Instant;

/// The name of the contestant that is a floor.
pub const FLOOR: &str = "floor";

pub fn shapes() -> Vec<Shape> {
    let shape = |name: &str, run: fn(u64) -> Outcome| {
        Shape::new(format!("threads/floor/{name}"), vec![Contestant::new(FLOOR, run)])
    };
    vec![shape("cache line hop", line_hop), shape("uncontended fetch_add", fetch_add)]
}

/// Returns the floor of a hop between two tasks: one wake-up and one poll.
pub fn task_hop(context: TaskRuntime) -> Option<Contestant> {
    Some(Contestant::new(FLOOR, move |messages| waker_slot(context, messages)))
}

/// Returns the floor of a hop between two threads that park.
pub fn thread_hop() -> Option<Contestant> {
    Some(Contestant::new(FLOOR, park_hop))
}

struct Slot {
    turn: usize,
    waker: Option<Waker>,
}

/// Lets two tasks take turns through one slot: one wake-up and one poll for each message.
fn waker_slot(context: TaskRuntime, messages: u64) -> Outcome {
    let slot = Arc::new(Mutex::new(Slot { turn: 0, waker: None }));
    let side = |me: usize| {
        let slot = slot.clone();
        async move {
            for _ in 0..messages.div_ceil(2) {
                let wake = poll_fn(|context| {
                    let mut slot = slot.lock().expect("no panic inside");
                    if slot.turn != me {
                        slot.waker = Some(context.waker().clone());
                        return Poll::Pending;
                    }
                    slot.turn = 1 - me;
                    Poll::Ready(slot.waker.take())
                });
                if let Some(waker) = wake.await {
                    waker.wake();
                }
            }
            messages.div_ceil(2)
        }
    };
    let finish = run_tasks(context, vec![side(0)], vec![side(1)]);
    Outcome::default().over(finish.sent + finish.received, finish.elapsed)
}

/// Lets two threads take turns. The one that waits is parked.
fn park_hop(messages: u64) -> Outcome {
    let turn = AtomicBool::new(false);
    let (introduce, partner) = mpsc::channel();
    let (introduce_back, partner_back) = mpsc::channel();
    let side = |me: bool, introduce: mpsc::Sender<_>, partner: mpsc::Receiver<thread::Thread>| {
        let turn = &turn;
        move || {
            introduce.send(thread::current()).expect("both sides run");
            let partner = partner.recv().expect("both sides run");
            for _ in 0..messages.div_ceil(2) {
                while turn.load(Ordering::Acquire) != me {
                    thread::park();
                }
                turn.store(!me, Ordering::Release);
                partner.unpark();
            }
            messages.div_ceil(2)
        }
    };
    let sides = (side(false, introduce, partner_back), side(true, introduce_back, partner));
    let finish = run_threads(vec![sides.0], vec![sides.1]);
    Outcome::default().over(finish.sent + finish.received, finish.elapsed)
}

/// Lets two threads take turns by spinning on one cache line.
fn line_hop(messages: u64) -> Outcome {
    let turn = AtomicBool::new(false);
    let side = |me: bool| {
        let turn = &turn;
        move || {
            for _ in 0..messages.div_ceil(2) {
                while turn.load(Ordering::Acquire) != me {
                    spin_loop();
                }
                turn.store(!me, Ordering::Release);
            }
            messages.div_ceil(2)
        }
    };
    let finish = run_threads(vec![side(false)], vec![side(true)]);
    Outcome::default().over(finish.sent + finish.received, finish.elapsed)
}

fn fetch_add(messages: u64) -> Outcome {
    let counter = AtomicU64::new(0);
    let start = Instant::now();
    for _ in 0..messages {
        // The result is used, so that the compiler cannot remove the read-modify-write.
        black_box(black_box(&counter).fetch_add(1, Ordering::SeqCst));
    }
    Outcome::default().over(messages, start.elapsed())
}
