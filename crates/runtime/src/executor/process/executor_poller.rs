//! Which thread reads the reports of executors.
//!
//! The pipes of all executors are in one epoll set, and one thread at a time reads. If a thread
//! waits for an answer, it reads itself, so that no other thread has to wake it. If no thread
//! waits, a background thread reads. See [`ReaderRole`] for how the role passes from one thread to
//! the next.
//!
//! Why no report is left unread: there is a reader, or there was one less than [`RELOOK`] ago,
//! after which the background thread reads.
//!
//! Why no report is read by two threads: the role changes under the lock of [`ReaderRole`], and
//! only its holder gives it up.
//!
//! Why a waiting thread learns of its answer, whichever thread reads it: [`Waiter::notify`] marks
//! the waiter, and then wakes it from where it sleeps: from its futex, or from the epoll set if it
//! is the reader. Both orders of a notification and of passing the role to the waiter end well. A
//! waiter that was notified first is not given the role. A waiter that was given the role first is
//! woken from the set.

use super::output_reader::OutputReader;
use super::reader_role::{Reader, ReaderRole, WakeAction};
use crate::executor::spin::Spin;
use crate::net::mark_io_thread;
use crate::per_process::PerProcess;
use marline_core::map::Map;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::thread::futex;
use std::cell::Cell;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once};
use std::thread;
use std::time::{Duration, Instant};

/// How long after the last reader left the background thread starts to read.
const RELOOK: Duration = Duration::from_millis(1);
/// How many bytes are read at a time.
pub(super) const READ_BYTES: usize = 64 << 10;
/// How many executors are handled before a waiting thread checks for its own answer.
const MAX_EVENTS: usize = 64;
/// Re-check the clock at least this often.
const LONGEST: Duration = Duration::from_secs(60 * 60);
/// The key of the event that only wakes the reader.
const KICK: u64 = 0;
/// Marks the keys of sockets that are watched for room.
const ROOM: u64 = 1 << 63;

/// See the [module](self).
pub(super) struct ExecutorPoller {
    epoll: OwnedFd,
    kick: OwnedFd,
    next_line: AtomicU64,
    readers: Mutex<Map<u64, Arc<OutputReader>>>,
    buffer: Mutex<Box<[u8]>>,
    /// The polling state of the waiting thread that reads.
    spin: Mutex<Spin>,
    role: Mutex<ReaderRole<Arc<Waiter>>>,
    /// Wakes the background thread, which is away, when the role is free.
    free: Condvar,
    started: Once,
}

thread_local! {
    /// Whether this thread handles events of the epoll set now.
    static READS: Cell<bool> = const { Cell::new(false) };
}

static EXECUTOR_POLLER: PerProcess<ExecutorPoller> = PerProcess::new();

/// Returns the poller of this process, and creates it if there is none.
pub(super) fn executor_poller() -> &'static ExecutorPoller {
    let board =
        EXECUTOR_POLLER.get_or_init(|| ExecutorPoller::new().expect("an epoll set can be made"));
    board.started.call_once(|| board.start());
    board
}

