//! Where the two sides of a channel run: as tasks on one or two tokio workers, or as
//! operating-system threads. Both runners start every side, measure the time from
//! the first start to the last end, and add up what the sides counted. The time
//! includes the spawn of a task, but not the start of a thread (there is a barrier).

use std::future::Future;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// The tokio runtime that the tasks of a run use.
#[derive(Clone, Copy, PartialEq)]
pub enum TaskRuntime {
    CurrentThread,
    TwoWorkers,
}

impl TaskRuntime {
    pub const ALL: [TaskRuntime; 2] = [TaskRuntime::CurrentThread, TaskRuntime::TwoWorkers];

    pub fn name(self) -> &'static str {
        match self {
            TaskRuntime::CurrentThread => "current-thread",
            TaskRuntime::TwoWorkers => "two-workers",
        }
    }

    fn runtime(self) -> Runtime {
        let runtime = match self {
            TaskRuntime::CurrentThread => Builder::new_current_thread().build(),
            TaskRuntime::TwoWorkers => Builder::new_multi_thread().worker_threads(2).build(),
        };
        runtime.expect("a tokio runtime starts")
    }

    /// Runs `driver` as a task, so that it runs on a worker in both contexts.
    pub fn block_on<F>(self, driver: F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let runtime = self.runtime();
        runtime.block_on(runtime.spawn(driver)).expect("the driver ends")
    }
}

/// How many messages each side counted, and how long the run took.
pub struct Finish {
    pub elapsed: Duration,
    pub sent: u64,
    pub received: u64,
}

pub fn run_tasks<S, R>(tasks: TaskRuntime, senders: Vec<S>, receivers: Vec<R>) -> Finish
where
    S: Future<Output = u64> + Send + 'static,
    R: Future<Output = u64> + Send + 'static,
{
    tasks.block_on(async move {
        let start = Instant::now();
        let receivers: Vec<_> = receivers.into_iter().map(tokio::spawn).collect();
        let senders: Vec<_> = senders.into_iter().map(tokio::spawn).collect();
        let (mut sent, mut received) = (0, 0);
        for sender in senders {
            sent += sender.await.expect("a sender ends");
        }
        for receiver in receivers {
            received += receiver.await.expect("a receiver ends");
        }
        let elapsed = start.elapsed();
        Finish { elapsed, sent, received }
    })
}

pub fn run_threads<S, R>(senders: Vec<S>, receivers: Vec<R>) -> Finish
where
    S: FnOnce() -> u64 + Send,
    R: FnOnce() -> u64 + Send,
{
    let barrier = Barrier::new(senders.len() + receivers.len());
    // Each thread takes its own times. With more threads than cores, the thread
    // that started them may see the barrier open long after it opened.
    fn timed(barrier: &Barrier, body: impl FnOnce() -> u64) -> (Instant, Instant, u64) {
        barrier.wait();
        let start = Instant::now();
        let count = body();
        (start, Instant::now(), count)
    }
    thread::scope(|scope| {
        let barrier = &barrier;
        let receivers: Vec<_> =
            receivers.into_iter().map(|body| scope.spawn(move || timed(barrier, body))).collect();
        let senders: Vec<_> =
            senders.into_iter().map(|body| scope.spawn(move || timed(barrier, body))).collect();
        let senders: Vec<_> = senders.into_iter().map(|side| side.join().unwrap()).collect();
        let receivers: Vec<_> = receivers.into_iter().map(|side| side.join().unwrap()).collect();
        let both = || senders.iter().chain(&receivers);
        let start = both().map(|side| side.0).min().expect("a side ran");
        let end = both().map(|side| side.1).max().expect("a side ran");
        Finish {
            elapsed: end - start,
            sent: senders.iter().map(|side| side.2).sum(),
            received: receivers.iter().map(|side| side.2).sum(),
        }
    })
}
