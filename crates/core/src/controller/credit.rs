//! Back-pressure: how much each client may submit.
//!
//! The controller promises a client room for a number of tasks, and for a number of bytes of
//! arguments. The client submits no more than that. Promises and pending work together stay within
//! the limits, with two exceptions, which are bounded:
//!
//! - A client submits its next task while any of its promised bytes are left, however large that
//!   task is. Otherwise a task larger than one promise would never leave the client. So a session
//!   exceeds its promise by less than one payload.
//! - A session may always have [a few](FIRST_TASKS) tasks pending, whatever the limits say.
//!   Otherwise tasks that submit other tasks would wait for room that only their own end can make,
//!   and a few idle sessions with large promises would stop all others.

use super::{Controller, Effect, Owner};
use crate::error::Error;
use crate::id::{Session, SessionId};
use crate::message::ToClient;

/// The number of tasks for which a client is promised room before it has shown that it needs more.
/// It may always have this many pending.
pub(super) const FIRST_TASKS: u64 = 16;
/// The bytes of arguments for which a client is promised room before it has shown that it needs
/// more.
pub(super) const FIRST_BYTES: u64 = 1 << 20;

/// The promises to one session, in tasks or in bytes.
#[derive(Debug)]
pub(super) struct Window {
    /// The sum of all promises since the session began.
    promised: u64,
    /// How much of that the session has used.
    used: u64,
    /// The most that may be promised and unused. Grows as the session uses its promises.
    size: u64,
}

impl Window {
    fn new(size: u64) -> Window {
        Window { promised: 0, used: 0, size }
    }

    /// Returns the part of the promises that is still unused.
    pub fn open(&self) -> u64 {
        self.promised.saturating_sub(self.used)
    }

    /// Returns how much to promise now, if there is room. That is nothing, or at least half a
    /// window, so that not every submission is answered.
    fn wants(&mut self, most: u64) -> u64 {
        // A client that submits much is promised more at a time, an idle client little.
        if self.used >= self.size && self.size < most {
            self.size = (self.size * 2).min(most);
        }
        let size = self.size.min(most);
        if self.open() * 2 > size { 0 } else { size - self.open() }
    }
}

/// The promises to one session, and the bytes that it has pending.
#[derive(Debug)]
pub(super) struct Credit {
    pub tasks: Window,
    pub bytes: Window,
    /// The bytes of arguments of the session's tasks that have not ended.
    pub pending_bytes: u64,
    /// Whether the session was promised less than it may have. Then it is in
    /// `sessions_awaiting_credit`.
    is_starved: bool,
}

impl Default for Credit {
    fn default() -> Credit {
        let (tasks, bytes) = (Window::new(FIRST_TASKS), Window::new(FIRST_BYTES));
        Credit { tasks, bytes, pending_bytes: 0, is_starved: false }
    }
}

/// The unused promises of all sessions together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct UnusedCredit {
    pub tasks: u64,
    pub bytes: u64,
}

impl Controller {
    /// Returns for how many more tasks there is room that is not promised.
    fn task_room(&self) -> u64 {
        let taken = self.tasks.len() as u64 + self.promised.tasks;
        (self.config.max_pending_tasks as u64).saturating_sub(taken)
    }

    /// Returns for how many more bytes of arguments there is room that is not promised.
    fn byte_room(&self) -> u64 {
        self.config.max_pending_bytes.saturating_sub(self.pending_bytes + self.promised.bytes)
    }

    /// Fails with `Exhausted` if no more values can be kept.
    pub(super) fn check_bytes(&self) -> Result<(), Error> {
        let limit = self.config.max_result_bytes;
        if self.object_bytes < limit {
            return Ok(());
        }
        Err(Error::exhausted(format!(
            "{} bytes of results and values are kept, the limit is {limit} (max_result_bytes): release some first",
            self.object_bytes
        )))
    }

    /// Fails with `Exhausted` if `bytes` more bytes of arguments cannot be kept until their work
    /// ends.
    pub(super) fn check_arguments(&self, owner: Owner, bytes: usize) -> Result<(), Error> {
        let next = "submit again when some ended, or put large values and pass their references";
        let (bytes, kept) = (bytes as u64, self.pending_bytes);
        let limit = self.config.max_pending_bytes;
        if kept + bytes > limit {
            return Err(Error::exhausted(format!(
                "{bytes} bytes of arguments do not fit: pending tasks and actors keep {kept} of at most {limit} \
                 (max_pending_bytes): {next}"
            )));
        }
        let Owner::Session(session) = owner else { return Ok(()) };
        let member = self.sessions.get(&session.id);
        let kept = member.map_or(0, |member| member.credit.pending_bytes);
        let limit = self.config.max_session_bytes;
        if kept > 0 && kept + bytes > limit {
            return Err(Error::exhausted(format!(
                "{bytes} bytes of arguments do not fit: this session's pending tasks keep {kept} of at most {limit} \
                 (max_session_bytes): {next}"
            )));
        }
        Ok(())
    }

