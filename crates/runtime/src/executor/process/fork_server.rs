//! A fork server: a process of another runtime (Python), warm and with one thread, whose forks are
//! executors. Starting one costs a fork, not a start of the runtime.
//!
//! What is said goes over a socket that keeps messages apart, as words:
//!
//! | to the server | from it |
//! |---|---|
//! | `setup TEXT`, once: what the runtime needs to know, with its standard error from then on | `ready VERSION RUNTIME`: the version of its package, and of the runtime |
//! | `fork ID VARIABLE`, with the executor's standard input, output and error | `born ID PID` or `failed ID ERRNO` |
//! | `reap PID`: it is dead, and nobody needs its number any more | `dead PID STATUS` |
//!
//! The server waits for a fork only when it is told to: until then the number of a dead executor is nobody
//! else's. It ends when its socket does. If it dies, its forks live on; the next executor gets another.
//!
//! A worker that is told to [checks](Forks::check) its server before it joins: it starts the server, which it needs
//! anyway, and waits until that is ready. What a server prints before it is set up goes to a file in memory: if the
//! server dies, that says why.

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

/// How a fork server is started.
#[derive(Clone, Debug)]
pub struct ForkServerOptions {
    /// The scheme of the names of what its forks run, such as `python`.
    pub runtime: String,
    /// The program, and what it is started with.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// What it is told first; at most 100 KiB.
    pub setup: String,
    /// Its version.
    pub version: ForkVersion,
}

/// What is known of a fork server's version before it starts.
#[derive(Clone, Copy, Debug)]
pub enum ForkVersion {
    /// Its package must have this version for a worker to start. The server says which version its language has.
    Package(&'static str),
    /// Its language has this minor version (3.N of Python). Nothing is checked.
    Language(u32),
}

/// The longest word from a server.
const MAX_WORDS: usize = 256;
/// The longest message to one.
const MAX_SETUP_BYTES: usize = 100 << 10;
/// A server must be ready within this time for its worker to start. It takes a tenth of a second, or some seconds where
/// its package comes from a slow disk.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// So many of the last lines that a server printed are part of the error, and so many bytes of them.
const LAST_LINES: usize = 5;
const LAST_BYTES: u64 = 2048;
/// An executor's standard input, output and error.
const DESCRIPTORS: usize = 3;

/// The worker's end of its fork server, which is started when it is needed.
pub(crate) struct ForkServerHandle {
    how: ForkServerOptions,
    server: Mutex<Option<Arc<ForkServerProcess>>>,
}

struct ForkServerProcess {
    socket: OwnedFd,
    pid: Pid,
    asked: Mutex<PendingReplies>,
    has_forked: AtomicBool,
    /// Who is told whether it has started, until that is known.
    start: Mutex<Option<mpsc::Sender<Start>>>,
    /// What it prints before it is ready.
    printed: File,
}

/// How the start of a server went.
enum Start {
    /// It is ready; the versions of its package, and of its runtime.
    Ready { package: String, runtime: String },
    /// It ended instead.
    Ended(io::Result<ExitStatus>),
}

/// Who waits for an answer.
#[derive(Default)]
struct PendingReplies {
    next: u64,
    births: Map<u64, oneshot::Sender<io::Result<Pid>>>,
    deaths: Map<i32, oneshot::Sender<ExitStatus>>,
    /// The server is gone: there will be no more answers.
    over: bool,
}

/// A fork that lives, or is dead and not reaped.
pub(super) struct Fork {
    pub pid: Pid,
    server: Arc<ForkServerProcess>,
}

impl ForkServerHandle {
    pub fn new(how: ForkServerOptions) -> ForkServerHandle {
        ForkServerHandle { how, server: Mutex::default() }
    }

