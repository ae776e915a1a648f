//! Reads from an executor process: its reports, by the thread that has the [reader's
//! role](mod@super::executor_poller), and its output, by the I/O threads.
//!
//! Output that was printed before a task or call ended belongs to it, and is shown before its end
//! is known. So the thread that reads the report of an end first reads the output up to then, and
//! only then passes the report on to the worker.

use super::Supervisor;
use super::executor_poller::READ_BYTES;
use crate::executor::event;
use crate::executor::lines::LineBatcher;
use crate::executor::log::StdStream;
use crate::executor::stderr_forwarding::ForwardedStream;
use bytes::BytesMut;
use marline_core::worker::Event;
use marline_wire::executor::ExecutorReport;
use marline_wire::length_prefix;
use rustix::io::Errno;
use rustix::process::Pid;
use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

/// How many bytes of an executor's output are read before other executors have their turn.
pub(in crate::executor) const TURN_BYTES: usize = 64 << 10;
/// How many bytes of output are read at a time. Small, since the output is read at the end of every
/// task, and usually there is none.
const PIECE_BYTES: usize = 4 << 10;
/// The most bytes that a pipe holds, unless a privileged process made it larger.
pub(in crate::executor) const PIPE_BYTES: usize = 1 << 20;

/// See the [module](self).
pub(super) struct OutputReader {
    supervisor: Arc<Supervisor>,
    pipes: Pipes,
    heard: Mutex<ReaderState>,
    /// Notified when the executor will report nothing more, or reports nonsense.
    pub silent: Notify,
    /// Notified when lines wait to be shown after reports were read: the I/O thread then checks
    /// when they are due.
    lines_begun: Notify,
}

/// The bytes and lines that have arrived and are not handled yet.
struct ReaderState {
    read: BytesMut,
    lines: LineBatcher,
    /// Forwards each of the two streams to this process's standard error.
    passed_on: [ForwardedStream; 2],
    /// Whether each of the pipes may still have output.
    open: [bool; 2],
}

/// The pipes into which the executor prints.
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

    /// Waits until there is something to read.
    async fn readable(&self, open: [bool; 2]) {
        tokio::select! {
            _ = self.stdout.readable(), if open[0] => {}
            _ = self.stderr.readable(), if open[1] => {}
            else => std::future::pending().await,
        }
    }

    /// Reads what has arrived, up to about `most` bytes of each pipe: the executor may print faster
    /// than it is read.
    ///
    /// With `surely`, output that arrived just now is read, too. That costs system calls even if
    /// there is no output. Without it, such output may be missed.
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

    fn lock_state(&self) -> MutexGuard<'_, ReaderState> {
        self.heard.lock().expect("nothing panics under it")
    }

    /// Reads the reports of the executor. Called when it has sent some, or will send no more.
    pub fn on_readable(&self, buffer: &mut [u8]) {
        if self.read_reports(&mut self.lock_state(), buffer) == ReadOutcome::Over {
            self.supervisor.shared.stop_polling();
            self.silent.notify_one();
        }
    }

    /// Sends the messages that wait. Called when a socket to the executor has room.
    pub fn on_writable(&self) {
        self.supervisor.shared.write_backlog();
    }

    /// Reads the executor's output. Never completes: the supervisor drops the future.
    pub async fn hear_prints(&self) {
        loop {
            let (due, open) = {
                let heard = self.lock_state();
                (heard.lines.next_due(), heard.open)
            };
            tokio::select! {
                biased;
                () = until(due) => {}
                () = self.lines_begun.notified() => continue,
                () = self.printed(open) => {}
            }
            self.lock_state().hear_prints(self);
            tokio::task::yield_now().await;
        }
    }

    /// Waits until there is output, and the followers of the log have kept up.
    async fn printed(&self, open: [bool; 2]) {
        if let Some(source) = self.supervisor.shared.source() {
            self.supervisor.launch.logs.room(source).await;
        }
        self.pipes.readable(open).await;
    }

    /// Handles all reports and output that the executor left when it died.
    pub fn hear_the_rest(&self) {
        let mut heard = self.lock_state();
        let mut buffer = vec![0; READ_BYTES];
        while self.read_reports(&mut heard, &mut buffer) == ReadOutcome::Said {}
        heard.read_prints(self, PIPE_BYTES, true);
        heard.show_lines(&self.supervisor, true);
    }

    /// Handles the reports that one read returns.
    fn read_reports(&self, heard: &mut ReaderState, buffer: &mut [u8]) -> ReadOutcome {
        match rustix::io::read(&self.supervisor.shared.answers, &mut *buffer) {
            Ok(0) => return ReadOutcome::Over,
            Ok(count) => heard.read.extend_from_slice(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return ReadOutcome::Quiet,
            Err(_) => return ReadOutcome::Over,
        }
        let mut prints_are_read = false;
        let speech = loop {
            let report = match length_prefix::next(&mut heard.read) {
                Ok(Some(bytes)) => ExecutorReport::decode(bytes),
                Ok(None) => break ReadOutcome::Said,
                Err(_) => break ReadOutcome::Over,
            };
            let Ok(report) = report else { break ReadOutcome::Over };
            if ends_user_code(&report) {
                // The output before any of the ends that were read together is in the pipe by now.
                if !std::mem::replace(&mut prints_are_read, true) {
                    heard.read_prints(self, PIPE_BYTES, true);
                }
                heard.show_lines(&self.supervisor, true);
            }
            self.supervisor.handle_report(report);
        };
        if !heard.lines.is_empty() {
            self.lines_begun.notify_one();
        }
        speech
    }
}

