//! The log of the runtime, and the dump of its last events.

use crate::harness::{ExitedProcess, Home, Running, until};
use serde_json::Value;

/// Runs one command on a cluster whose process has this log, and ends the cluster. Returns the
/// task's id, and how the cluster ended.
fn one_task(home: &Home, flags: &[&str]) -> (String, ExitedProcess) {
    let up = home.up(flags);
    let task = home.detach(&["--", "true"]);
    home.until_task_is(&task, "finished");
    up.signal("TERM");
    (task, up.end().succeeded())
}

#[test]
fn nothing_is_logged_by_default() {
    let (_, ended) = one_task(&Home::new(), &[]);
    assert_eq!(ended.stderr, "");
}

#[test]
fn the_debug_log_shows_the_steps_of_a_task_with_its_ids() {
    let home = Home::new();
    let (task, ended) = one_task(&home, &["--log", "debug", "--log-format", "json"]);
    let lines: Vec<Value> =
        ended.stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let of_task = lines.iter().filter(|line| line["task"] == *task);
    let of_task: Vec<_> = of_task.map(|line| (&line["target"], &line["message"])).collect();
    for (part, name) in [
        ("controller", "SubmitTask"),
        ("worker", "Assign"),
        ("controller", "Started"),
        ("worker", "TaskEnded"),
        ("controller", "Ended"),
    ] {
        let wanted = (Value::from(format!("marline::{part}")), Value::from(name));
        assert!(of_task.contains(&(&wanted.0, &wanted.1)), "{wanted:?} in {of_task:?}");
    }
    let assigned = lines.iter().find(|line| line["message"] == "Assign").unwrap();
    assert_eq!(assigned["attempt"], 1);
    assert_eq!(assigned["worker"], assigned["from"], "the message came on the worker's session");
    let started = lines.iter().find(|line| line["message"] == "an executor's process exists");
    assert!(started.is_some_and(|line| line["pid"].is_u64()), "{lines:?}");
    assert!(lines.iter().all(|line| line["level"] != "TRACE"), "pings and timers are trace");
}

#[test]
fn a_log_filter_sets_levels_by_part_from_a_flag_variable_or_file() {
    let home = Home::new();
    home.file(".config/marline/config.toml", "log = \"info\"\n");
    let (_, ended) = one_task(&home, &[]);
    assert!(ended.stderr.contains("INFO marline::controller: the controller listens"));
    assert!(!ended.stderr.contains("DEBUG"), "{}", ended.stderr);
    let (_, ended) = one_task(&home, &["--log", "off,executor=debug"]);
    let mut targets = ended.stderr.lines().map(|line| line.split_whitespace().nth(2).unwrap());
    assert!(targets.all(|target| target == "marline::executor:"), "{}", ended.stderr);
    assert!(ended.stderr.contains("an executor starts"), "{}", ended.stderr);
    let mut status = home.command(&["status"]);
    status.env("MARLINE_LOG", "net=loud");
    let ended = Running::new(status).end();
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("\"loud\" is not a log level; the levels are off"), "{ended:?}");
}

#[test]
fn a_killed_worker_and_a_rejected_connection_log_warnings() {
    let home = Home::new();
    let args = ["--json", "--log", "warn", "controller", "--listen", "127.0.0.1:0"];
    let mut controller = home.start(&args).announced();
    let worker = home.start(&["worker", "--cpus", "1", "--quiet", "--json"]).announced();
    worker.signal("KILL");
    until("the worker is gone", || home.json(&["status"])["workers"]["healthy"].is_null());
    let wrong = home.private_file("wrong", "not the token");
    let (address, file) = (controller.address().to_owned(), wrong.to_str().unwrap());
    let ended = home.marline(&["--address", &address, "--token-file", file, "status"]);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    for words in ["a session ended: its process died", "rejected a connection: the peer left"] {
        let line = controller.complaint();
        assert!(line.contains("WARN") && line.contains(words), "{line}");
    }
    controller.signal("TERM");
    controller.end().succeeded();
}

#[test]
fn sigusr1_writes_the_last_events_to_a_private_file() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let mut command = home.command(&["--json", "up", "--quiet", "--listen", "127.0.0.1:0"]);
    command.env("TMPDIR", home.path());
    let mut up = Running::new(command).announced();
    let task = home.detach(&["--", "true"]);
    home.until_task_is(&task, "finished");
    for number in 1..=2 {
        up.signal("USR1");
        let file = home.path().join(format!("marline-events-{}-{number}.txt", up.pid()));
        let said = up.complaint();
        assert!(said.ends_with(file.to_str().unwrap()), "{said}");
        let text = std::fs::read_to_string(&file).unwrap();
        for event in ["\ncontroller\n", "\nworker 0\n", &format!("SubmitTask task={task}")] {
            assert!(text.contains(event), "{event:?} in {text}");
        }
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    up.signal("TERM");
    up.end().succeeded();
}
