//! The channel's protocols under a model checker: every interleaving (up to a bound on
//! preemptions) of a few threads, on the shipped source built with `--cfg marline_model`.
//!
//! `make model` runs these models. Then it leaves out one named step of the protocol at a time
//! (`MARLINE_BROKEN=step`) and expects a model to fail: see `BROKEN` below.
#![cfg(marline_model)]

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Waker},
};

use loom::{future::block_on, thread};
use marline_channel::{
    Builder, CancelToken, ErrorKind, Overflow, Select, bounded, oneshot, rendezvous,
};

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 20_000;
    builder.check(model);
}

#[test]
fn two_senders_hand_off_to_two_receivers() {
    check(|| {
        let (tx, rx) = rendezvous();
        let senders = [1, 2].map(|value| {
            let tx = tx.clone();
            thread::spawn(move || block_on(tx.send(value)).map(drop).unwrap())
        });
        drop(tx);
        let other = rx.clone();
        let receiver = thread::spawn(move || block_on(other.recv()).unwrap());
        let got = block_on(rx.recv()).unwrap() + receiver.join().unwrap();
        assert_eq!(got, 3);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn a_full_buffer_admits_parked_senders() {
    check(|| {
        let (tx, rx) = bounded(1);
        let senders = [1, 2].map(|value| {
            let tx = tx.clone();
            thread::spawn(move || block_on(tx.send(value)).map(drop).unwrap())
        });
        assert_eq!(block_on(rx.recv()).unwrap() + block_on(rx.recv()).unwrap(), 3);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn a_dropped_receive_loses_no_value() {
    check(|| {
        let (tx, rx) = rendezvous();
        let quitter = rx.clone();
        let quitter = thread::spawn(move || {
            let mut op = pin!(quitter.recv());
            match op.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                std::task::Poll::Ready(got) => got.ok(),
                std::task::Poll::Pending => None, // dropped here, perhaps just filled
            }
        });
        let sender = thread::spawn(move || block_on(tx.send(7)).map(drop).unwrap());
        // Whether or not the quitter's end is closed by now, the value is received exactly once.
        let quit_with = quitter.join().unwrap();
        let got = if quit_with.is_some() { quit_with } else { block_on(rx.recv()).ok() };
        assert_eq!(got, Some(7));
        sender.join().unwrap();
    });
}

#[test]
fn a_select_is_claimed_once() {
    check(|| {
        let (tx1, rx1) = rendezvous();
        let (tx2, rx2) = rendezvous();
        let first = thread::spawn(move || block_on(tx1.send(1)).is_ok());
        let second = thread::spawn(move || block_on(tx2.send(2)).is_ok());
        let select = Select::new()
            .biased()
            .on(rx1.recv(), |got| got.unwrap())
            .on(rx2.recv(), |got| got.unwrap());
        let got = block_on(select).unwrap();
        let rest = if got == 1 { block_on(rx2.recv()) } else { block_on(rx1.recv()) };
        assert_eq!(got + rest.unwrap(), 3);
        assert!(first.join().unwrap() && second.join().unwrap());
    });
}

#[test]
fn two_selects_meet_once() {
    check(|| {
        let (tx1, rx1) = rendezvous::<u32>();
        let (tx2, rx2) = rendezvous::<u32>();
        let sender = thread::spawn(move || {
            let select = Select::new()
                .biased()
                .on(tx1.send(1), |sent| sent.map(|_| 1).ok())
                .on(tx2.send(2), |sent| sent.map(|_| 2).ok());
            block_on(select).unwrap()
        });
        let select =
            Select::new().biased().on(rx2.recv(), |got| got.ok()).on(rx1.recv(), |got| got.ok());
        let got = block_on(select).unwrap();
        let sent = sender.join().unwrap();
        assert!(got.is_some() && got == sent, "sent {sent:?}, got {got:?}");
    });
}

#[test]
fn a_dropped_select_loses_no_value() {
    check(|| {
        let (tx, rx) = rendezvous();
        let (_other_tx, other_rx) = rendezvous::<u32>();
        let sender = thread::spawn(move || block_on(tx.send(7)).map(drop).unwrap());
        let got = {
            let select = Select::new().biased().on(rx.recv(), Some).on(other_rx.recv(), Some);
            match pin!(select).poll(&mut Context::from_waker(Waker::noop())) {
                std::task::Poll::Ready(Ok(got)) => got,
                _ => None,
            }
        };
        let got = got.unwrap_or_else(|| block_on(rx.recv()));
        assert_eq!(got, Ok(7));
        sender.join().unwrap();
    });
}

#[test]
fn a_send_and_a_receive_that_race_a_close_both_end_and_agree() {
    check(|| {
        let (tx, rx) = rendezvous();
        let closer = tx.clone();
        let sender = thread::spawn(move || block_on(tx.send(1)).map(drop));
        let closer = thread::spawn(move || closer.close_channel());
        let got = block_on(rx.recv());
        closer.join().unwrap();
        let sent = sender.join().unwrap();
        assert_eq!(sent.is_ok(), got == Ok(1));
        if let Err(error) = sent {
            assert_eq!((error.kind(), error.into_inner()), (ErrorKind::Closed, 1));
        }
    });
}

#[test]
fn a_close_racing_the_last_drop_neither_loses_nor_doubles_a_value() {
    check(|| {
        let dropped = Arc::new(AtomicU32::new(0));
        let log = dropped.clone();
        let builder = Builder::bounded(2).on_drop(move |_: u32| {
            log.fetch_add(1, Ordering::SeqCst);
        });
        let (tx, rx) = builder.build().unwrap();
        let weak = tx.downgrade();
        let closer = thread::spawn(move || {
            if let Some(tx) = weak.upgrade() {
                tx.close_channel();
            }
        });
        let receiver = thread::spawn(move || u32::from(rx.try_recv().is_ok()));
        let sent = u32::from(tx.try_send(1).is_ok());
        drop(tx);
        closer.join().unwrap();
        let got = receiver.join().unwrap();
        assert_eq!(got + dropped.load(Ordering::SeqCst), sent);
    });
}

#[test]
fn drop_oldest_racing_a_receive_neither_loses_nor_doubles_a_value() {
    check(|| {
        let dropped = Arc::new(Mutex::new(vec![]));
        let log = dropped.clone();
        let builder = Builder::bounded(1)
            .overflow(Overflow::DropOldest)
            .on_drop(move |value: u32| log.lock().unwrap().push(value));
        let (tx, rx) = builder.build().unwrap();
        let sender = thread::spawn(move || {
            tx.try_send(1).unwrap();
            tx.try_send(2).unwrap();
        });
        let mut got = vec![block_on(rx.recv()).unwrap()];
        sender.join().unwrap();
        got.extend(rx.try_iter());
        got.extend(dropped.lock().unwrap().iter());
        got.sort();
        assert_eq!(got, [1, 2]);
    });
}

#[test]
fn a_cancel_wakes_its_operation() {
    check(|| {
        let (_tx, rx) = rendezvous::<u32>();
        let token = CancelToken::new();
        let child = token.child();
        let canceller = thread::spawn(move || token.cancel());
        let error = block_on(rx.recv().cancel(&child)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        canceller.join().unwrap();
    });
}

#[test]
fn a_oneshot_receive_ends_with_the_value_or_with_the_close() {
    check(|| {
        let (tx, mut rx) = oneshot();
        let sender = thread::spawn(move || tx.send(1).is_ok());
        assert_eq!(block_on(rx.recv()), Ok(1));
        drop(rx);
        assert!(sender.join().unwrap());
    });
    check(|| {
        let (tx, mut rx) = oneshot();
        let sender = thread::spawn(move || tx.send(1).is_ok());
        let got = pin!(rx.recv()).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        drop(rx);
        let sent = sender.join().unwrap();
        assert!(sent || !got);
    });
    check(|| {
        let (tx, mut rx) = oneshot::<u32>();
        let sender = thread::spawn(move || drop(tx));
        assert!(block_on(rx.recv()).unwrap_err().is_closed());
        sender.join().unwrap();
    });
}

/// Steps that a model run can leave out, each with a model that must notice.
const BROKEN: [(&str, &str); 10] = [
    ("attempt-again-before-parking", "two_senders_hand_off_to_two_receivers"),
    ("admit-wakes-sender", "a_full_buffer_admits_parked_senders"),
    ("give-back", "a_dropped_receive_loses_no_value"),
    ("claim", "a_select_is_claimed_once"),
    ("select-looks-before-listing", "two_selects_meet_once"),
    ("cancel-looks-under-lock", "a_cancel_wakes_its_operation"),
    ("close-ends-waiting", "a_send_and_a_receive_that_race_a_close_both_end_and_agree"),
    ("last-receiver-discards", "a_close_racing_the_last_drop_neither_loses_nor_doubles_a_value"),
    ("drop-oldest-tells", "drop_oldest_racing_a_receive_neither_loses_nor_doubles_a_value"),
    ("oneshot-wakes", "a_oneshot_receive_ends_with_the_value_or_with_the_close"),
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
