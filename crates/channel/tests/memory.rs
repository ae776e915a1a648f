//! How channels use the allocator: nothing per operation once warm, little per channel, and all of
//! it comes back afterwards. Each thread counts its own requests, so tests do not disturb each
//! other.

mod conformance;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::VecDeque,
    pin::pin,
    thread,
    time::{Duration, Instant},
};

use conformance::{PATIENCE, join, park, put_inside, queues, ready, send_each, until};
use marline_channel::{
    CancelToken, Receiver, Select, Selector, Sender, Sent, bounded, broadcast, oneshot, rendezvous,
    unbounded, watch,
};

/// The system's allocator, with counters.
struct Counting;

thread_local! {
    static REQUESTS: Cell<usize> = const { Cell::new(0) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(requests: usize, bytes: isize) {
    let _ = REQUESTS.try_with(|count| count.set(count.get() + requests));
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: the system's allocator does all the work; counting touches plain thread-locals only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size as isize - layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns how often this thread asked for memory during `f`.
fn requests(f: impl FnOnce()) -> usize {
    let before = REQUESTS.get();
    f();
    REQUESTS.get() - before
}

const WARM_UP: usize = 100;
const ROUNDS: usize = 1_000;

/// Runs `round` until warm, then asserts that it asks for no memory.
#[track_caller]
fn asks_for_nothing(what: &str, mut round: impl FnMut()) {
    sleep_once();
    (0..WARM_UP).for_each(|_| round());
    let asked = requests(|| (0..ROUNDS).for_each(|_| round()));
    assert_eq!(asked, 0, "{what}: {asked} requests in {ROUNDS} rounds");
}

/// Sleeps once: a thread's first sleep creates its parker, which the thread keeps. (A warm-up may
/// go by without a sleep.)
fn sleep_once() {
    let (_tx, rx) = rendezvous::<()>();
    assert!(rx.recv().timeout(Duration::from_millis(2)).wait().is_err());
}

/// Returns how many more bytes this thread holds after `f` than before, while its result is alive.
fn bytes_of<T>(f: impl FnOnce() -> T) -> (T, isize) {
    let before = LIVE.get();
    let made = f();
    (made, LIVE.get() - before)
}

// ---- nothing per operation ---------------------------------------------------------------------

#[test]
fn parked_receives_allocate_nothing() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        asks_for_nothing(name, || {
            let mut receive = pin!(rx.recv());
            park(receive.as_mut());
            tx.try_send(1).unwrap();
            assert_eq!(ready(receive), Ok(1));
        });
    }
}

#[test]
fn parked_sends_allocate_nothing() {
    for (name, make) in [queues()[0], queues()[1]] {
        let (tx, rx) = make().build().unwrap();
        while tx.try_send(0).is_ok() {}
        asks_for_nothing(name, || {
            let mut send = pin!(tx.send(1));
            park(send.as_mut());
            rx.try_recv().unwrap();
            assert_eq!(ready(send), Ok(Sent::Accepted));
        });
    }
}

#[test]
fn operations_that_do_not_wait_allocate_nothing() {
    for (name, make) in queues().into_iter().skip(1) {
        let (tx, rx) = make().build().unwrap();
        asks_for_nothing(name, || {
            tx.try_send(1).unwrap();
            rx.try_recv().unwrap();
            tx.send(2).wait().unwrap();
            rx.recv().wait().unwrap();
            ready(pin!(tx.send(3))).unwrap();
            ready(pin!(rx.recv())).unwrap();
        });
    }
}

#[test]
fn returned_values_allocate_nothing() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        asks_for_nothing(name, || {
            put_inside(&tx, &rx, 1);
            assert_eq!(rx.try_recv(), Ok(1));
        });
    }
}

#[test]
fn permits_and_batches_allocate_nothing() {
    let (tx, rx) = bounded(4);
    let (mut values, mut received) = (VecDeque::with_capacity(8), Vec::with_capacity(8));
    asks_for_nothing("permits and batches", || {
        values.extend([1, 2, 3, 4, 5, 6]);
        {
            let mut send = pin!(tx.send_all(&mut values));
            park(send.as_mut());
            assert_eq!(rx.recv_many(&mut received, 8).wait(), Ok(5));
            assert_eq!(ready(send), Ok(6));
        }
        received.clear();
        assert_eq!(rx.try_recv(), Ok(6));
        tx.reserve().wait().unwrap().send(7).unwrap();
        assert_eq!(rx.try_recv(), Ok(7));
    });
}

#[test]
fn operations_with_a_token_allocate_nothing() {
    let (tx, rx) = rendezvous();
    let token = CancelToken::new();
    asks_for_nothing("a token", || {
        let mut receive = pin!(rx.recv().cancel(&token));
        park(receive.as_mut());
        tx.try_send(1).unwrap();
        assert_eq!(ready(receive), Ok(1));
        let mut quits = pin!(rx.recv().cancel(&token));
        park(quits.as_mut());
    });
}

