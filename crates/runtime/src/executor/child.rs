//! The executor's side of an executor that is a process.
//!
//! A worker starts its own program again, with the same arguments (or those that lead to one test
//! of a test binary) and with [`MARLINE_EXECUTOR`](VARIABLE) set. Before the program would start as
//! a worker, [`serve_if_executor`] turns it into an executor. Its standard input is a socket to the
//! worker, which carries commands. The first message on it passes four descriptors:
//!
//! - a pipe for the executor's reports. A pipe is faster than the socket: the kernel also wakes a
//!   reader of a socket when its peer has read from it.
//! - a control socket, for [urgent messages](super::urgent_message).
//! - a socket to the node's [object store](crate::object_store).
//! - the [lifeline].
//!
//! The main thread reads commands and runs user code itself. The watching thread handles urgent
//! messages. It also ends this process, and every process that user code left in its process group,
//! when the worker is gone or its lease is over.

use super::Program;
use super::code::ReceivedCode;
use super::command::Commands;
use super::lifeline;
use super::log::OutputSource;
use super::run::{ReportFn, Runner, RunningTasks, source};
use super::spin::Spin;
use super::urgent_message::{self, UrgentMessage};
use crate::clock::Clock;
use crate::object_store::{ObjectStoreClient, ObjectStoreHandle};
use bytes::BytesMut;
use marline_core::spec::COMMAND_SCHEME;
use marline_wire::executor::{ExecutorCommand, ExecutorReport};
use marline_wire::length_prefix;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recv, recvmsg};
use rustix::process::{Resource, Rlimit, Signal};
use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// The environment variable that tells a process that it is an executor: the inode number of the
/// socket that is its standard input, the most memory that it may take (0: no limit), and its
/// runtime.
pub(crate) const VARIABLE: &str = "MARLINE_EXECUTOR";
/// How many descriptors an executor receives.
pub(crate) const DESCRIPTORS: usize = 4;
/// The byte that comes with them: the worker has no object store, or one.
pub(crate) const HAS_STORE: [u8; 2] = *b"-+";
/// How many bytes are read at a time.
const READ_BYTES: usize = 64 << 10;
/// How often the watching thread checks the lease at least.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// If this process was started as an executor, serves as one until it ends, and does not return.
///
/// A program that can start a worker must call this before it does anything that only the worker
/// must do.
pub fn serve_if_executor(program: &Arc<dyn Program>) {
    if let Ok(variable) = std::env::var(VARIABLE) {
        serve_as(&variable, program);
    }
}

/// Returns whether this process is an executor.
pub(crate) fn is_executor() -> bool {
    OBJECTS.get().is_some()
}

/// Returns whether this thread runs `main`.
pub fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// If this process is the executor that `variable` describes, serves as one until it ends, and does
/// not return. Forked executors call this: they receive the text from the fork server, not from the
/// environment.
pub fn serve_as(variable: &str, program: &Arc<dyn Program>) {
    let mut parts = variable.splitn(3, ':');
    let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok());
    let (Some(socket), Some(memory)) = (number(), number()) else { return };
    // Processes that user code starts inherit the variable, but not the socket. The parent's id
    // proves nothing: an executor whose worker died before this is still an executor, and ends.
    if !rustix::fs::fstat(io::stdin()).is_ok_and(|stdin| is_socket(&stdin, socket)) {
        return;
    }
    let program = match parts.next() {
        Some(COMMAND_SCHEME) => Arc::new(Commands) as Arc<dyn Program>,
        _ => program.clone(),
    };
    if let Err(error) = serve(program, memory) {
        eprintln!("marline: this executor cannot serve: {error}");
    }
    end_everything();
}

fn is_socket(stdin: &Stat, number: u64) -> bool {
    FileType::from_raw_mode(stdin.st_mode) == FileType::Socket && stdin.st_ino == number
}

