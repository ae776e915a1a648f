//! A user's own programs next to `marline up`: they find the cluster without an address.

use crate::harness::{Home, Running, until};
use marline::{Client, CommandLine, Program, Worker};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// The variable with the role of this test binary, when a test starts it again.
const ROLE: &str = "MARLINE_TEST_ROLE";

/// Starts this test binary again in this role, as a user's program.
fn start(home: &Home, role: &str) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "user_programs::a_users_program", "--nocapture"]);
    for (name, value) in home.command(&[]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env(ROLE, role);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::new(command)
}

#[test]
fn a_users_program() {
    let result = match std::env::var(ROLE).as_deref() {
        Ok("worker") => {
            Worker::of(program()).executor_test("user_programs::an_executor").run_local()
        }
        Ok("client") => use_the_cluster(),
        Ok("driver") => outlive_the_cluster(),
        Ok("caller") => call_an_actor(),
        Ok("maker") => leave_actors(),
        _ => return, // Run as a test of its own, it does nothing.
    };
    if let Err(error) = result {
        eprintln!("{:?}: {error}", error.kind());
        std::process::exit(1);
    }
}

/// Not a test: the entry point of the executors of the worker.
#[test]
fn an_executor() {
    marline::executor_main(program());
}

struct Counter(u64);

impl Counter {
    fn add(&mut self, n: u64) -> u64 {
        self.0 += n;
        self.0
    }
}

fn program() -> Program {
    Program::new()
        .task("double", |x: u64| x * 2)
        .actor("Counter", Counter, |counter| counter.method("add", Counter::add))
}

fn call_an_actor() -> Result<(), marline::Error> {
    let client = Client::local()?;
    let counter = client.actor("Counter").create((40_u64,))?;
    let sum: u64 = counter.call("add", (2_u64,))?.wait()?;
    println!("the sum is {sum}");
    Ok(())
}

/// Creates two actors that outlive this program: one with a name in a namespace, one without a
/// name.
fn leave_actors() -> Result<(), marline::Error> {
    let client = Client::local()?;
    let counter = || client.actor("Counter").detached();
    let named = counter().name("the one").namespace("mine").create((1_u64,))?;
    let other = counter().create((2_u64,))?;
    for (handle, expected) in [(&named, 1), (&other, 2)] {
        let sum: u64 = handle.call("add", (0_u64,))?.wait()?;
        assert_eq!(sum, expected);
    }
    Ok(())
}

fn use_the_cluster() -> Result<(), marline::Error> {
    work(&Client::local()?)
}

/// The file whose existence tells this program that the next cluster runs.
const NEXT: &str = "next";

/// Uses the cluster that runs on this machine, and with the same client the next cluster.
fn outlive_the_cluster() -> Result<(), marline::Error> {
    let client = Client::local()?;
    work(&client)?;
    let home = std::path::PathBuf::from(std::env::var_os("HOME").unwrap());
    until("the next cluster runs", || home.join(NEXT).exists());
    // Work that is submitted before the client has noticed the loss of the first cluster fails. So
    // the test tries again.
    until("the next cluster is joined", || work(&client).is_ok());
    Ok(())
}

fn work(client: &Client) -> Result<(), marline::Error> {
    let line = CommandLine { argv: vec!["echo".into(), "hello".into()], ..Default::default() };
    let hello = client.command(&line).submit()?.wait()?;
    let doubled: u64 = client.task("double").submit((21_u64,))?.wait()?;
    // Calls go directly to the worker, which accepts them with the cluster's token.
    let counter = client.actor("Counter").create((1_u64,))?;
    let counted: u64 = counter.call("add", (2_u64,))?.wait()?;
    println!("{} {doubled} {counted}", String::from_utf8_lossy(&hello.stdout).trim());
    Ok(())
}

fn until_two_workers(home: &Home) {
    until("the worker has joined", || {
        home.json(&["workers"])["workers"].as_array().unwrap().len() == 2
    });
}

