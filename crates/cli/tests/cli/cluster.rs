//! How clusters start and end: asked to, killed, with a closed terminal, with other workers.

use crate::harness::{Home, Running, is_alive, pid_in, until};

fn worker(home: &Home, args: &[&str]) -> Running {
    let mut all = vec!["worker", "--json", "--quiet"];
    all.extend(args);
    home.start(&all).announced()
}

#[test]
fn up_prints_its_address_and_the_next_commands() {
    let home = Home::new();
    let mut up = home.start(&["up", "--listen", "127.0.0.1:0"]);
    let mut text = String::new();
    while !text.contains("Ctrl-C ends it.") {
        let line = up.line();
        assert!(!line.is_empty(), "it ended: {text}");
        text += &line;
    }
    for part in
        ["address  127.0.0.1:", ".token (only you can read it)", "marline run -- echo hello"]
    {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let (_, port) = text.split_once("address  127.0.0.1:").unwrap();
    let port = port.lines().next().unwrap();
    let elsewhere = format!("can be reached with --listen 0.0.0.0:{port}\n");
    assert!(text.contains(&elsewhere), "{elsewhere:?} is not in {text}");
}

#[test]
fn up_on_a_socket_suggests_the_default_port_for_other_machines() {
    let home = Home::new();
    let socket = format!("unix:{}", home.path().join("run/up.sock").display());
    let mut up = home.start(&["up", "--listen", &socket]);
    let mut line = up.line();
    while !line.is_empty() && !line.starts_with("from other machines") {
        line = up.line();
    }
    assert!(line.ends_with("--listen 0.0.0.0:7420\n"), "{line:?}");
}

#[test]
fn up_finishes_running_tasks_on_sigterm_and_leaves_no_files() {
    let home = Home::new();
    let up = home.up(&[]);
    let gate = home.path().join("gate");
    let script =
        format!("echo began; until [ -e {} ]; do sleep 0.01; done; echo done", gate.display());
    let mut run = home.start(&["run", "--", "sh", "-c", &script]);
    assert_eq!(run.line(), "began\n");
    up.signal("TERM");
    until("it drains", || home.json(&["workers"])["workers"][0]["state"] == "draining");
    std::fs::write(&gate, "").unwrap();
    assert_eq!(run.end().succeeded().out(), "done\n");
    assert_eq!(up.end().code, Some(0));
    assert_eq!(home.runtime_files(), Vec::<String>::new());
}

/// Checks that a process of this role that is asked to end also lets other workers finish their
/// work.
fn other_workers_finish(role: &str) {
    let home = Home::new();
    let mut args = vec![role, "--json", "--listen", "127.0.0.1:0"];
    args.extend((role == "up").then_some("--quiet"));
    let up = home.start(&args).announced();
    let other = worker(&home, &["--resource", "licence=1"]);
    let gate = home.path().join("gate");
    let script =
        format!("echo began; until [ -e {} ]; do sleep 0.01; done; echo done", gate.display());
    let mut run = home.start(&["run", "--resource", "licence=1", "--", "sh", "-c", &script]);
    assert_eq!(run.line(), "began\n");
    up.signal("TERM");
    let draining = || {
        let workers = home.json(&["workers"]);
        let mut workers = workers["workers"].as_array().unwrap().iter();
        workers.all(|worker| worker["state"] == "draining")
    };
    until("all drain", draining);
    let late = home.marline(&["--json", "run", "--", "true"]);
    assert_eq!(late.code, Some(125), "{late:?}");
    assert!(late.out().contains("shutting down, and takes no new work"), "{late:?}");
    std::fs::write(&gate, "").unwrap();
    assert_eq!(run.end().succeeded().out(), "done\n");
    assert_eq!(up.end().code, Some(0));
    assert!(is_alive(other.pid()), "it waits for the next cluster");
    other.signal("TERM");
    other.end().succeeded();
    assert_eq!(home.runtime_files(), Vec::<String>::new());
}

#[test]
fn up_lets_other_workers_finish_their_tasks_on_sigterm() {
    other_workers_finish("up");
}

#[test]
fn a_controller_lets_its_workers_finish_their_tasks_on_sigterm() {
    other_workers_finish("controller");
}

#[test]
fn up_waits_for_other_workers_no_longer_than_its_grace() {
    let home = Home::new();
    let up = home.up(&["--grace", "50ms"]);
    let _other = worker(&home, &["--resource", "licence=1"]);
    let mut run =
        home.start(&["run", "--resource", "licence=1", "--", "sh", "-c", "echo $$; sleep 600"]);
    let command: u32 = run.line().trim().parse().unwrap();
    up.signal("TERM");
    assert_eq!(up.end().code, Some(0));
    until("the command is gone", || !is_alive(command));
    assert_eq!(run.end().code, Some(125));
}

#[test]
fn up_ends_at_once_on_a_second_sigint_and_leaves_no_files() {
    let home = Home::new();
    let up = home.up(&[]);
    let mut run = home.start(&[
        "run",
        "--",
        "sh",
        "-c",
        "trap '' TERM; echo $$; while :; do sleep 600; done",
    ]);
    let command: u32 = run.line().trim().parse().unwrap();
    up.signal("INT");
    until("it drains", || home.json(&["workers"])["workers"][0]["state"] == "draining");
    up.signal("INT");
    assert_eq!(up.end().code, Some(0));
    until("the command is gone", || !is_alive(command));
    assert_eq!(home.runtime_files(), Vec::<String>::new());
    assert_eq!(run.end().code, Some(125));
}

#[test]
fn up_ends_cleanly_on_sighup() {
    let home = Home::new();
    let up = home.up(&[]);
    up.signal("HUP");
    assert_eq!(up.end().code, Some(0));
    assert_eq!(home.runtime_files(), Vec::<String>::new());
}

#[test]
fn a_killed_up_takes_its_commands_along_and_status_removes_its_files() {
    let home = Home::new();
    let up = home.up(&[]);
    let file = home.path().join("pid");
    home.detach(&["--", "sh", "-c", &format!("echo $$ > {}; exec sleep 600", file.display())]);
    let command = pid_in(&file);
    let (address, pid) = (up.address().to_owned(), up.pid());
    up.signal("KILL");
    until("the command is gone", || !is_alive(command));
    drop(up);
    let status = home.marline(&["status"]);
    assert_eq!(status.code, Some(3));
    let said = format!("the one at {address} (process {pid}) was killed");
    assert!(status.stderr.contains(&said), "{status:?}");
    until("nothing is left", || {
        home.marline(&["status"]);
        home.runtime_files().is_empty()
    });
    let again = home.marline(&["--json", "status"]);
    assert_eq!((again.code, again.error()["kind"].as_str()), (Some(3), Some("Unavailable")));
}

#[test]
fn a_second_worker_joins_runs_a_task_and_is_drained() {
    let home = Home::new();
    let up = home.up(&["--cpus", "1"]);
    let socket = up.announced["socket"].as_str().unwrap();
    let at = ["--address", socket, "--token-file", up.token_file(), "--resource", "licence=1"];
    let worker = worker(&home, &at);
    let id = worker.announced["id"].as_str().unwrap();
    assert_eq!(home.json(&["workers"])["workers"].as_array().unwrap().len(), 2);
    let there = home.detach(&["--resource", "licence=1", "--", "echo", "from over there"]);
    home.until_task_is(&there, "finished");
    assert_eq!(home.task(&there)["worker_id"], id);
    assert_eq!(home.marline(&["logs", &there]).succeeded().out(), "from over there\n");
    let drained = home.json(&["drain", id]);
    assert_eq!(drained, serde_json::json!({ "worker": id, "left": true }));
    let ended = worker.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(home.json(&["workers"])["workers"].as_array().unwrap().len(), 1);
    let logs = home.marline(&["logs", &there]).succeeded();
    assert!(logs.stderr.contains("the worker that ran the task or actor is gone"), "{logs:?}");
}

#[test]
fn a_task_that_a_drained_worker_cannot_finish_runs_on_another() {
    let home = Home::new();
    let up = home.up(&["--cpus", "1"]);
    let workers = home.json(&["workers"]);
    let first = workers["workers"][0]["id"].as_str().unwrap();
    let file = home.path().join("attempts");
    let script = format!(
        "echo $MARLINE_ATTEMPT >> {}; [ $MARLINE_ATTEMPT = 2 ] || sleep 600",
        file.display()
    );
    let id = home.detach(&["--", "sh", "-c", &script]);
    until("it has begun", || std::fs::read_to_string(&file).is_ok_and(|text| text == "1\n"));
    home.marline(&["drain", first, "--grace", "10ms"]).succeeded();
    until("it waits", || {
        home.task(&id)["waits_for"] == "no worker is here: start one with `marline worker`"
    });
    let _worker = worker(&home, &[]);
    home.until_task_is(&id, "finished");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "1\n2\n");
    drop(up);
}

