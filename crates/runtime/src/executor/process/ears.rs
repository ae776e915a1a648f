//! What a worker hears of an executor that is a process: what it says on its socket, and what it prints.

use super::Minder;
use crate::executor::lines::Lines;
use crate::executor::log::{Source, Stream};
use crate::executor::print;
use crate::executor::wire::{decode_said, next_frame};
use bytes::BytesMut;
use marline_core::error::Error;
use marline_core::message::{End, FromWorker};
use marline_core::worker::{CallEnd, Event};
use rustix::process::Pid;
use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::net::unix::pipe;

/// How much is read of what an executor prints before others have their turn.
pub(in crate::executor) const TURN_BYTES: usize = 64 << 10;
/// What is left in a pipe at most, unless somebody with privileges made it larger.
pub(in crate::executor) const PIPE_BYTES: usize = 1 << 20;
/// Who printed nothing until so much has ended there is taken to be silent.
const SILENT_AFTER: u32 = 8;

/// What is heard of an executor: what it says on its socket, and what it prints.
pub(super) struct Ears<'a> {
    minder: &'a Minder,
    prints: Prints,
    lines: Lines,
    /// How many tasks or calls have ended here.
    ended: u32,
    read: BytesMut,
}

/// What it prints.
pub(super) struct Prints {
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
    /// Whether each may have more to say.
    open: [bool; 2],
    /// Whether it ever printed anything.
    heard: bool,
}

impl Prints {
    pub fn new(
        stdout: std::io::PipeReader,
        stderr: std::io::PipeReader,
    ) -> std::io::Result<Prints> {
        Ok(Prints {
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
            open: [true; 2],
            heard: false,
        })
    }

    /// Over when there is something to read.
    async fn readable(&self) {
        tokio::select! {
            _ = self.stdout.readable(), if self.open[0] => {}
            _ = self.stderr.readable(), if self.open[1] => {}
            else => std::future::pending().await,
        }
    }

