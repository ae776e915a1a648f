//! What a worker hears of an executor that is a process: what it answers, by whoever
//! [reads](super::switchboard), and what it prints, by the threads for input and output.
//!
//! What was printed before a task or call ended is its own, and shown before it is known to have ended: who
//! has read that it ended reads what was printed before anybody hears of the end.

use super::Supervisor;
use super::executor_poller::READ_BYTES;
use crate::executor::lines::LineBatcher;
use crate::executor::log::{OutputSource, StdStream};
use crate::executor::stderr_forwarding::ForwardedStream;
use crate::executor::wire::{decode_report, next_frame};
use bytes::BytesMut;
use marline_core::error::Error;
use marline_core::message::{AttemptEnd, FromWorker};
use marline_core::worker::{Event, UserCodeResult};
use rustix::io::Errno;
use rustix::process::Pid;
use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

/// How much is read of what an executor prints before others have their turn.
pub(in crate::executor) const TURN_BYTES: usize = 64 << 10;
/// How much of it is read at a time. It is looked for at every end, and mostly there is nothing.
const PIECE_BYTES: usize = 4 << 10;
/// What is left in a pipe at most, unless somebody with privileges made it larger.
pub(in crate::executor) const PIPE_BYTES: usize = 1 << 20;

/// See the [module](self).
pub(super) struct OutputReader {
    supervisor: Arc<Supervisor>,
    pipes: Pipes,
    heard: Mutex<ReaderState>,
    /// It says nothing more, or nonsense.
    pub silent: Notify,
    /// Lines are to be shown that were not when that was last looked at.
    lines_begun: Notify,
}

/// What has come and is not dealt with.
struct ReaderState {
    read: BytesMut,
    lines: LineBatcher,
    /// What is passed on to this process's terminal of each of the pipes.
    passed_on: [ForwardedStream; 2],
    /// Whether each of the pipes may have more to say.
    open: [bool; 2],
}

/// Where it prints to.
pub(super) struct Pipes {
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

impl Pipes {
    pub fn new(stdout: std::io::PipeReader, stderr: std::io::PipeReader) -> std::io::Result<Pipes> {
        Ok(Pipes {
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
        })
    }

    /// Over when there is something to read.
    async fn readable(&self, open: [bool; 2]) {
        tokio::select! {
            _ = self.stdout.readable(), if open[0] => {}
            _ = self.stderr.readable(), if open[1] => {}
            else => std::future::pending().await,
        }
    }

    /// Reads as far as it has come, and about `most` of each: somebody may print faster than it is read. What
    /// has come just now may be missed, unless `surely`, which costs system calls also if there is nothing.
    fn read(
        &self,
        open: &mut [bool; 2],
        most: usize,
        surely: bool,
        mut printed: impl FnMut(StdStream, &[u8]),
    ) {
        let mut buffer = [0; PIECE_BYTES];
        let pipes = [(StdStream::Out, &self.stdout), (StdStream::Err, &self.stderr)];
        for ((stream, pipe), open) in pipes.into_iter().zip(open) {
            let mut count_read = 0;
            while *open && count_read < most {
                let read = match surely {
                    true => rustix::io::read(pipe, &mut buffer).map_err(Into::into),
                    false => pipe.try_read(&mut buffer),
                };
                match read {
                    Ok(0) => *open = false,
                    Ok(count) => {
                        count_read += count;
                        printed(stream, &buffer[..count]);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => *open = false,
                }
            }
        }
    }
}

impl OutputReader {
    pub fn new(supervisor: Arc<Supervisor>, pipes: Pipes, pid: Pid) -> OutputReader {
        let lines = LineBatcher::new(pid.as_raw_pid() as u32, Instant::now());
        let heard = ReaderState {
            read: BytesMut::new(),
            lines,
            passed_on: Default::default(),
            open: [true; 2],
        };
        let (silent, lines_begun) = (Notify::new(), Notify::new());
        OutputReader { supervisor, pipes, heard: Mutex::new(heard), silent, lines_begun }
    }

    fn heard(&self) -> MutexGuard<'_, ReaderState> {
        self.heard.lock().expect("nothing panics under it")
    }