/// The only test of this file that uses the timer, which all threads share.
#[test]
fn operations_with_deadlines_allocate_nothing_once_the_timer_is_warm() {
    let (tx, rx) = rendezvous();
    let far = Instant::now() + 10 * PATIENCE;
    asks_for_nothing("a deadline", || {
        let mut receive = pin!(rx.recv().deadline(far));
        park(receive.as_mut());
        let mut behind = pin!(rx.recv().deadline(far - Duration::from_secs(1)));
        park(behind.as_mut());
        tx.try_send(1).unwrap();
        assert_eq!(ready(receive), Ok(1));
    });
    asks_for_nothing("a deadline on a thread", || {
        assert!(rx.recv().deadline(Instant::now()).wait().is_err());
    });
}

#[test]
fn typed_selects_allocate_nothing() {
    let (tx, rx) = rendezvous();
    let (full_tx, _full_rx) = rendezvous();
    asks_for_nothing("a select", || {
        let select = Select::new().on(rx.recv(), |got| got.is_ok()).on(full_tx.send(1), |_| false);
        let mut select = pin!(select);
        park(select.as_mut());
        tx.try_send(1).unwrap();
        assert_eq!(ready(select), Ok(true));
    });
    let (ready_tx, ready_rx) = unbounded();
    asks_for_nothing("a blocking select", || {
        ready_tx.try_send(1).unwrap();
        let select = Select::new().on(rx.recv(), |_| 0).on(ready_rx.recv(), |got| got.unwrap());
        assert_eq!(select.wait(), Ok(1));
    });
}

#[test]
fn a_reused_selector_allocates_nothing() {
    let (tx, rx) = rendezvous();
    let (out, out_rx) = bounded(1);
    let mut selector = Selector::new();
    let received = selector.recv(&rx);
    let sent = selector.send(&out, 0);
    asks_for_nothing("a selector", || {
        assert_eq!(selector.next().wait(), Ok(sent.index()));
        assert_eq!(selector.sent(&sent), Some(Ok(Sent::Accepted)));
        {
            let mut next = pin!(selector.next());
            park(next.as_mut());
            tx.try_send(1).unwrap();
            assert_eq!(ready(next), Ok(received.index()));
        }
        assert_eq!(selector.received(&received), Some(Ok(1)));
        selector.refill(&sent, 2);
        assert!(out_rx.try_recv().is_ok());
    });
}

#[test]
fn waits_for_watches_and_broadcasts_allocate_nothing() {
    let (tx, mut rx) = watch(0);
    asks_for_nothing("a watch", || {
        let mut changed = pin!(rx.changed());
        park(changed.as_mut());
        tx.send(1).unwrap();
        assert_eq!(ready(changed), Ok(()));
    });
    let (_tx, mut rx) = broadcast::<u32>(4);
    asks_for_nothing("a broadcast's receive", || park(pin!(rx.recv())));
}

#[test]
fn a_broadcast_allocates_once_per_value() {
    let (tx, mut rx) = broadcast(4);
    let mut round = || {
        tx.send(1).unwrap();
        assert_eq!(rx.try_recv(), Ok(1));
    };
    (0..WARM_UP).for_each(|_| round());
    assert_eq!(requests(|| (0..ROUNDS).for_each(|_| round())), ROUNDS);
}

#[test]
fn a_oneshot_allocates_once() {
    let asked = requests(|| {
        let (tx, mut rx) = oneshot();
        park(pin!(rx.recv()));
        tx.send(1).unwrap();
        assert_eq!(rx.try_recv(), Ok(1));
    });
    assert_eq!(asked, 1);
}

/// Hands values back and forth between two threads, each of which waits for the other. Returns how
/// often each of them asked for memory.
fn ping_pong(make: fn() -> (Sender<usize>, Receiver<usize>), total: usize) -> (usize, usize) {
    let ((ping, pings), (pong, pongs)) = (make(), make());
    let answers = thread::spawn(move || {
        let answer = |n: usize| {
            for _ in 0..n {
                let value = pings.recv().timeout(PATIENCE).wait().unwrap();
                pong.send(value).timeout(PATIENCE).wait().unwrap();
            }
        };
        sleep_once();
        answer(WARM_UP);
        requests(|| answer(total))
    });
    let ask = |n: usize| {
        for value in 0..n {
            ping.send(value).timeout(PATIENCE).wait().unwrap();
            assert_eq!(pongs.recv().timeout(PATIENCE).wait(), Ok(value));
        }
    };
    sleep_once();
    ask(WARM_UP);
    let asked = requests(|| ask(total));
    (asked, join(answers))
}

#[test]
fn blocking_threads_allocate_nothing() {
    assert_eq!(ping_pong(rendezvous, ROUNDS), (0, 0), "rendezvous");
    // The buffer is allocated before the counting begins: values may go past it for a while.
    let with_buffer = || {
        let (tx, rx) = bounded(1);
        tx.try_send(0).unwrap();
        rx.try_recv().unwrap();
        (tx, rx)
    };
    assert_eq!(ping_pong(with_buffer, ROUNDS), (0, 0), "bounded");
}

