//! Rust and Python call each other by name, with plain data. As a worker this program provides
//! functions and an actor for Python programs. As a client it calls functions and an actor of
//! Python's standard library.
//!
//! ```sh
//! marline up &                                       # with the Python package installed
//! cargo run -p marline --example polyglot worker &
//! cargo run -p marline --example polyglot client
//! python -c 'import marline; marline.init("auto"); print(marline.get(marline.function("square").remote(7)))'
//! ```
//!
//! For a cluster on another machine, append its address and its token.

use marline::{Bytes, Client, Error, Program, Worker};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Encoded as a map with these names, so a Python program sees a `dict`.
#[derive(Serialize, Deserialize)]
struct Order {
    item: String,
    count: u32,
    price: f64,
    notes: Vec<Option<String>>,
}

#[derive(Serialize)]
struct Bill {
    total: f64,
    words: String,
    of: BTreeMap<String, u32>,
}

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

fn bill(order: Order) -> Bill {
    let Order { item, count, price, notes } = order;
    let words = format!("{count} of {item}, {} notes", notes.iter().flatten().count());
    Bill { total: f64::from(count) * price, words, of: BTreeMap::from([(item, count)]) }
}

fn program() -> Program {
    Program::new()
        .task("square", |x: i64| x * x)
        .task("bill", bill)
        .task("invert", |data: Bytes| data.iter().map(|byte| !byte).collect::<Bytes>())
        .try_task("parse", |text: String| text.parse::<i64>())
        .actor("Account", Account, |account| {
            account.method("deposit", Account::deposit).try_method("withdraw", Account::withdraw)
        })
}

fn work(address: Option<&str>, token: Option<&str>) -> Result<(), Error> {
    let worker = Worker::of(program());
    match (address, token) {
        (None, _) => worker.run_local(),
        (Some(address), None) => worker.run(address),
        (Some(address), Some(token)) => worker.token(token).run(address),
    }
}

fn call(address: Option<&str>, token: Option<&str>) -> Result<(), Error> {
    let client = match (address, token) {
        (None, _) => Client::local()?,
        (Some(address), None) => Client::connect(address)?,
        (Some(address), Some(token)) => Client::connect_with_token(address, token)?,
    };
    let length = client.task("python:math.hypot").submit::<f64>((3, 4.0))?.wait()?;
    println!("hypot: {length}");
    let numbers = client.put(&vec![1, 2, 3, 6])?;
    let mean = client.task("python:statistics.mean").submit::<i64>((&numbers,))?.wait()?;
    println!("mean: {mean}");

    let data = client.put_bytes(vec![7; 1_000_000])?; // In shared memory, where Python reads it.
    let sum = client.task("python:zlib.crc32").submit::<u32>((&data,))?.wait()?;
    let same = client.task("python:zlib.crc32").submit::<u32>((client.get(&data)?,))?.wait()?;
    println!("checksums: {sum} {same}");

    let queue = client.actor("python:collections.deque").create((vec!["a", "b"],))?;
    queue.call::<()>("append", ("c",))?.wait()?;
    println!("first: {}", queue.call::<String>("popleft", ())?.wait()?);
    println!("index of c: {}", queue.call::<usize>("index", ("c",))?.wait()?);

    let error = client.task("python:math.sqrt").submit::<f64>((-1.0,))?.wait().unwrap_err();
    println!("failed: {}", error.failure().map_or("?", |failure| &failure.class));
    let error = client.task("python:datetime.date.today").submit::<String>(())?.wait().unwrap_err();
    println!("not plain: {error}");
    let error = client.task("python:math.nothing").submit::<f64>(())?.wait().unwrap_err();
    println!("not there: {error}");
    Ok(())
}

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (address, token) = (words.get(1).copied(), words.get(2).copied());
    match words.first() {
        Some(&"worker") => work(address, token),
        Some(&"client") => call(address, token),
        _ => {
            eprintln!("usage: polyglot worker|client [ADDRESS [TOKEN]]");
            std::process::exit(2)
        }
    }
}
