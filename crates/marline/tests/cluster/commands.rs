//! Commands that run as tasks.

use crate::harness::{cluster, impatient_cluster, is_alive, start_worker, until};
use marline::{Client, CommandEnd, CommandLine, Error, ErrorKind};

fn line(argv: &[&str]) -> CommandLine {
    CommandLine { argv: argv.iter().map(|word| (*word).to_owned()).collect(), ..Default::default() }
}

fn run(client: &Client, line: &CommandLine) -> Result<CommandEnd, Error> {
    client.command(line).submit()?.wait()
}

#[test]
fn a_command_returns_its_output_and_its_exit_status() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &["commands"]);
    let mut echo = line(&["sh", "-c", "echo $GREETING from $(pwd); echo oops >&2; cat"]);
    echo.env.insert("GREETING".into(), "hello".into());
    echo.cwd = Some("/".into());
    echo.stdin = Some(b"what was read".to_vec());
    let end = run(&client, &echo).unwrap();
    assert_eq!((end.code, end.signal), (Some(0), None));
    assert_eq!(String::from_utf8(end.stdout).unwrap(), "hello from /\nwhat was read");
    assert_eq!(String::from_utf8(end.stderr).unwrap(), "oops\n");
}

#[test]
fn the_error_of_a_failed_command_says_how_it_ended() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &["commands"]);
    let error = run(&client, &line(&["sh", "-c", "echo why >&2; exit 3"])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert!(error.message().contains("exited with status 3"), "{error}");
    let failure = error.failure().unwrap();
    assert_eq!((failure.class.as_str(), failure.traceback.as_str()), ("CommandFailed", "why\n"));
    let end = CommandEnd::decode(failure.payload.as_ref().unwrap()).unwrap();
    assert_eq!(end.code, Some(3));
    let error = run(&client, &line(&["sh", "-c", "kill -SEGV $$"])).unwrap_err();
    assert!(error.message().contains("signal 11 (SIGSEGV)"), "{error}");
    let error = run(&client, &line(&["/no/such/program"])).unwrap_err();
    assert!(error.message().contains("could not be started"), "{error}");
    assert_eq!(run(&client, &line(&[])).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn cancelling_a_command_kills_its_child_processes_too() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &["commands", "impatient"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids").display().to_string();
    // The command ignores SIGTERM, and so does its child.
    let script =
        format!("trap '' TERM; sleep 600 & echo $$ $! > {file}.new; mv {file}.new {file}; wait");
    let task = client.command(&line(&["sh", "-c", &script])).submit().unwrap();
    until("it runs", || std::fs::exists(&file).unwrap());
    let pids = std::fs::read_to_string(&file).unwrap();
    let pids: Vec<u32> = pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    task.cancel();
    assert_eq!(task.wait().unwrap_err().kind(), ErrorKind::Cancelled);
    until("all of it is gone", || !pids.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn a_command_that_ends_leaves_no_child_process_behind() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &["commands"]);
    let end = run(&client, &line(&["sh", "-c", "sleep 600 & echo $!"])).unwrap();
    let pid: u32 = String::from_utf8(end.stdout).unwrap().trim().parse().unwrap();
    until("what it left is gone", || !is_alive(pid));
}

#[test]
fn a_command_fails_when_no_worker_offers_commands() {
    let (controller, client) = impatient_cluster();
    let _worker = start_worker(&controller, &[]);
    let error = run(&client, &line(&["true"])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}
