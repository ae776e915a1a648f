//! An executor that is a process, seen from inside.
//!
//! A worker starts its own program again, with the same arguments (or those that lead to one test of a test binary) and
//! `MARLINE_EXECUTOR` set. Before the program makes itself a worker, [`serve_if_executor`] makes it an executor: its standard
//! input is a socket to the worker, over which it first gets four descriptors: a pipe for its answers (quicker
//! than the socket, and who waits at a socket is woken also when its peer has read from it), a socket on which
//! it is asked to stop what it runs, one to the node's [store](crate::store), and the
//! [lifeline](super::lifeline).
//!
//! The main thread reads commands and runs user code itself. One thread watches: it ends this process,
//! and everything that user code started and left in its process group, when the worker is gone or when
//! its lease is over.

use super::Program;
use super::code::ReceivedCode;
use super::command::Commands;
use super::lifeline;
use super::log::OutputSource;
use super::run::{Command, ReportFn, Runner, RunningTasks};
use super::spin::Spin;
use super::urgent_message::{self, UrgentMessage};
use super::wire::{decode_command, encode_ready, encode_report, next_frame};
use crate::clock::Clock;
use crate::object_store::{ObjectStoreClient, ObjectStoreHandle};
use bytes::BytesMut;
use marline_core::spec::COMMAND_SCHEME;
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

/// Says to a process that it is an executor: the number (inode) of the socket that is its standard input,
/// the most memory it may take (0: any), and its runtime.
pub(crate) const VARIABLE: &str = "MARLINE_EXECUTOR";
/// How many descriptors an executor gets.
pub(crate) const DESCRIPTORS: usize = 4;
/// What comes with them: whether the worker has no store, or one.
pub(crate) const HAS_STORE: [u8; 2] = *b"-+";
/// How much is read at a time.
const READ_BYTES: usize = 64 << 10;
/// Without anything due, the watching thread looks this often.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// If this process was started as an executor, is one until it ends, and does not return.
///
/// To be called by a program that makes itself a worker, before it does anything that only the worker is
/// to do.
pub fn serve_if_executor(program: &Arc<dyn Program>) {
    if let Ok(variable) = std::env::var(VARIABLE) {
        serve_as(&variable, program);
    }
}

/// Whether this is the thread that runs `main`.
pub fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// If this process is the executor that these words are about, is one until it ends, and does not return.
/// For executors that are forked, and get the words from whoever forks them.
pub fn serve_as(variable: &str, program: &Arc<dyn Program>) {
    let mut parts = variable.splitn(3, ':');
    let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok());
    let (Some(socket), Some(memory)) = (number(), number()) else { return };
    // Processes that user code starts inherit the variable, but not the socket. Who is the parent says
    // nothing: an executor whose worker died before this is an executor all the same, and ends.
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
    // If the kernel needs memory, it is to take an executor rather than its worker. It may not be allowed.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    let running = RunningTasks::default();
    let heed = {
        let (program, running) = (program.clone(), running.clone());
        move |ask| {
            running.asked(ask);
            match ask {
                UrgentMessage::Cancel(task) => program.interrupted(task, false),
                UrgentMessage::CancelAlone(task) => program.interrupted(task, true),
                UrgentMessage::DenyWait { .. } | UrgentMessage::ItemsTaken { .. } => {}
            }
        }
    };
    watch(UnixStream::from(control), File::from(lifeline), heed)?;
    let mut answers = File::from(answers);
    answers.write_all(&encode_ready())?;
    let answers = Mutex::new(answers);
    let tell = move |said| {
        // What user code printed is there before what it returned.
        let _ = io::stdout().flush();
        say(&answers, &encode_report(said));
    };
    let tell: ReportFn = Arc::new(tell);
    let mut code = program.comes_with_code().then(ReceivedCode::default);
    let runner = Runner::new(program.clone(), running, objects, tell.clone());
    let mut runner = runner.on_session_loss(Arc::new(|error| {
        eprintln!("marline: this executor was cut off from its cluster for too long, and its code failed: {error}");
        end_everything();
    }));
    let (mut read, mut buffer) = (BytesMut::new(), vec![0; READ_BYTES]);
    let mut spin = Spin::default();
    loop {
        while let Some(frame) = next_frame(&mut read).map_err(io::Error::other)? {
            let mut command = decode_command(frame).map_err(io::Error::other)?;
            let arrived = Instant::now();
            note_source(&command);
            let complete =
                code.as_mut().map_or(Ok(()), |code| code.complete(&*program, &mut command));
            match complete {
                Ok(()) => runner.handle(command, arrived),
                Err(not_begun) => tell(not_begun),
            }
        }
        match receive(&socket, &mut buffer, &mut spin) {
            Ok(0) => return Ok(()), // The worker is done with this executor.
            Ok(count) => read.extend_from_slice(&buffer[..count]),
            Err(Errno::INTR) => {} // A signal to user code.
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

/// The store of its node, in a process that is an executor.
static OBJECTS: OnceLock<Option<ObjectStoreHandle>> = OnceLock::new();

/// The store of this node, if this process is an executor.
pub fn objects() -> Option<ObjectStoreHandle> {
    OBJECTS.get().cloned().flatten()
}

/// What this executor runs, or ran last.
static SOURCE: Mutex<Option<OutputSource>> = Mutex::new(None);

/// The task or actor that this process runs, if it is an executor: what it submits is a part of that.
pub fn executor_source() -> Option<OutputSource> {
    *SOURCE.lock().expect("nothing panics under it")
}

fn note_source(command: &Command) {
    if let Some(source) = command.source() {
        *SOURCE.lock().expect("nothing panics under it") = Some(source);
    }
}

/// Says something to the worker. If it cannot be said, the worker is gone, which the watching thread sees.
fn say(answers: &Mutex<File>, frame: &[u8]) {
    let _ = answers.lock().expect("nothing panics under it").write_all(frame);
}

/// Gets its descriptors; says whether there is a store.
fn receive_descriptors(socket: &UnixStream) -> io::Result<([OwnedFd; DESCRIPTORS], bool)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(), // Of a foreign enum: nothing else is sent.
    });
    let descriptors: Vec<OwnedFd> = descriptors.collect();
    let descriptors = <[OwnedFd; DESCRIPTORS]>::try_from(descriptors)
        .map_err(|_| io::Error::other("its worker did not pass on its descriptors"))?;
    Ok((descriptors, byte == [HAS_STORE[1]]))
}

/// Starts the thread that ends this process in time, and passes on what the worker asks.
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

/// Waits for the worker to ask for something, or for the time to look again. Says whether the worker is
/// still there.
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

/// Ends this process and what user code left running in its group.
fn end_everything() -> ! {
    let _ = rustix::process::kill_current_process_group(Signal::KILL);
    std::process::exit(0)
}
