//! Batches of 64 through a channel of capacity 128, with one sender and one receiver.
//! A rival without a batch call sends value by value. A rival that can take all
//! values that are there (drain, try_iter) does so after a first receive.

use super::present;
use crate::channel::{Capacity, Ends, TaskChannel, ThreadChannel};
use crate::contestant::{Contestant, Outcome, Shape};
use crate::context::{Finish, TaskRuntime, run_tasks, run_threads};
use crate::rivals;
use std::collections::VecDeque;

pub const BATCH: usize = 64;
const CAPACITY: Capacity = Capacity::Bounded(128);

pub trait TaskBatch: TaskChannel<u64> {
    /// Sends all values of the batch, and leaves it empty.
    fn send_batch(tx: &mut Self::Tx, batch: &mut VecDeque<u64>) -> impl Future<Output = ()> + Send;
    /// Adds at least one value to the batch; none if the channel is closed.
    fn recv_batch(rx: &mut Self::Rx, batch: &mut Vec<u64>) -> impl Future<Output = ()> + Send;
}

pub trait ThreadBatch: ThreadChannel<u64> {
    fn send_batch(tx: &mut Self::Tx, batch: &mut VecDeque<u64>);
    fn recv_batch(rx: &mut Self::Rx, batch: &mut Vec<u64>);
}

pub fn shapes() -> Vec<Shape> {
    let shape = "batches of 64 1→1/capacity 128/u64";
    let on_threads = present([
        threads::<rivals::Marline>(),
        threads::<rivals::Kanal>(),
        threads::<rivals::Crossbeam>(),
        threads::<rivals::Flume>(),
        threads::<rivals::Tokio>(),
    ]);
    let mut shapes = vec![Shape::new(format!("threads/{shape}"), on_threads)];
    for context in TaskRuntime::ALL {
        let on_tasks = present([
            tasks::<rivals::Marline>(context),
            tasks::<rivals::Kanal>(context),
            tasks::<rivals::Flume>(context),
            tasks::<rivals::Tokio>(context),
        ]);
        shapes.push(Shape::new(format!("{}/{shape}", context.name()), on_tasks));
    }
    shapes
}

fn fill(batch: &mut VecDeque<u64>) {
    batch.extend(0..BATCH as u64);
}

fn threads<C: ThreadBatch>() -> Option<Contestant> {
    let run = |messages: u64| {
        let (mut tx, mut rx) = C::open(CAPACITY, Ends::SINGLE).expect("it opened before");
        let batches = messages.div_ceil(BATCH as u64);
        let send = move || {
            let mut batch = VecDeque::with_capacity(BATCH);
            for _ in 0..batches {
                fill(&mut batch);
                C::send_batch(&mut tx[0], &mut batch);
            }
            batches * BATCH as u64
        };
        let receive = move || {
            let (mut batch, mut count) = (Vec::with_capacity(4 * BATCH), 0);
            loop {
                C::recv_batch(&mut rx[0], &mut batch);
                if batch.is_empty() {
                    return count;
                }
                count += batch.len() as u64;
                batch.clear();
            }
        };
        outcome(run_threads(vec![send], vec![receive]))
    };
    Some(Contestant::new(C::NAME, run).specialised(C::SPECIALISED))
}

fn tasks<C: TaskBatch>(context: TaskRuntime) -> Option<Contestant> {
    let run = move |messages: u64| {
        let (mut tx, mut rx) = C::open(CAPACITY, Ends::SINGLE).expect("it opened before");
        let batches = messages.div_ceil(BATCH as u64);
        let send = async move {
            let mut batch = VecDeque::with_capacity(BATCH);
            for _ in 0..batches {
                fill(&mut batch);
                C::send_batch(&mut tx[0], &mut batch).await;
            }
            batches * BATCH as u64
        };
        let receive = async move {
            let (mut batch, mut count) = (Vec::with_capacity(4 * BATCH), 0);
            loop {
                C::recv_batch(&mut rx[0], &mut batch).await;
                if batch.is_empty() {
                    return count;
                }
                count += batch.len() as u64;
                batch.clear();
            }
        };
        outcome(run_tasks(context, vec![send], vec![receive]))
    };
    Some(Contestant::new(C::NAME, run).specialised(C::SPECIALISED))
}

fn outcome(finish: Finish) -> Outcome {
    Outcome {
        lost: finish.sent.saturating_sub(finish.received),
        doubled: finish.received.saturating_sub(finish.sent),
        ..Outcome::default().over(finish.sent, finish.elapsed)
    }
}
