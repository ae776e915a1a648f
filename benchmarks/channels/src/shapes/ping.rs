//! One-way ping: half of a round trip through two channels between two sides. Every
//! message waits for the one before it, so this measures latency. The floor is a
//! contestant, too (`floor.rs`).

use super::floor::{task_hop, thread_hop};
use super::present;
use crate::channel::{Capacity, Ends, TaskChannel, ThreadChannel};
use crate::contestant::{Contestant, Outcome, Shape};
use crate::context::{Finish, TaskRuntime, run_tasks, run_threads};
use crate::rivals;

pub fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for capacity in [0, 1].map(Capacity::Bounded) {
        shapes.push(on_threads(capacity));
        shapes.extend(TaskRuntime::ALL.map(|context| on_tasks(context, capacity)));
    }
    shapes
}

fn name(context: &str, capacity: Capacity) -> String {
    format!("{context}/ping/{}/u64", capacity.name())
}

fn on_threads(capacity: Capacity) -> Shape {
    let contestants = present([
        threads::<rivals::Marline>(capacity),
        threads::<rivals::Kanal>(capacity),
        threads::<rivals::CrossfireSpsc>(capacity),
        threads::<rivals::Crossbeam>(capacity),
        threads::<rivals::Std>(capacity),
        threads::<rivals::Flume>(capacity),
        threads::<rivals::Loole>(capacity),
        threads::<rivals::AsyncChannel>(capacity),
        threads::<rivals::Tokio>(capacity),
        thread_hop(),
    ]);
    Shape::new(name("threads", capacity), contestants)
}

fn on_tasks(context: TaskRuntime, capacity: Capacity) -> Shape {
    let contestants = present([
        tasks::<rivals::Marline>(context, capacity),
        tasks::<rivals::Kanal>(context, capacity),
        tasks::<rivals::CrossfireSpsc>(context, capacity),
        tasks::<rivals::Flume>(context, capacity),
        tasks::<rivals::Loole>(context, capacity),
        tasks::<rivals::AsyncChannel>(context, capacity),
        tasks::<rivals::Tokio>(context, capacity),
        tasks::<rivals::Tachyonix>(context, capacity),
        task_hop(context),
    ]);
    Shape::new(name(context.name(), capacity), contestants)
}

fn threads<C: ThreadChannel<u64>>(capacity: Capacity) -> Option<Contestant> {
    C::open(capacity, Ends::SINGLE)?;
    let run = move |messages: u64| {
        let (mut there, mut arrive) = C::open(capacity, Ends::SINGLE).expect("it opened before");
        let (mut back, mut answer) = C::open(capacity, Ends::SINGLE).expect("it opened before");
        let ping = move || {
            let mut count = 0;
            for index in 0..messages.div_ceil(2) {
                C::send(&mut there[0], index);
                count += C::recv(&mut answer[0]).is_some() as u64;
            }
            count
        };
        let pong = move || {
            let mut count = 0;
            while let Some(index) = C::recv(&mut arrive[0]) {
                C::send(&mut back[0], index);
                count += 1;
            }
            count
        };
        outcome(run_threads(vec![ping], vec![pong]))
    };
    Some(Contestant::new(C::NAME, run).specialised(C::SPECIALISED))
}

fn tasks<C: TaskChannel<u64>>(context: TaskRuntime, capacity: Capacity) -> Option<Contestant> {
    C::open(capacity, Ends::SINGLE)?;
    let run = move |messages: u64| {
        let (mut there, mut arrive) = C::open(capacity, Ends::SINGLE).expect("it opened before");
        let (mut back, mut answer) = C::open(capacity, Ends::SINGLE).expect("it opened before");
        let ping = async move {
            let mut count = 0;
            for index in 0..messages.div_ceil(2) {
                C::send(&mut there[0], index).await;
                count += C::recv(&mut answer[0]).await.is_some() as u64;
            }
            count
        };
        let pong = async move {
            let mut count = 0;
            while let Some(index) = C::recv(&mut arrive[0]).await {
                C::send(&mut back[0], index).await;
                count += 1;
            }
            count
        };
        outcome(run_tasks(context, vec![ping], vec![pong]))
    };
    Some(Contestant::new(C::NAME, run).specialised(C::SPECIALISED))
}

fn outcome(finish: Finish) -> Outcome {
    Outcome::default().over(finish.sent + finish.received, finish.elapsed)
}
