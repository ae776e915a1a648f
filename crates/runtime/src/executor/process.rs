//! The worker's side of executors that are processes: starting them, sending them commands, reading
//! their reports, killing them, and noticing their deaths.
//!
//! An executor leads a process group of its own. Killing it kills the group, so no process that
//! user code started in it survives. The kernel says when an executor dies. The end of its socket
//! does not, since processes that user code started may share the socket. The worker first handles
//! what the executor had sent, and then its death.
//!
//! - `launcher.rs` and `fork_server.rs` start executors. `termination.rs` ends them.
//!   `process_watcher.rs` notices their deaths.
//! - `buffered_socket.rs` sends to an executor. `output_reader.rs` reads its reports and output.
//! - `executor_poller.rs` and `reader_role.rs` decide which thread reads the reports.

mod buffered_socket;
mod executor_poller;
mod fork_server;
mod launcher;
mod output_reader;
mod process_watcher;
mod reader_role;
mod termination;

pub use executor_poller::{WaitOutcome, Waiter};
pub(crate) use fork_server::ForkServerHandle;
pub use fork_server::{ForkServerOptions, ForkVersion};
pub(super) use output_reader::{PIPE_BYTES, TURN_BYTES};
pub(super) use termination::signal_name;

use super::child::{DESCRIPTORS, HAS_STORE, VARIABLE};
use super::code::SentCode;
use super::lifeline::Lifeline;
use super::log::{Logs, OutputSource};
use super::memory;
use super::run::source;
use super::stderr_forwarding::StderrForwarding;
use super::urgent_message::UrgentMessage;
use crate::net::io;
use crate::node::Node;
use crate::object_store::ObjectStore;
use crate::runtime_log::EXECUTOR;
use crate::terminal::escaped;
use buffered_socket::BufferedSocket;
use executor_poller::executor_poller;
use launcher::{LaunchEnvironment, LaunchedProcess};
use marline_core::error::{Error, Ran};
use marline_core::message::SystemLimit;
use marline_core::object_store;
use marline_core::worker::{Event, ExecutorId};
use marline_wire::executor::ExecutorCommand;
use output_reader::{OutputReader, Pipes};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{ErrorKind, IoSlice, PipeReader, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use termination::{WorkLabel, describe_end, end, was_killed};
use tracing::{debug, warn};

/// How long an executor may take to report that it is up.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// The calls that turn a program that was started again into an executor.
const BEGINNINGS: &str = "`marline::executor_main`, `Worker::join` or `Worker::run`";

/// The settings and parts that the executors of one worker share.
pub(crate) struct LaunchContext {
    pub lifeline: Arc<Lifeline>,
    pub logs: Arc<Logs>,
    /// The most memory that an executor may take, in bytes of address space.
    pub memory: Option<u64>,
    /// The fork server from which executors of another runtime come.
    pub forks: Option<ForkServerHandle>,
    /// The arguments with which this program is started again. `None` means this process's own.
    pub arguments: Option<Vec<String>>,
    /// Which output lines are forwarded to this process's standard error.
    pub pass_on: StderrForwarding,
    /// How many executors are not known to be dead.
    pub alive: Arc<AtomicUsize>,
    /// Watches their memory.
    pub memory_watch: memory::MemoryWatch,
}

/// The worker's handle of an executor. Dropping it kills the executor.
pub(crate) struct ProcessHandle {
    shared: Arc<ExecutorProcess>,
}

struct ExecutorProcess {
    /// The sockets for commands and for urgent messages.
    commands: BufferedSocket,
    asks: BufferedSocket,
    /// The pipe on which the executor reports.
    answers: PipeReader,
    /// Its key at the [poller](mod@executor_poller).
    poll_key: u64,
    life: Mutex<ProcessState>,
    /// The work that the executor runs: the source of its output, and its name for people.
    source: Mutex<Option<(OutputSource, WorkLabel)>>,
    /// Whether it has reported that it is up.
    ready: AtomicBool,
    /// The code that it was sent, if it is a fork.
    sent_code: Option<SentCode>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProcessState {
    Starting,
    Up(Pid),
    /// It was killed, or will be as soon as it is up.
    Killed,
}

impl ProcessHandle {
    /// Starts an executor of this runtime. Also returns the id of its process in the object store.
    pub fn spawn(
        node: Weak<Node>,
        worker: usize,
        executor: ExecutorId,
        runtime: &str,
        launch: Arc<LaunchContext>,
        store: Option<&ObjectStore>,
    ) -> std::io::Result<(ProcessHandle, Option<object_store::ProcessId>)> {
        let (socket, theirs) = UnixStream::pair()?;
        let (control, their_control) = UnixStream::pair()?;
        let (answers, their_answers) = std::io::pipe()?;
        let (ours, their_store) = UnixStream::pair()?;
        let process = store.map(|store| store.add_peer(ours)).transpose()?;
        socket.set_nonblocking(true)?;
        control.set_nonblocking(true)?;
        rustix::io::ioctl_fionbio(&answers, true)?;
        let memory = launch.memory.unwrap_or(0);
        let variable = format!("{}:{memory}:{runtime}", rustix::fs::fstat(&theirs)?.st_ino);
        let line = executor_poller().next_line();
        let is_fork = launch.forks.as_ref().is_some_and(|forks| forks.serves(runtime));
        let shared = Arc::new(ExecutorProcess {
            commands: BufferedSocket::new(socket, line),
            asks: BufferedSocket::new(control, line),
            answers,
            poll_key: line,
            life: Mutex::new(ProcessState::Starting),
            source: Mutex::default(),
            ready: AtomicBool::new(false),
            sent_code: is_fork.then(SentCode::default),
        });
        launch.alive.fetch_add(1, Ordering::Relaxed);
        memory::start(&node, worker, &launch);
        let supervisor =
            Arc::new(Supervisor { node, worker, executor, launch, shared: shared.clone() });
        let descriptors = Descriptors {
            answers: their_answers,
            control: their_control,
            store: their_store,
            has_store: process.is_some(),
        };
        io().spawn(supervisor.run(runtime.into(), variable, theirs, descriptors));
        Ok((ProcessHandle { shared }, process))
    }

    /// Sends a command. Does not block: bytes without room in the socket are sent later.
    pub fn send(&self, mut command: ExecutorCommand) {
        if let Some(sent) = &self.shared.sent_code {
            sent.leave_out(&mut command);
        }
        let source = source(&command).zip(WorkLabel::of(&command));
        if source.is_some() {
            *self.shared.source.lock().expect("nothing panics under it") = source;
        }
        self.shared.write(&self.shared.commands, &command.encode());
    }

    pub fn ask(&self, ask: UrgentMessage) {
        self.shared.write(&self.shared.asks, &ask.encode());
    }

    /// Kills the executor, and every process in its group.
    pub fn kill(&self) {
        self.shared.kill();
    }
}

impl Drop for ProcessHandle {
    fn drop(&mut self) {
        self.shared.kill();
    }
}

impl ExecutorProcess {
    fn write(&self, to: &BufferedSocket, frame: &[u8]) {
        if to.write(frame).is_err() {
            self.kill(); // It would wait for the rest of the frame for ever.
        }
    }

    /// Sends what the sockets had no room for: one of them has room now.
    fn write_backlog(&self) {
        self.commands.write_unsent();
        self.asks.write_unsent();
    }

    /// Starts to poll for its reports, and for room in its sockets.
    fn start_polling(&self, output_reader: &Arc<OutputReader>) -> rustix::io::Result<()> {
        executor_poller().add(self.poll_key, &self.answers, output_reader.clone())?;
        self.commands.add_line()?;
        self.asks.add_line()
    }

    /// Stops polling. A thread that has just seen an event may still handle it.
    fn stop_polling(&self) {
        executor_poller().remove(self.poll_key, &self.answers);
        self.commands.remove_line();
        self.asks.remove_line();
    }

    /// Kills the executor. Returns whether it was killed before.
    fn kill(&self) -> bool {
        let mut life = self.life.lock().expect("nothing panics under it");
        let before = std::mem::replace(&mut *life, ProcessState::Killed);
        if let ProcessState::Up(group) = before {
            end(group);
        }
        before == ProcessState::Killed
    }

    /// Completes when the time in which it should have reported that it is up is over, and it has
    /// not. Never completes if it has.
    async fn too_late(&self) {
        tokio::time::sleep(START_PATIENCE).await;
        if self.ready.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    fn source(&self) -> Option<OutputSource> {
        self.source.lock().expect("nothing panics under it").as_ref().map(|(source, _)| *source)
    }

    /// Describes the executor and what it runs, for error messages.
    fn describe_death(&self, pid: Pid) -> String {
        let source = self.source.lock().expect("nothing panics under it");
        let whose = source.as_ref().map_or(String::new(), |(_, whose)| format!(" {whose}"));
        format!("the executor (pid {}){whose}", pid.as_raw_nonzero())
    }
}

/// The executor's ends of the descriptors that it receives when it is up.
struct Descriptors {
    answers: PipeWriter,
    control: UnixStream,
    /// Its other end is closed if there is no store.
    store: UnixStream,
    has_store: bool,
}

/// Supervises one executor from its start until it is dead.
struct Supervisor {
    node: Weak<Node>,
    worker: usize,
    executor: ExecutorId,
    launch: Arc<LaunchContext>,
    shared: Arc<ExecutorProcess>,
}

impl Supervisor {
    async fn run(
        self: Arc<Supervisor>,
        runtime: String,
        variable: String,
        theirs: UnixStream,
        descriptors: Descriptors,
    ) {
        let executor = self.executor;
        let ExecutorId(id) = executor;
        debug!(target: EXECUTOR, executor = id, runtime, "an executor starts");
        let event = match self.start(runtime, variable, theirs, descriptors).await {
            Ok((launched, pipes)) => {
                let pid = launched.pid.as_raw_nonzero();
                debug!(target: EXECUTOR, executor = id, pid, "an executor's process exists");
                let error = self.attend(launched, pipes).await;
                Event::ExecutorDied { executor, error }
            }
            Err(error) if is_for_now(&error) => {
                warn!(target: EXECUTOR, executor = id, "an executor cannot start now: {error}");
                Event::ExecutorRefused { executor, lack: system_limit_of(&error) }
            }
            Err(error) => {
                warn!(target: EXECUTOR, executor = id, "an executor cannot start: {error}");
                let words = format!("an executor could not be started: {error}");
                Event::ExecutorDied { executor, error: Error::unavailable(Ran::No, words) }
            }
        };
        self.launch.alive.fetch_sub(1, Ordering::Release);
        self.deliver(event);
    }

    fn deliver(&self, event: Event) {
        if let Some(node) = self.node.upgrade() {
            node.deliver_executor_event(self.worker, event);
        }
    }

    async fn start(
        &self,
        runtime: String,
        variable: String,
        theirs: UnixStream,
        descriptors: Descriptors,
    ) -> std::io::Result<(LaunchedProcess, Pipes)> {
        let (stdout, their_stdout) = std::io::pipe()?;
        let (stderr, their_stderr) = std::io::pipe()?;
        let pipes = Pipes::new(stdout, stderr)?;
        let launch_environment = LaunchEnvironment {
            variable,
            stdin: theirs,
            stdout: their_stdout,
            stderr: their_stderr,
        };
        // After the process exists, nothing fails any more: it is supervised until it is dead.
        let launched = LaunchedProcess::spawn(&self.launch, &runtime, launch_environment).await?;
        let group = launched.pid;
        self.launch.memory_watch.launched(self.executor, group);
        let mut life = self.shared.life.lock().expect("nothing panics under it");
        match *life {
            ProcessState::Killed => end(group),
            ProcessState::Starting | ProcessState::Up(_) => *life = ProcessState::Up(group),
        }
        drop(life);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let Descriptors { answers, control, store, has_store } = descriptors;
        let lifeline = self.launch.lifeline.file().as_fd();
        let descriptors = [answers.as_fd(), control.as_fd(), store.as_fd(), lifeline];
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        // If sending fails, the executor has died, which the supervisor notices next.
        let _ = sendmsg(
            &self.shared.commands.socket,
            &[IoSlice::new(&[HAS_STORE[usize::from(has_store)]])],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        );
        Ok((launched, pipes))
    }

    /// Reads what the executor sends until it is dead. Returns how it died.
    async fn attend(self: &Arc<Supervisor>, mut launched: LaunchedProcess, pipes: Pipes) -> Error {
        let group = launched.pid;
        let output_reader = Arc::new(OutputReader::new(self.clone(), pipes, group));
        if self.shared.start_polling(&output_reader).is_err() {
            output_reader.silent.notify_one(); // No thread would read its reports.
        }
        let mut late = false;
        tokio::select! {
            _ = &mut launched.death => {}
            () = output_reader.silent.notified() => {}
            () = output_reader.hear_prints() => {}
            () = self.shared.too_late() => late = true,
        }
        self.shared.stop_polling();
        let by_us = self.shared.kill();
        let _ = (&mut launched.death).await;
        // The process is not reaped yet, so the id of its group is still its own.
        let _ = kill_process_group(group, Signal::KILL);
        self.launch.memory_watch.died(self.executor);
        let status = launched.reap().await;
        output_reader.hear_the_rest();
        let (executor, ExecutorId(id)) = (self.shared.describe_death(group), self.executor);
        if by_us && !late {
            // Its last output has nothing to do with its end.
            debug!(target: EXECUTOR, executor = id, "{executor} was ended by its worker");
            return Error::unavailable(Ran::Maybe, format!("{executor} was ended by its worker"));
        }
        let starved = was_killed(status) && self.launch.memory_watch.kernel_killed();
        let words = if late {
            format!(
                "an executor did not report that it is up within {START_PATIENCE:?}: does the program \
                 come to {BEGINNINGS} when it is started again?"
            )
        } else if starved {
            format!(
                "out of memory: {executor} was killed by the kernel (signal 9), which needed its memory; request \
                 `memory` for this work, so that less runs at a time"
            )
        } else if self.shared.ready.load(Ordering::Relaxed) {
            describe_end(&executor, status)
        } else {
            let how = describe_end(&executor, status);
            format!("{how} before it came to {BEGINNINGS}")
        };
        warn!(target: EXECUTOR, executor = id, "{}", escaped(&words));
        let last = self.shared.source().and_then(|source| self.launch.logs.last_words(source));
        let last = last.map_or(String::new(), |last| format!("; its last words: {last}"));
        match starved {
            true => Error::out_of_memory(words + &last).ran(Ran::Maybe),
            false => Error::unavailable(Ran::Maybe, words + &last),
        }
    }
}

/// Returns whether starting a process failed for lack of something that may become available again.
fn is_for_now(error: &std::io::Error) -> bool {
    let server_died = error.kind() == ErrorKind::ConnectionReset;
    server_died || system_limit_of(error).is_some()
}

/// Returns the system limit because of which starting a process failed, if that is the reason.
pub(crate) fn system_limit_of(error: &std::io::Error) -> Option<SystemLimit> {
    use rustix::io::Errno;
    match Errno::from_io_error(error)? {
        Errno::MFILE | Errno::NFILE => Some(SystemLimit::Descriptors),
        Errno::AGAIN => Some(SystemLimit::Processes),
        Errno::NOMEM => Some(SystemLimit::Memory),
        _ => None,
    }
}
