//! A fork server: a process of another runtime (Python), warm and with one thread, whose forks are
//! executors. Starting an executor then costs a fork, not a start of the runtime.
//!
//! The messages are words, on a socket that keeps message boundaries:
//!
//! - `setup TEXT`, once: what the runtime needs to know, with the standard error to use from then
//!   on. The reply is `ready VERSION RUNTIME`: the versions of the package and of the runtime.
//! - `fork ID VARIABLE`, with the executor's standard input, output and error. The reply is `born
//!   ID PID` or `failed ID ERRNO`.
//! - `reap PID`: the process is dead, and its id is no longer needed. The reply is `dead PID
//!   STATUS`.
//!
//! The server waits for (reaps) a fork only when it receives `reap`. Until then no other process
//! can get the id of a dead executor. The server ends when its socket closes. If it dies, its forks
//! live on, and the next executor gets a new server.
//!
//! A worker can [check](ForkServerHandle::check) its server before it joins: it starts the server,
//! which it needs anyway, and waits until the server is ready. What a server prints before `ready`
//! goes to a file in memory. If the server dies, that text says why.

use marline_channel::oneshot;
use marline_core::error::Error;
use marline_core::map::Map;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketFlags, SocketType, recv, sendmsg, shutdown, socketpair,
};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::stdio::stderr;
use std::fs::File;
use std::io::{self, IoSlice, Read, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// How to start a fork server.
#[derive(Clone, Debug)]
pub struct ForkServerOptions {
    /// The scheme in the names of the functions that its forks run, such as `python`.
    pub runtime: String,
    /// The program to start.
    pub program: PathBuf,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// The text of the first message, at most 100 KiB.
    pub setup: String,
    /// The version of its package or language.
    pub version: ForkVersion,
}

/// The version of a fork server, before it starts.
#[derive(Clone, Copy, Debug)]
pub enum ForkVersion {
    /// Its package must have this version, or the worker does not start. The server reports the
    /// version of its language.
    Package(&'static str),
    /// Its language has this minor version (3.N of Python). Nothing is checked.
    Language(u32),
}

/// The longest message from a server, in bytes.
const MAX_WORDS: usize = 256;
/// The longest setup text, in bytes.
const MAX_SETUP_BYTES: usize = 100 << 10;
/// How long a server may take to be ready before its worker fails to start. Usually it takes a
/// tenth of a second, or some seconds if its package is on a slow disk.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How many of the last lines that a server printed are part of the error, and the most bytes of
/// them.
const LAST_LINES: usize = 5;
const LAST_BYTES: u64 = 2048;
/// The descriptors of a fork: standard input, output and error.
const DESCRIPTORS: usize = 3;

/// The worker's handle of its fork server. The server starts when it is first needed.
pub(crate) struct ForkServerHandle {
    how: ForkServerOptions,
    server: Mutex<Option<Arc<ForkServerProcess>>>,
}

struct ForkServerProcess {
    socket: OwnedFd,
    pid: Pid,
    asked: Mutex<PendingReplies>,
    has_forked: AtomicBool,
    /// Takes how the start went, until that is known.
    start: Mutex<Option<mpsc::Sender<Start>>>,
    /// The output of the server before it is ready.
    printed: File,
}

/// How the start of a server went.
enum Start {
    /// The server is ready. The versions are those of its package and of its runtime.
    Ready { package: String, runtime: String },
    /// The server ended instead.
    Ended(io::Result<ExitStatus>),
}

/// The callers that wait for a reply of the server.
#[derive(Default)]
struct PendingReplies {
    next: u64,
    births: Map<u64, oneshot::Sender<io::Result<Pid>>>,
    deaths: Map<i32, oneshot::Sender<ExitStatus>>,
    /// Whether the server is gone, so that no more replies will come.
    over: bool,
}

/// A forked executor that lives, or is dead and not reaped.
pub(super) struct Fork {
    pub pid: Pid,
    server: Arc<ForkServerProcess>,
}

impl ForkServerHandle {
    pub fn new(how: ForkServerOptions) -> ForkServerHandle {
        ForkServerHandle { how, server: Mutex::default() }
    }

    /// Returns whether the server's forks are executors of this runtime: the server's own runtime,
    /// or an environment of it (`python/1f0a`).
    pub fn serves(&self, runtime: &str) -> bool {
        let rest = runtime.strip_prefix(&self.how.runtime);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// If the worker requires a working server, starts it and waits until it is ready. Returns the
    /// minor version of the server's language (0 if unknown), or why the worker cannot start.
    pub fn check(&self) -> Result<u32, Error> {
        match self.how.version {
            ForkVersion::Package(version) => self.check_within(version, START_PATIENCE),
            ForkVersion::Language(minor) => Ok(minor),
        }
    }

    fn check_within(&self, version: &str, patience: Duration) -> Result<u32, Error> {
        let program = self.how.program.display();
        let runtime = &self.how.runtime;
        let advice = format!(
            "install the package there (`{program} -m pip install marline=={version}`), or name another program \
             with --{runtime}"
        );
        let (server, started) = ForkServerProcess::start(&self.how).map_err(|error| {
            Error::unsupported(format!(
                "{program}, which runs the tasks in {runtime}, cannot be started: {error}; name another program with \
                 --{runtime}"
            ))
        })?;
        let why = match started.recv_timeout(patience) {
            Ok(Start::Ready { package, runtime }) if package == version => {
                *self.server.lock().expect("nothing panics under it") = Some(server);
                return Ok(minor(&runtime));
            }
            Ok(Start::Ready { package, runtime: its }) => {
                let _ = shutdown(&server.socket, Shutdown::Both);
                return Err(Error::incompatible(format!(
                    "{program} ({runtime} {its}) has marline {package}, and this worker is {version}: {advice}"
                )));
            }
            Ok(Start::Ended(Ok(status))) => format!("it ended at its start ({status})"),
            Ok(Start::Ended(Err(error))) => format!("it ended at its start ({error})"),
            Err(_) => {
                let _ = kill_process_group(server.pid, Signal::KILL);
                format!("it was not ready within {patience:?}")
            }
        };
        let printed = match server.last_lines() {
            lines if lines.is_empty() => "; ".to_owned(),
            lines => format!("; the last lines that it printed:\n{lines}\n"),
        };
        Err(Error::unsupported(format!(
            "{program} cannot run tasks in {runtime}: {why}{printed}{advice}"
        )))
    }

    /// Forks an executor.
    pub(super) async fn fork(
        &self,
        variable: &str,
        descriptors: [BorrowedFd<'_>; DESCRIPTORS],
    ) -> io::Result<Fork> {
        let server = self.server()?;
        let (sender, receiver) = oneshot();
        let id = {
            let mut asked = server.asked.lock().expect("nothing panics under it");
            if asked.over {
                return Err(server.server_gone_error());
            }
            asked.next += 1;
            let id = asked.next;
            asked.births.insert(id, sender);
            id
        };
        server
            .say(&format!("fork {id} {variable}"), &descriptors)
            .map_err(|_| server.server_gone_error())?;
        let pid = receiver.await.map_err(|_| server.server_gone_error())??;
        Ok(Fork { pid, server })
    }

    /// Ends the server. Its forks live on. If the server was killed, starts another for a moment,
    /// which removes what the killed server left.
    pub fn close(&self) {
        let last = self.server.lock().expect("nothing panics under it").take();
        let server = last.and_then(|last| match last.was_killed() {
            true => ForkServerProcess::start(&self.how).ok().map(|(server, _)| server),
            false => Some(last),
        });
        if let Some(server) = server {
            let _ = shutdown(&server.socket, Shutdown::Both);
        }
    }

    /// Returns the running server, or starts a new one.
    fn server(&self) -> io::Result<Arc<ForkServerProcess>> {
        let mut server = self.server.lock().expect("nothing panics under it");
        if let Some(server) = &*server
            && !server.asked.lock().expect("nothing panics under it").over
        {
            return Ok(server.clone());
        }
        let (new, _) = ForkServerProcess::start(&self.how)?;
        *server = Some(new.clone());
        Ok(new)
    }
}

impl ForkServerProcess {
    /// Returns whether the server is gone although it was able to fork.
    fn was_killed(&self) -> bool {
        let over = self.asked.lock().expect("nothing panics under it").over;
        over && self.has_forked.load(Ordering::Relaxed)
    }

    /// Returns the error for a server that does not reply. If it has ever forked, it was killed,
    /// and a new server will work. The server may have forked before it died, so the same request
    /// is not repeated at the new server.
    fn server_gone_error(&self) -> io::Error {
        let kind = match self.has_forked.load(Ordering::Relaxed) {
            true => io::ErrorKind::ConnectionReset,
            false => io::ErrorKind::BrokenPipe,
        };
        io::Error::new(kind, "the process that forks executors is gone")
    }

    /// Starts a server. Also returns a receiver of how the start went.
    fn start(
        how: &ForkServerOptions,
    ) -> io::Result<(Arc<ForkServerProcess>, mpsc::Receiver<Start>)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let printed = File::from(memfd_create("marline-forks", MemfdFlags::CLOEXEC)?);
        let mut command = Command::new(&how.program);
        // The server has a process group of its own, so that an interrupt at the terminal reaches
        // only the worker, even while the server starts.
        command.args(&how.args).stdin(Stdio::from(theirs)).process_group(0);
        command.stderr(Stdio::from(printed.try_clone()?));
        let child = command.spawn()?;
        drop(command);
        let (tell, started) = mpsc::channel();
        let server = ForkServerProcess {
            socket: ours,
            pid: Pid::from_child(&child),
            asked: Mutex::default(),
            has_forked: false.into(),
            start: Mutex::new(Some(tell)),
            printed,
        };
        let server = Arc::new(server);
        let setup = &how.setup[..how.setup.len().min(MAX_SETUP_BYTES)];
        let setup = format!("setup {setup}");
        // If the server has died, the listener notices next. The second try is for a process whose
        // standard error is closed.
        let _ = server.say(&setup, &[stderr()]).or_else(|_| server.say(&setup, &[]));
        let output_reader = server.clone();
        let listen = move || output_reader.listen(child);
        thread::Builder::new().name("marline-forks".into()).spawn(listen)?;
        Ok((server, started))
    }

    /// Reports how the start went, if that was not reported yet. Returns whether a receiver took
    /// it.
    fn tell_start(&self, start: Start) -> bool {
        let tell = self.start.lock().expect("nothing panics under it").take();
        tell.is_some_and(|tell| tell.send(start).is_ok())
    }

    /// Forwards the output of the server's start to standard error.
    fn pass_on_printed(&self) {
        let mut text = Vec::new();
        if (&self.printed).rewind().is_ok() && (&self.printed).read_to_end(&mut text).is_ok() {
            let _ = io::stderr().write_all(&text); // It may be closed.
        }
    }

    /// Returns the last lines of the output of the server's start.
    fn last_lines(&self) -> String {
        let mut text = Vec::new();
        let bytes = self.printed.metadata().map_or(0, |file| file.len());
        let from = SeekFrom::Start(bytes.saturating_sub(LAST_BYTES));
        if (&self.printed).seek(from).is_ok() {
            let _ = (&self.printed).read_to_end(&mut text);
        }
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }

    fn say(&self, words: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let words = [IoSlice::new(words.as_bytes())];
        sendmsg(&self.socket, &words, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Handles the messages of the server until it is gone.
    fn listen(&self, mut child: Child) {
        let mut buffer = [0; MAX_WORDS];
        loop {
            match recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((0, _)) => break,
                Ok((count, _)) => {
                    let words = std::str::from_utf8(&buffer[..count]).unwrap_or_default();
                    self.heard(words);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
        }
        // Dropped outside the lock: this tells the callers that no reply will come.
        let waiting = {
            let mut asked = self.asked.lock().expect("nothing panics under it");
            std::mem::replace(
                &mut *asked,
                PendingReplies { over: true, ..PendingReplies::default() },
            )
        };
        drop(waiting);
        // The server has ended, or ends now that its socket is closed.
        let status = child.wait();
        let has_started = self.start.lock().expect("nothing panics under it").is_none();
        if !has_started && !self.tell_start(Start::Ended(status)) {
            self.pass_on_printed();
        }
    }

    fn heard(&self, words: &str) {
        let mut parts = words.split(' ');
        let kind = parts.next().unwrap_or_default();
        let (first, second) = (parts.next(), parts.next());
        if let ("ready", Some(package), Some(runtime)) = (kind, first, second) {
            self.pass_on_printed();
            self.tell_start(Start::Ready { package: package.into(), runtime: runtime.into() });
            return;
        }
        let (Some(first), Some(second)) = (number(first), number(second)) else { return };
        let mut asked = self.asked.lock().expect("nothing panics under it");
        match kind {
            "born" | "failed" => {
                self.has_forked.fetch_or(kind == "born", Ordering::Relaxed);
                let waiter = asked.births.remove(&(first as u64));
                drop(asked);
                let pid = Pid::from_raw(second as i32).filter(|_| kind == "born");
                let launched = pid.ok_or_else(|| io::Error::from_raw_os_error(second as i32));
                if let Some(waiter) = waiter {
                    let _ = waiter.send(launched);
                }
            }
            "dead" => {
                let waiter = asked.deaths.remove(&(first as i32));
                drop(asked);
                if let Some(waiter) = waiter {
                    let _ = waiter.send(ExitStatus::from_raw(second as i32));
                }
            }
            _ => {} // A message of a later version.
        }
    }
}

/// Returns the second number of a version: 11 of 3.11.7.
fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or(0)
}

fn number(word: Option<&str>) -> Option<i64> {
    word?.parse().ok()
}

impl Fork {
    /// Has the server reap this fork, which is dead. Returns its exit status, if it is known.
    pub async fn reap(self) -> Option<ExitStatus> {
        let (sender, receiver) = oneshot();
        let number = self.pid.as_raw_nonzero().get();
        {
            let mut asked = self.server.asked.lock().expect("nothing panics under it");
            if asked.over {
                return None;
            }
            asked.deaths.insert(number, sender);
        }
        self.server.say(&format!("reap {number}"), &[]).ok()?;
        receiver.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_fork_server_is_dropped_and_its_stderr_is_in_the_error() {
        let how = ForkServerOptions {
            runtime: "python".into(),
            program: "/bin/sh".into(),
            args: vec!["-c".into(), "echo it hangs >&2; exec sleep 1000".into()],
            setup: String::new(),
            version: ForkVersion::Package("1"),
        };
        let forks = ForkServerHandle::new(how);
        let error = forks.check_within("1", Duration::from_millis(500)).unwrap_err();
        let words = error.message();
        assert!(words.starts_with("/bin/sh cannot run tasks in python"), "{words}");
        assert!(words.contains("not ready within 500ms"), "{words}");
        assert!(words.contains("it hangs"), "{words}");
        assert!(forks.server.lock().unwrap().is_none());
    }
}
