//! Tries every cell of the table in docs/channels.md: each operation, on each kind, in each state,
//! both blocking and async.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt::Debug,
    future::Future,
    pin::pin,
    task::{Poll, Waker},
    time::Instant,
};

use marline_channel::{
    Action, Builder, Error, ErrorKind, MAX_CAPACITY, Op, Receiver, SAMPLE_EVERY, SendError, Sender,
    Sent, broadcast, oneshot, watch,
};

use crate::{
    conformance::{Log, park, poll_with, put_inside, queues, ready},
    page::{Cell, cells, limit},
};

/// The value that an operation under test sends. The values inside are 1, 2 …
const SENT: u32 = 9;

#[test]
fn every_cell_of_the_docs_table_matches_the_channels() {
    let mut wrong = vec![];
    for cell in cells() {
        let blocking = observe(&cell, Ending::Blocking);
        let polled = observe(&cell, Ending::Async);
        if blocking != cell.result || polled != cell.result {
            wrong.push(format!("{cell:?}: blocking {blocking}, async {polled}"));
        }
    }
    assert!(wrong.is_empty(), "the page is wrong:\n{}", wrong.join("\n"));
}

#[test]
fn the_table_has_every_operation_on_every_kind() {
    let queue_operations = "try_send send send_all try_reserve reserve try_recv recv recv_many";
    let mut expected = BTreeSet::new();
    for (kind, _) in queues::<u32>() {
        expected.extend(queue_operations.split(' ').map(|operation| (operation, kind)));
    }
    for kind in ["oneshot", "broadcast"] {
        expected.extend(["send", "try_recv", "recv"].map(|operation| (operation, kind)));
    }
    expected.extend(["send", "try_changed", "changed"].map(|operation| (operation, "watch")));
    let found: BTreeSet<_> = cells().iter().map(|cell| (cell.operation, cell.kind)).collect();
    assert_eq!(found, expected);
    assert_eq!(cells().len(), expected.len() * 6, "six states each, no row twice");
}

#[test]
fn the_limits_on_the_docs_page_match_the_crate() {
    assert_eq!(limit("`MAX_CAPACITY`"), format!("2^{} values", MAX_CAPACITY.ilog2()));
    assert!(MAX_CAPACITY.is_power_of_two());
    assert_eq!(limit("`SAMPLE_EVERY`"), format!("the clock is read once in {SAMPLE_EVERY} sends"));
    let name = |bytes: usize| Builder::<u32>::rendezvous().name(&"x".repeat(bytes)).build();
    assert_eq!(limit("a channel's name"), "255 bytes");
    assert!(name(255).is_ok() && name(256).is_err());
}

#[derive(Clone, Copy, PartialEq)]
enum Ending {
    Blocking,
    Async,
}

impl Ending {
    /// Returns how an operation ends without waiting. None if it would wait.
    fn of<A: Action>(self, op: Op<A>) -> Option<<Op<A> as Future>::Output>
    where
        <Op<A> as Future>::Output: Limited,
    {
        match self {
            Ending::Blocking => {
                let output = op.deadline(Instant::now()).wait();
                if output.timed_out() { None } else { Some(output) }
            }
            Ending::Async => match poll_with(pin!(op), Waker::noop()) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            },
        }
    }
}

trait Limited {
    fn timed_out(&self) -> bool;
}

impl<T> Limited for Result<T, Error> {
    fn timed_out(&self) -> bool {
        self.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout)
    }
}

impl Limited for Result<Sent, SendError<u32>> {
    fn timed_out(&self) -> bool {
        self.as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Timeout && *error.value() == SENT)
    }
}

fn observe(cell: &Cell, ending: Ending) -> String {
    let observed = match cell.kind {
        "oneshot" => on_oneshot(cell, ending),
        "broadcast" => on_broadcast(cell, ending),
        "watch" => on_watch(cell, ending),
        _ => on_queue(cell, ending),
    };
    observed.unwrap_or("–".to_string())
}

fn word(kind: impl Debug) -> String {
    format!("{kind:?}")
}

// ---- queue channels ----------------------------------------------------------------------------