    /// It has said something, or will say nothing more.
    pub fn on_readable(&self, buffer: &mut [u8]) {
        if self.hear(&mut self.heard(), buffer) == Speech::Over {
            self.supervisor.shared.stop_polling();
            self.silent.notify_one();
        }
    }

    /// There is room for what it is told.
    pub fn on_writable(&self) {
        self.supervisor.shared.write_backlog();
    }

    /// Reads what it prints, until it is dead.
    pub async fn hear_prints(&self) {
        loop {
            let (due, open) = {
                let heard = self.heard();
                (heard.lines.next_due(), heard.open)
            };
            tokio::select! {
                biased;
                () = until(due) => {}
                () = self.lines_begun.notified() => continue,
                () = self.printed(open) => {}
            }
            self.heard().hear_prints(self);
            tokio::task::yield_now().await;
        }
    }

    /// Over when it has printed something, and whoever follows its log has kept up.
    async fn printed(&self, open: [bool; 2]) {
        if let Some(source) = self.supervisor.shared.source() {
            self.supervisor.launch.logs.room(source).await;
        }
        self.pipes.readable(open).await;
    }

    /// What it said or printed before it died.
    pub fn hear_the_rest(&self) {
        let mut heard = self.heard();
        let mut buffer = vec![0; READ_BYTES];
        while self.hear(&mut heard, &mut buffer) == Speech::Said {}
        heard.read_prints(self, PIPE_BYTES, true);
        heard.show_lines(&self.supervisor, true);
    }

    /// Hears what it says, as far as that can be read at once.
    fn hear(&self, heard: &mut ReaderState, buffer: &mut [u8]) -> Speech {
        match rustix::io::read(&self.supervisor.shared.answers, &mut *buffer) {
            Ok(0) => return Speech::Over,
            Ok(count) => heard.read.extend_from_slice(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return Speech::Quiet,
            Err(_) => return Speech::Over,
        }
        let mut prints_are_read = false;
        let speech = loop {
            let message = match next_frame(&mut heard.read) {
                Ok(Some(frame)) => decode_report(frame),
                Ok(None) => break Speech::Said,
                Err(_) => break Speech::Over,
            };
            let Ok(message) = message else { break Speech::Over };
            if let FromWorker::Ended { .. } | FromWorker::ActorFailed { .. } = &message {
                // What was printed before any of the ends that were read together is there now.
                if !std::mem::replace(&mut prints_are_read, true) {
                    heard.read_prints(self, PIPE_BYTES, true);
                }
                heard.show_lines(&self.supervisor, true);
            }
            self.supervisor.heard(message);
        };
        if !heard.lines.is_empty() {
            self.lines_begun.notify_one();
        }
        speech
    }
}

/// What comes of listening.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speech {
    Said,
    /// Nothing, for now.
    Quiet,
    /// Nothing any more, or nonsense.
    Over,
}

impl ReaderState {
    /// Reads what it prints, as far as it is known to have come, and shows it in its time.
    fn hear_prints(&mut self, output_reader: &OutputReader) {
        self.read_prints(output_reader, TURN_BYTES, false);
        self.show_lines(&output_reader.supervisor, false);
    }

    fn read_prints(&mut self, output_reader: &OutputReader, most: usize, surely: bool) {
        let OutputReader { supervisor, pipes, .. } = output_reader;
        let source = supervisor.shared.source();
        pipes.read(&mut self.open, most, surely, |stream, bytes| {
            if let Some(source) = source {
                supervisor.launch.logs.push(source, stream, bytes);
                self.lines.push(Instant::now(), source, stream, bytes);
            }
            if supervisor.launch.pass_on.covers(source) {
                self.passed_on[stream as usize].pass_on(bytes);
            }
        });
    }

