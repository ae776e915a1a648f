//! Starts this test binary again as a worker, a controller or a client, and has the program that
//! these workers run.

use marline::channel::rendezvous;
use marline::{Bytes, Client, Config, Controller, Error, Program, Resources, Worker, context};
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct Counter(u64);

/// An actor that writes into a file, and aborts its process until the file has enough lines.
struct Diary(String);

impl Diary {
    fn write_and_die(&mut self, times: u64) -> u64 {
        append(&self.0, "written");
        let written = std::fs::read_to_string(&self.0).unwrap().lines().count() as u64;
        if written < times || times == 1 {
            std::process::abort();
        }
        written
    }
}

struct Fails;

impl Fails {
    fn new(file: String) -> Result<Fails, String> {
        append(&file, "tried");
        Err("not today".into())
    }
}

/// An actor that keeps the bytes that it is called with, without copying them.
#[derive(Default)]
struct Shelf(Vec<Bytes>);

impl Shelf {
    fn keep(&mut self, bytes: Bytes) -> usize {
        self.0.push(bytes);
        self.0.len()
    }

    fn sum(&mut self) -> u64 {
        self.0.iter().map(sum).sum()
    }

    fn make(&mut self, bytes: usize, byte: u8) -> Bytes {
        vec![byte; bytes].into()
    }

    /// Waits for a file before it returns the bytes.
    fn make_when(&mut self, file: String, bytes: usize) -> Bytes {
        until("it is told", || std::fs::exists(&file).unwrap());
        vec![1; bytes].into()
    }
}

pub fn sum(bytes: &Bytes) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

/// Whether these bytes are in memory that is shared with other processes, according to this
/// process's memory map.
pub fn is_shared(bytes: &Bytes) -> bool {
    let at = bytes.as_ptr() as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| {
        let (from, rest) = line.split_once('-').unwrap();
        let (to, _) = rest.split_once(' ').unwrap();
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        (address(from)..address(to)).contains(&at)
    });
    line.unwrap().split_whitespace().nth(1).unwrap().ends_with('s')
}

/// Far longer than any step takes on a busy machine.
pub const MINUTE: Duration = Duration::from_secs(60);

/// Waits for other work in every way that a task can. Creating an actor is one: it needs a free
/// CPU.
pub fn wait_in_every_way(client: &Client) -> Result<Vec<u64>, Error> {
    let double = |x: u64| client.task("double").submit::<u64>((x,));
    let mut results = vec![double(1)?.wait()?, double(2)?.wait_timeout(MINUTE)?];
    let mut several = vec![double(3)?, double(4)?];
    assert_eq!(client.wait(&mut several, 2, Some(MINUTE))?, 2);
    for one in several {
        results.push(one.wait()?);
    }
    results.push(client.get(&double(5)?.result())?);
    let counter = client.actor("Counter").create((0_u64,))?;
    results.push(counter.call::<u64>("add", (12_u64,))?.wait()?);
    Ok(results)
}

/// Waits in every way at a worker where no task may wait, and returns the errors.
fn wait_in_vain(client: &Client) -> Result<Vec<Error>, Error> {
    let double = |x: u64| client.task("double").submit::<u64>((x,));
    let mut several = vec![double(3)?];
    Ok(vec![
        double(1)?.wait().unwrap_err(),
        double(2)?.wait_timeout(MINUTE).unwrap_err(),
        client.wait(&mut several, 1, Some(MINUTE)).unwrap_err(),
        client.get(&double(4)?.result()).unwrap_err(),
    ])
}

/// A task that waits for a task, and so on, `depth` times.
fn nested(address: String, depth: u64) -> Result<u64, Error> {
    let Some(rest) = depth.checked_sub(1) else { return Ok(0) };
    let client = Client::connect(&address)?;
    Ok(1 + client.task("nested").submit::<u64>((address, rest))?.wait()?)
}