impl ExecutorPoller {
    fn new() -> rustix::io::Result<ExecutorPoller> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &kick, EventData::new_u64(KICK), EventFlags::IN)?;
        Ok(ExecutorPoller {
            epoll,
            kick,
            next_line: AtomicU64::new(KICK + 1),
            readers: Mutex::default(),
            buffer: Mutex::new(vec![0; READ_BYTES].into()),
            spin: Mutex::default(),
            role: Mutex::default(),
            free: Condvar::new(),
            started: Once::new(),
        })
    }

    /// Starts the background thread.
    fn start(&'static self) {
        let run = move || {
            mark_io_thread();
            loop {
                self.look();
            }
        };
        let builder = thread::Builder::new().name("marline-executors".into());
        builder.spawn(run).expect("the poller's thread can be started");
    }

    /// Returns a new key for an executor.
    pub fn next_line(&self) -> u64 {
        self.next_line.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts to poll for an executor's reports.
    pub fn add(
        &self,
        line: u64,
        answers: impl AsFd,
        output_reader: Arc<OutputReader>,
    ) -> rustix::io::Result<()> {
        self.lines().insert(line, output_reader);
        epoll::add(&self.epoll, answers, EventData::new_u64(line), EventFlags::IN)
    }

    /// Stops polling for an executor's reports. A thread that has just seen an event may still
    /// handle it. `answers` must still be open: a fork may have it too.
    pub fn remove(&self, line: u64, answers: impl AsFd) {
        if self.lines().remove(&line).is_some() {
            let _ = epoll::delete(&self.epoll, answers);
        }
    }

    /// Starts to poll for room in a socket to an executor, until
    /// [`stop_polling_writable`](Self::stop_polling_writable).
    pub fn poll_writable(&self, line: u64, socket: impl AsFd) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, socket, EventData::new_u64(line | ROOM), EventFlags::OUT)
    }

    pub fn stop_polling_writable(&self, socket: impl AsFd) {
        let _ = epoll::delete(&self.epoll, socket);
    }

    fn lines(&self) -> MutexGuard<'_, Map<u64, Arc<OutputReader>>> {
        self.readers.lock().expect("nothing panics under it")
    }

    fn role(&self) -> MutexGuard<'_, ReaderRole<Arc<Waiter>>> {
        self.role.lock().expect("nothing panics under it")
    }

    /// One step of the background thread: reads, or waits while another thread reads.
    fn look(&self) {
        let role = self.role();
        if role.reader() == Reader::Background {
            drop(role);
            let _ = self.read(None); // The only possible error is an interruption.
            let then = self.role().background_has_read(|waiter| waiter.try_become_reader());
            return self.carry_out(then);
        }
        let before = role.changes();
        let (mut role, _) = self.free.wait_timeout(role, RELOOK).expect("nothing panics under it");
        role.background_looks(before);
        drop(self.free.wait_while(role, |role| role.is_away()));
    }

    /// Ends a thread's wait, and passes on its role.
    fn leaves(&self, waiter: &Arc<Waiter>) {
        let mut role = self.role();
        // Under the lock, since another thread may pass the role to it until now.
        let read = waiter.state.fetch_and(!READER, Ordering::AcqRel) & READER != 0;
        let then = match read {
            true => role.release_role(|waiter| waiter.try_become_reader()),
            false => {
                role.leaves(|other| Arc::ptr_eq(other, waiter));
                WakeAction::Nothing
            }
        };
        drop(role);
        self.carry_out(then);
    }

    fn carry_out(&self, then: WakeAction<Arc<Waiter>>) {
        match then {
            WakeAction::Nothing => {}
            WakeAction::Wake(next) => next.wake(),
            WakeAction::Notify => self.free.notify_one(),
        }
    }

    /// Reads as [`read`](Self::read) does, but polls for a while before it sleeps. For a waiting
    /// thread.
    fn look_and_read(&self, limit: Duration) -> rustix::io::Result<()> {
        let mut spin = self.spin.lock().expect("nothing panics under it");
        let read = spin.look(|| match self.read(Some(Duration::ZERO)) {
            Ok(0) => None,
            read => Some(read),
        });
        drop(spin);
        read.unwrap_or_else(|| self.read(Some(limit))).map(drop)
    }

    /// Waits for events up to `limit`, and handles them. Returns how many there were.
    fn read(&self, limit: Option<Duration>) -> rustix::io::Result<usize> {
        let limit = limit.map(|limit| Timespec::try_from(limit).expect("it is short"));
        let mut space = [const { MaybeUninit::uninit() }; MAX_EVENTS];
        let (events, _) = epoll::wait(&self.epoll, &mut space, limit.as_ref())?;
        if events.is_empty() {
            return Ok(0);
        }
        let mut buffer = self.buffer.lock().expect("nothing panics under it");
        READS.set(true);
        for event in &*events {
            let line = event.data.u64();
            if line == KICK {
                let _ = rustix::io::read(&self.kick, &mut [0; 8]);
                continue;
            }
            let output_reader = self.lines().get(&(line & !ROOM)).cloned();
            match output_reader {
                Some(output_reader) if line & ROOM != 0 => output_reader.on_writable(),
                Some(output_reader) => output_reader.on_readable(&mut buffer),
                None => {} // The executor was removed after its event was seen.
            }
        }
        READS.set(false);
        Ok(events.len())
    }
}

/// A thread that waits for something, whichever thread brings it.
pub struct Waiter {
    /// Two flags: whether it was notified ([`RUNG`]), and whether it is the reader ([`READER`]).
    state: AtomicU32,
    /// The poller of this process, if there are executor processes.
    board: Option<&'static ExecutorPoller>,
}

const RUNG: u32 = 1;
const READER: u32 = 2;

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitOutcome {
    /// The waiter was notified.
    Notified,
    /// The deadline has passed.
    TimedOut,
    /// A signal arrived.
    Interrupted,
}

