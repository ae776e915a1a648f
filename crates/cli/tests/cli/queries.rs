//! The commands that look at a cluster, and those that cancel, kill and drain.

use crate::harness::{Home, until};
use marline_runtime::CommandLine;
use marline_runtime::control::Control;
use marline_runtime::core::resources::Resources;
use marline_runtime::core::spec::TaskOptions;
use serde_json::json;

#[test]
fn status_tasks_and_logs_say_why_a_task_waits() {
    let home = Home::new();
    let _up = home.up(&["--cpus", "1"]);
    let id = home.detach(&["--cpus", "100", "--", "true"]);
    home.until_task_is(&id, "pending");
    let status = home.json(&["status"]);
    assert_eq!(status["waiting"][0]["count"], 1, "{status}");
    let reason = status["waiting"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("no worker is large enough for cpu 100"), "{reason}");
    assert_eq!((&status["pending_tasks"], &status["total"]["cpu"]), (&json!(1), &json!(1.0)));
    let words = home.marline(&["status"]).succeeded();
    assert!(words.out().contains(&format!("waiting   1: {reason}")), "{words:?}");
    let tasks = home.marline(&["tasks", "--state", "pending"]).succeeded();
    assert!(tasks.out().contains("waits: no worker is large enough"), "{tasks:?}");
    let logs = home.marline(&["logs", &id]).succeeded();
    assert!(logs.stderr.contains("it has not started: no worker is large enough"), "{logs:?}");
    assert_eq!(logs.out(), "");
}

#[test]
fn run_says_why_its_command_waits() {
    let home = Home::new();
    let _up = home.up(&["--cpus", "1"]);
    let mut run = home.start(&["run", "--cpus", "100", "--", "true"]);
    let said = run.complaint();
    assert!(said.starts_with("waiting: no worker is large enough for cpu 100"), "{said}");
    run.signal("INT");
    assert_eq!(run.end().code, Some(130));
}

#[test]
fn lists_are_printed_as_tables_and_as_json() {
    let home = Home::new();
    let up = home.up(&["--cpus", "2", "--resource", "licence=3"]);
    let empty = home.marline(&["tasks"]).succeeded();
    assert_eq!(empty.out(), "no tasks: `marline run -- COMMAND` starts one\n");
    assert_eq!(home.json(&["tasks"]), json!({ "tasks": [], "more": false }));
    assert_eq!(home.json(&["actors"]), json!({ "actors": [], "more": false }));
    assert_eq!(home.marline(&["actors"]).succeeded().out(), "no actors\n");
    home.marline(&["run", "--", "true"]).succeeded();
    home.marline(&["run", "--name", "nightly", "--", "sh", "-c", "exit 9"]);
    let workers = home.json(&["workers"]);
    let worker = &workers["workers"][0];
    assert_eq!((&worker["pid"], &worker["state"]), (&json!(up.pid()), &json!("healthy")));
    assert_eq!(worker["total"]["custom"], json!({ "licence": 3.0 }));
    let tasks = home.json(&["tasks", "--limit", "1"]);
    assert_eq!((&tasks["more"], &tasks["tasks"][0]["state"]), (&json!(true), &json!("failed")));
    assert_eq!(tasks["tasks"][0]["name"], "command:nightly");
    assert_eq!(tasks["tasks"][0]["waits_for"], json!(null));
    let finished = home.json(&["tasks", "--state", "finished"]);
    assert_eq!(finished["tasks"][0]["name"], "command:true");
    let table = home.marline(&["tasks"]).succeeded();
    assert!(table.out().starts_with("TASK "), "{table:?}");
    assert!(table.out().contains("\"sh\" exited with status 9"), "{table:?}");
    assert!(home.marline(&["workers"]).succeeded().out().contains("2 CPU, 3 licence"));
    let status = home.json(&["status"]);
    assert_eq!(
        (&status["counters"]["finished"], &status["counters"]["failed"]),
        (&json!(1), &json!(1))
    );
}