    /// Reads as far as it has come, and about `most` of each: somebody may print faster than it is read. What
    /// has come just now may be missed, unless `surely`, which costs system calls also if there is nothing.
    fn read(&mut self, most: usize, surely: bool, mut printed: impl FnMut(Stream, &[u8])) {
        let mut buffer = [0; 16 << 10];
        let pipes = [(Stream::Out, &self.stdout), (Stream::Err, &self.stderr)];
        for ((stream, pipe), open) in pipes.into_iter().zip(&mut self.open) {
            let mut count_read = 0;
            while *open && count_read < most {
                let read = match surely {
                    true => rustix::io::read(pipe, &mut buffer).map_err(Into::into),
                    false => pipe.try_read(&mut buffer),
                };
                match read {
                    Ok(0) => *open = false,
                    Ok(count) => {
                        self.heard = true;
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

impl<'a> Ears<'a> {
    pub fn new(minder: &'a Minder, prints: Prints, pid: Pid) -> Ears<'a> {
        let lines = Lines::new(pid.as_raw_pid() as u32, Instant::now());
        Ears { minder, prints, lines, ended: 0, read: BytesMut::new() }
    }

    /// Listens until it says nothing more, or nonsense.
    pub async fn listen(&mut self) {
        loop {
            tokio::select! {
                biased;
                more = self.printed() => {
                    if more {
                        self.hear_prints(TURN_BYTES, false);
                    }
                    self.show_lines(false);
                    if !self.hear() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                readable = self.minder.shared.socket.readable() => {
                    if readable.is_err() || !self.hear() {
                        return;
                    }
                }
            }
        }
    }

    /// Over when it has printed something, and whoever follows its log has kept up; or when it is time to
    /// show what it printed before, and then says that there is nothing more.
    async fn printed(&self) -> bool {
        let more = async {
            if let Some(source) = self.minder.shared.source() {
                self.minder.launch.logs.room(source).await;
            }
            self.prints.readable().await;
        };
        tokio::select! {
            biased;
            () = until(self.lines.next_due()) => false,
            () = more => true,
        }
    }

    /// What it said or printed before it died.
    pub fn hear_the_rest(&mut self) {
        self.hear();
        self.hear_last_prints(true);
    }

    /// Reads what it says, as far as it has come. Says whether there may be more.
    fn hear(&mut self) -> bool {
        loop {
            match self.minder.shared.socket.try_read_buf(&mut self.read) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
            loop {
                match next_frame(&mut self.read) {
                    Ok(Some(frame)) => match decode_said(frame) {
                        Ok(message) => self.heard(message),
                        Err(_) => return false,
                    },
                    Ok(None) => break,
                    Err(_) => return false,
                }
            }
        }
    }

    /// Reads what it prints, as far as it has come.
    fn hear_prints(&mut self, most: usize, surely: bool) {
        let launch = &self.minder.launch;
        let source = self.minder.shared.source();
        self.prints.read(most, surely, |stream, bytes| {
            if let Some(source) = source {
                launch.logs.push(source, stream, bytes);
                self.lines.push(Instant::now(), source, stream, bytes);
            }
            if launch.pass_on.covers(source) {
                print::pass_on(bytes);
            }
        });
    }

    /// What was printed before a task or call ended is its own, and shown before it is known to have ended.
    /// That an end has come is no sign that what was printed before it is known to have come: it may have
    /// been read together with what came before. So whoever prints is looked at again.
    fn hear_last_prints(&mut self, dead: bool) {
        self.ended = self.ended.saturating_add(1);
        let surely = dead || self.prints.heard || self.ended <= SILENT_AFTER;
        self.hear_prints(PIPE_BYTES, surely);
        self.show_lines(true);
    }

    /// Has whoever submitted it shown what it printed, as far as it is time; at its end, everything.
    fn show_lines(&mut self, end: bool) {
        if !self.lines.is_empty() {
            for (source, output) in self.lines.take(Instant::now(), end) {
                self.minder.tell(Event::Printed { source, output });
            }
        }
    }

    fn heard(&mut self, message: FromWorker) {
        let executor = self.minder.executor;
        let event = match message {
            FromWorker::Joined => {
                self.minder.shared.ready.store(true, Ordering::Relaxed);
                Event::ExecutorReady { executor }
            }
            FromWorker::Ended { attempt, end, kept, .. } => {
                let outcome = match end {
                    End::Finished(values) => Ok(values),
                    End::Failed(error) | End::Lost(error) => Err(error),
                    End::Cancelled => Err(Error::cancelled("it stopped as asked")),
                };
                self.hear_last_prints(false);
                let end = CallEnd { outcome, kept };
                match self.minder.shared.source() {
                    Some(Source::Actor(_)) => {
                        Event::CallFinished { executor, call: attempt.task, end }
                    }
                    Some(Source::Task(_)) | None => {
                        Event::RunEnded { executor, task: attempt.task, end }
                    }
                }
            }
            FromWorker::ActorReady { .. } => Event::Constructed { executor, result: Ok(()) },
            FromWorker::ActorFailed { error, .. } => {
                self.hear_last_prints(false);
                Event::Constructed { executor, result: Err(error) }
            }
            FromWorker::Blocked { .. } => Event::Blocked { executor },
            FromWorker::Resumed { .. } => Event::Resumed { executor },
            FromWorker::Dropped { things, .. } => Event::Dropped { executor, things },
            FromWorker::ActorDestroyed { .. } => Event::ActorExited { executor },
            FromWorker::Refused { .. }
            | FromWorker::Checkpoint { .. }
            | FromWorker::Started { .. }
            | FromWorker::ActorDied { .. }
            | FromWorker::Watch { .. }
            | FromWorker::ActorRefused { .. }
            | FromWorker::Entrust { .. }
            | FromWorker::CallsEnded(_)
            | FromWorker::Printed { .. }
            | FromWorker::Draining
            | FromWorker::Leaving => return, // Not an executor's to say.
        };
        self.minder.tell(event);
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
        let mut prints = Prints::new(stdout, stderr).unwrap();
        out.write_all(&[b'a'; 1024]).unwrap();
        io().block_on(prints.readable());
        let mut read = 0;
        prints.read(TURN_BYTES, false, |_, bytes| {
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
        let mut prints = Prints::new(stdout, stderr).unwrap();
        let mut read = Vec::new();
        // It is not waited for, so nobody has said that there is something.
        out.write_all(b"now").unwrap();
        prints.read(PIPE_BYTES, true, |_, bytes| read.extend(bytes));
        assert_eq!((&*read, prints.heard), (&b"now"[..], true));
        prints.read(PIPE_BYTES, true, |_, _| panic!("there is nothing more"));
        // What comes after that is still announced.
        out.write_all(b"later").unwrap();
        io().block_on(prints.readable());
        prints.read(PIPE_BYTES, false, |_, bytes| read.extend(bytes));
        assert_eq!(&*read, b"nowlater");
        drop(out);
        prints.read(PIPE_BYTES, true, |_, _| panic!("there is nothing more"));
        assert_eq!(prints.open, [false, true]);
    }
}
