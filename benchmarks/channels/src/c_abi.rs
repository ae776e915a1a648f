//! The C ABI: C code sends and receives the same streams, between two threads, and
//! between two coroutines on one thread. The C compiler compiles it, so every
//! operation is a real call. In these shapes `marline` is the C library, and its
//! rival is the same channel from Rust. They are not in the build without metrics:
//! the C library would bring the metrics back.

use crate::contestant::Shape;

#[cfg(not(feature = "metrics"))]
pub fn shapes() -> Vec<Shape> {
    Vec::new()
}

#[cfg(feature = "metrics")]
pub fn shapes() -> Vec<Shape> {
    use crate::channel::{Capacity, Ends};
    use crate::context::TaskRuntime;
    use crate::rivals::Marline;
    use crate::shapes::stream::{tasks, threads};

    let mut shapes: Vec<Shape> = [0, 128].into_iter().map(through_threads).collect();
    shapes.push(Shape::new(
        "current-thread/through C, coroutines, stream 1→1/capacity 0/u64".into(),
        vec![
            measured(|count| marline_bench_coroutines(count)),
            from_rust(tasks::<u64, Marline>(
                TaskRuntime::CurrentThread,
                Capacity::Bounded(0),
                Ends::SINGLE,
            )),
        ],
    ));
    return shapes;

    fn through_threads(capacity: u64) -> Shape {
        let rust = threads::<u64, Marline>(Capacity::Bounded(capacity as usize), Ends::SINGLE);
        Shape::new(
            format!("threads/through C, stream 1→1/capacity {capacity}/u64"),
            vec![measured(move |count| marline_bench_threads(capacity, count)), from_rust(rust)],
        )
    }
}

#[cfg(feature = "metrics")]
mod c {
    use crate::contestant::{Contestant, Outcome};
    use std::time::Duration;

    // Links the C library into the program.
    use marline_channel_c as _;

    // Defined in src/c_abi.c. Any arguments are valid, so the calls are safe.
    unsafe extern "C" {
        pub safe fn marline_bench_threads(capacity: u64, count: u64) -> f64;
        pub safe fn marline_bench_coroutines(count: u64) -> f64;
    }

    /// Returns a contestant that measures itself, in nanoseconds per message.
    pub fn measured(run: impl Fn(u64) -> f64 + 'static) -> Contestant {
        Contestant::new("marline", move |messages| Outcome {
            messages,
            elapsed: Duration::from_nanos((run(messages) * messages as f64) as u64),
            ..Outcome::default()
        })
    }

    pub fn from_rust(contestant: Option<Contestant>) -> Contestant {
        Contestant { name: "marline from Rust", ..contestant.expect("every kind is ours") }
    }
}

#[cfg(feature = "metrics")]
use c::{from_rust, marline_bench_coroutines, marline_bench_threads, measured};
