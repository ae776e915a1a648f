//! Whether a worker here could ever run a demand, and if not, why, in words. Also lists the waiting
//! work by its demands.

use super::pool::{Pool, WorkerCapabilities};
use super::shape::Demand;
use super::{Schedule, Work};
use crate::account::ResourceAccount;
use crate::message::ShapeId;
use crate::resources::{Amount, Resources};
use crate::spec::{ACTOR_SCHEME, runtime_of};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The hint for work that asks for memory while no worker offers any. Unlike CPUs, memory is not
/// offered by default.
const HOW_TO_OFFER_MEMORY: &str = "; workers offer memory only if they are told to \
    (`marline up --memory`, `marline worker --memory`, `marline.init(memory=…)`)";

/// Why no worker here can run a demand, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UnrunnableReason {
    /// No worker provides the function or class.
    Name(String),
    /// The workers that provide it have another version of Python than its code needs.
    Version(String),
    /// The workers that provide it can start no executor for it.
    Start {
        /// The runtime whose executors do not start.
        runtime: String,
        /// The reason, in words.
        words: String,
    },
}

impl UnrunnableReason {
    fn into_words(self) -> String {
        match self {
            UnrunnableReason::Name(words)
            | UnrunnableReason::Version(words)
            | UnrunnableReason::Start { words, .. } => words,
        }
    }
}

impl Schedule {
    /// Returns whether feasible work of another shape is older than the first work of this one.
    /// Then the backlogs of this shape are left to run empty, so that its slots become free.
    pub(super) fn others_wait_longer(&self, id: ShapeId) -> bool {
        self.waiting.feasible.first_key_value().is_some_and(|((_, oldest), _)| *oldest != id)
    }

