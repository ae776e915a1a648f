//! `select!` and `select_blocking!`: what bodies may do, options, the `else` arm.

use std::time::Instant;

use marline_channel::{
    CancelToken, Error, ErrorKind, Receiver, rendezvous, select, select_blocking, unbounded,
};

use crate::{
    MOMENT,
    conformance::{PATIENCE, panic_of, run, send_each},
};

#[test]
fn a_body_may_break_and_continue() {
    let (tx, rx) = unbounded();
    send_each(&tx, 0..10);
    let mut even = vec![];
    loop {
        select_blocking! {
            got = rx.recv() => {
                let n = got.unwrap();
                if n == 7 {
                    break;
                }
                if n % 2 == 1 {
                    continue;
                }
                even.push(n);
            }
        }
    }
    assert_eq!(even, [0, 2, 4, 6]);
}

#[test]
fn a_body_may_return_and_use_the_question_mark() {
    fn first(rx: &Receiver<u32>) -> Result<u32, Error> {
        loop {
            select_blocking! {
                got = rx.recv() => {
                    let value = got?;
                    if value > 1 {
                        return Ok(value);
                    }
                }
            }
        }
    }
    let (tx, rx) = unbounded();
    send_each(&tx, [0, 1, 2, 3]);
    assert_eq!((first(&rx), first(&rx)), (Ok(2), Ok(3)));
    drop(tx);
    assert!(first(&rx).unwrap_err().is_closed());
}

#[test]
fn a_body_may_await_and_break_a_labelled_loop() {
    let (tx, rx) = unbounded();
    let (other_tx, other_rx) = unbounded();
    send_each(&tx, 1..=3);
    send_each(&other_tx, [10, 20, 30]);
    let sum = run(async {
        let mut sum = 0;
        'outer: loop {
            for _ in 0..2 {
                select! {
                    biased;
                    got = rx.recv() => {
                        sum += got.unwrap() + other_rx.recv().await.unwrap();
                        if other_rx.is_empty() {
                            break 'outer;
                        }
                    }
                }
            }
        }
        sum
    });
    assert_eq!(sum, 66);
}

#[test]
fn two_bodies_may_borrow_the_same_variable_mutably() {
    let (tx, rx) = unbounded();
    let (tx2, rx2) = unbounded();
    tx.try_send(1).unwrap();
    tx2.try_send(2).unwrap();
    let mut seen = vec![];
    for _ in 0..2 {
        select_blocking! {
            got = rx.recv() => seen.push(got.unwrap()),
            got = rx2.recv() => seen.push(got.unwrap()),
        }
    }
    seen.sort();
    assert_eq!(seen, [1, 2]);
}

#[test]
fn the_value_of_the_chosen_body_is_the_value_of_the_select() {
    let (tx, rx) = unbounded::<u32>();
    let (full_tx, _full_rx) = rendezvous::<u32>();
    let choose = || {
        select_blocking! {
            biased;
            got = rx.recv() => got.map_or("closed".to_string(), |n| n.to_string()),
            _ = full_tx.send(1) => "sent".to_string(),
        }
    };
    tx.try_send(5).unwrap();
    assert_eq!(choose(), "5");
    drop(tx);
}

#[test]
fn the_else_arm_runs_when_the_selects_own_limit_passed() {
    let (_tx, rx) = unbounded::<u32>();
    let token = CancelToken::new();
    token.cancel();
    let kinds = [
        select_blocking! {
            timeout(MOMENT);
            _ = rx.recv() => panic!("nothing was sent"),
            else error => error.kind(),
        },
        select_blocking! {
            deadline(Instant::now());
            _ = rx.recv() => panic!("nothing was sent"),
            else error => error.kind()
        },
        select_blocking! {
            cancel(&token);
            _ = rx.recv() => panic!("nothing was sent"),
            else error => error.kind(),
        },
        run(async {
            select! {
                biased;
                timeout(MOMENT);
                _ = rx.recv() => panic!("nothing was sent"),
                else error => error.kind(),
            }
        }),
    ];
    let (timeout, cancelled) = (ErrorKind::Timeout, ErrorKind::Cancelled);
    assert_eq!(kinds, [timeout, timeout, cancelled, timeout]);
}

#[test]
fn the_else_arm_runs_when_all_channels_are_closed() {
    let (tx, rx) = unbounded::<u32>();
    drop(tx);
    let kind = select_blocking! {
        skip_closed;
        _ = rx.recv() => panic!("it is closed"),
        else error => error.kind(),
    };
    assert_eq!(kind, ErrorKind::Closed);
}

#[test]
fn without_an_else_arm_the_panic_says_to_add_one() {
    let (_tx, rx) = unbounded::<u32>();
    let message = panic_of(|| {
        select_blocking! {
            deadline(Instant::now());
            _ = rx.recv() => {}
        }
    });
    assert!(message.contains("add an `else error"), "{message}");
}

#[test]
fn a_select_accepts_all_options_at_once() {
    let (tx, rx) = unbounded::<u32>();
    let (open_tx, open_rx) = unbounded();
    drop(tx);
    open_tx.try_send(7).unwrap();
    let token = CancelToken::new();
    let value = select_blocking! {
        biased;
        skip_closed;
        timeout(PATIENCE);
        cancel(&token);
        _ = rx.recv() => 0,
        got = open_rx.recv() => got.unwrap(),
        else error => panic!("{error}"),
    };
    assert_eq!(value, 7);
}