fn on_queue(cell: &Cell, ending: Ending) -> Option<String> {
    let (_, make) = queues().into_iter().find(|(name, _)| *name == cell.kind).expect("a kind");
    let dropped = Log::new();
    let log = dropped.clone();
    let (tx, rx) = make().on_drop(move |value| log.push(value)).build().unwrap();
    let sends = cell.operation.contains("send") || cell.operation.contains("reserve");
    let act = || match sends {
        true => send_side(cell.operation, ending, &tx, &dropped),
        false => receive_side(cell.operation, ending, &rx),
    };
    let fill = || {
        let mut next = 1;
        while !tx.is_full() {
            tx.try_send(next).unwrap();
            next += 1;
        }
        next
    };
    Some(match (cell.state, sends) {
        ("room / value", true) if tx.is_full() => return None,
        ("room / value", true) | ("full / empty", false) => act(),
        ("room / value", false) => {
            put_inside(&tx, &rx, 1);
            act()
        }
        ("full / empty", true) if tx.capacity().is_none() => return None,
        ("full / empty", true) => {
            fill();
            act()
        }
        ("peer parked", true) => {
            let mut peer = pin!(rx.recv());
            park(peer.as_mut());
            let result = act();
            if result == "Accepted" {
                assert_eq!(ready(peer), Ok(SENT), "the value goes straight to the parked receive");
            }
            result
        }
        ("peer parked", false) => {
            tx.capacity()?;
            let next = fill();
            let mut peer = pin!(tx.send(next));
            if poll_with(peer.as_mut(), Waker::noop()).is_ready() {
                return None;
            }
            let result = act();
            assert_eq!(ready(peer), Ok(Sent::Accepted), "the parked send is admitted at once");
            result
        }
        ("closed, values inside", _) => {
            put_inside(&tx, &rx, 1);
            assert!(tx.close_channel());
            act()
        }
        ("closed, drained", _) => {
            assert!(tx.close_channel());
            act()
        }
        ("end let go", true) => {
            let _other = tx.clone();
            tx.close();
            act()
        }
        ("end let go", false) => {
            let _other = rx.clone();
            put_inside(&tx, &rx, 1);
            rx.close();
            act()
        }
        (state, _) => panic!("no such state: {state}"),
    })
}

fn send_side(operation: &str, ending: Ending, tx: &Sender<u32>, dropped: &Log<u32>) -> String {
    let result = match operation {
        "try_send" => sent(tx.try_send(SENT)),
        "send" => ending.of(tx.send(SENT)).map_or("waits".to_string(), sent),
        "send_all" => {
            let mut values = VecDeque::from([SENT]);
            let result = match ending.of(tx.send_all(&mut values)) {
                None => "waits".to_string(),
                Some(Ok(count)) => {
                    assert_eq!(count, 1);
                    "Accepted".to_string()
                }
                Some(Err(error)) => word(error.kind()),
            };
            assert_eq!(values.is_empty(), result == "Accepted", "unsent values stay in the batch");
            result
        }
        "try_reserve" => match tx.try_reserve() {
            Ok(_) => "permit".to_string(),
            Err(error) => word(error.kind()),
        },
        "reserve" => match ending.of(tx.reserve()) {
            None => "waits".to_string(),
            Some(Ok(_)) => "permit".to_string(),
            Some(Err(error)) => word(error.kind()),
        },
        _ => panic!("no such operation: {operation}"),
    };
    match (result.as_str(), dropped.take().as_slice()) {
        ("Dropped", [SENT]) | (_, []) => result,
        ("Accepted", [1]) => "Accepted, oldest dropped".to_string(),
        // A batch counts the values that the policy discarded as sent.
        ("Accepted", [SENT]) if operation == "send_all" => "Dropped".to_string(),
        (_, values) => panic!("{operation} ended with {result} and dropped {values:?}"),
    }
}

fn sent(result: Result<Sent, SendError<u32>>) -> String {
    match result {
        Ok(sent) => word(sent),
        Err(error) => {
            assert_eq!(*error.value(), SENT, "the value comes back");
            word(error.kind())
        }
    }
}

fn receive_side(operation: &str, ending: Ending, rx: &Receiver<u32>) -> String {
    match operation {
        "try_recv" => received(Some(rx.try_recv())),
        "recv" => received(ending.of(rx.recv())),
        "recv_many" => {
            let mut values = vec![];
            let result = ending.of(rx.recv_many(&mut values, 1));
            received(result.map(|result| {
                assert_eq!(result.unwrap_or(0), values.len());
                result.map(|_| values[0])
            }))
        }
        _ => panic!("no such operation: {operation}"),
    }
}