    /// Fails with `Exhausted` if there is no room for a task for which none was promised.
    pub(super) fn check_room(&self, owner: Owner, bytes: usize) -> Result<(), Error> {
        self.check_bytes()?;
        self.check_arguments(owner, bytes)?;
        if self.task_room() > 0 {
            return Ok(());
        }
        Err(Error::exhausted(format!(
            "{} tasks are pending and {} more were promised room, the limit is {} (max_pending_tasks): \
             submit again when some ended",
            self.tasks.len(),
            self.promised.tasks,
            self.config.max_pending_tasks
        )))
    }

    /// Promises a client what it may have, as far as there is room. If that is not all, the client
    /// waits for the rest in `sessions_awaiting_credit`.
    pub(super) fn extend_credit(&mut self, id: SessionId, effects: &mut Vec<Effect>) {
        let (mut task_room, mut byte_room) = (self.task_room(), self.byte_room());
        let is_full = self.object_bytes >= self.config.max_result_bytes;
        let Some(member) = self.sessions.get_mut(&id) else { return };
        let credit = &mut member.credit;
        let own = self.config.max_session_bytes;
        byte_room = byte_room.min(own.saturating_sub(credit.pending_bytes + credit.bytes.open()));
        let pending = member.tasks.len() as u64;
        task_room = task_room.max(FIRST_TASKS.saturating_sub(pending + credit.tasks.open()));
        let kept = credit.pending_bytes + credit.bytes.open();
        // However small the limit is, a session that has nothing pending may submit a task of any
        // size.
        byte_room = byte_room.max(FIRST_BYTES.min(own.max(1)).saturating_sub(kept));
        if is_full {
            (task_room, byte_room) = (0, 0);
        }
        let wanted = credit.tasks.wants(self.config.submit_window);
        let wanted_bytes = credit.bytes.wants(self.config.submit_window_bytes);
        let (more, more_bytes) = (wanted.min(task_room), wanted_bytes.min(byte_room));
        if more > 0 || more_bytes > 0 {
            let open = credit.bytes.open();
            credit.tasks.promised += more;
            // Bytes that came beyond the promise are deducted first.
            credit.bytes.promised = credit.bytes.promised.max(credit.bytes.used) + more_bytes;
            self.promised.tasks += more;
            self.promised.bytes += credit.bytes.open() - open;
            let (tasks, bytes) = (credit.tasks.promised, credit.bytes.promised);
            effects.push(Effect::ToClient {
                to: member.session,
                message: ToClient::Credit { tasks, bytes },
            });
        }
        if (more < wanted || more_bytes < wanted_bytes) && !credit.is_starved {
            credit.is_starved = true;
            self.sessions_awaiting_credit.push_back(id);
        }
    }

    /// Uses a promise for a submission with `bytes` bytes of arguments. Returns `false` if no room
    /// was promised for it.
    pub(super) fn use_promise(&mut self, id: SessionId, bytes: usize) -> bool {
        let credit = &mut self.sessions.get_mut(&id).expect("the session is open").credit;
        let promised = credit.tasks.open() > 0 && credit.bytes.open() > 0;
        if promised {
            let open = credit.bytes.open();
            credit.tasks.used += 1;
            credit.bytes.used += bytes as u64;
            self.promised.tasks -= 1;
            self.promised.bytes -= open - credit.bytes.open();
        }
        promised
    }

    /// Takes the unused promises of a session that is over out of the totals.
    pub(super) fn end_promises(&mut self, credit: &Credit) {
        self.promised.tasks -= credit.tasks.open();
        self.promised.bytes -= credit.bytes.open();
    }

    /// Adds the arguments of a task or actor to the kept bytes, or subtracts them.
    pub(super) fn count_arguments(&mut self, owner: Owner, bytes: usize, is_kept: bool) {
        let change = |count: &mut u64| match is_kept {
            true => *count += bytes as u64,
            false => *count -= bytes as u64,
        };
        change(&mut self.pending_bytes);
        if let Owner::Session(Session { id, epoch }) = owner
            && let Some(member) = self.sessions.get_mut(&id)
            && member.session.epoch == epoch
        {
            change(&mut member.credit.pending_bytes);
        }
    }

    /// Promises room to sessions that were promised less than they may have.
    pub(super) fn extend_credit_of_waiting(&mut self, effects: &mut Vec<Effect>) {
        for _ in 0..self.sessions_awaiting_credit.len() {
            if self.task_room() == 0 && self.byte_room() == 0 {
                return;
            }
            let id = self.sessions_awaiting_credit.pop_front().expect("the list is not empty");
            if let Some(member) = self.sessions.get_mut(&id) {
                member.credit.is_starved = false;
                self.extend_credit(id, effects);
            }
        }
    }

    /// Promises room to the session whose task ended, if it waits for room: it may now have fewer
    /// tasks pending than it may always have.
    pub(super) fn promise_owner(&mut self, id: SessionId, effects: &mut Vec<Effect>) {
        if self.sessions.get(&id).is_some_and(|member| member.credit.is_starved) {
            self.extend_credit(id, effects);
        }
    }
}
