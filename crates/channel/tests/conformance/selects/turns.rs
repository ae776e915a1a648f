//! Which of several ready clauses is chosen: in turn, or in order.

use marline_channel::{Select, Selector, select, unbounded};

use crate::conformance::{run, send_each};

#[test]
fn a_biased_select_tries_clauses_in_the_order_they_were_added() {
    let channels: Vec<_> = (0..3).map(|_| unbounded()).collect();
    for (index, (tx, _)) in channels.iter().enumerate() {
        send_each(tx, [index; 5]);
    }
    let rx = |index: usize| channels[index].1.recv();
    for expected in [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2] {
        let select = Select::new()
            .biased()
            .on(rx(0), |got| got.unwrap())
            .on(rx(1), |got| got.unwrap())
            .on(rx(2), |got| got.unwrap());
        assert_eq!(select.wait(), Ok(expected));
    }
}

#[test]
fn a_biased_selector_tries_clauses_in_the_order_they_were_added() {
    let (tx, rx) = unbounded();
    let (tx2, rx2) = unbounded();
    send_each(&tx, 0..5);
    send_each(&tx2, 0..5);
    let mut selector = Selector::new().biased();
    let keys = [selector.recv(&rx), selector.recv(&rx2)];
    for expected in [0, 0, 0, 0, 0, 1, 1, 1, 1, 1] {
        assert_eq!(selector.next().wait(), Ok(expected));
        assert!(selector.received(&keys[expected]).unwrap().is_ok());
    }
}

/// Asserts that every clause is chosen within any `2 * clauses` rounds.
#[track_caller]
fn assert_fair(clauses: usize, rounds: usize, mut choose: impl FnMut() -> usize) {
    let mut last = vec![0; clauses];
    for round in 1..=rounds {
        last[choose()] = round;
        let (starved, since) = last.iter().enumerate().min_by_key(|(_, since)| **since).unwrap();
        let waited = round - since;
        assert!(
            waited <= 2 * clauses,
            "of {clauses} clauses number {starved} was not chosen for {waited} rounds"
        );
    }
}

#[test]
fn a_typed_select_in_a_loop_is_fair() {
    let channels: Vec<_> = (0..3).map(|_| unbounded()).collect();
    let (out, _out_rx) = unbounded();
    for (tx, _) in &channels {
        tx.try_send(()).unwrap();
    }
    let rx = |index: usize| channels[index].1.recv();
    assert_fair(4, 1000, || {
        let chosen = Select::new()
            .on(rx(0), |_| 0)
            .on(rx(1), |_| 1)
            .on(rx(2), |_| 2)
            .on(out.send(()), |_| 3)
            .wait()
            .unwrap();
        if chosen < 3 {
            channels[chosen].0.try_send(()).unwrap();
        }
        chosen
    });
}

#[test]
fn the_macro_in_a_loop_is_fair() {
    let channels: Vec<_> = (0..3).map(|_| unbounded()).collect();
    for (tx, _) in &channels {
        tx.try_send(()).unwrap();
    }
    assert_fair(3, 1000, || {
        let chosen = run(async {
            select! {
                _ = channels[0].1.recv() => 0,
                _ = channels[1].1.recv() => 1,
                _ = channels[2].1.recv() => 2,
            }
        });
        channels[chosen].0.try_send(()).unwrap();
        chosen
    });
}

fn selector_is_fair(clauses: usize, rounds: usize) {
    let channels: Vec<_> = (0..clauses).map(|_| unbounded()).collect();
    for (tx, _) in &channels {
        tx.try_send(()).unwrap();
    }
    let mut selector = Selector::new();
    let keys: Vec<_> = channels.iter().map(|(_, rx)| selector.recv(rx)).collect();
    assert_fair(clauses, rounds, || {
        let chosen = selector.next().wait().unwrap();
        selector.received(&keys[chosen]).unwrap().unwrap();
        channels[chosen].0.try_send(()).unwrap();
        chosen
    });
}

#[test]
fn a_selector_is_fair() {
    for clauses in [1, 2, 3, 7, 16, 17, 40, 63] {
        selector_is_fair(clauses, 40 * clauses.max(50));
    }
}

#[test]
fn a_selector_of_a_hundred_clauses_is_fair() {
    selector_is_fair(100, 20_000);
}

#[test]
fn two_selects_that_take_turns_on_a_thread_starve_no_clause() {
    let channels: Vec<_> = (0..2).map(|_| unbounded()).collect();
    for (tx, _) in &channels {
        tx.try_send(()).unwrap();
    }
    let choose = || {
        let (a, b) = (channels[0].1.recv(), channels[1].1.recv());
        let chosen = Select::new().on(a, |_| 0).on(b, |_| 1).wait().unwrap();
        channels[chosen].0.try_send(()).unwrap();
        chosen
    };
    let mut last = [[0; 2]; 2];
    for round in 1..1000 {
        for (select, last) in last.iter_mut().enumerate() {
            last[choose()] = round;
            let waited = round - last.iter().min().unwrap();
            assert!(waited < 130, "select {select} starves a clause for {waited} rounds");
        }
    }
}