impl Default for Waiter {
    fn default() -> Waiter {
        Waiter { state: AtomicU32::new(0), board: EXECUTOR_POLLER.get() }
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.load(Ordering::Relaxed);
        let (rung, reads) = (state & RUNG != 0, state & READER != 0);
        f.debug_struct("Waiter").field("rung", &rung).field("reads", &reads).finish()
    }
}

impl Waiter {
    /// Wakes the thread: what it waits for has come. Does not block.
    pub fn notify(&self) {
        match self.state.fetch_or(RUNG, Ordering::AcqRel) {
            0 => self.wake(),
            // If the reader is this thread, it checks by itself after handling its events.
            READER if !READS.get() => {
                let board = self.board.expect("a reader has a poller");
                let _ = rustix::io::write(&board.kick, &1_u64.to_ne_bytes());
            }
            _ => {}
        }
    }

    /// Clears the notification, for the next wait. Look for what it announced after this call, not
    /// before.
    pub fn begin_again(&self) {
        self.state.fetch_and(!RUNG, Ordering::AcqRel);
    }

    fn wake(&self) {
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
    }

    /// Makes this waiter the reader, unless it was notified.
    fn try_become_reader(&self) -> bool {
        self.state.compare_exchange(0, READER, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Waits until the waiter is notified.
    pub fn wait(self: &Arc<Waiter>, deadline: Instant) -> WaitOutcome {
        let Some(board) = self.board else { return self.wait_until(deadline) };
        board.role().arrives(self, |waiter| waiter.try_become_reader());
        let waited = self.wait_until(deadline);
        board.leaves(self);
        waited
    }

    fn wait_until(&self, deadline: Instant) -> WaitOutcome {
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state & RUNG != 0 {
                return WaitOutcome::Notified;
            }
            let left = deadline.saturating_duration_since(Instant::now()).min(LONGEST);
            if left.is_zero() {
                return WaitOutcome::TimedOut;
            }
            let slept = match self.board {
                Some(board) if state & READER != 0 => board.look_and_read(left),
                _ => {
                    let left = Timespec::try_from(left).expect("it is short");
                    futex::wait(&self.state, futex::Flags::PRIVATE, state, Some(&left))
                }
            };
            // The loop checks again after anything else.
            if slept == Err(Errno::INTR) {
                return WaitOutcome::Interrupted;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_channel::unbounded;

    const LONG: Duration = Duration::from_secs(60);
    const THREADS: usize = 8;
    const ROUNDS: usize = 2_000;

    #[test]
    fn every_waiter_is_notified_whichever_thread_reads() {
        let board = executor_poller();
        let (rings, rung) = unbounded::<(usize, Arc<Waiter>)>();
        thread::scope(|threads| {
            for number in 0..2 {
                let rung = rung.clone();
                threads.spawn(move || {
                    for (round, waiter) in rung {
                        // Sometimes the waiter is asleep by then, in the epoll set or on its futex.
                        if (round + number) % 7 == 0 {
                            thread::sleep(Duration::from_micros(round as u64 % 300));
                        }
                        waiter.notify();
                    }
                });
            }
            for _ in 0..THREADS {
                let rings = rings.clone();
                threads.spawn(move || {
                    for round in 0..ROUNDS {
                        let waiter = Arc::<Waiter>::default();
                        assert!(waiter.board.is_some());
                        rings.send((round, waiter.clone())).wait().unwrap();
                        if round % 5 == 0 {
                            // A waiter that gives up leaves cleanly, and can wait again.
                            waiter.wait(Instant::now() + Duration::from_micros(20));
                        }
                        assert_eq!(waiter.wait(Instant::now() + LONG), WaitOutcome::Notified);
                    }
                });
            }
            drop((rings, rung));
        });
        let end = Instant::now() + LONG;
        while board.role().reader() != Reader::Background {
            assert!(Instant::now() < end, "the background thread reads when no thread waits");
            thread::sleep(RELOOK);
        }
    }

    #[test]
    fn a_wait_ends_when_its_time_is_over() {
        let waiter = Arc::<Waiter>::default();
        assert_eq!(waiter.wait(Instant::now() + Duration::from_millis(1)), WaitOutcome::TimedOut);
        waiter.notify();
        waiter.notify();
        assert_eq!(waiter.wait(Instant::now()), WaitOutcome::Notified);
        waiter.begin_again();
        assert_eq!(waiter.wait(Instant::now()), WaitOutcome::TimedOut);
        waiter.notify();
        assert_eq!(waiter.wait(Instant::now()), WaitOutcome::Notified);
    }
}