#[test]
fn a_blocking_select_that_sleeps_allocates_nothing() {
    let (tx, rx) = rendezvous();
    let (_other_tx, other_rx) = rendezvous::<usize>();
    let end = rx.clone();
    let waiter = thread::spawn(move || {
        let wait = |n: usize| {
            for expected in 0..n {
                let (first, second) = (end.recv(), other_rx.recv());
                let select = Select::new().on(first, |got| got).on(second, |got| got);
                assert_eq!(select.wait(), Ok(Ok(expected)));
            }
        };
        sleep_once();
        wait(WARM_UP);
        requests(|| wait(WARM_UP))
    });
    for round in 0..2 * WARM_UP {
        until("the select waits", || rx.snapshot().waiting_recv == 1);
        tx.send(round % WARM_UP).timeout(PATIENCE).wait().unwrap();
    }
    assert_eq!(join(waiter), 0);
}

// ---- little per channel ------------------------------------------------------------------------

/// The most bytes that a queue channel may take, beside its buffer.
const IDLE_BYTES: isize = 512;

#[test]
fn an_idle_queue_channel_is_small() {
    for (name, make) in queues::<[u64; 8]>() {
        let (_ends, bytes) = bytes_of(|| make().build().unwrap());
        assert!(bytes < IDLE_BYTES, "{name} takes {bytes} bytes");
    }
    let (_ends, bytes) = bytes_of(|| bounded::<[u64; 8]>(1 << 20));
    assert!(bytes < IDLE_BYTES, "room that was never used takes {bytes} bytes");
}

#[test]
fn idle_oneshots_broadcasts_and_watches_are_small() {
    let (_ends, bytes) = bytes_of(oneshot::<u64>);
    assert!(bytes < 64, "a oneshot takes {bytes} bytes");
    let (_ends, bytes) = bytes_of(|| broadcast::<u64>(1 << 20));
    assert!(bytes < IDLE_BYTES, "a broadcast takes {bytes} bytes");
    let (_ends, bytes) = bytes_of(|| watch(0u64));
    assert!(bytes < IDLE_BYTES, "a watch takes {bytes} bytes");
}

#[test]
fn clones_and_weak_ends_take_no_memory() {
    let (tx, rx) = bounded::<u64>(4);
    let (_more, bytes) = bytes_of(|| (tx.clone(), rx.clone(), tx.downgrade(), rx.downgrade()));
    assert_eq!(bytes, 0);
}

// ---- all memory comes back ---------------------------------------------------------------------

/// The most bytes that a queue channel may keep after a burst: one block of 8 KiB and a little.
const KEPT_BYTES: isize = 9 * 1024;
/// The most bytes that a broadcast may keep after a burst: those of the slots that it never frees.
const KEPT_BY_BROADCAST: isize = 20 * 1024;

#[test]
fn a_drained_channel_frees_the_memory_of_a_burst() {
    const BURST: u64 = 1_000_000;
    let (tx, rx) = unbounded();
    let before = LIVE.get();
    PEAK.set(before);
    send_each(&tx, 0..BURST);
    let values = (BURST as usize * size_of::<u64>()) as isize;
    let peak = PEAK.get() - before;
    assert!(peak < values + values / 8, "a burst of {values} bytes took {peak}");
    assert!(rx.try_iter().eq(0..BURST));
    let kept = LIVE.get() - before;
    assert!(kept < KEPT_BYTES, "{kept} bytes kept after a burst");
}

#[test]
fn a_drained_broadcast_frees_the_memory_of_a_burst() {
    let (tx, mut rx) = broadcast(1 << 16);
    let before = LIVE.get();
    for value in 0..1 << 16 {
        tx.send(value).unwrap();
    }
    while rx.try_recv().is_ok() {}
    let kept = LIVE.get() - before;
    assert!(kept < KEPT_BY_BROADCAST, "{kept} bytes kept after a burst");
}

#[test]
fn a_dropped_channel_frees_all_its_memory() {
    for (name, make) in queues::<String>() {
        let ((), bytes) = bytes_of(|| {
            let (tx, rx) = make().name("a name").on_drop(drop).build().unwrap();
            put_inside(&tx, &rx, "returned".to_string());
            for _ in 0..1000 {
                let _ = tx.try_send("inside".to_string());
            }
            let _ = ready(pin!(rx.recv()));
        });
        assert_eq!(bytes, 0, "{name}");
    }
}

#[test]
fn a_token_frees_the_memory_of_dropped_children() {
    let token = CancelToken::new();
    let kept: Vec<_> = (0..10).map(|_| token.child()).collect();
    let ((), bytes) = bytes_of(|| (0..100_000).for_each(|_| drop(token.child())));
    assert!(bytes < 16 * 1024, "{bytes} bytes for children that are gone");
    token.cancel();
    assert!(kept.iter().all(CancelToken::is_cancelled));
}
