//! Membership: the client joins, and gives up all its work when the session is over.

use super::{Client, Effect, Timer};
use crate::error::{Error, Ran};
use crate::id::{ObjectId, Referent, Session, TaskId};
use crate::lease::LeaseTerms;
use crate::message::FromClient;
use crate::output::Audience;
use crate::time::Time;

impl Client {
    pub(super) fn joined(
        &mut self,
        now: Time,
        session: Session,
        terms: LeaseTerms,
        asked_at: Time,
        effects: &mut Vec<Effect>,
    ) {
        let timers = &mut self.timers;
        if !self.membership.begin(now, session, terms, asked_at, timers, Timer::Lease) {
            return effects.push(Effect::Stopped(session));
        }
        if self.shows_output {
            effects.push(Effect::ToController(FromClient::ShowOutput { to: Audience::Me }));
        }
    }

    /// Ends the session. Everything in progress fails, and each error says whether the work may
    /// have run. `how` is the end of a sentence that begins with the cluster, such as "has ended".
    pub(super) fn stop(&mut self, how: &str, effects: &mut Vec<Effect>) {
        let Some(session) = self.membership.end() else { return };
        let words = format!("{} {how}", self.cluster());
        let gone = |ran| Error::unavailable(ran, words.clone());
        // Calls that went through the controller are in `tasks`, too.
        let tasks = self.tasks.drain().filter(|task| !self.calls.contains_key(task));
        let mut tasks: Vec<(TaskId, Ran)> = tasks.map(|task| (task, Ran::Maybe)).collect();
        tasks.extend(self.calls.drain().map(|(id, call)| (id, call.may_have_run())));
        tasks.sort_unstable_by_key(|(task, _)| *task);
        for (task, ran) in tasks {
            effects.push(Effect::Ended { task, outcome: Err(gone(ran)) });
        }
        self.locating.clear();
        let mut objects: Vec<ObjectId> = self.fetching.drain().collect();
        objects.sort_unstable();
        for object in objects {
            // The session held the object, so the hold ended with it.
            let lost = format!("value {object} is lost to this process: {words}; make it again");
            let error = Error::gone(Referent::Object(object), lost).ran(Ran::Maybe);
            effects.push(Effect::ObjectReady { object, value: Err(error) });
        }
        let mut creating: Vec<_> = self.creating.drain().collect();
        creating.sort_unstable();
        for requested in creating {
            effects.push(Effect::ActorCreated { requested, actor: Err(gone(Ran::Maybe)) });
        }
        for request in std::mem::take(&mut self.finding) {
            effects.push(Effect::ActorFound { request, actor: Err(gone(Ran::No)) });
        }
        let mut hosts: Vec<Session> = self.hosts.drain().map(|(host, _)| host).collect();
        hosts.sort_unstable();
        effects.extend(hosts.into_iter().map(|host| Effect::CloseHost { host }));
        effects.push(Effect::Stopped(session));
        let (address, former) = (self.address.take(), Some(session.epoch.controller()));
        let (shows_output, recent) = (self.shows_output, std::mem::take(&mut self.recent));
        *self = Client { address, shows_output, former, recent, ..Client::default() };
    }

    /// Returns the cluster in words.
    fn cluster(&self) -> String {
        self.address.as_ref().map_or("the cluster".into(), |at| format!("the cluster at {at}"))
    }

    /// Fails if there is no session.
    pub(super) fn must_be_joined(&self) -> Result<(), Error> {
        if self.membership.is_open() {
            return Ok(());
        }
        let words = format!("this client is not connected to {} (any more)", self.cluster());
        Err(Error::unavailable(Ran::No, words))
    }
}
