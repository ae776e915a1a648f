//! A fork server: a process of another runtime (Python), warm and with one thread, whose forks are
//! executors. Starting one costs a fork, not a start of the runtime.
//!
//! What is said goes over a socket that keeps messages apart, as words:
//!
//! | to the server | from it |
//! |---|---|
//! | `setup TEXT`, once: what the runtime needs to know | |
//! | `fork ID VARIABLE`, with the executor's standard input, output and error | `born ID PID` or `failed ID ERRNO` |
//! | `reap PID`: it is dead, and nobody needs its number any more | `dead PID STATUS` |
//!
//! The server waits for a fork only when it is told to: until then the number of a dead executor is nobody
//! else's. It ends when its socket does. If it dies, its forks live on; the next executor gets another.

use marline_channel::oneshot;
use marline_core::map::Map;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketFlags, SocketType, recv, sendmsg, shutdown, socketpair,
};
use rustix::process::Pid;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// How a fork server is started.
#[derive(Clone, Debug)]
pub struct ForkServer {
    /// The scheme of the names of what its forks run, such as `python`.
    pub runtime: String,
    /// The program, and what it is started with.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// What it is told first; at most 100 KiB.
    pub setup: String,
    /// The minor version of its language, for code that needs one (3.N of Python); 0 if that is not known.
    pub code_version: u32,
}

/// The longest word from a server.
const MAX_WORDS: usize = 256;
/// The longest message to one.
const MAX_SETUP_BYTES: usize = 100 << 10;
/// An executor's standard input, output and error.
const DESCRIPTORS: usize = 3;

/// The worker's end of its fork server, which is started when it is needed.
pub(crate) struct Forks {
    how: ForkServer,
    server: Mutex<Option<Arc<Server>>>,
}

struct Server {
    socket: OwnedFd,
    asked: Mutex<Asked>,
    has_forked: AtomicBool,
}

/// Who waits for an answer.
#[derive(Default)]
struct Asked {
    next: u64,
    births: Map<u64, oneshot::Sender<io::Result<Pid>>>,
    deaths: Map<i32, oneshot::Sender<ExitStatus>>,
    /// The server is gone: there will be no more answers.
    over: bool,
}

/// A fork that lives, or is dead and not reaped.
pub(super) struct Fork {
    pub pid: Pid,
    server: Arc<Server>,
}

impl Forks {
    pub fn new(how: ForkServer) -> Forks {
        Forks { how, server: Mutex::default() }
    }

    /// Whether its forks are executors of this runtime: its own, or that in an environment (`python/1f0a`).
    pub fn serves(&self, runtime: &str) -> bool {
        let rest = runtime.strip_prefix(&self.how.runtime);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
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
            true => Server::start(&self.how).ok(),
            false => Some(last),
        });
        if let Some(server) = server {
            let _ = shutdown(&server.socket, Shutdown::Both);
        }
    }

    /// The server that runs, or a new one.
    fn server(&self) -> io::Result<Arc<Server>> {
        let mut server = self.server.lock().expect("nothing panics under it");
        if let Some(server) = &*server
            && !server.asked.lock().expect("nothing panics under it").over
        {
            return Ok(server.clone());
        }
        let new = Server::start(&self.how)?;
        *server = Some(new.clone());
        Ok(new)
    }
}

impl Server {
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

    fn start(how: &ForkServer) -> io::Result<Arc<Server>> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let mut command = Command::new(&how.program);
        // A group of its own: an interrupt at a terminal is for us, also while it starts.
        command.args(&how.args).stdin(Stdio::from(theirs)).process_group(0);
        let child = command.spawn()?;
        drop(command);
        let server = Server { socket: ours, asked: Mutex::default(), has_forked: false.into() };
        let server = Arc::new(server);
        let setup = &how.setup[..how.setup.len().min(MAX_SETUP_BYTES)];
        let _ = server.say(&format!("setup {setup}"), &[]); // If it has died, that is seen next.
        let ears = server.clone();
        let listen = move || ears.listen(child);
        thread::Builder::new().name("marline-forks".into()).spawn(listen)?;
        Ok(server)
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
            std::mem::replace(&mut *asked, Asked { over: true, ..Asked::default() })
        };
        drop(waiting);
        // It has ended, or does so now that nobody speaks to it.
        let _ = child.wait();
    }

    fn heard(&self, words: &str) {
        let mut parts = words.split(' ');
        let kind = parts.next().unwrap_or_default();
        let (first, second) = (parts.next(), parts.next());
        let (Some(first), Some(second)) = (number(first), number(second)) else { return };
        let mut asked = self.asked.lock().expect("nothing panics under it");
        match kind {
            "born" | "failed" => {
                self.has_forked.fetch_or(kind == "born", Ordering::Relaxed);
                let waiter = asked.births.remove(&(first as u64));
                drop(asked);
                let pid = Pid::from_raw(second as i32).filter(|_| kind == "born");
                let born = pid.ok_or_else(|| io::Error::from_raw_os_error(second as i32));
                if let Some(waiter) = waiter {
                    let _ = waiter.send(born);
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