fn serve(program: Arc<dyn Program>, memory: u64) -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let ([answers, control, store, lifeline], has_store) = receive_descriptors(&socket)?;
    let objects = has_store
        .then(|| ObjectStoreHandle::elsewhere(ObjectStoreClient::new(UnixStream::from(store))));
    let _ = OBJECTS.set(objects.clone());
    if memory > 0 {
        let limit = Rlimit { current: Some(memory), maximum: Some(memory) };
        rustix::process::setrlimit(Resource::As, limit)?;
    }
    // If memory runs out, the kernel kills an executor before its worker. Writing this may not be
    // allowed.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    let running = RunningTasks::default();
    let heed = {
        let (program, running) = (program.clone(), running.clone());
        move |ask| {
            running.handle_urgent(ask);
            match ask {
                UrgentMessage::Cancel(task) => program.interrupted(task, false),
                UrgentMessage::CancelAlone(task) => program.interrupted(task, true),
                UrgentMessage::DenyWait { .. } | UrgentMessage::ItemsTaken { .. } => {}
            }
        }
    };
    watch(UnixStream::from(control), File::from(lifeline), heed)?;
    let mut answers = File::from(answers);
    answers.write_all(&ExecutorReport::Ready.encode())?;
    let answers = Mutex::new(answers);
    let report: ReportFn = Arc::new(move |report: ExecutorReport| {
        // The output of user code arrives before its result.
        let _ = io::stdout().flush();
        write_report(&answers, &report.encode());
    });
    let mut code = program.comes_with_code().then(ReceivedCode::default);
    let runner = Runner::new(program.clone(), running, objects, report.clone());
    let mut runner = runner.on_session_loss(Arc::new(|error| {
        eprintln!("marline: this executor lost its session with the cluster, and then its code failed: {error}");
        end_everything();
    }));
    let (mut read, mut buffer) = (BytesMut::new(), vec![0; READ_BYTES]);
    let mut spin = Spin::default();
    loop {
        while let Some(frame) = length_prefix::next(&mut read).map_err(io::Error::other)? {
            let mut command = ExecutorCommand::decode(frame).map_err(io::Error::other)?;
            let arrived = Instant::now();
            note_source(&command);
            let complete =
                code.as_mut().map_or(Ok(()), |code| code.complete(&*program, &mut command));
            match complete {
                Ok(()) => runner.handle(command, arrived),
                Err(unavailable) => report(unavailable),
            }
        }
        match receive(&socket, &mut buffer, &mut spin) {
            Ok(0) => return Ok(()), // The worker is done with this executor.
            Ok(count) => read.extend_from_slice(&buffer[..count]),
            Err(Errno::INTR) => {} // A signal for user code.
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits for the next command.
fn receive(socket: &UnixStream, buffer: &mut [u8], spin: &mut Spin) -> rustix::io::Result<usize> {
    let come = spin.look(|| match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
        Err(Errno::AGAIN) => None,
        come => Some(come.map(|(count, _)| count)),
    });
    come.unwrap_or_else(|| recv(socket, buffer, RecvFlags::empty()).map(|(count, _)| count))
}

/// The object store of this node, if this process is an executor and its worker has one.
static OBJECTS: OnceLock<Option<ObjectStoreHandle>> = OnceLock::new();

/// Returns the object store of this node, if this process is an executor.
pub fn objects() -> Option<ObjectStoreHandle> {
    OBJECTS.get().cloned().flatten()
}

/// The task or actor that this executor runs, or ran last.
static SOURCE: Mutex<Option<OutputSource>> = Mutex::new(None);

/// Returns the task or actor that this process runs, if it is an executor. The work that it submits
/// is a part of that task or actor.
pub fn executor_source() -> Option<OutputSource> {
    *SOURCE.lock().expect("nothing panics under it")
}

fn note_source(command: &ExecutorCommand) {
    if let Some(source) = source(command) {
        *SOURCE.lock().expect("nothing panics under it") = Some(source);
    }
}

/// Sends a report to the worker. A failure means that the worker is gone, which the watching thread
/// notices.
fn write_report(answers: &Mutex<File>, frame: &[u8]) {
    let _ = answers.lock().expect("nothing panics under it").write_all(frame);
}

/// Receives the descriptors. Also returns whether the worker has an object store.
fn receive_descriptors(socket: &UnixStream) -> io::Result<([OwnedFd; DESCRIPTORS], bool)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(), // The enum is foreign. Nothing else is sent.
    });
    let descriptors: Vec<OwnedFd> = descriptors.collect();
    let descriptors = <[OwnedFd; DESCRIPTORS]>::try_from(descriptors)
        .map_err(|_| io::Error::other("its worker did not send its descriptors"))?;
    Ok((descriptors, byte == [HAS_STORE[1]]))
}

/// Starts the thread that ends this process in time and handles urgent messages.
fn watch(
    control: UnixStream,
    lifeline: File,
    heed: impl Fn(UrgentMessage) + Send + 'static,
) -> io::Result<()> {
    let run = move || {
        let clock = Clock::new();
        while !lifeline::is_over(&lifeline, &clock) && listen(&control, &lifeline, &heed, &clock) {}
        end_everything();
    };
    thread::Builder::new().name("marline-watch".into()).spawn(run)?;
    Ok(())
}

/// Waits for an urgent message, or until the lease must be checked again. Returns `false` if the
/// worker is gone.
fn listen(
    control: &UnixStream,
    lifeline: &File,
    heed: &impl Fn(UrgentMessage),
    clock: &Clock,
) -> bool {
    let left =
        lifeline::read_lease_end(lifeline).map_or(Duration::ZERO, |until| clock.until(until));
    let wait = Timespec::try_from(left.min(LOOK_EVERY)).expect("it is short");
    let mut fds = [PollFd::new(control, PollFlags::IN)];
    match poll(&mut fds, Some(&wait)) {
        Ok(0) | Err(Errno::INTR) => return true,
        Ok(_) => {}
        Err(_) => return false,
    }
    let mut bytes = [0; urgent_message::BYTES];
    let mut socket = control;
    let heard = socket.read_exact(&mut bytes).is_ok();
    if let Some(ask) = UrgentMessage::decode(bytes).filter(|_| heard) {
        heed(ask);
    }
    heard
}

/// Ends this process, and every process that user code left in its group.
fn end_everything() -> ! {
    let _ = rustix::process::kill_current_process_group(Signal::KILL);
    std::process::exit(0)
}