#[test]
fn a_client_and_a_worker_join_the_local_cluster_without_an_address() {
    let home = Home::new();
    let _up = home.up(&[]);
    let worker = start(&home, "worker");
    until_two_workers(&home);
    let client = start(&home, "client").end().succeeded();
    assert!(client.out().contains("hello 42 3"), "{client:?}");
    worker.signal("TERM");
    worker.end().succeeded();
}

/// Checks that workers that joined the cluster of this machine join the next one, after the first
/// ended by `signal`.
fn workers_outlive_their_cluster(signal: &str) {
    let home = Home::new();
    let workers = || home.json(&["workers"])["workers"].as_array().unwrap().len();
    let up = home.up(&[]);
    let (own, shipped) = (start(&home, "worker"), home.start(&["worker", "--quiet"]));
    until("both have joined", || workers() == 3);
    let before = up.address().to_owned();
    up.signal(signal);
    up.end();
    let next = home.up(&[]);
    until("both have joined the next", || workers() == 3);
    let client = start(&home, "client").end().succeeded();
    assert!(client.out().contains("hello 42 3"), "{client:?}");
    let lost = format!("marline: lost the cluster at {before}, trying again\n");
    let back = format!("marline: joined the cluster at {} again\n", next.address());
    for worker in [own, shipped] {
        worker.signal("TERM");
        let ended = worker.end().succeeded();
        for words in [&lost, &back] {
            assert_eq!(ended.stderr.matches(words.as_str()).count(), 1, "{words}: {ended:?}");
        }
    }
}

#[test]
fn workers_join_the_next_cluster_when_theirs_was_killed() {
    workers_outlive_their_cluster("KILL");
}

#[test]
fn workers_join_the_next_cluster_when_theirs_has_ended() {
    workers_outlive_their_cluster("TERM");
}

/// Checks that a driver that found its cluster without an address finds the next one, which has
/// another port, another socket and another token.
fn a_driver_outlives_its_cluster(signal: &str) {
    let home = Home::new();
    let up = home.up(&[]);
    let _worker = start(&home, "worker");
    until_two_workers(&home);
    let mut driver = start(&home, "driver");
    while !driver.line().contains("hello 42 3") {}
    let before = up.announced.clone();
    up.signal(signal);
    up.end();
    let next = home.up(&[]);
    for name in ["address", "socket", "token_file"] {
        assert_ne!(next.announced[name], before[name], "{name}");
    }
    until_two_workers(&home);
    home.file(NEXT, "");
    let driver = driver.end().succeeded();
    assert!(driver.out().contains("hello 42 3"), "{driver:?}");
}

#[test]
fn a_driver_finds_the_next_cluster_when_its_own_was_killed() {
    a_driver_outlives_its_cluster("KILL");
}

#[test]
fn a_driver_finds_the_next_cluster_when_its_own_has_ended() {
    a_driver_outlives_its_cluster("TERM");
}

#[test]
fn calls_are_listed_with_the_class_of_their_actor() {
    let home = Home::new();
    let _up = home.up(&[]);
    let _worker = start(&home, "worker");
    until_two_workers(&home);
    start(&home, "caller").end().succeeded();
    until("the call is listed", || {
        home.marline(&["tasks"]).succeeded().out().contains("  Counter.add  finished ")
    });
    let call = home.json(&["tasks"])["tasks"][0].clone();
    assert_eq!((&call["name"], call["actor_id"].is_string()), (&"add".into(), true), "{call}");
}

/// Starts a cluster with two detached actors. Returns the id of the named one, and of the other.
fn with_actors(home: &Home) -> ([Running; 2], [String; 2]) {
    let running = [home.up(&[]), start(home, "worker")];
    until_two_workers(home);
    start(home, "maker").end().succeeded();
    let actors = home.json(&["actors"])["actors"].clone();
    let id = |is_named: bool| {
        let mut actors = actors.as_array().unwrap().iter();
        let actor = actors.find(|actor| actor["name"].is_string() == is_named).unwrap();
        assert_eq!(actor["state"], "ready", "{actor}");
        actor["id"].as_str().unwrap().to_owned()
    };
    (running, [id(true), id(false)])
}

