//! The select shapes on tasks. The selecting side is a task like its peers.

use super::ledger::{Ledger, Tally};
use super::{CAPACITY, TaskSelect, ends};
use crate::channel::{Ends, TaskChannel};
use crate::contestant::{Contestant, Outcome};
use crate::context::TaskRuntime;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::task::yield_now;

pub fn tasks<C: TaskSelect>(context: TaskRuntime, mixed: bool) -> Option<Contestant> {
    C::open(CAPACITY, Ends::SINGLE)?;
    let run = move |operations: u64| {
        context.block_on(async move {
            if mixed {
                tasks_mix::<C>(operations).await
            } else {
                tasks_receive::<C>(operations).await
            }
        })
    };
    Some(Contestant::new(C::NAME, run).specialised(C::SPECIALISED))
}

async fn tasks_receive<C: TaskSelect>(operations: u64) -> Outcome {
    let (txs, mut rxs) = task_channels::<C, 4>();
    let stop = Arc::new(AtomicBool::new(false));
    let sources = txs.map(|tx| tokio::spawn(task_source::<C>(tx, stop.clone())));
    let mut ledger = Ledger::default();
    let start = Instant::now();
    C::receive(&mut rxs, operations, &mut ledger).await;
    let elapsed = start.elapsed();
    stop.store(true, Ordering::Relaxed);
    let accounts = task_drain::<C, 4>(sources, rxs, &mut ledger).await;
    accounts.over(operations, elapsed)
}

async fn tasks_mix<C: TaskSelect>(operations: u64) -> Outcome {
    let (txs, mut rxs) = task_channels::<C, 2>();
    let (mut outs, ins) = task_channels::<C, 2>();
    let stop = Arc::new(AtomicBool::new(false));
    let sources = txs.map(|tx| tokio::spawn(task_source::<C>(tx, stop.clone())));
    let sinks = ins.map(|rx| tokio::spawn(task_sink::<C>(rx)));
    let mut ledger = Ledger::default();
    let start = Instant::now();
    C::mix(&mut rxs, &mut outs, operations, &mut ledger).await;
    let elapsed = start.elapsed();
    stop.store(true, Ordering::Relaxed);
    drop(outs);
    let mut accounts = task_drain::<C, 2>(sources, rxs, &mut ledger).await;
    for (to, sink) in sinks.into_iter().enumerate() {
        let tally = sink.await.expect("a sink ends");
        accounts = accounts + tally.settle(ledger.next(to));
    }
    accounts.over(operations, elapsed)
}

type TaskEnds<C, const N: usize> =
    ([<C as TaskChannel<u64>>::Tx; N], [<C as TaskChannel<u64>>::Rx; N]);

/// Opens `N` channels with one end on each side.
fn task_channels<C: TaskChannel<u64>, const N: usize>() -> TaskEnds<C, N> {
    let pairs = (0..N).map(|_| C::open(CAPACITY, Ends::SINGLE).expect("it opened before"));
    let (txs, rxs): (Vec<_>, Vec<_>) = pairs.unzip();
    (ends(txs), ends(rxs))
}

async fn task_source<C: TaskChannel<u64>>(mut tx: C::Tx, stop: Arc<AtomicBool>) -> u64 {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        assert!(C::send(&mut tx, number).await, "the selecting side lives");
        number += 1;
    }
    number
}

async fn task_sink<C: TaskChannel<u64>>(mut rx: C::Rx) -> Tally {
    let mut tally = Tally::default();
    while let Some(number) = C::recv(&mut rx).await {
        tally.take(number);
    }
    tally
}

/// Receives what is left until the sources have ended, and compares with what they sent.
async fn task_drain<C: TaskChannel<u64>, const N: usize>(
    sources: [tokio::task::JoinHandle<u64>; N],
    mut rxs: [C::Rx; N],
    ledger: &mut Ledger,
) -> Outcome {
    let mut accounts = Outcome::default();
    for (from, source) in sources.into_iter().enumerate() {
        loop {
            let ended = source.is_finished();
            while let Some(number) = C::try_recv(&mut rxs[from]) {
                ledger.received(from, Some(number));
            }
            if ended {
                break;
            }
            yield_now().await;
        }
        let sent = source.await.expect("a source ends");
        accounts = accounts + ledger.settle(from, sent);
    }
    accounts
}