#[test]
fn a_limit_out_of_range_is_rejected() {
    let home = Home::new();
    let _up = home.up(&[]);
    for command in ["tasks", "actors", "workers"] {
        for limit in ["0", "1001", "-1"] {
            let refused = home.marline(&[command, "--limit", limit]);
            assert_eq!(refused.code, Some(2), "{command} {limit}: {refused:?}");
            assert!(refused.stderr.contains("1..=1000"), "{refused:?}");
        }
        home.marline(&[command, "--limit", "1000"]).succeeded();
    }
}

#[test]
fn an_empty_list_names_the_states_it_was_filtered_by() {
    let home = Home::new();
    let _up = home.up(&[]);
    home.marline(&["run", "--", "true"]).succeeded();
    let none = |args: &[&str]| home.marline(args).succeeded().out().to_owned();
    assert_eq!(none(&["tasks", "--state", "running"]), "no running tasks\n");
    let two = none(&["tasks", "--state", "pending", "--state", "failed"]);
    assert_eq!(two, "no pending or failed tasks\n");
}

#[test]
fn cancel_ends_a_running_task() {
    let home = Home::new();
    let _up = home.up(&[]);
    let id = home.detach(&["--", "sleep", "600"]);
    home.until_task_is(&id, "running");
    let answer = home.json(&["cancel", &id]);
    assert_eq!(answer, json!({ "cancelled": [{ "task": id, "had_not_ended": true }] }));
    home.until_task_is(&id, "cancelled");
    let again = home.marline(&["cancel", &id]).succeeded();
    assert_eq!(again.out(), format!("task {id} had ended\n"));
}

#[test]
fn the_unique_beginning_of_an_id_stands_for_the_id() {
    let home = Home::new();
    let up = home.up(&["--cpus", "1"]);
    let id = home.detach(&["--", "sh", "-c", "echo mine; exec sleep 600"]);
    home.until_task_is(&id, "running");
    let others = [(); 2].map(|()| home.detach(&["--", "true"]));
    for short in [&id[..id.len() - 1], &id.replace('-', "").to_uppercase()[..31]] {
        assert_eq!(home.json(&["logs", short])["id"], *id, "{short}");
    }
    // The first eight digits change about once a minute. So of three ids in a row, two neighbours
    // share them.
    let ids = [&id, &others[0], &others[1]];
    let pair = ids.windows(2).find(|pair| pair[0][..8] == pair[1][..8]).unwrap();
    let several = home.marline(&["cancel", &pair[0][..8]]);
    assert_eq!(several.code, Some(2), "{several:?}");
    assert!(pair.iter().all(|id| several.stderr.contains(*id)), "{several:?}");
    assert_eq!(home.task(&id)["state"], "running");
    let cancelled = home.json(&["cancel", &id[..id.len() - 1]]);
    assert_eq!(cancelled["cancelled"][0]["task"], *id);
    for command in ["cancel", "logs", "drain"] {
        let none = home.marline(&[command, "00000000-0000-7"]);
        assert_eq!(none.code, Some(4), "{command}: {none:?}");
        let short = home.marline(&[command, "0000000"]);
        assert_eq!(short.code, Some(2), "{command}: {short:?}");
        assert!(short.stderr.contains("at least its first 8 characters"), "{short:?}");
    }
    let workers = home.json(&["workers"]);
    let worker = workers["workers"][0]["id"].as_str().unwrap();
    let drained = home.json(&["drain", "--no-wait", &worker[..20]]);
    assert_eq!(drained["worker"], worker);
    drop(up);
}

#[test]
fn a_task_older_than_a_whole_list_is_found_by_the_beginning_of_its_id() {
    let home = Home::new();
    let up = home.up(&["--cpus", "1"]);
    let id = home.detach(&["--cpus", "64", "--", "true"]);
    let token = std::fs::read_to_string(up.token_file()).unwrap();
    let control = Control::at(up.address(), Some(token.trim().into())).unwrap();
    let line = CommandLine { argv: vec!["true".into()], ..CommandLine::default() };
    let options = TaskOptions { resources: Resources::cpus(64), ..TaskOptions::default() };
    for _ in 0..1_000 {
        control.submit_command(&line, options.clone()).unwrap(); // As many as one list can have.
    }
    let cancelled = home.json(&["cancel", &id[..id.len() - 1]]);
    assert_eq!(cancelled["cancelled"][0]["task"], *id);
}

