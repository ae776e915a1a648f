//! Drivers: which driver work belongs to, through any number of tasks and actors in between, and
//! which actors end with their driver.
//!
//! An actor ends with its last handle. Actors that have handles to each other, or to themselves,
//! would never end. So when a driver ends, an actor of that driver ends too if only tasks and
//! actors of the same driver have handles to it.

use super::actor::DeathCause;
use super::{Controller, Effect, Owner};
use crate::error::Error;
use crate::hold::Holder;
use crate::id::{ActorId, Referent, Session};
use crate::map::Set;
use crate::output::OutputSource;
use crate::spec::{ActorSpec, Lifetime};
use crate::time::Time;

impl Controller {
    /// Returns the driver that a task or an actor belongs to.
    pub(super) fn driver_of(&self, source: OutputSource) -> Option<Session> {
        match source {
            OutputSource::Task(attempt) => match self.tasks.get(&attempt.task)?.owner {
                Owner::Session(owner) => self.sessions.get(&owner.id)?.driver,
                Owner::Cluster | Owner::Recompute => None,
            },
            OutputSource::Actor(instance) => self.actors.get(&instance.actor)?.driver,
        }
    }

    /// Returns the driver that a new actor ends with. A detached actor ends with no driver.
    pub(super) fn driver_for(&self, owner: Owner, spec: &ActorSpec) -> Option<Session> {
        match (owner, spec.options.lifetime) {
            (Owner::Session(owner), Lifetime::NonDetached) => {
                self.sessions.get(&owner.id)?.driver.filter(|driver| self.is_alive(*driver))
            }
            (Owner::Session(_) | Owner::Cluster | Owner::Recompute, _) => None,
        }
    }

    /// Ends the actors of a driver that has ended, unless anything outside that driver holds them.
    /// The driver's own holds are released already.
    pub(super) fn end_actors_of_driver(
        &mut self,
        now: Time,
        driver: Session,
        actors: Set<ActorId>,
        effects: &mut Vec<Effect>,
    ) {
        let mut actors: Vec<ActorId> = actors.into_iter().collect();
        actors.sort_unstable();
        for id in actors {
            if self.is_living(id) && self.is_held_in_family(driver, id) {
                let words = format!(
                    "actor {id} ended with its driver: only that driver's work had handles to it"
                );
                let error = Error::gone(Referent::Actor(id), words);
                self.end_actor(now, id, DeathCause::OwnerGone, error, effects);
            }
        }
    }

    /// Returns whether only sessions that belong to this driver hold an actor. Returns `false` for
    /// an actor that nothing holds: it ends anyway.
    fn is_held_in_family(&self, driver: Session, id: ActorId) -> bool {
        let holders = self.holds.holders(Referent::Actor(id));
        !holders.is_empty()
            && holders.into_iter().all(|holder| match holder {
                Holder::Session(session) => {
                    self.sessions.get(&session).is_some_and(|member| member.driver == Some(driver))
                }
                Holder::Cluster
                | Holder::Task(_)
                | Holder::Actor(_)
                | Holder::Instance(_)
                | Holder::Object(_)
                | Holder::Lineage(_)
                | Holder::Enclosed { .. }
                | Holder::Message { .. } => false,
            })
    }
}
