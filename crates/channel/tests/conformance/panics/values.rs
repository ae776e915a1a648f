//! Panics in `on_drop`, and in a value's own `Drop` and `Clone`.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use marline_channel::{
    Builder, ErrorKind, Overflow, Receiver, Sender, broadcast, oneshot, rendezvous, watch,
};

use crate::{
    assert_usable,
    conformance::{Log, panic_of, park, queues},
};

// ---- on_drop ------------------------------------------------------------------------------------

/// Creates a channel whose `on_drop` logs every value and panics at the value 1.
fn panics_at_one(builder: Builder<u32>) -> (Sender<u32>, Receiver<u32>, Log<u32>) {
    let dropped = Log::new();
    let log = dropped.clone();
    let on_drop = move |value| {
        log.push(value);
        if value == 1 {
            std::panic::panic_any("on_drop");
        }
    };
    let (tx, rx) = builder.on_drop(on_drop).build().unwrap();
    (tx, rx, dropped)
}

#[test]
fn a_panic_in_on_drop_reaches_the_send_that_discards_the_oldest() {
    for (name, make) in [queues()[3], queues()[5]] {
        let (tx, rx, dropped) = panics_at_one(make());
        while !tx.is_full() {
            tx.try_send(1).unwrap();
        }
        assert_eq!(panic_of(|| tx.try_send(7)), "on_drop", "{name}");
        assert_eq!(dropped.take(), [1], "{name}: exactly once");
        assert_eq!(rx.try_iter().last(), Some(7), "{name}: the new value is inside");
        assert_usable(&tx, &rx);
    }
}

#[test]
fn a_panic_in_on_drop_reaches_the_send_whose_value_is_discarded() {
    let (tx, rx, dropped) = panics_at_one(Builder::bounded(1).overflow(Overflow::DropNewest));
    tx.try_send(0).unwrap();
    assert_eq!(panic_of(|| tx.send(1).wait()), "on_drop");
    assert_eq!((dropped.take(), rx.try_recv()), (vec![1], Ok(0)));
    assert_usable(&tx, &rx);
}

#[test]
fn a_panic_in_on_drop_reaches_the_last_receiver_and_all_values_reach_on_drop() {
    for (name, make) in queues().into_iter().skip(1) {
        let (tx, rx, dropped) = panics_at_one(make());
        let mut inside = vec![];
        while inside.len() < 3 && !tx.is_full() {
            inside.push(inside.len() as u32 + 1);
            tx.try_send(*inside.last().unwrap()).unwrap();
        }
        assert_eq!(panic_of(|| drop(rx)), "on_drop", "{name}");
        assert_eq!(dropped.take(), inside, "{name}: each exactly once");
        assert_eq!((tx.is_closed(), tx.len()), (true, 0), "{name}");
        drop(tx);
        assert_eq!(dropped.take(), [], "{name}");
    }
}

#[test]
fn a_panic_in_on_drop_leaves_each_value_of_a_batch_in_one_place() {
    let (tx, rx, dropped) = panics_at_one(Builder::bounded(1).overflow(Overflow::DropOldest));
    let mut values = VecDeque::from([1, 2, 3]);
    assert_eq!(panic_of(|| tx.send_all(&mut values).wait()), "on_drop");
    let inside: Vec<u32> = rx.try_iter().collect();
    let mut all = dropped.take();
    all.extend(&inside);
    all.extend(&values);
    assert_eq!(all, [1, 2, 3], "each is in one place");
    assert_usable(&tx, &rx);
}

#[test]
fn a_panic_in_on_drop_reaches_the_drop_of_the_receive_with_the_value() {
    let (tx, rx, dropped) = panics_at_one(Builder::conflated());
    let mut receive = Box::pin(rx.recv());
    park(receive.as_mut());
    tx.try_send(1).unwrap();
    tx.try_send(2).unwrap();
    assert_eq!(panic_of(|| drop(receive)), "on_drop");
    assert_eq!((dropped.take(), rx.try_recv()), (vec![1], Ok(2)));
    assert_usable(&tx, &rx);
}

// ---- Drop ---------------------------------------------------------------------------------------

/// A value that logs its drop, and then panics if it is armed.
struct Bomb {
    name: u32,
    armed: bool,
    drops: Log<u32>,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        self.drops.push(self.name);
        if self.armed && !std::thread::panicking() {
            std::panic::panic_any("value");
        }
    }
}

impl Clone for Bomb {
    fn clone(&self) -> Bomb {
        Bomb { name: self.name, armed: false, drops: self.drops.clone() }
    }
}

fn bombs() -> (Log<u32>, impl Fn(u32) -> Bomb) {
    let drops = Log::new();
    let log = drops.clone();
    (drops, move |name| Bomb { name, armed: name == 1, drops: log.clone() })
}

