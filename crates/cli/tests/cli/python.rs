//! A worker whose Python cannot run tasks does not start. Its error names the Python, the reason
//! and the next step.

use crate::harness::{ExitedProcess, Home};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Starts a worker with this Python at a cluster without other workers, and returns how the worker
/// ended.
fn worker_with(home: &Home, python: &Path) -> ExitedProcess {
    let controller = home.start(&["controller", "--json", "--listen", "127.0.0.1:0"]).announced();
    let (address, python) = (controller.address().to_owned(), python.to_str().unwrap());
    let words = ["--json", "--address", &address, "worker", "--quiet", "--python", python];
    let ended = home.marline(&words);
    let workers = home.json(&["--address", &address, "workers"]);
    assert_eq!(workers["workers"].as_array().map(Vec::len), Some(0), "it never joined: {workers}");
    ended
}

fn message(ended: &ExitedProcess, kind: &str) -> String {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.error()["kind"], kind, "{ended:?}");
    ended.error()["message"].as_str().unwrap().to_owned()
}

/// Writes an executable script, and returns its path.
fn program(home: &Home, text: &str) -> std::path::PathBuf {
    let path = home.file("bin/python", text);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_worker_whose_python_is_missing_does_not_join() {
    let home = Home::new();
    let ended = worker_with(&home, Path::new("/nonexistent/python"));
    let message = message(&ended, "Unsupported");
    assert!(message.contains("/nonexistent/python"), "{message}");
    assert!(message.contains("No such file or directory"), "{message}");
    assert!(message.contains("--python"), "{message}");
}

#[test]
fn up_does_not_start_when_its_python_is_missing() {
    let home = Home::new();
    let words = ["--json", "up", "--listen", "127.0.0.1:0", "--python", "/nonexistent/python"];
    let message = message(&home.marline(&words), "Unsupported");
    assert!(message.contains("/nonexistent/python"), "{message}");
    assert!(
        !home.runtime_files().iter().any(|name| name.ends_with(".cluster")),
        "{:?}",
        home.runtime_files()
    );
}

#[test]
fn a_python_without_the_package_is_rejected_with_its_output() {
    let home = Home::new();
    let venv = home.path().join("venv");
    let mut made = Command::new("python3");
    made.args(["-m", "venv", "--without-pip"]).arg(&venv);
    assert!(made.status().unwrap().success());
    let ended = worker_with(&home, &venv.join("bin/python"));
    let message = message(&ended, "Unsupported");
    assert!(message.contains(venv.to_str().unwrap()), "{message}");
    assert!(message.contains("No module named 'marline'"), "{message}");
    assert!(message.contains("-m pip install marline=="), "{message}");
    assert!(message.contains("--python"), "{message}");
    assert_eq!(ended.stderr.matches("No module named 'marline'").count(), 1, "once: {ended:?}");
}

#[test]
fn a_package_of_another_version_is_rejected() {
    let home = Home::new();
    let python = program(
        &home,
        "#!/usr/bin/env python3\n\
         import socket\n\
         worker = socket.socket(fileno=0)\n\
         assert worker.recv(100_000).startswith(b'setup ')\n\
         worker.send(b'ready 9.9.9 3.11.0')\n\
         worker.recv(1)\n",
    );
    let message = message(&worker_with(&home, &python), "Incompatible");
    assert!(message.contains("(python 3.11.0) has marline 9.9.9"), "{message}");
    assert!(message.contains(env!("CARGO_PKG_VERSION")), "{message}");
}

#[test]
fn an_error_shows_only_the_last_lines_of_a_programs_output() {
    let home = Home::new();
    let python = program(&home, "#!/bin/sh\nseq 1 100000 >&2\nexit 7\n");
    let message = message(&worker_with(&home, &python), "Unsupported");
    assert!(message.contains("exit status: 7"), "{message}");
    assert!(message.contains(":\n99996\n99997\n99998\n99999\n100000\n"), "{message}");

    let python = program(&home, "#!/bin/sh\nhead -c 1000000 /dev/zero | tr '\\0' x >&2\nexit 7\n");
    let message = self::message(&worker_with(&home, &python), "Unsupported");
    assert!(message.contains("xxx") && message.len() < 4_000, "{} bytes", message.len());
}
