//! Which client is shown what work prints (its audience). That is the client that submitted the
//! task or created the actor, if it wants the output. For a client that runs inside a task or
//! actor, it is the audience of that task or actor.
//!
//! The audience is set when the work is admitted. Output of work whose audience has left is shown
//! to no client; it is still in the worker's log.

use super::{Controller, Effect, Owner};
use crate::id::Session;
use crate::message::ToClient;
use crate::output::{AttributedOutput, Audience, OutputSource, PrintedLines};
use std::sync::Arc;

impl Controller {
    /// Sets the audience of all work that a client submits from now on.
    pub(super) fn show_output(&mut self, session: Session, to: Audience) {
        let audience = match to {
            Audience::Nobody => None,
            Audience::Me => Some(Arc::new(session)),
            Audience::OfSource(source) => {
                self.name_and_audience(source).map(|(_, audience)| audience.clone())
            }
        };
        let driver = match to {
            Audience::Nobody | Audience::Me => Some(session),
            Audience::OfSource(source) => self.driver_of(source),
        };
        let member = self.sessions.get_mut(&session.id).expect("the session is open");
        (member.audience, member.driver) = (audience, driver);
    }

    /// Returns the audience of new work of this owner.
    pub(super) fn audience_of(&self, owner: Owner) -> Option<Arc<Session>> {
        match owner {
            Owner::Session(session) => self.sessions.get(&session.id)?.audience.clone(),
            Owner::Cluster | Owner::Recompute => None,
        }
    }

    /// Forwards lines that user code printed at a worker to the audience of that work.
    pub(super) fn printed(
        &mut self,
        worker: Session,
        source: OutputSource,
        output: PrintedLines,
        effects: &mut Vec<Effect>,
    ) {
        let Some((name, audience)) = self.name_and_audience(source) else { return };
        let to = **audience;
        if self.is_reachable(to) {
            let hostname = self.workers[&worker.id].info.hostname.as_str().into();
            let shown = AttributedOutput { source, name: name.clone(), hostname, output };
            effects.push(Effect::ToClient { to, message: ToClient::Printed(shown) });
        }
    }

    /// Returns the name of a task or actor that prints, and its audience. Returns `None` if it has
    /// no audience or is forgotten.
    fn name_and_audience(&self, source: OutputSource) -> Option<(&Arc<str>, &Arc<Session>)> {
        match source {
            OutputSource::Task(attempt) => match self.tasks.get(&attempt.task) {
                Some(task) => Some((task.spec.target.name(), task.audience.as_ref()?)),
                None => self.history.listener(attempt.task),
            },
            OutputSource::Actor(instance) => {
                let actor = self.actors.get(&instance.actor)?;
                let name = actor.spec.name.as_ref().unwrap_or(&actor.spec.class);
                Some((name, actor.audience.as_ref()?))
            }
        }
    }
}