/// Lets another worker make a large value, and reads the value when that worker is gone. Until then
/// it waits without lending its CPU.
fn read_what_is_lost(address: String, made: String, lost: String) -> Result<u64, Error> {
    let client = Client::connect(&address)?;
    let value = client.task("make").submit::<Bytes>((1_usize << 20, 1_u8))?;
    until("it is made", || value.is_done());
    write_atomically(&made, "");
    until("it is lost", || std::fs::exists(&lost).unwrap());
    Ok(sum(&value.wait()?))
}

/// Submits many tasks before waiting for the first.
fn fan_out(address: String, count: u64) -> Result<u64, Error> {
    let client = Client::connect(&address)?;
    let doubles: Vec<_> =
        (0..count).map(|x| client.task("double").submit::<u64>((x,))).collect::<Result<_, _>>()?;
    doubles.into_iter().map(|double| double.wait()).sum()
}

pub fn append(file: &str, line: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

impl Counter {
    fn add(&mut self, n: u64) -> u64 {
        self.0 += n;
        self.0
    }

    fn pid(&mut self) -> u32 {
        std::process::id()
    }

    /// Creates the file, and never returns.
    fn hang(&mut self, file: String) {
        println!("words of long ago");
        write_atomically(&file, "");
        loop {
            std::thread::park();
        }
    }
}

#[allow(clippy::zombie_processes)] // On purpose: the task `offspring` leaves a process behind.
pub fn program() -> Program {
    Program::new()
        .task("pid", std::process::id)
        .task("double", |x: u64| x * 2)
        .try_task("nested", nested)
        .try_task("fan out", fan_out)
        .try_task("read what is lost", read_what_is_lost)
        .try_task("wait in every way", |address: String| {
            wait_in_every_way(&Client::connect(&address)?)
        })
        // Returns the kinds of the errors, and whether they say that the work may have run.
        .try_task("wait in vain", |address: String| {
            let errors = wait_in_vain(&Client::connect(&address)?)?.into_iter();
            let kinds = errors.map(|error| (format!("{:?}", error.kind()), error.may_have_run()));
            Ok::<_, Error>(kinds.collect::<Vec<_>>())
        })
        .task("nap", |ms: u64| {
            // No value is ever sent: the receive ends when the task is cancelled, or its time is
            // over.
            let (_bell, door) = rendezvous::<()>();
            let cancel = context().expect("it runs as a task").cancel;
            let _ = door.recv().timeout(Duration::from_millis(ms)).cancel(&cancel).wait();
            std::process::id()
        })
        .task("die", || -> () { std::process::abort() })
        .task("exit", |status: i32| -> () { std::process::exit(status) })
        .task("panic", || -> () { panic!("as it was told to") })
        .task("last words", |words: String| -> () {
            println!("{words}");
            std::process::exit(3)
        })
        .task("devour", || {
            let mut all: Vec<Vec<u8>> = Vec::new();
            loop {
                all.push(vec![1; 16 << 20]);
                if all.len() > 1_000 {
                    return all.len();
                }
            }
        })
        // Ignores a cancel. Writes its process id into the file.
        .task("deaf", |file: String| -> () {
            write_atomically(&file, &std::process::id().to_string());
            loop {
                std::thread::park();
            }
        })
        // Starts a process that outlives the task, and returns its id.
        .task("offspring", |stay: bool| {
            let child = Command::new("sleep").arg("600").spawn().expect("sleep can be started");
            if !stay {
                std::process::exit(1);
            }
            child.id()
        })
        // Prints without end, until it is cancelled; says in the file that it has begun.
        .task("flood", |file: String| {
            let cancel = context().expect("it runs as a task").cancel;
            let (mut out, lines) = (std::io::stdout(), "much ado\n".repeat(8 << 10));
            write_atomically(&file, "");
            while !cancel.is_cancelled() {
                out.write_all(lines.as_bytes()).unwrap();
            }
        })
        .task("large", |bytes: usize| "a".repeat(bytes))
        .task("make", |bytes: usize, byte: u8| Bytes::from(vec![byte; bytes]))
        .task("sum", |bytes: Bytes| sum(&bytes))
        .task("is shared", |bytes: Bytes| is_shared(&bytes))
        .task("length", |text: String| text.len())
        .task("own name", || std::env::args().next())
        // Appends its number to a file, which so has a line for each run of each task.
        .task("write down", |file: String, number: u64| {
            append(&file, &number.to_string());
            number
        })
        // Creates a file, waits for another, then appends its process id to a third.
        .task("sign when told", |begun: String, told: String, file: String| {
            write_atomically(&begun, "");
            until("it is told", || std::fs::exists(&told).unwrap());
            append(&file, &std::process::id().to_string());
            std::process::id()
        })
        .actor("Counter", Counter, |counter| {
            let counter = counter.method("add", Counter::add);
            counter.method("pid", Counter::pid).method("hang", Counter::hang)
        })
        .actor("Shelf", Shelf::default, |shelf| {
            let shelf = shelf.method("keep", Shelf::keep).method("sum", Shelf::sum);
            shelf.method("make", Shelf::make).method("make when", Shelf::make_when)
        })
        .actor("Diary", Diary, |diary| diary.method("write and die", Diary::write_and_die))
        .try_actor("Fails", Fails::new, |class| class)
}

/// Writes a file so that it appears with all of its content.
pub fn write_atomically(file: &str, content: &str) {
    std::fs::write(format!("{file}.new"), content).unwrap();
    std::fs::rename(format!("{file}.new"), file).unwrap();
}

/// Not a test: the code of worker processes. `MARLINE_TEST_JOIN` has the address of the controller,
/// and options.
#[test]
fn worker_process() {
    let Ok(join) = std::env::var("MARLINE_TEST_JOIN") else { return };
    let mut words = join.split(' ');
    let controller = words.next().unwrap().to_owned();
    let mut worker = Worker::of(program()).resources(Resources::cpus(2)).quiet();
    worker = worker.executor_test(EXECUTOR);
    let (mut run, mut in_runtime) = (false, false);
    for word in words {
        worker = match word {
            "threads" => worker.threads(),
            "commands" => worker.commands(),
            "small" => worker.executor_memory(1 << 30),
            "impatient" => worker.cancel_grace(Duration::from_millis(50)),
            "run" => {
                run = true;
                worker
            }
            "tokio" => {
                in_runtime = true;
                worker
            }
            "token" => worker.token("a token, since others could reach it"),
            other => match other.split_once('=') {
                Some(("at", at)) => worker.listen(at),
                Some(("cpus", cpus)) => worker.resources(Resources::cpus(cpus.parse().unwrap())),
                Some(("durable", folder)) => worker.durable_folder(folder),
                Some(("store", bytes)) => worker.object_store_memory(bytes.parse().unwrap()),
                Some(("late", _)) => worker, // See `executor_process`.
                _ => panic!("no such option: {other}"),
            },
        };
    }
    if run && in_runtime {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(async { worker.run(&controller).unwrap() });
    }
    if run {
        return worker.run(&controller).unwrap();
    }
    let _worker = worker.join(&controller).unwrap();
    // The worker ends with the test that started it, which holds the other end of its standard
    // input.
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// The entry point of executors.
pub const EXECUTOR: &str = "harness::executor_process";

/// Not a test: the code of executors. With the option `late=FILE` an executor waits first.
#[test]
fn executor_process() {
    let join = std::env::var("MARLINE_TEST_JOIN").unwrap_or_default();
    let late = join.split(' ').find_map(|word| word.strip_prefix("late="));
    if let Some(file) = late.filter(|_| std::env::var_os("MARLINE_EXECUTOR").is_some()) {
        outlive_the_parent(file);
    }
    marline::executor_main(program());
}

/// Writes the process id into the file, and returns when the parent process is gone.
fn outlive_the_parent(file: &str) {
    let parent = std::os::unix::process::parent_id();
    write_atomically(file, &std::process::id().to_string());
    until("the parent is gone", || std::os::unix::process::parent_id() != parent);
}

/// Not a test: the code of controller processes. The controller writes its address into the file
/// that `MARLINE_TEST_LISTEN` names.
#[test]
fn controller_process() {
    let Ok(words) = std::env::var("MARLINE_TEST_LISTEN") else { return };
    let (file, at) = words.split_once(' ').unwrap();
    let at = if at.is_empty() { "127.0.0.1:0" } else { at };
    let controller = Controller::listen(at).unwrap();
    write_atomically(file, controller.address());
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Not a test: the code of client processes. The client holds actors and a task until it is killed,
/// and creates a file when it has them.
#[test]
fn client_process() {
    let Ok(words) = std::env::var("MARLINE_TEST_HOLD") else { return };
    let (address, file) = words.split_once(' ').unwrap();
    let client = Client::connect(address).unwrap();
    let _held = client.actor("Counter").create((0_u64,)).unwrap();
    let detached = client.actor("Counter").name("detached").detached().create((7_u64,)).unwrap();
    let _nap = client.task("nap").submit::<u32>((600_000_u64,)).unwrap();
    write_atomically(file, &detached.id().to_string());
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Starts a controller process that listens at `at`, or on any port if that is empty. Returns its
/// address too.
pub fn start_controller(at: &str) -> (Process, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("address").display().to_string();
    let words = format!("{file} {at}");
    let controller = Process(start_self("controller_process", "MARLINE_TEST_LISTEN", &words));
    until("the controller listens", || std::fs::exists(&file).unwrap());
    let address = std::fs::read_to_string(&file).unwrap();
    (controller, address)
}

/// Starts this test binary again in another role. The process ends when its standard input is
/// closed.
pub fn start_self(what: &str, variable: &str, value: &str) -> Child {
    start(Command::new(std::env::current_exe().unwrap()), what, variable, value)
}

/// Starts this test binary again in another role, inside a network namespace.
pub fn again_in(namespace: &str, what: &str, variable: &str, value: &str) -> Child {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(std::env::current_exe().unwrap());
    start(command, what, variable, value)
}

fn start(mut command: Command, what: &str, variable: &str, value: &str) -> Child {
    command.args([&format!("harness::{what}"), "--exact", "--nocapture", "--test-threads=1"]);
    command.env(variable, value);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// A process that is killed when this value is dropped.
pub struct Process(pub Child);

impl Process {
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Sends the process a signal, by its name.
    pub fn signal(&self, name: &str) {
        signal(self.0.id(), name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn signal(pid: u32, name: &str) {
    let kill = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().unwrap();
    assert!(kill.success(), "signal {name} to {pid}");
}

/// Whether a process with this id exists and has not ended. A zombie has ended.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    state.is_some_and(|state| state != "Z" && state != "X")
}

/// Returns the parent of a process.
pub fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Starts a worker process, and waits until it has joined.
pub fn start_worker(controller: &Controller, options: &[&str]) -> Process {
    start_worker_as(Command::new(std::env::current_exe().unwrap()), controller, options)
}

/// Starts a worker process with this command, and waits until it has joined.
pub fn start_worker_as(command: Command, controller: &Controller, options: &[&str]) -> Process {
    let words: Vec<&str> = std::iter::once(controller.address()).chain(options.to_vec()).collect();
    let worker = Process(start(command, "worker_process", "MARLINE_TEST_JOIN", &words.join(" ")));
    until("the worker has joined", || {
        controller.workers().iter().any(|known| known.info.pid == worker.id())
    });
    worker
}

/// Waits until the condition holds, for far longer than that takes on a busy machine.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "waited a minute: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn cluster() -> (Controller, Client) {
    let controller = Controller::listen("127.0.0.1:0").unwrap();
    let client = Client::connect(controller.address()).unwrap();
    (controller, client)
}

/// Starts a controller that at once fails work that no worker can run.
pub fn impatient_cluster() -> (Controller, Client) {
    let config = Config { unknown_task_wait: Duration::ZERO, ..Config::default() };
    let controller = Controller::builder().config(config).listen("127.0.0.1:0").unwrap();
    let client = Client::connect(controller.address()).unwrap();
    (controller, client)
}

/// Starts a controller whose sessions end after a second of silence.
pub fn quick_cluster() -> (Controller, Client) {
    let controller =
        Controller::builder().lease(Duration::from_secs(1)).listen("127.0.0.1:0").unwrap();
    let client = Client::connect(controller.address()).unwrap();
    (controller, client)
}
