//! The program that runs commands. A command runs as any other task: in an executor, with its
//! lease, its process group and its log. An executor runs one command and ends. Processes that the
//! command left running end with it, unless they left the process group (`setsid`).
//!
//! The function is `command:NAME`, with any name. Its one argument is a [`CommandLine`]. A command
//! that exits with 0 returns a [`CommandEnd`]. Any other end is a failure with a [`CommandEnd`] as
//! its payload.

use super::{Instance, Invocation, Program, Reply, context};
use crate::executor::process::{PIPE_BYTES, TURN_BYTES, signal_name};
use marline_channel::{CancelToken, oneshot};
use marline_core::error::{Error, Failure};
use marline_core::payload::Payload;
use marline_core::spec::COMMAND_SCHEME;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;

/// The name that a worker provides if it runs commands.
pub(crate) const PROVIDES: &str = "command:*";
/// The most bytes of a command's output that are part of its [`CommandEnd`], and the most of its
/// errors. The latest bytes stay.
pub const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// The same for a command that failed. Less, since it travels in an error; the log has the rest.
pub const MAX_FAILED_OUTPUT_BYTES: usize = 16 << 10;

/// A command to be run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CommandLine {
    /// The program, which is searched for as a shell does, and its arguments.
    pub argv: Vec<String>,
    /// Environment variables in addition to those of the worker.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The folder in which the command runs. `None` means the worker's own.
    #[serde(default)]
    pub cwd: Option<String>,
    /// The bytes of its standard input. `None` means empty.
    #[serde(default, with = "serde_bytes")]
    pub stdin: Option<Vec<u8>>,
    /// Its name in lists of tasks. `None` means the program's name.
    #[serde(skip)]
    pub name: Option<String>,
}

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CommandEnd {
    /// Its exit status, if it exited.
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// The latest [`MAX_OUTPUT_BYTES`] of its standard output.
    #[serde(with = "serde_bytes")]
    pub stdout: Vec<u8>,
    /// The latest [`MAX_OUTPUT_BYTES`] of its standard error.
    #[serde(with = "serde_bytes")]
    pub stderr: Vec<u8>,
    /// How many bytes of both are left out.
    pub left_out: u64,
    /// How many of the left-out bytes are from standard error.
    #[serde(default)]
    pub stderr_left_out: u64,
}

impl CommandLine {
    /// Returns the name of the function that runs the command: `command:` and the command's own
    /// name, or else the program's name without its folder.
    pub fn function(&self) -> String {
        let program = self.argv.first().map_or("", String::as_str);
        let program = program.rsplit('/').next().unwrap_or_default();
        let name = self.name.as_deref().unwrap_or(program);
        let name: String = name.chars().take(64).collect();
        format!("{COMMAND_SCHEME}:{name}")
    }

    /// Returns the arguments of the task that runs the command.
    pub fn encode(&self) -> Result<Payload, Error> {
        let bytes = rmp_serde::to_vec_named(&(self,));
        let bytes = bytes.map_err(|error| Error::invalid(format!("a command line: {error}")))?;
        Ok(Payload::message_pack(bytes))
    }

    fn decode(payload: &Payload) -> Result<CommandLine, Error> {
        let decoded = rmp_serde::from_slice::<(CommandLine,)>(&payload.inline);
        let (line,) = decoded.map_err(|error| {
            Error::invalid(format!(
                "the argument of a command must be a map with argv, and optionally env, cwd and stdin: {error}"
            ))
        })?;
        if line.argv.is_empty() {
            return Err(Error::invalid("a command has no program: argv is empty"));
        }
        Ok(line)
    }
}

impl CommandEnd {
    /// Decodes the payload of a task's result, or of its error.
    pub fn decode(payload: &Payload) -> Result<CommandEnd, Error> {
        rmp_serde::from_slice(&payload.inline)
            .map_err(|error| Error::invalid(format!("this is not the end of a command: {error}")))
    }

    fn encode(&self) -> Payload {
        let bytes = rmp_serde::to_vec_named(self).expect("a Vec has room");
        Payload::message_pack(bytes)
    }

    fn into_reply(mut self, program: &str) -> Result<Reply, Error> {
        if self.code == Some(0) {
            return Ok(Reply { values: vec![self.encode().into()], ..Reply::default() });
        }
        let words = match (self.code, self.signal) {
            (Some(code), _) => format!("{program:?} exited with status {code}"),
            (None, Some(signal)) => {
                format!("{program:?} was killed by signal {signal} ({})", signal_name(signal))
            }
            (None, None) => format!("{program:?} is gone"),
        };
        let cut = |output: &mut Vec<u8>| {
            let over = output.len().saturating_sub(MAX_FAILED_OUTPUT_BYTES);
            output.drain(..over);
            over as u64
        };
        let (stdout, stderr) = (cut(&mut self.stdout), cut(&mut self.stderr));
        self.left_out += stdout + stderr;
        self.stderr_left_out += stderr;
        let traceback = String::from_utf8_lossy(&self.stderr).into_owned();
        let payload = Some(self.encode());
        Err(Error::failed(
            words,
            Failure { class: "CommandFailed".into(), traceback, payload, bases: Vec::new() },
        ))
    }
}

/// See the [module](self).
pub(crate) struct Commands;

impl Program for Commands {
    fn provides(&self) -> Vec<String> {
        vec![PROVIDES.into()]
    }

    fn run(&self, invocation: &Invocation) -> Result<Reply, Error> {
        let line = CommandLine::decode(&invocation.args)?;
        let program = line.argv[0].clone();
        run(line)?.into_reply(&program)
    }