/// Returns the word of the table for the result of a receive. The oldest value inside is always 1.
fn received(result: Option<Result<u32, Error>>) -> String {
    match result {
        None => "waits".to_string(),
        Some(Ok(1)) => "value".to_string(),
        Some(Ok(other)) => format!("value {other}, which is not the oldest"),
        Some(Err(error)) => word(error.kind()),
    }
}

// ---- the other three ---------------------------------------------------------------------------

fn on_oneshot(cell: &Cell, ending: Ending) -> Option<String> {
    let (tx, mut rx) = oneshot();
    if cell.operation == "send" {
        let accepted = |result: Result<(), SendError<u32>>| sent(result.map(|()| Sent::Accepted));
        return match cell.state {
            "room / value" => Some(accepted(tx.send(SENT))),
            "peer parked" => {
                let mut peer = pin!(rx.recv());
                park(peer.as_mut());
                let result = accepted(tx.send(SENT));
                assert_eq!(ready(peer), Ok(SENT));
                Some(result)
            }
            "closed, drained" => {
                drop(rx);
                Some(accepted(tx.send(SENT)))
            }
            _ => None, // the send uses up the sender
        };
    }
    match cell.state {
        "full / empty" => {
            let result = receive_one(cell, ending, &mut rx);
            drop(tx);
            Some(result)
        }
        "closed, values inside" => {
            tx.send(1).unwrap();
            Some(receive_one(cell, ending, &mut rx))
        }
        "closed, drained" => {
            drop(tx);
            Some(receive_one(cell, ending, &mut rx))
        }
        _ => None,
    }
}

fn receive_one(cell: &Cell, ending: Ending, rx: &mut oneshot::Receiver<u32>) -> String {
    match cell.operation {
        "try_recv" => received(Some(rx.try_recv())),
        _ => received(ending.of(rx.recv())),
    }
}

fn on_broadcast(cell: &Cell, ending: Ending) -> Option<String> {
    let (tx, mut rx) = broadcast(2);
    if cell.operation == "send" {
        let accepted = |result: Result<usize, _>| sent(result.map(|_| Sent::Accepted));
        match cell.state {
            "room / value" => {}
            "full / empty" => {
                for value in 1..=2 {
                    tx.send(value).unwrap();
                }
                assert_eq!(accepted(tx.send(SENT)), "Accepted");
                assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Lagged(1));
                return Some("Accepted, oldest dropped".to_string());
            }
            "peer parked" => {
                let mut peer = pin!(rx.recv());
                park(peer.as_mut());
                let result = accepted(tx.send(SENT));
                assert_eq!(ready(peer), Ok(SENT));
                return Some(result);
            }
            "closed, values inside" => {
                tx.send(1).unwrap();
                tx.close_channel();
            }
            "closed, drained" => {
                tx.close_channel();
            }
            _ => return None, // only a drop releases a sender
        }
        return Some(accepted(tx.send(SENT)));
    }
    match cell.state {
        "room / value" => {
            tx.send(1).unwrap();
        }
        "full / empty" => {}
        "closed, values inside" => {
            tx.send(1).unwrap();
            tx.close_channel();
        }
        "closed, drained" => {
            tx.close_channel();
        }
        _ => return None,
    }
    Some(match cell.operation {
        "try_recv" => received(Some(rx.try_recv())),
        _ => received(ending.of(rx.recv())),
    })
}

fn on_watch(cell: &Cell, ending: Ending) -> Option<String> {
    let (tx, mut rx) = watch(0);
    let accepted = |result: Result<(), _>| sent(result.map(|()| Sent::Accepted));
    match (cell.state, cell.operation) {
        ("room / value", "send") | ("full / empty", "try_changed" | "changed") => {}
        ("room / value", _) => tx.send(1).unwrap(),
        ("peer parked", "send") => {
            let mut peer = pin!(rx.changed());
            park(peer.as_mut());
            let result = accepted(tx.send(SENT));
            assert_eq!(ready(peer), Ok(()));
            return Some(result);
        }
        ("closed, values inside", _) => {
            tx.send(1).unwrap();
            tx.close_channel();
        }
        ("closed, drained", _) => {
            tx.close_channel();
        }
        _ => return None,
    }
    Some(match cell.operation {
        "send" => accepted(tx.send(SENT)),
        "try_changed" => received(Some(rx.try_changed().map(|()| *rx.borrow()))),
        _ => {
            let changed = ending.of(rx.changed());
            received(changed.map(|changed| changed.map(|()| *rx.borrow())))
        }
    })
}
