//! What could ever run here, and why something cannot.

use super::pool::{Pool, Provides};
use super::shape::ShapeKey;
use super::{MAX_KNOWN, Schedule, Work};
use crate::account::Account;
use crate::message::ShapeId;
use crate::resources::{Amount, Resources};
use std::sync::Arc;

/// What is said of memory that nobody offers: unlike CPUs, it is not offered by itself.
const HOW_TO_OFFER_MEMORY: &str = "; workers offer memory only if they are told to \
    (`marline up --memory`, `marline worker --memory`, `marline.init(memory=…)`)";

impl Schedule {
    /// Whether work of another shape, older than the first of this one, waits for room that exists
    /// somewhere: then slots of this shape are left to run empty.
    pub(super) fn others_wait_longer(&self, id: ShapeId) -> bool {
        self.waiting.feasible.first_key_value().is_some_and(|((_, oldest), _)| *oldest != id)
    }

    /// Why work of this demand does not run now, if nothing could ever run it here.
    pub fn why_infeasible(&self, key: &ShapeKey) -> Option<String> {
        let mut best: Option<&Account> = None;
        let mut only_preemptible = false;
        for worker in self.workers.iter().flatten().filter(|worker| worker.open) {
            let provides = &self.pools[worker.pool].provides;
            only_preemptible |= provides.provides(&key.requires);
            if provides.serves(key) {
                if worker.account.could_ever_fit(&key.resources) {
                    return None;
                }
                let larger =
                    best.is_none_or(|best| best.capacity().cpu < worker.account.capacity().cpu);
                best = if larger { Some(&worker.account) } else { best };
            }
        }
        Some(match best {
            None if self.workers.iter().flatten().next().is_none() => {
                "no worker is here: start one with `marline worker`".into()
            }
            None if self.is_closed() => {
                "no worker takes work now: those here are joining, suspected, paused or draining"
                    .into()
            }
            None if only_preemptible => {
                format!(
                    "only preemptible workers provide {:?}, and it must not run on one",
                    &*key.requires
                )
            }
            None => format!("no worker provides {:?}", &*key.requires),
            Some(best) => {
                let missing = self.offered_by_nobody(key);
                if missing.is_empty() {
                    format!(
                        "no worker is large enough for {}: the largest offers {}",
                        key.resources,
                        best.capacity(),
                    )
                } else {
                    let how = if missing.contains(&"memory") { HOW_TO_OFFER_MEMORY } else { "" };
                    format!("no worker offers {}{how}", missing.join(" or "))
                }
            }
        })
    }

    /// Whether there are workers, and none takes work now.
    pub fn is_closed(&self) -> bool {
        let mut workers = self.workers.iter().flatten().peekable();
        workers.peek().is_some() && workers.all(|worker| !worker.open)
    }

    /// The kinds of resources that are asked for, of which no worker that could run it offers any.
    fn offered_by_nobody<'a>(&self, key: &'a ShapeKey) -> Vec<&'a str> {
        let serving = || {
            let open = self.workers.iter().flatten().filter(|worker| worker.open);
            open.filter(|worker| self.pools[worker.pool].provides.serves(key))
                .map(|worker| worker.account.capacity())
        };
        let asked = &key.resources;
        let mut missing = Vec::new();
        let mut note = |name: &'a str, is_asked: bool, is_offered: bool| {
            if is_asked && !is_offered {
                missing.push(name);
            }
        };
        note("cpu", asked.cpu > Amount::ZERO, serving().any(|one| one.cpu > Amount::ZERO));
        note("gpu", asked.gpu > Amount::ZERO, serving().any(|one| one.gpu > Amount::ZERO));
        note("memory", asked.memory > 0, serving().any(|one| one.memory > 0));
        for (name, amount) in asked.custom() {
            let offers = |one: &Resources| {
                one.custom().any(|(other, amount)| other == name && amount > Amount::ZERO)
            };
            note(name, amount > Amount::ZERO, serving().any(offers));
        }
        missing
    }

    /// Whether every worker that takes work provides this.
    pub fn is_provided_everywhere(&self, requires: &str) -> bool {
        let mut open = self.workers.iter().flatten().filter(|worker| worker.open);
        open.all(|worker| self.pools[worker.pool].provides.provides(requires))
    }

    /// What is waited for, and by how many pieces of work; what no worker could ever run comes first.
    pub fn waiting(&self) -> impl Iterator<Item = (&ShapeKey, usize)> {
        self.waiting.shapes().map(|id| {
            let shape = self.shape(id);
            (&shape.key, shape.queue.len() - shape.left)
        })
    }

    /// The same with the first pieces of work themselves; some may have left the queue.
    pub fn waiting_work(&self) -> impl Iterator<Item = (&ShapeKey, impl Iterator<Item = Work>)> {
        self.waiting.shapes().map(|id| {
            let shape = self.shape(id);
            (&shape.key, shape.queue.iter().map(|one| one.work))
        })
    }

    /// How many different demands are waited for.
    pub fn waiting_shapes(&self) -> usize {
        self.waiting.len()
    }

    /// Whether work of this demand waits already.
    pub fn is_waited_for(&self, key: &ShapeKey) -> bool {
        self.by_key.get(key).is_some_and(|id| !self.shape(*id).queue.is_empty())
    }

    /// Whether any worker ever provided this.
    pub fn knows(&self, requires: &str) -> bool {
        self.known.provides(requires)
            || self.pools.iter().any(|pool| pool.provides.provides(requires))
    }

    /// The pool of workers that provide this; one that nobody is in any more is used again.
    pub(super) fn pool_of(&mut self, provides: Arc<Provides>) -> usize {
        if let Some(pool) = self.pools.iter().position(|pool| pool.provides == provides) {
            return pool;
        }
        if self.known.names.len() < MAX_KNOWN {
            self.known.names.extend(provides.names.iter().cloned());
        }
        for shape in self.shapes.iter_mut().flatten() {
            shape.pools = None;
        }
        let vacant = self.pools.iter().position(|pool| pool.members == 0);
        let pool = vacant.unwrap_or(self.pools.len());
        if pool == self.pools.len() {
            self.pools.push(Pool::new(provides));
        } else {
            self.pools[pool] = Pool::new(provides);
        }
        pool
    }
}
