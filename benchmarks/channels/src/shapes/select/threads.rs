//! The select shapes on threads. The selecting side is the thread that started its
//! peers.

use super::ledger::{Ledger, Tally};
use super::{CAPACITY, ThreadMixedSelect, ThreadSelect, ends};
use crate::channel::{Ends, ThreadChannel};
use crate::contestant::{Contestant, Outcome};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

pub fn threads_receive<C: ThreadSelect>() -> Option<Contestant> {
    let run = |operations: u64| {
        let (txs, rxs) = thread_channels::<C, 4>();
        let select =
            |rxs: &mut [C::Rx; 4], ledger: &mut Ledger| C::receive(rxs, operations, ledger);
        threads::<C, 4, 0>(txs, rxs, [], select, operations)
    };
    Some(Contestant::new(C::NAME, run).specialised(C::SPECIALISED))
}

pub fn threads_mix<C: ThreadMixedSelect>() -> Option<Contestant> {
    let run = |operations: u64| {
        let (txs, rxs) = thread_channels::<C, 2>();
        let (mut outs, ins) = thread_channels::<C, 2>();
        let select = move |rxs: &mut [C::Rx; 2], ledger: &mut Ledger| {
            C::mix(rxs, &mut outs, operations, ledger)
        };
        threads::<C, 2, 2>(txs, rxs, ins, select, operations)
    };
    Some(Contestant::new(C::NAME, run).specialised(C::SPECIALISED))
}

type ThreadEnds<C, const N: usize> =
    ([<C as ThreadChannel<u64>>::Tx; N], [<C as ThreadChannel<u64>>::Rx; N]);

fn thread_channels<C: ThreadChannel<u64>, const N: usize>() -> ThreadEnds<C, N> {
    let pairs = (0..N).map(|_| C::open(CAPACITY, Ends::SINGLE).expect("it opened before"));
    let (txs, rxs): (Vec<_>, Vec<_>) = pairs.unzip();
    (ends(txs), ends(rxs))
}

/// Runs `select` on this thread between `N` sources and `M` sinks. `select` owns the
/// sending ends to the sinks, so the sinks end when it is dropped.
fn threads<C: ThreadChannel<u64>, const N: usize, const M: usize>(
    txs: [C::Tx; N],
    mut rxs: [C::Rx; N],
    ins: [C::Rx; M],
    select: impl FnOnce(&mut [C::Rx; N], &mut Ledger),
    operations: u64,
) -> Outcome {
    let stop = AtomicBool::new(false);
    let barrier = Barrier::new(N + M + 1);
    let mut ledger = Ledger::default();
    thread::scope(|scope| {
        let (stop, barrier) = (&stop, &barrier);
        let sources = txs.map(|mut tx| {
            scope.spawn(move || {
                barrier.wait();
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    assert!(C::send(&mut tx, number), "the selecting side lives");
                    number += 1;
                }
                number
            })
        });
        let sinks = ins.map(|mut rx| {
            scope.spawn(move || {
                barrier.wait();
                let mut tally = Tally::default();
                while let Some(number) = C::recv(&mut rx) {
                    tally.take(number);
                }
                tally
            })
        });
        barrier.wait();
        let start = Instant::now();
        select(&mut rxs, &mut ledger);
        let elapsed = start.elapsed();
        stop.store(true, Ordering::Relaxed);
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
                thread::yield_now();
            }
            let sent = source.join().expect("a source ends");
            accounts = accounts + ledger.settle(from, sent);
        }
        for (to, sink) in sinks.into_iter().enumerate() {
            let tally = sink.join().expect("a sink ends");
            accounts = accounts + tally.settle(ledger.next(to));
        }
        accounts.over(operations, elapsed)
    })
}