fn actor(home: &Home, id: &str) -> Value {
    let actors = home.json(&["actors"])["actors"].clone();
    actors.as_array().unwrap().iter().find(|actor| actor["id"] == id).unwrap().clone()
}

fn hosted(home: &Home) -> u64 {
    let workers = home.json(&["workers"])["workers"].clone();
    workers.as_array().unwrap().iter().map(|worker| worker["actors"].as_u64().unwrap()).sum()
}

#[test]
fn detached_actors_are_killed_by_name_and_by_id() {
    let home = Home::new();
    let (_running, [named, other]) = with_actors(&home);
    let elsewhere = home.marline(&["--json", "kill", "the one"]);
    assert_eq!((elsewhere.code, elsewhere.error()["kind"].as_str()), (Some(4), Some("NotFound")));
    assert!(elsewhere.stderr.contains(r#"in namespace \"default\""#), "{elsewhere:?}");
    let killed = home.json(&["kill", "--namespace", "mine", "the one"]);
    assert_eq!(killed, json!({ "killed": [{ "actor": named, "had_not_ended": true }] }));
    assert_eq!(actor(&home, &named)["cause"], "deleted");
    assert_eq!(actor(&home, &other)["state"], "ready");
    let words = home.marline(&["kill", &other[..35], &named]).succeeded();
    assert_eq!(words.out(), format!("actor {other} was killed\nactor {named} had ended\n"));
    assert_eq!(actor(&home, &other)["cause"], "deleted");
    until("nothing of them is left", || hosted(&home) == 0);
}

#[test]
fn kill_kills_no_actor_if_one_of_them_is_not_found() {
    let home = Home::new();
    let (_running, [_, id]) = with_actors(&home);
    let unknown = "00000000-0000-7000-8000-000000000000";
    for missing in [unknown, &unknown[..20], "nobody"] {
        let refused = home.marline(&["--json", "kill", &id, missing]);
        assert_eq!(refused.code, Some(4), "{missing}: {refused:?}");
        assert_eq!(refused.error()["kind"], "NotFound");
    }
    assert_eq!(actor(&home, &id)["state"], "ready");
}

#[test]
fn cancel_of_an_actor_and_kill_of_a_task_suggest_the_right_command() {
    let home = Home::new();
    let (_running, [_, id]) = with_actors(&home);
    let expected = format!("{id} is an actor: `marline kill {id}` ends it");
    for text in [&id[..], &id[..35]] {
        let refused = home.marline(&["cancel", text]);
        assert_eq!(refused.code, Some(4), "{refused:?}");
        assert!(refused.stderr.contains(&expected), "{refused:?}");
    }
    let task = home.detach(&["--", "true"]);
    home.until_task_is(&task, "finished");
    let refused = home.marline(&["kill", &task]);
    assert_eq!(refused.code, Some(4), "{refused:?}");
    let expected = format!("{task} is a task: `marline cancel {task}` stops it");
    assert!(refused.stderr.contains(&expected), "{refused:?}");
}

#[test]
fn a_client_without_a_cluster_says_how_to_start_one() {
    let home = Home::new();
    for role in ["client", "worker"] {
        let ended = start(&home, role).end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let expected = "Unavailable: no cluster runs here: start one with `marline up`";
        assert!(ended.stderr.contains(expected), "{ended:?}");
    }
}

#[test]
fn a_client_fails_when_several_clusters_run() {
    let home = Home::new();
    let (one, two) = (home.up(&[]), home.up(&[]));
    let ended = start(&home, "client").end();
    assert!(ended.stderr.contains("Invalid: several clusters run here"), "{ended:?}");
    assert!([one, two].iter().all(|up| ended.stderr.contains(up.address())), "{ended:?}");
}
