//! Back-pressure: how many submissions are welcome. A client may submit as many tasks as it was
//! promised room for; promises and tasks that have not ended never exceed the limit together.

use super::{Controller, Effect};
use crate::error::Error;
use crate::id::SessionId;
use crate::message::ToClient;

impl Controller {
    /// How many more tasks could be promised room.
    fn room(&self) -> u64 {
        if self.object_bytes >= self.config.max_result_bytes {
            return 0;
        }
        let taken = self.tasks.len() as u64 + self.promised;
        (self.config.max_pending_tasks as u64).saturating_sub(taken)
    }

    /// Says so if no more values can be kept.
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

    /// Says why a task cannot be taken on now, if it cannot and nobody promised room for it.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        self.check_bytes()?;
        if self.room() > 0 {
            return Ok(());
        }
        Err(Error::exhausted(format!(
            "{} tasks are pending and {} more were promised room, the limit is {} (max_pending_tasks): \
             submit again when some ended",
            self.tasks.len(),
            self.promised,
            self.config.max_pending_tasks
        )))
    }

    /// Promises a client what it may have, as far as there is room; the rest later.
    pub(super) fn promise(&mut self, id: SessionId, effects: &mut Vec<Effect>) {
        let room = self.room();
        let most = self.config.submit_window;
        let Some(member) = self.sessions.get_mut(&id) else { return };
        // Those who submit much get more room promised, up to the limit; those who are idle little.
        if member.submitted >= member.window && member.window < most {
            member.window = (member.window * 2).min(most);
        }
        let window = member.window.min(most);
        let open = member.promised - member.submitted;
        // Half a window at a time, so that not every submission is answered.
        if open * 2 > window {
            return;
        }
        let more = (window - open).min(room);
        if more > 0 {
            member.promised += more;
            self.promised += more;
            let message = ToClient::Credit { total: member.promised };
            effects.push(Effect::ToClient { to: member.session, message });
        }
        if more < window - open && !self.starved.contains(&id) {
            self.starved.push_back(id);
        }
    }

    /// A submission came. Says whether room was promised for it.
    pub(super) fn use_promise(&mut self, id: SessionId) -> bool {
        let member = self.sessions.get_mut(&id).expect("it speaks");
        let promised = member.submitted < member.promised;
        if promised {
            member.submitted += 1;
            self.promised -= 1;
        }
        promised
    }

    /// There may be room for those who were promised less than they may have.
    pub(super) fn promise_starved(&mut self, effects: &mut Vec<Effect>) {
        for _ in 0..self.starved.len() {
            if self.room() == 0 {
                return;
            }
            let id = self.starved.pop_front().expect("one is starved");
            self.promise(id, effects);
        }
    }
}
