//! Starts the binary in a home of its own, and waits for what it does.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a test waits: far longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A user's machine: an empty home folder with an empty runtime folder in it.
pub struct Home {
    folder: TempDir,
}

impl Home {
    pub fn new() -> Home {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("run")).unwrap();
        Home { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file into the home folder, and returns its path.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Writes a file that only this user can read, as a token file must be, and returns its path.
    pub fn private_file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.file(name, content);
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Returns the names of the files in the runtime folder.
    pub fn runtime_files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path().join("run/marline")) else {
            return Vec::new();
        };
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Returns `marline` with these arguments, in this home and without variables of Marline.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marline"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MARLINE_") {
                command.env_remove(name);
            }
        }
        command.env("XDG_RUNTIME_DIR", self.path().join("run")).env("HOME", self.path());
        command.env_remove("XDG_CONFIG_HOME").args(args).current_dir(self.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `marline` to its end.
    pub fn marline(&self, args: &[&str]) -> ExitedProcess {
        Running::new(self.command(args)).end()
    }

    /// Runs `marline` to its end, with this standard input.
    pub fn marline_with_input(&self, args: &[&str], input: &[u8]) -> ExitedProcess {
        let mut command = self.command(args);
        command.stdin(Stdio::piped());
        let mut running = Running::new(command);
        running.child.stdin.take().unwrap().write_all(input).unwrap();
        running.end()
    }

    /// Runs `marline --json`, and returns its answer.
    pub fn json(&self, args: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(args);
        self.marline(&all).succeeded().json()
    }

    /// Starts `marline`.
    pub fn start(&self, args: &[&str]) -> Running {
        Running::new(self.command(args))
    }

    /// Starts `marline` with a limit to its open file descriptors.
    pub fn start_with_descriptors(&self, limit: u32, args: &[&str]) -> Running {
        let meant = self.command(args);
        let mut command = Command::new("sh");
        command.args(["-c", &format!(r#"ulimit -n {limit}; exec "$0" "$@""#)]);
        command.arg(meant.get_program()).args(meant.get_args()).current_dir(self.path());
        for (name, value) in meant.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::new(command)
    }

    /// Starts a cluster with one worker, and waits until it is up.
    pub fn up(&self, args: &[&str]) -> Running {
        let mut all = vec!["up", "--json", "--quiet", "--listen", "127.0.0.1:0"];
        all.extend(args);
        self.start(&all).announced()
    }

    /// Submits a command with `run --detach`, and returns its id.
    pub fn detach(&self, args: &[&str]) -> String {
        let mut all = vec!["run", "--detach"];
        all.extend(args);
        self.json(&all)["task"].as_str().unwrap().to_owned()
    }

    /// Returns a task as `marline tasks` lists it, or null.
    pub fn task(&self, id: &str) -> Value {
        let tasks = self.json(&["tasks"]);
        let mut tasks = tasks["tasks"].as_array().unwrap().iter();
        tasks.find(|task| task["id"] == id).unwrap_or(&Value::Null).clone()
    }

    pub fn until_task_is(&self, id: &str, state: &str) {
        until(&format!("task {id} is {state}"), || self.task(id)["state"] == state);
    }
}

/// How a process ended, and its output.
#[derive(Debug)]
pub struct ExitedProcess {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl ExitedProcess {
    pub fn succeeded(self) -> ExitedProcess {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    pub fn out(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the JSON error in the last line of standard error.
    pub fn error(&self) -> Value {
        let last = self.stderr.lines().last().unwrap_or_default();
        let error: Value =
            serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        error["error"].clone()
    }
}

/// A running process. It is killed when this value is dropped.
pub struct Running {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    /// The JSON that the process printed when it was ready.
    pub announced: Value,
}

impl Running {
    pub fn new(mut command: Command) -> Running {
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().map(BufReader::new);
        Running { child, stdout, announced: Value::Null }
    }

    /// Waits for the first line of standard output, which is JSON.
    pub fn announced(mut self) -> Running {
        let line = self.line();
        self.announced = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("{error}: {line:?} {}", self.complaints()));
        self
    }

    /// Reads the next line of standard output.
    pub fn line(&mut self) -> String {
        let stdout = self.stdout.as_mut().unwrap();
        if stdout.buffer().is_empty() {
            until_readable(stdout.get_ref(), "standard output");
        }
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line
    }

    /// Reads the next line of standard error.
    pub fn complaint(&mut self) -> String {
        let stderr = self.child.stderr.as_mut().unwrap();
        until_readable(&*stderr, "standard error");
        let mut bytes = Vec::new();
        let mut byte = [0];
        while stderr.read(&mut byte).unwrap() > 0 && byte != *b"\n" {
            bytes.extend(byte);
        }
        String::from_utf8(bytes).unwrap()
    }

    fn complaints(&mut self) -> String {
        let _ = self.child.kill();
        let mut text = String::new();
        let _ = self.child.stderr.take().unwrap().read_to_string(&mut text);
        text
    }

    pub fn address(&self) -> &str {
        self.announced["address"].as_str().unwrap()
    }

    pub fn token_file(&self) -> &str {
        self.announced["token_file"].as_str().unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Closes the reading end of its standard output.
    pub fn close_stdout(&mut self) {
        self.stdout = None;
    }

    /// Waits for the end of the process.
    pub fn end(mut self) -> ExitedProcess {
        let mut stderr = self.child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        let outputs = self.stdout.take().map(|mut stdout| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                stdout.read_to_end(&mut bytes).unwrap();
                bytes
            })
        });
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "the process does not end");
            std::thread::sleep(Duration::from_millis(1));
        };
        let stdout = outputs.map_or(Vec::new(), |outputs| outputs.join().unwrap());
        ExitedProcess { code: status.code(), stdout, stderr: errors.join().unwrap() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a pipe has bytes or is closed. Panics after [`PATIENCE`].
fn until_readable(pipe: &impl AsFd, name: &str) {
    let timeout = Timespec::try_from(PATIENCE).unwrap();
    let ready = poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout)).unwrap();
    assert!(ready > 0, "waited a minute for a line on {name}");
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

/// Waits until a file has a process id, and returns the id.
pub fn pid_in(file: &Path) -> u32 {
    until(&format!("{} has a number", file.display()), || {
        std::fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n'))
    });
    std::fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

/// Waits until the condition holds. Panics after [`PATIENCE`].
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited a minute: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