#[test]
fn logs_of_several_tasks_are_printed_one_after_another() {
    let home = Home::new();
    let _up = home.up(&[]);
    let ids = ["one", "two"].map(|word| {
        let id = home.detach(&["--", "echo", word]);
        home.until_task_is(&id, "finished");
        id
    });
    let [one, two] = &ids;
    let logs = home.marline(&["logs", one, two]).succeeded();
    assert_eq!(logs.out(), format!("==> {one} <==\none\n\n==> {two} <==\ntwo\n"));
    let logs = home.json(&["logs", two, one])["logs"].clone();
    assert_eq!((&logs[0]["id"], &logs[0]["stdout"]), (&json!(two), &json!("two\n")));
    assert_eq!((&logs[1]["id"], &logs[1]["stdout"]), (&json!(one), &json!("one\n")));
    let wrong = home.marline(&["logs", one, "nonsense"]);
    assert_eq!((wrong.code, wrong.out()), (Some(2), ""), "one wrong id prints nothing");
}

#[test]
fn unknown_ids_are_not_found_and_malformed_ids_are_rejected() {
    let home = Home::new();
    let _up = home.up(&[]);
    let unknown = "00000000-0000-7000-8000-000000000000";
    let unnamed = home.marline(&["kill", unknown]);
    assert_eq!(unnamed.code, Some(4), "{unnamed:?}");
    for command in ["cancel", "logs", "drain"] {
        let missing = home.marline(&["--json", command, unknown]);
        assert_eq!(missing.code, Some(4), "{command}: {missing:?}");
        assert_eq!(missing.error()["kind"], "NotFound");
        let nonsense = home.marline(&["--json", command, "nonsense"]);
        assert_eq!(nonsense.code, Some(2), "{command}: {nonsense:?}");
        assert_eq!(nonsense.error()["kind"], "Invalid");
    }
    let typo = home.marline(&["--json", "statsu"]);
    assert_eq!((typo.code, typo.error()["kind"].as_str()), (Some(2), Some("Invalid")));
}

#[test]
fn completions_are_generated_for_bash_zsh_and_fish() {
    let home = Home::new();
    for (shell, sign) in [
        ("bash", "complete -F _marline"),
        ("zsh", "#compdef marline"),
        ("fish", "complete -c marline"),
    ] {
        let script = home.marline(&["completions", shell]).succeeded();
        assert!(script.out().contains(sign), "{shell}");
        assert!(["drain", "kill"].iter().all(|name| script.out().contains(name)), "{shell}");
    }
}

#[test]
fn the_help_of_every_command_has_examples() {
    let home = Home::new();
    let commands = [
        "up",
        "controller",
        "worker",
        "run",
        "status",
        "tasks",
        "actors",
        "memory",
        "workers",
        "drain",
        "cancel",
        "kill",
        "logs",
        "token",
        "completions",
    ];
    for command in commands {
        let help = home.marline(&[command, "--help"]).succeeded();
        assert!(help.out().contains("Examples:\n  "), "{command}: {}", help.out());
    }
    assert!(home.marline(&["--help"]).succeeded().out().contains("Exit codes: 0 done"));
    let worker = home.marline(&["worker", "--help"]).succeeded();
    for part in ["runs commands, and tasks and actors in Python", "see marline::Worker"] {
        assert!(worker.out().contains(part), "{}", worker.out());
    }
}

#[test]
fn a_waiting_task_says_which_limit_its_worker_reached() {
    let home = Home::new();
    let _controller = home.start(&["controller", "--json", "--listen", "127.0.0.1:0"]).announced();
    // The worker has descriptors for a few executors only.
    let args = ["worker", "--cpus", "64", "--quiet", "--json"];
    let _worker = home.start_with_descriptors(80, &args).announced();
    for _ in 0..24 {
        home.detach(&["--", "sleep", "600"]);
    }
    until("a task says that descriptors are lacking", || {
        let tasks = home.json(&["tasks"]);
        let mut tasks = tasks["tasks"].as_array().unwrap().iter();
        tasks.any(|task| task["waits_for"].as_str().is_some_and(|why| why.contains("ulimit -n")))
    });
}