#[test]
fn a_controller_without_workers_waits_for_one_to_join() {
    let home = Home::new();
    let token = home.path().join("token").display().to_string();
    let args = ["controller", "--json", "--listen", "127.0.0.1:0", "--token-file", &token];
    let controller = home.start(&args).announced();
    assert_eq!(
        home.marline(&["workers"]).succeeded().out(),
        "no workers: start one with `marline worker`\n"
    );
    let _worker = worker(&home, &[]);
    home.marline(&["run", "--", "true"]).succeeded();
    controller.signal("TERM");
    assert_eq!(controller.end().code, Some(0));
    assert!(std::fs::exists(&token).unwrap(), "a token that was asked for is kept");
}

#[test]
fn status_needs_an_address_when_two_clusters_run() {
    let home = Home::new();
    let (one, other) = (home.up(&[]), home.up(&["--cpus", "1"]));
    let which = home.marline(&["status"]);
    assert_eq!(which.code, Some(2));
    assert!(which.stderr.contains(one.address()) && which.stderr.contains(other.address()));
    let status = home.json(&["status", "--address", other.address()]);
    assert_eq!(status["total"]["cpu"], 1.0, "its token is known here");
    let taken = home.marline(&["up", "--listen", one.address()]);
    assert_eq!(taken.code, Some(2), "{taken:?}");
    assert!(taken.stderr.contains("is another cluster running there?"), "{taken:?}");
    assert_eq!(home.json(&["status", "--address", one.address()])["pending_tasks"], 0);
}