    fn construct(&self, invocation: &Invocation) -> Result<Arc<dyn Instance>, Error> {
        Err(Error::unsupported(format!("{:?} is a command, not an actor", &*invocation.name)))
    }
}

fn run(line: CommandLine) -> Result<CommandEnd, Error> {
    let cannot = |error: std::io::Error| {
        let program = &line.argv[0];
        let failure = Failure { class: "CommandFailed".into(), ..Failure::default() };
        let no_folder = line.cwd.as_deref().filter(|folder| !std::path::Path::new(folder).is_dir());
        let where_ = no_folder.map_or(String::new(), |folder| format!(" in {folder:?}"));
        Error::failed(format!("{program:?} could not be started{where_}: {error}"), failure)
    };
    let mut command = Command::new(&line.argv[0]);
    command.args(&line.argv[1..]).envs(&line.env).env_remove(super::child::VARIABLE);
    if let Some(folder) = &line.cwd {
        command.current_dir(folder);
    }
    let context = context().expect("it runs as a task");
    command.env("MARLINE_TASK", context.task.to_string());
    command.env("MARLINE_ATTEMPT", context.attempt.to_string());
    if !context.gpus.is_empty() {
        let gpus: Vec<String> = context.gpus.iter().map(u32::to_string).collect();
        command.env("CUDA_VISIBLE_DEVICES", gpus.join(","));
    }
    command.stdin(if line.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(cannot)?;
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let process = Arc::new(process.map_err(|errno| cannot(errno.into()))?);
    if let (Some(mut pipe), Some(input)) = (child.stdin.take(), line.stdin.clone()) {
        // A command may end without reading its input.
        thread::spawn(move || pipe.write_all(&input));
    }
    let _running = stop_when_asked(process.clone(), context.cancel);
    let mut stdout = Output::new(OwnedFd::from(child.stdout.take().expect("it is piped")));
    let mut stderr = Output::new(OwnedFd::from(child.stderr.take().expect("it is piped")));
    attend(&process, &mut stdout, &mut stderr);
    let status = child.wait().map_err(cannot)?;
    Ok(end(status, stdout, stderr))
}

/// Sends SIGTERM to the command when its task is cancelled, until the returned sender is dropped.
fn stop_when_asked(process: Arc<OwnedFd>, cancel: CancelToken) -> oneshot::Sender<()> {
    let (running, ended) = oneshot::oneshot::<()>();
    thread::spawn(move || {
        let mut ended = ended;
        let _ = ended.recv().cancel(&cancel).wait();
        if cancel.is_cancelled() {
            let _ = pidfd_send_signal(&*process, Signal::TERM);
        }
    });
    running
}

/// Reads the command's output until the command has ended. Does not wait for output of processes
/// that it started.
fn attend(process: &OwnedFd, stdout: &mut Output, stderr: &mut Output) {
    loop {
        let pipes = [&*stdout, &*stderr].into_iter().filter_map(|output| output.pipe.as_ref());
        let descriptors = std::iter::once(process).chain(pipes);
        let mut fds: Vec<PollFd<'_>> =
            descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
        let ended = match poll(&mut fds, None) {
            Ok(_) => !fds[0].revents().is_empty(),
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        };
        // The pipes do not block, so reading an empty one is harmless.
        let most = if ended { PIPE_BYTES } else { TURN_BYTES };
        stdout.read(most, &mut std::io::stdout());
        stderr.read(most, &mut std::io::stderr());
        if ended {
            return;
        }
    }
}

/// One of a command's output streams. The latest bytes are kept. All bytes go to the log.
struct Output {
    /// `None` after the end of the stream.
    pipe: Option<OwnedFd>,
    kept: VecDeque<u8>,
    left_out: u64,
}

impl Output {
    fn new(pipe: OwnedFd) -> Output {
        // If this fails, the pipe would be read until its end, which is safe.
        let _ = rustix::io::ioctl_fionbio(&pipe, true);
        Output { pipe: Some(pipe), kept: VecDeque::new(), left_out: 0 }
    }

    /// Reads what has arrived, up to about `most` bytes: the command may print faster than it is
    /// read.
    fn read(&mut self, most: usize, log: &mut impl Write) {
        let mut buffer = [0; 16 << 10];
        let mut count_read = 0;
        while let Some(pipe) = self.pipe.as_ref().filter(|_| count_read < most) {
            match rustix::io::read(pipe.as_fd(), &mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    count_read += count;
                    let _ = log.write_all(&buffer[..count]);
                    self.kept.extend(&buffer[..count]);
                    let over = self.kept.len().saturating_sub(MAX_OUTPUT_BYTES);
                    self.kept.drain(..over);
                    self.left_out += over as u64;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(_) => self.pipe = None,
            }
        }
        let _ = log.flush();
    }
}

fn end(status: ExitStatus, stdout: Output, stderr: Output) -> CommandEnd {
    CommandEnd {
        code: status.code(),
        signal: status.signal(),
        left_out: stdout.left_out + stderr.left_out,
        stderr_left_out: stderr.left_out,
        stdout: stdout.kept.into(),
        stderr: stderr.kept.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeWriter, Result};

    /// A log that prints everything into the pipe again.
    struct Echo(PipeWriter, usize);

    impl Write for Echo {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            self.1 += bytes.len();
            self.0.write(bytes)
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn one_turn_reads_a_bounded_amount_of_a_commands_output() {
        let (pipe, mut printer) = std::io::pipe().unwrap();
        printer.write_all(&[b'a'; 1024]).unwrap();
        let mut echo = Echo(printer, 0);
        Output::new(pipe.into()).read(TURN_BYTES, &mut echo);
        assert_eq!(echo.1, TURN_BYTES);
    }
}