/// Returns whether the report ends a run of user code. Output that was printed before then belongs
/// to that run.
fn ends_user_code(report: &ExecutorReport) -> bool {
    match report {
        ExecutorReport::TaskEnded { .. }
        | ExecutorReport::InputsUnavailable { .. }
        | ExecutorReport::CallEnded { .. }
        | ExecutorReport::Constructed { result: Err(_) } => true,
        ExecutorReport::Ready
        | ExecutorReport::Constructed { result: Ok(()) }
        | ExecutorReport::Yielded { .. }
        | ExecutorReport::ActorExited
        | ExecutorReport::Blocked
        | ExecutorReport::Resumed => false,
    }
}

/// The outcome of reading reports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadOutcome {
    /// Reports were handled, and more may follow.
    Said,
    /// Nothing has arrived.
    Quiet,
    /// No more reports will come, or the reports are nonsense.
    Over,
}

impl ReaderState {
    /// Reads the output that is known to have arrived, and shows the lines that are due.
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

    /// Sends the lines that are due towards the client that submitted the work. With `end`, sends
    /// all lines.
    fn show_lines(&mut self, supervisor: &Supervisor, end: bool) {
        if !self.lines.is_empty() {
            for (source, output) in self.lines.take(Instant::now(), end) {
                supervisor.deliver(Event::Printed { source, output });
            }
        }
    }
}

impl Supervisor {
    /// Passes a report of the executor on to the worker's machine.
    fn handle_report(&self, report: ExecutorReport) {
        match (&report, &self.shared.sent_code) {
            (ExecutorReport::Ready, _) => self.shared.ready.store(true, Ordering::Relaxed),
            // Missing code may be the reason.
            (ExecutorReport::InputsUnavailable { .. }, Some(sent)) => sent.forget(),
            _ => {}
        }
        self.deliver(event(self.executor, report));
    }
}

/// Waits until `time`, or for ever without one.
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
    fn one_turn_reads_a_bounded_amount_of_output() {
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
    fn a_sure_read_gets_output_that_arrived_just_now() {
        let _guard = io().enter();
        let (stdout, mut out) = std::io::pipe().unwrap();
        let (stderr, _err) = std::io::pipe().unwrap();
        let (pipes, mut open) = (Pipes::new(stdout, stderr).unwrap(), [true; 2]);
        let mut read: Vec<u8> = Vec::new();
        // No task waits for the pipe, so tokio does not know that there is output.
        out.write_all(b"now").unwrap();
        pipes.read(&mut open, PIPE_BYTES, true, |_, bytes| read.extend(bytes));
        assert_eq!(&*read, b"now");
        pipes.read(&mut open, PIPE_BYTES, true, |_, _| panic!("there is nothing more"));
        // Output that comes later is still announced.
        out.write_all(b"later").unwrap();
        io().block_on(pipes.readable(open));
        pipes.read(&mut open, PIPE_BYTES, false, |_, bytes| read.extend(bytes));
        assert_eq!(&*read, b"nowlater");
        drop(out);
        pipes.read(&mut open, PIPE_BYTES, true, |_, _| panic!("there is nothing more"));
        assert_eq!(open, [false, true]);
    }
}
