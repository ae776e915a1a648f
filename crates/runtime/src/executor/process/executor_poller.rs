//! Who reads what executors say. All their pipes are in one epoll set, and one thread at a time reads:
//! the one that waits for an answer, so that it need not be woken by another; a background thread, where
//! nobody waits. See [`Desk`] for how the role of the reader passes from one to the other.
//!
//! Why nothing is left unread: there is a reader, or there was one less than [`RELOOK`] ago, after which the
//! background thread reads. Why nothing is read by two: the role changes under the desk's lock, and its
//! holder alone gives it up. Why who waits hears of its answer, whoever reads it: [`Waiter::ring`] marks the
//! waiter, and then wakes it from wherever it sleeps: from its futex, or, if it has been made the reader, from
//! the epoll set. Both orders of a ring and of passing the role to a waiter end well: a waiter that was rung
//! first is not given the role; one that is given it first is woken from the set.

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

/// So long after the last reader left, the background thread reads.
const RELOOK: Duration = Duration::from_millis(1);
/// How much is read at a time.
pub(super) const READ_BYTES: usize = 64 << 10;
/// How many executors have their turn before who waits looks for its own answer.
const MAX_EVENTS: usize = 64;
/// It is looked at the time so often, at least.
const LONGEST: Duration = Duration::from_secs(60 * 60);
/// What is not about an executor, but wakes the reader.
const KICK: u64 = 0;
/// Marks what is about room for what an executor is told.
const ROOM: u64 = 1 << 63;

/// See the [module](self).
pub(super) struct ExecutorPoller {
    epoll: OwnedFd,
    kick: OwnedFd,
    next_line: AtomicU64,
    readers: Mutex<Map<u64, Arc<OutputReader>>>,
    buffer: Mutex<Box<[u8]>>,
    /// Of whoever waits and reads.
    spin: Mutex<Spin>,
    role: Mutex<ReaderRole<Arc<Waiter>>>,
    /// The role is free, and the background thread has stopped looking.
    free: Condvar,
    started: Once,
}

thread_local! {
    static READS: Cell<bool> = const { Cell::new(false) };
}

static SWITCHBOARD: PerProcess<ExecutorPoller> = PerProcess::new();

/// The one of this process.
pub(super) fn executor_poller() -> &'static ExecutorPoller {
    let board =
        SWITCHBOARD.get_or_init(|| ExecutorPoller::new().expect("an epoll set can be made"));
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
        builder.spawn(run).expect("a thread that reads can be started");
    }

    /// A number for an executor; never used again.
    pub fn next_line(&self) -> u64 {
        self.next_line.fetch_add(1, Ordering::Relaxed)
    }

    /// Has what an executor answers heard from now on.
    pub fn add(
        &self,
        line: u64,
        answers: impl AsFd,
        output_reader: Arc<OutputReader>,
    ) -> rustix::io::Result<()> {
        self.lines().insert(line, output_reader);
        epoll::add(&self.epoll, answers, EventData::new_u64(line), EventFlags::IN)
    }

    /// It is not heard any more, unless somebody is about to. This must be open: a fork may have it too.
    pub fn remove(&self, line: u64, answers: impl AsFd) {
        if self.lines().remove(&line).is_some() {
            let _ = epoll::delete(&self.epoll, answers);
        }
    }

    /// Has it said when there is room for what an executor is told, until that is removed.
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

    /// What the background thread does: reads, or waits for whoever does.
    fn look(&self) {
        let role = self.role();
        if role.reader() == Reader::Background {
            drop(role);
            let _ = self.read(None); // It can only have been interrupted.
            let then = self.role().background_has_read(|waiter| waiter.try_become_reader());
            return self.carry_out(then);
        }
        let before = role.changes();
        let (mut role, _) = self.free.wait_timeout(role, RELOOK).expect("nothing panics under it");
        role.background_looks(before);
        drop(self.free.wait_while(role, |role| role.is_away()));
    }

    /// A thread does not wait any more.
    fn leaves(&self, waiter: &Arc<Waiter>) {
        let mut role = self.role();
        // Under the lock, since the role may be passed to it until now.
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

    /// The same for a thread that waits, which looks for a while before it sleeps.
    fn look_and_read(&self, limit: Duration) -> rustix::io::Result<()> {
        let mut spin = self.spin.lock().expect("nothing panics under it");
        let read = spin.look(|| match self.read(Some(Duration::ZERO)) {
            Ok(0) => None,
            read => Some(read),
        });
        drop(spin);
        read.unwrap_or_else(|| self.read(Some(limit))).map(drop)
    }

    /// Reads what executors say next, or until then. Says how much there was.
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
                None => {} // It was removed after this was seen.
            }
        }
        READS.set(false);
        Ok(events.len())
    }
}

/// One thread that waits for something, whoever brings it.
pub struct Waiter {
    /// Whether it has come, and whether this thread is the reader.
    state: AtomicU32,
    /// Where executors are heard, if there are any.
    board: Option<&'static ExecutorPoller>,
}

const RUNG: u32 = 1;
const READER: u32 = 2;

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitOutcome {
    /// It was rung.
    Notified,
    /// The time is over.
    TimedOut,
    /// A signal came.
    Interrupted,
}

impl Default for Waiter {
    fn default() -> Waiter {
        Waiter { state: AtomicU32::new(0), board: SWITCHBOARD.get() }
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
    /// What it waits for has come. Does not block.
    pub fn notify(&self) {
        match self.state.fetch_or(RUNG, Ordering::AcqRel) {
            0 => self.wake(),
            // It looks by itself, if it is this thread.
            READER if !READS.get() => {
                let board = self.board.expect("it reads there");
                let _ = rustix::io::write(&board.kick, &1_u64.to_ne_bytes());
            }
            _ => {}
        }
    }

    /// It waits anew: from now on it is rung again. What rang it before is to be looked at after this.
    pub fn begin_again(&self) {
        self.state.fetch_and(!RUNG, Ordering::AcqRel);
    }

    fn wake(&self) {
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
    }

    /// Makes it the reader, unless it has no reason to wait.
    fn try_become_reader(&self) -> bool {
        self.state.compare_exchange(0, READER, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Waits until it is rung.
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
            // Whatever else it is, it is looked at again.
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
    fn whoever_waits_hears_of_what_it_waits_for_whoever_reads() {
        let board = executor_poller();
        let (rings, rung) = unbounded::<(usize, Arc<Waiter>)>();
        thread::scope(|threads| {
            for number in 0..2 {
                let rung = rung.clone();
                threads.spawn(move || {
                    for (round, waiter) in rung {
                        // Now and then it is asleep by then, in the set or out of it.
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
                            // Who gives up leaves in good order, and may come again.
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
            assert!(Instant::now() < end, "the background thread reads when nobody waits");
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
