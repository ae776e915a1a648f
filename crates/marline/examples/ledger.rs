//! A cluster of processes that loses a worker under load, but no work.
//!
//! This process is the controller, and starts itself again as three workers. 20,000 tasks each
//! write a line into a ledger file. In the middle one worker is killed with `kill -9`. At the end
//! the program compares the ledger with the results, and fails if they do not match.
//!
//! `cargo run --release -p marline --example ledger`

use marline::{Budget, Client, Controller, Error, Program, Resources, Worker, context};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::process::{Child, Command, ExitCode};
use std::time::Instant;

const TASKS: u64 = 20_000;
const WORKERS: usize = 3;

/// Returns the functions and actors that the workers provide.
fn program() -> Program {
    Program::new()
        .try_task("enter", |ledger: String, number: u64| {
            if number % 1_000 == 13 {
                return Err("thirteen is not entered".to_owned());
            }
            let attempt = context().expect("it runs as a task").attempt;
            let mut ledger =
                OpenOptions::new().append(true).open(ledger).map_err(|error| error.to_string())?;
            // Each line is one write, so lines of several processes do not mix.
            let line = format!("{number} {attempt}\n");
            ledger.write_all(line.as_bytes()).map_err(|error| error.to_string())
        })
        .actor("Tally", Tally, |tally| tally.method("add", Tally::add))
}

/// An actor that adds up numbers.
struct Tally(u64);

impl Tally {
    fn add(&mut self, n: u64) -> u64 {
        self.0 += n;
        self.0
    }
}

fn main() -> ExitCode {
    // This process was started again as a worker, or by a worker as an executor.
    if let Ok(controller) = std::env::var("LEDGER_CONTROLLER") {
        let worker = Worker::of(program()).resources(Resources::cpus(1));
        return exit_code(worker.run(&controller));
    }
    exit_code(balance().and_then(|balanced| {
        balanced
            .then_some(())
            .ok_or_else(|| Error::internal("the ledger does not match the results"))
    }))
}

fn exit_code(result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ledger: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A worker process that is killed when this value is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_worker(controller: &Controller) -> Process {
    let program = std::env::current_exe().expect("this program can be found");
    let mut command = Command::new(program);
    command.env("LEDGER_CONTROLLER", controller.address());
    Process(command.spawn().expect("this program can be started again"))
}

fn balance() -> Result<bool, Error> {
    let folder = std::env::temp_dir().join(format!("marline-ledger-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the ledger can be made");
    let ledger = folder.join("ledger").display().to_string();
    std::fs::write(&ledger, "").expect("a ledger can be made");
    let balanced = keep_books(&ledger);
    let _ = std::fs::remove_dir_all(&folder);
    balanced
}

fn keep_books(ledger: &str) -> Result<bool, Error> {
    let began = Instant::now();
    let controller = Controller::listen("127.0.0.1:0")?;
    let mut workers: Vec<Process> = (0..WORKERS).map(|_| start_worker(&controller)).collect();
    let client = Client::connect(controller.address())?;
    let tally = client.actor("Tally").max_restarts(Budget::Unlimited).create((0_u64,))?;
    println!("a controller at {} and {WORKERS} worker processes", controller.address());

    let enter = |number: u64| client.task("enter").submit::<()>((ledger.to_owned(), number));
    let mut tasks = Vec::new();
    for number in 0..TASKS {
        tasks.push(enter(number)?);
        if number == TASKS / 4 {
            let mut victim = workers.remove(0);
            println!("kill -9 of worker process {} under load", victim.0.id());
            victim.0.kill().expect("it can be killed");
            victim.0.wait().expect("it ends");
            workers.push(start_worker(&controller));
        }
    }
    let (mut finished, mut failed) = (0_u64, 0_u64);
    for task in tasks {
        match task.wait() {
            Ok(()) => finished += 1,
            Err(_) => failed += 1,
        }
    }
    let counted = loop {
        // A call may run when the killed instance of the actor ends. Then its error says so, and
        // the call is repeated.
        match tally.call::<u64>("add", (finished,))?.wait() {
            Ok(counted) => break counted,
            Err(error) if error.may_have_run() => continue,
            Err(error) => return Err(error),
        }
    };

    let mut entries: BTreeMap<u64, u64> = BTreeMap::new();
    for line in std::fs::read_to_string(ledger).expect("the ledger can be read").lines() {
        let number = line.split(' ').next().and_then(|number| number.parse().ok());
        *entries.entry(number.expect("every line is whole")).or_default() += 1;
    }
    let repeated: u64 = entries.values().map(|times| times - 1).sum();
    let lost = controller.counters().lost;
    println!(
        "submitted {TASKS} = finished {finished} + failed {failed}: one in 1,000 is meant to fail"
    );
    println!(
        "the ledger has {} tasks; {repeated} of them wrote twice, {lost} attempts were lost and tried again",
        entries.len()
    );
    println!("an actor counted {counted}; everything took {:.1} s", began.elapsed().as_secs_f64());
    Ok(finished + failed == TASKS
        && failed == TASKS / 1_000
        && entries.len() as u64 == finished
        && repeated <= lost
        && counted >= finished)
}
