//! A tour of a local cluster: tasks, a reference between tasks, an actor, a failure, a cancel. At
//! the end it compares results and counters with what they must be, and fails if they differ.

use marline::{Cluster, ErrorKind, Program, Resources, context};
use std::process::ExitCode;
use std::time::{Duration, Instant};

struct Account(i64);

impl Account {
    fn deposit(&mut self, amount: i64) -> i64 {
        self.0 += amount;
        self.0
    }

    fn withdraw(&mut self, amount: i64) -> Result<i64, String> {
        if amount > self.0 {
            return Err(format!("only {} is left", self.0));
        }
        self.0 -= amount;
        Ok(self.0)
    }
}

/// Waits until the task is cancelled, a minute at most.
fn sleep_until_cancelled() -> Result<(), String> {
    let cancel = context().expect("it runs as a task").cancel;
    let end = Instant::now() + Duration::from_secs(60);
    while !cancel.is_cancelled() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    Err("stopped".into())
}

fn main() -> ExitCode {
    match tour() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("the ledger does not balance");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn tour() -> Result<bool, marline::Error> {
    let start = Instant::now();
    let program = Program::new()
        .task("square", |x: i64| x * x)
        .task("sum", |a: i64, b: i64| a + b)
        .try_task("sleep", sleep_until_cancelled)
        .actor("Account", Account, |account| {
            account.method("deposit", Account::deposit).try_method("withdraw", Account::withdraw)
        });
    let cluster = Cluster::builder().workers(2).resources(Resources::cpus(2)).start(program)?;
    let client = cluster.client();
    let first = client.task("square").submit::<i64>((12,))?.wait()?;
    println!("a cluster of 2 workers answered {first} after {:?}", start.elapsed());

    let start = Instant::now();
    let count = 20_000_i64;
    let squares: Result<Vec<_>, _> =
        (0..count).map(|x| client.task("square").submit::<i64>((x,))).collect();
    let sum: i64 = squares?.into_iter().map(|square| square.wait()).sum::<Result<_, _>>()?;
    let expected = (0..count).map(|x| x * x).sum::<i64>();
    println!(
        "{count} tasks: {sum} (expected {expected}), {:.0}/s",
        count as f64 / start.elapsed().as_secs_f64()
    );

    let nine = client.task("square").submit::<i64>((3,))?;
    let sixteen = client.task("square").submit::<i64>((4,))?;
    let both = client.task("sum").submit::<i64>((nine.result(), sixteen.result()))?.wait()?;
    println!("a task fed by two others: {both}");

    let account = client.actor("Account").create((100_i64,))?;
    for _ in 0..10 {
        account.call::<i64>("deposit", (5_i64,))?;
    }
    let refused = account.call::<i64>("withdraw", (1_000_i64,))?.wait().unwrap_err();
    let left = account.call::<i64>("withdraw", (50_i64,))?.wait()?;
    println!("an actor kept its state: {left} left; refused: {refused}");

    let sleeper = client.task("sleep").submit::<()>(())?;
    sleeper.cancel();
    let cancelled = sleeper.wait().unwrap_err();
    println!("a cancelled task ends: {cancelled}");

    let unknown = client.task("cube").submit::<i64>((3,))?.wait().unwrap_err();
    println!("an unknown function: {unknown}");

    let counters = cluster.counters();
    let ended = counters.finished + counters.failed + counters.cancelled;
    println!(
        "submitted {} = finished {} + failed {} + cancelled {}",
        counters.submitted, counters.finished, counters.failed, counters.cancelled
    );
    Ok(sum == expected
        && both == 25
        && left == 100
        && cancelled.kind() == ErrorKind::Cancelled
        && unknown.kind() == ErrorKind::NotFound
        && counters.submitted == ended)
}
