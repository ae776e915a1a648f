//! How quick a local cluster is here, next to a plain channel round trip: a first look, not a benchmark.

use marline::{Cluster, Program, Resources};
use std::time::Instant;

fn main() -> Result<(), marline::Error> {
    let program = Program::new().task("noop", || ());
    let cluster = Cluster::builder().resources(Resources::cpus(2)).start(program)?;
    let client = cluster.client();
    for _ in 0..1_000 {
        client.task("noop").submit::<()>(())?.wait()?;
    }
    let mut times: Vec<u128> = Vec::new();
    for _ in 0..20_000 {
        let start = Instant::now();
        client.task("noop").submit::<()>(())?.wait()?;
        times.push(start.elapsed().as_nanos());
    }
    times.sort_unstable();
    println!(
        "round trip: p50 {} ns, p95 {} ns",
        times[times.len() / 2],
        times[times.len() * 95 / 100]
    );
    for round in 0..3 {
        let count = 200_000;
        let start = Instant::now();
        let handles: Result<Vec<_>, _> =
            (0..count).map(|_| client.task("noop").submit::<()>(())).collect();
        let submitted = start.elapsed();
        for handle in handles? {
            handle.wait()?;
        }
        let total = start.elapsed();
        println!(
            "bulk {round}: {:.0} tasks/s (submitted in {submitted:?})",
            count as f64 / total.as_secs_f64()
        );
    }
    Ok(())
}