    /// Has whoever submitted it shown what it printed, as far as it is time; at its end, everything.
    fn show_lines(&mut self, supervisor: &Supervisor, end: bool) {
        if !self.lines.is_empty() {
            for (source, output) in self.lines.take(Instant::now(), end) {
                supervisor.tell(Event::Printed { source, output });
            }
        }
    }
}

impl Supervisor {
    /// It said this.
    fn heard(&self, message: FromWorker) {
        let executor = self.executor;
        let event = match message {
            FromWorker::Joined => {
                self.shared.ready.store(true, Ordering::Relaxed);
                Event::ExecutorReady { executor }
            }
            FromWorker::Ended { attempt, end, kept, .. } => {
                let task = attempt.task;
                let outcome = match end {
                    AttemptEnd::Finished(values) => Ok(values),
                    AttemptEnd::Failed(error) => Err(error),
                    AttemptEnd::Cancelled => Err(Error::cancelled("it stopped as asked")),
                    AttemptEnd::Lost(error) => {
                        if let Some(sent) = &self.shared.sent_code {
                            sent.forget(); // Its code may be why.
                        }
                        return self.tell(Event::InputsUnavailable { executor, task, error });
                    }
                };
                let end = UserCodeResult { outcome, still_held: kept };
                match self.shared.source() {
                    Some(OutputSource::Actor(_)) => Event::CallEnded { executor, call: task, end },
                    Some(OutputSource::Task(_)) | None => Event::TaskEnded { executor, task, end },
                }
            }
            FromWorker::Yielded { attempt, index, value, .. } => {
                Event::Yielded { executor, task: attempt.task, index, value }
            }
            FromWorker::ActorReady { .. } => Event::Constructed { executor, result: Ok(()) },
            FromWorker::ActorFailed { error, .. } => {
                Event::Constructed { executor, result: Err(error) }
            }
            FromWorker::Blocked { .. } => Event::Blocked { executor },
            FromWorker::Resumed { .. } => Event::Resumed { executor },
            FromWorker::Dropped { things, .. } => Event::ReferencesReleased { executor, things },
            FromWorker::ActorDestroyed { .. } => Event::ActorExited { executor },
            FromWorker::Refused { .. }
            | FromWorker::Unable { .. }
            | FromWorker::Able { .. }
            | FromWorker::Checkpoint { .. }
            | FromWorker::Started { .. }
            | FromWorker::ActorDied { .. }
            | FromWorker::Watch { .. }
            | FromWorker::ActorRefused { .. }
            | FromWorker::Entrust { .. }
            | FromWorker::Locate { .. }
            | FromWorker::Copied { .. }
            | FromWorker::CopyLost { .. }
            | FromWorker::NotBrought { .. }
            | FromWorker::CallsEnded(_)
            | FromWorker::Printed { .. }
            | FromWorker::Draining
            | FromWorker::Emptied
            | FromWorker::Leaving => return, // Not an executor's to say.
        };
        self.tell(event);
    }
}

/// Over at that time; never without one.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::io;
    use std::io::Write;

    #[test]
    fn whoever_prints_faster_than_it_is_read_is_left_for_the_next_turn() {
        let _guard = io().enter();
        let (stdout, mut out) = std::io::pipe().unwrap();
        let (stderr, _err) = std::io::pipe().unwrap();
        let (pipes, mut open) = (Pipes::new(stdout, stderr).unwrap(), [true; 2]);
        out.write_all(&[b'a'; 1024]).unwrap();
        io().block_on(pipes.readable(open));
        let mut read = 0;
        pipes.read(&mut open, TURN_BYTES, false, |_, bytes| {
            read += bytes.len();
            out.write_all(bytes).unwrap();
        });
        assert_eq!(read, TURN_BYTES);
    }

    #[test]
    fn what_has_come_just_now_is_read_where_that_is_wanted() {
        let _guard = io().enter();
        let (stdout, mut out) = std::io::pipe().unwrap();
        let (stderr, _err) = std::io::pipe().unwrap();
        let (pipes, mut open) = (Pipes::new(stdout, stderr).unwrap(), [true; 2]);
        let mut read: Vec<u8> = Vec::new();
        // It is not waited for, so nobody has said that there is something.
        out.write_all(b"now").unwrap();
        pipes.read(&mut open, PIPE_BYTES, true, |_, bytes| read.extend(bytes));
        assert_eq!(&*read, b"now");
        pipes.read(&mut open, PIPE_BYTES, true, |_, _| panic!("there is nothing more"));
        // What comes after that is still announced.
        out.write_all(b"later").unwrap();
        io().block_on(pipes.readable(open));
        pipes.read(&mut open, PIPE_BYTES, false, |_, bytes| read.extend(bytes));
        assert_eq!(&*read, b"nowlater");
        drop(out);
        pipes.read(&mut open, PIPE_BYTES, true, |_, _| panic!("there is nothing more"));
        assert_eq!(open, [false, true]);
    }
}