    /// Whether its forks are executors of this runtime: its own, or that in an environment (`python/1f0a`).
    pub fn serves(&self, runtime: &str) -> bool {
        let rest = runtime.strip_prefix(&self.how.runtime);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Starts the server if its worker is to start only with one that works, and waits until it is ready. Says which
    /// minor version its language has (0 if that makes no sense), or why that worker cannot start.
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
                "{program}, which is to run tasks in {runtime}, cannot be started: {error}; name another program with \
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
            lines => format!("; the last that it printed:\n{lines}\n"),
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
        let (tell, told) = oneshot();
        let id = {
            let mut asked = server.asked.lock().expect("nothing panics under it");
            if asked.over {
                return Err(server.gone());
            }
            asked.next += 1;
            let id = asked.next;
            asked.births.insert(id, tell);
            id
        };
        server.say(&format!("fork {id} {variable}"), &descriptors).map_err(|_| server.gone())?;
        let pid = told.await.map_err(|_| server.gone())??;
        Ok(Fork { pid, server })
    }

    /// Ends the server; its forks live on. If the server was killed, another one starts for a moment: it takes away
    /// what that one left.
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

    /// The server that runs, or a new one.
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
    /// Whether it is gone although it could fork.
    fn was_killed(&self) -> bool {
        let over = self.asked.lock().expect("nothing panics under it").over;
        over && self.has_forked.load(Ordering::Relaxed)
    }

    /// Why it does not answer. If it has ever forked, it was killed, and the next one will do. It may have
    /// forked before it died, so what it was asked for is not asked of that one.
    fn gone(&self) -> io::Error {
        let kind = match self.has_forked.load(Ordering::Relaxed) {
            true => io::ErrorKind::ConnectionReset,
            false => io::ErrorKind::BrokenPipe,
        };
        io::Error::new(kind, "the process that forks executors is gone")
    }

    /// Starts one; says how to hear whether that worked.
    fn start(
        how: &ForkServerOptions,
    ) -> io::Result<(Arc<ForkServerProcess>, mpsc::Receiver<Start>)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let printed = File::from(memfd_create("marline-forks", MemfdFlags::CLOEXEC)?);
        let mut command = Command::new(&how.program);
        // A group of its own: an interrupt at a terminal is for us, also while it starts.
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
        // If it has died, that is seen next. A process may have closed its standard error.
        let _ = server.say(&setup, &[stderr()]).or_else(|_| server.say(&setup, &[]));
        let output_reader = server.clone();
        let listen = move || output_reader.listen(child);
        thread::Builder::new().name("marline-forks".into()).spawn(listen)?;
        Ok((server, started))
    }

    /// Tells how the start went, if that is not known yet. Says whether somebody wanted to know.
    fn tell_start(&self, start: Start) -> bool {
        let tell = self.start.lock().expect("nothing panics under it").take();
        tell.is_some_and(|tell| tell.send(start).is_ok())
    }

    /// Passes on what it printed at its start.
    fn pass_on_printed(&self) {
        let mut text = Vec::new();
        if (&self.printed).rewind().is_ok() && (&self.printed).read_to_end(&mut text).is_ok() {
            let _ = io::stderr().write_all(&text); // Nobody reads it.
        }
    }

    /// The last lines that it printed at its start.
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

    /// Hears what the server says, until it is gone.
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
        // Dropped outside the lock: whoever waits is told that there is no answer.
        let waiting = {
            let mut asked = self.asked.lock().expect("nothing panics under it");
            std::mem::replace(
                &mut *asked,
                PendingReplies { over: true, ..PendingReplies::default() },
            )
        };
        drop(waiting);
        // It has ended, or does so now that nobody speaks to it.
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
            _ => {} // A later server has more to say.
        }
    }
}

/// The second of the numbers of a version: 11 of 3.11.7.
fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or(0)
}

fn number(word: Option<&str>) -> Option<i64> {
    word?.parse().ok()
}

impl Fork {
    /// Has it waited for: it is dead. Says how it ended, if that is known.
    pub async fn reap(self) -> Option<ExitStatus> {
        let (tell, told) = oneshot();
        let number = self.pid.as_raw_nonzero().get();
        {
            let mut asked = self.server.asked.lock().expect("nothing panics under it");
            if asked.over {
                return None;
            }
            asked.deaths.insert(number, tell);
        }
        self.server.say(&format!("reap {number}"), &[]).ok()?;
        told.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_ready_in_time_is_ended_and_its_last_words_are_told() {
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
