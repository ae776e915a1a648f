//! Output that cannot be written is an error. Output that its reader does not want, as of `head`,
//! is none.

use crate::harness::{ExitedProcess, Home, Running};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::Stdio;

/// Runs `marline` with this standard output.
fn into(home: &Home, args: &[&str], stdout: impl Into<Stdio>) -> ExitedProcess {
    let mut command = home.command(args);
    command.stdout(stdout);
    Running::new(command).end()
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// Returns a pipe whose reader has gone.
fn unread() -> std::io::PipeWriter {
    std::io::pipe().unwrap().1
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let home = Home::new();
    let up = home.up(&["--cpus", "1"]);
    let id = home.detach(&["--", "echo", "hello"]);
    home.until_task_is(&id, "finished");
    let commands = [
        vec!["status"],
        vec!["--json", "status"],
        vec!["tasks"],
        vec!["actors"],
        vec!["workers"],
        vec!["cancel", &id],
        vec!["logs", &id],
        vec!["--json", "logs", &id],
        vec!["run", "--", "echo", "hello"],
        vec!["run", "--json", "--", "echo", "hello"],
        vec!["worker", "--quiet"],
        vec!["up", "--quiet", "--listen", "127.0.0.1:0"],
        vec!["token"],
        vec!["completions", "bash"],
        vec!["--help"],
        vec!["--version"],
    ];
    for args in commands {
        let lost = into(&home, &args, full());
        assert_eq!(lost.code, Some(1), "{args:?}: {lost:?}");
        assert!(lost.stderr.contains("cannot be written: No space left"), "{args:?}: {lost:?}");
    }
    drop(up);
}

#[test]
fn the_error_names_a_detached_task_whose_id_cannot_be_printed() {
    let home = Home::new();
    let _up = home.up(&[]);
    let lost = into(&home, &["run", "--detach", "--", "true"], full());
    assert_eq!(lost.code, Some(1), "{lost:?}");
    let tasks = home.json(&["tasks"]);
    let id = tasks["tasks"][0]["id"].as_str().unwrap();
    assert!(lost.stderr.contains(&format!("task {id} was submitted")), "{lost:?}");
}

#[test]
fn output_to_a_closed_pipe_prints_no_error() {
    let home = Home::new();
    let _up = home.up(&[]);
    let id = home.detach(&["--", "echo", "hello"]);
    home.until_task_is(&id, "finished");
    for args in [vec!["status"], vec!["run", "--detach", "--", "true"], vec!["--help"]] {
        let ended = into(&home, &args, unread());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{args:?}");
    }
    for args in [vec!["logs", &id], vec!["run", "--", "echo", "hello"]] {
        let ended = into(&home, &args, unread());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(141), ""), "{args:?}");
    }
}

/// Runs `marline` with a terminal as its standard output, and returns what the terminal got.
fn on_a_terminal(home: &Home, args: &[&str]) -> String {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let terminal = openpt(flags).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let inside = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let inside: OwnedFd = inside.into();
    into(home, args, inside).succeeded();
    // No process has the other end open any more, so reading fails after the last byte that was
    // written.
    let (mut sent, mut terminal) = (Vec::new(), File::from(terminal));
    let _ = terminal.read_to_end(&mut sent);
    String::from_utf8(sent).unwrap()
}

#[test]
fn command_output_is_filtered_only_on_a_terminal() {
    let home = Home::new();
    let _up = home.up(&[]);
    let printed = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2Jend\n";
    let print = ["--", "printf", "%s", printed];
    let id = home.detach(&print);
    home.until_task_is(&id, "finished");
    let run = ["run"].iter().chain(&print).copied().collect::<Vec<_>>();
    for args in [&["logs", &id][..], &run] {
        assert_eq!(home.marline(args).succeeded().out(), printed, "{args:?}");
        assert_eq!(on_a_terminal(&home, args), "\x1b[31mred\x1b[0m end\r\n", "{args:?}");
    }
    assert_eq!(home.json(&["logs", &id])["stdout"], printed);
}

#[test]
fn control_characters_in_names_and_errors_are_escaped() {
    let home = Home::new();
    let _up = home.up(&[]);
    let evil = "/no/such\x1b]0;title\x07\u{202e}program";
    let shown = r"such\x1b]0;title\x07\u{202e}program";
    assert_eq!(home.marline(&["run", "--", evil]).code, Some(125));
    let tasks = home.marline(&["tasks"]).succeeded();
    assert!(tasks.out().contains(shown) && !tasks.out().contains('\x1b'), "{tasks:?}");
    let failed = home.marline(&["--token-file", evil, "status"]);
    assert!(failed.stderr.contains(shown) && !failed.stderr.contains('\x1b'), "{failed:?}");
}