    /// Returns why no worker that takes work now could ever run this demand, if that is so.
    pub fn why_infeasible(&self, key: &Demand) -> Option<String> {
        let mut best: Option<&ResourceAccount> = None;
        let mut only_preemptible = false;
        for worker in self.workers.iter().flatten().filter(|worker| worker.open) {
            let provides = &self.pools[worker.pool].provides;
            only_preemptible |= provides.can_run(key);
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
            None => self.why_unknown(key).map_or_else(String::new, UnrunnableReason::into_words),
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

    /// Returns whether there are workers and none can run this demand, however few resources it
    /// takes.
    pub fn is_unknown(&self, key: &Demand) -> bool {
        let mut here = self.pools.iter().filter(|pool| pool.members > 0).peekable();
        here.peek().is_some() && !here.any(|pool| pool.provides.can_run(key))
    }

    /// Returns why no worker here can run this demand, however few resources it takes. Returns
    /// `None` if one can, or if there are no workers. Workers that take no work at the moment
    /// count, too.
    pub fn why_unknown(&self, key: &Demand) -> Option<UnrunnableReason> {
        let here = || {
            let pools = self.pools.iter().filter(|pool| pool.members > 0);
            pools.map(|pool| &*pool.provides)
        };
        if !self.is_unknown(key) {
            return None;
        }
        let requires = &*key.requires;
        if !here().any(|provides| provides.provides(requires)) {
            let names = here().flat_map(|one| &one.names).map(|name| &**name);
            let names: BTreeSet<&str> = names.take(MAX_NAMES_READ).collect();
            let what = match requires.strip_prefix(ACTOR_SCHEME) {
                Some(class) => format!("the actor {class:?}"),
                None => format!("{requires:?}"),
            };
            let words = format!("no worker provides {what}: {}", offered(&names));
            return Some(UnrunnableReason::Name(words));
        }
        let versions: BTreeSet<u32> =
            here().filter(|one| one.provides(requires)).map(|one| one.code_version).collect();
        if !here().any(|one| one.provides(requires) && one.runs_code_version(key.code_version)) {
            let versions: Vec<String> = versions.iter().map(|minor| format!("3.{minor}")).collect();
            return Some(UnrunnableReason::Version(format!(
                "no worker has Python 3.{}, which its code needs: those here have Python {}",
                key.code_version,
                versions.join(" and ")
            )));
        }
        let runtime = runtime_of(requires);
        let words = match runtime {
            "" => "no worker can start an executor".to_owned(),
            runtime => format!("no worker can start an executor for {runtime:?}"),
        };
        Some(UnrunnableReason::Start { runtime: runtime.into(), words })
    }

    /// Returns whether there are workers and none takes work now.
    pub fn is_closed(&self) -> bool {
        let mut workers = self.workers.iter().flatten().peekable();
        workers.peek().is_some() && workers.all(|worker| !worker.open)
    }

    /// Returns the resources of this demand that no worker offers. Only workers count that take
    /// work now and could run the demand if it took no resources.
    fn offered_by_nobody<'a>(&self, key: &'a Demand) -> Vec<&'a str> {
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

    /// Returns whether every worker that takes work provides this function or class.
    pub fn is_provided_everywhere(&self, requires: &str) -> bool {
        let mut open = self.workers.iter().flatten().filter(|worker| worker.open);
        open.all(|worker| self.pools[worker.pool].provides.provides(requires))
    }

    /// Returns the demands of waiting work, with the number of pieces of each. Demands that no
    /// worker could ever run come first.
    pub fn waiting(&self) -> impl Iterator<Item = (&Demand, usize)> {
        self.waiting.shapes().map(|id| {
            let shape = self.shape(id);
            (&shape.demand, shape.queue.len() - shape.left)
        })
    }

    /// Returns the demands of waiting work in the same order, each with its work, oldest first.
    /// Some of the work may be withdrawn already.
    pub fn waiting_work(&self) -> impl Iterator<Item = (&Demand, impl Iterator<Item = Work>)> {
        self.waiting.shapes().map(|id| {
            let shape = self.shape(id);
            (&shape.demand, shape.queue.iter().map(|one| one.work))
        })
    }

    /// Returns how many different demands have waiting work.
    pub fn waiting_shape_count(&self) -> usize {
        self.waiting.len()
    }

    /// Returns how many different demands have waiting work that no worker could ever run.
    pub fn infeasible_shapes(&self) -> usize {
        self.waiting.infeasible.len()
    }

    /// Returns the demands that no worker could ever run, each with its work, oldest first. Some of
    /// the work may be withdrawn already.
    pub fn infeasible_work(&self) -> impl Iterator<Item = (&Demand, impl Iterator<Item = Work>)> {
        self.waiting.infeasible.iter().map(|(_, id)| {
            let shape = self.shape(*id);
            (&shape.demand, shape.queue.iter().map(|one| one.work))
        })
    }

    /// Returns whether work of this demand waits already.
    pub fn is_waited_for(&self, key: &Demand) -> bool {
        self.by_key.get(key).is_some_and(|id| !self.shape(*id).queue.is_empty())
    }

    /// Returns the pool of the workers with these capabilities. Makes one if there is none; an
    /// empty pool is used again.
    pub(super) fn pool_of(&mut self, provides: Arc<WorkerCapabilities>) -> usize {
        if let Some(pool) = self.pools.iter().position(|pool| pool.provides == provides) {
            return pool;
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

/// The most provided names that an error lists.
const MAX_NAMED: usize = 5;
/// The most provided names that an error counts.
const MAX_NAMES_READ: usize = 1_000;

/// Returns the names that workers provide, in words.
fn offered(names: &BTreeSet<&str>) -> String {
    let first: Vec<String> = names.iter().take(MAX_NAMED).map(|name| format!("{name:?}")).collect();
    let rest = names.len() - first.len();
    match (first.len(), rest) {
        (0, _) => "those here provide nothing".into(),
        (_, 0) => format!("those here provide {}", first.join(", ")),
        (_, rest) => format!("those here provide {} and {rest} more", first.join(", ")),
    }
}