#[test]
fn a_panic_in_the_drop_of_a_discarded_value_reaches_the_sender() {
    for (name, make) in [queues()[3], queues()[5]] {
        let (drops, bomb) = bombs();
        let (tx, rx) = make().build().unwrap();
        while !tx.is_full() {
            assert!(tx.try_send(bomb(1)).is_ok());
        }
        assert_eq!(panic_of(|| tx.try_send(bomb(7)).is_ok()), "value", "{name}");
        assert_eq!(drops.take(), [1], "{name}: exactly once");
        let mut received: Vec<Bomb> = rx.try_iter().collect();
        received.iter_mut().for_each(|bomb| bomb.armed = false);
        assert_eq!(received.last().map(|bomb| bomb.name), Some(7), "{name}");
    }
}

#[test]
fn the_last_receiver_drops_every_value_although_one_panics() {
    for (name, make) in queues().into_iter().skip(1) {
        let (drops, bomb) = bombs();
        let (tx, rx) = make().build().unwrap();
        let mut inside = 0;
        while inside < 3 && !tx.is_full() {
            inside += 1;
            assert!(tx.try_send(bomb(inside)).is_ok());
        }
        assert_eq!(panic_of(|| drop(rx)), "value", "{name}");
        assert_eq!(drops.take(), (1..=inside).collect::<Vec<_>>(), "{name}: each exactly once");
        drop(tx);
        assert_eq!(drops.take(), [], "{name}");
    }
}

#[test]
fn a_value_that_panics_when_its_send_is_dropped_leaves_the_channel_usable() {
    let (drops, bomb) = bombs();
    let (tx, rx) = rendezvous();
    let mut send = Box::pin(tx.send(bomb(1)));
    park(send.as_mut());
    assert_eq!(panic_of(|| drop(send)), "value");
    assert_eq!((drops.take(), rx.snapshot().waiting_send), (vec![1], 0));
    let mut send = pin!(tx.send(bomb(2)));
    park(send.as_mut());
    assert_eq!(rx.try_recv().map(|bomb| bomb.name), Ok(2));
}

#[test]
fn a_panic_in_the_drop_of_an_overwritten_broadcast_value_reaches_the_sender() {
    let (drops, bomb) = bombs();
    let (tx, mut rx) = broadcast(1);
    assert!(tx.send(bomb(1)).is_ok());
    assert_eq!(panic_of(|| tx.send(bomb(2)).is_ok()), "value");
    assert_eq!(drops.take(), [1]);
    assert_eq!(rx.try_recv().err().map(|error| error.kind()), Some(ErrorKind::Lagged(1)));
    assert_eq!(rx.try_recv().map(|bomb| bomb.name), Ok(2));
}

#[test]
fn the_last_broadcast_receiver_drops_every_value_although_one_panics() {
    let (drops, bomb) = bombs();
    let (tx, rx) = broadcast(4);
    for name in 1..=3 {
        assert!(tx.send(bomb(name)).is_ok());
    }
    assert_eq!(panic_of(|| drop(rx)), "value");
    assert_eq!(drops.take(), [1, 2, 3]);
    let mut rx = tx.subscribe();
    assert!(tx.send(bomb(4)).is_ok());
    assert_eq!(rx.try_recv().map(|bomb| bomb.name), Ok(4));
}

#[test]
fn a_panicking_oneshot_value_reaches_the_drop_of_its_receiver() {
    let (drops, bomb) = bombs();
    let (tx, rx) = oneshot();
    assert!(tx.send(bomb(1)).is_ok());
    assert_eq!(panic_of(|| drop(rx)), "value");
    assert_eq!(drops.take(), [1]);
}

#[test]
fn a_panic_in_the_drop_of_a_replaced_watch_value_reaches_the_sender() {
    let (drops, bomb) = bombs();
    let (tx, mut rx) = watch(bomb(1));
    assert_eq!(panic_of(|| tx.send(bomb(2)).is_ok()), "value");
    assert_eq!(drops.take(), [1]);
    assert_eq!((rx.try_changed(), rx.borrow().name), (Ok(()), 2));
    assert!(tx.send(bomb(3)).is_ok());
    assert_eq!(rx.borrow().name, 3);
}

// ---- Clone --------------------------------------------------------------------------------------

#[test]
fn a_panic_in_clone_reaches_its_receiver_and_the_others_get_the_value() {
    struct Fragile(u32, Arc<AtomicBool>);
    impl Clone for Fragile {
        fn clone(&self) -> Fragile {
            if self.1.swap(false, Ordering::SeqCst) {
                std::panic::panic_any("clone");
            }
            Fragile(self.0, self.1.clone())
        }
    }
    let armed = Arc::new(AtomicBool::new(false));
    let (tx, mut first) = broadcast(4);
    let mut second = tx.subscribe();
    for value in 1..=2 {
        assert!(tx.send(Fragile(value, armed.clone())).is_ok());
    }
    armed.store(true, Ordering::SeqCst);
    assert_eq!(panic_of(|| first.try_recv().is_ok()), "clone");
    assert_eq!(first.try_recv().map(|value| value.0), Ok(2), "it goes on at the next value");
    let seen = [second.try_recv(), second.try_recv()].map(|got| got.map(|value| value.0));
    assert_eq!(seen, [Ok(1), Ok(2)]);
    assert_eq!(tx.len(), 0);
}
