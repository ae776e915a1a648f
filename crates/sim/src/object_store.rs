//! The object stores of workers: which data is in them, and whether that is what the controller
//! says.
//!
//! Data that was made at a worker belongs to its maker until the worker retains it. It is lost if
//! the maker dies before, or if the worker handles the result that it was made for without
//! retaining it.

use crate::executor::made_by;
use crate::process::{ProcessId, ProcessShell};
use crate::world::World;
use marline_core::error::Error;
use marline_core::id::{ObjectId, Session};
use marline_core::message::CopyLocation;
use marline_core::payload::{BlobRef, Value};
use marline_core::worker::{Effect, Event, ExecutorId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub struct Store {
    entries: BTreeMap<ObjectId, Entry>,
    /// Objects that it was told to retain and did not have. The controller is told of them.
    lost: BTreeSet<ObjectId>,
}

#[derive(Debug)]
struct Entry {
    maker: Maker,
    kept: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Maker {
    Executor(ExecutorId),
    Client(ProcessId),
    Other,
}

impl World {
    /// Puts the data of an executor's results into the store of its worker.
    pub fn store_results(&mut self, at: ProcessId, by: ExecutorId, values: &mut [Value]) {
        for (index, value) in values.iter_mut().enumerate() {
            let object = ObjectId::of(made_by(value).0, index as u32);
            self.store_value(at, object, value, Maker::Executor(by));
        }
    }

    /// Puts the data of an executor's item into the store of its worker.
    pub fn store_item(
        &mut self,
        at: ProcessId,
        by: ExecutorId,
        object: ObjectId,
        value: &mut Value,
    ) {
        self.store_value(at, object, value, Maker::Executor(by));
    }

    /// Lets a client put the data of a value into the store of a worker. Returns the session of
    /// that worker, or nothing if the data goes to no store.
    pub fn store_put(
        &mut self,
        by: ProcessId,
        object: ObjectId,
        value: &mut Value,
    ) -> Option<Session> {
        let workers = self.living(|role| matches!(role, ProcessShell::Worker(_)));
        let at = *workers.get(self.random.below(workers.len().max(1) as u64) as usize)?;
        let session = self.worker_shell(at).upstream.session?;
        self.store_value(at, object, value, Maker::Client(by));
        Some(session)
    }

    fn store_value(&mut self, at: ProcessId, object: ObjectId, value: &mut Value, maker: Maker) {
        let bytes = value.payload.len() as u64;
        // The data stays in the value, too, where the oracle sees which attempt made it.
        let durable = self.worker_shell(at).info.durable && self.random.one_in(3);
        value.payload.stored = Some(Box::new(BlobRef { object, bytes, durable }));
        if durable {
            self.saved.insert(object);
        }
        let entry = Entry { maker, kept: false };
        let entries = &mut self.worker_shell(at).store.entries;
        // An item that is retained stays: an earlier attempt of the task yielded the same item.
        if entries.get(&object).is_none_or(|entry| !entry.kept) {
            entries.insert(object, entry);
        }
    }

    /// Handles an effect of a worker's machine that is for its object store.
    pub fn store_effect(&mut self, at: ProcessId, effect: Effect) {
        match effect {
            Effect::Retain { object } => {
                let entry = self.worker_shell(at).store.entries.get(&object);
                let maker = entry.map(|entry| entry.maker);
                let gone = match maker {
                    Some(Maker::Client(client)) => !self.processes[client.0].alive,
                    Some(Maker::Executor(_) | Maker::Other) => false,
                    None => true,
                };
                let store = &mut self.worker_shell(at).store;
                if gone {
                    store.entries.remove(&object);
                    store.lost.insert(object);
                    let error = Error::internal("the process that made it is gone");
                    self.tell(at, Event::DataLost { object, error });
                } else if let Some(entry) = store.entries.get_mut(&object) {
                    entry.kept = true;
                }
            }
            Effect::Forget { object } => {
                self.worker_shell(at).store.entries.remove(&object);
            }
            Effect::Located { object, copies: Ok(copies) } => {
                self.copy(at, object, &copies);
            }
            Effect::Pull { object, from } => {
                let came = match from.is_empty() {
                    _ if self.keep_here(at, object) => true,
                    true => self.load(at, object),
                    false => self.copy(at, object, &from),
                };
                if !came {
                    let error = Error::exhausted("no room for the data to be pulled");
                    self.tell(at, Event::DataPullFailed { object, error });
                }
            }
            Effect::Erase { object } => {
                self.saved.remove(&object);
            }
            _ => {}
        }
    }

    /// Copies data from the store of another worker, if one that has it can be reached. Returns
    /// whether the data is here.
    fn copy(&mut self, to: ProcessId, object: ObjectId, copies: &[CopyLocation]) -> bool {
        let there = copies.iter().any(|copy| self.store_of(copy).is_some_and(|at| at != to));
        there && self.fill(to, object)
    }

    /// Loads durable data, which may fail. Returns whether the data is here.
    fn load(&mut self, to: ProcessId, object: ObjectId) -> bool {
        assert!(self.worker_shell(to).info.durable, "{to:?} cannot read saved data");
        if !self.saved.contains(&object) {
            let known = self.controller_shell(self.controller).machine.value(object);
            let durable = known.is_some_and(|value| value.payload.is_durable());
            assert!(!durable, "{object} is held, but its saved data was erased");
            return false;
        }
        !self.random.one_in(8) && self.fill(to, object)
    }

    /// Retains data that the worker is told to pull but has made itself meanwhile. Returns whether
    /// it has the data.
    fn keep_here(&mut self, at: ProcessId, object: ObjectId) -> bool {
        let Some(entry) = self.worker_shell(at).store.entries.get_mut(&object) else {
            return false;
        };
        entry.kept = true;
        self.tell(at, Event::DataCopied { object });
        true
    }

    fn fill(&mut self, to: ProcessId, object: ObjectId) -> bool {
        if self.worker_shell(to).store.entries.contains_key(&object) {
            return true; // The data was made here meanwhile, and its maker reports it.
        }
        let entry = Entry { maker: Maker::Other, kept: true };
        self.worker_shell(to).store.entries.insert(object, entry);
        self.tell(to, Event::DataCopied { object });
        true
    }

    /// Returns the process that has this copy, if it is alive, not frozen, and still has that
    /// session.
    fn store_of(&self, copy: &CopyLocation) -> Option<ProcessId> {
        let id = ProcessId(copy.worker.id.as_u128() as usize);
        let process = &self.processes[id.0];
        let ProcessShell::Worker(shell) = &process.role else { return None };
        let same = shell.machine.session() == Some(copy.worker);
        (process.alive && !process.frozen && same).then_some(id)
    }

    /// Looks for the data of the arguments of work that starts. The worker is told of data that is
    /// missing.
    pub fn read_values(&mut self, at: ProcessId, values: &[Value]) {
        for object in values.iter().filter_map(|value| value.payload.stored_object()) {
            if !self.worker_shell(at).store.entries.contains_key(&object) {
                self.tell(at, Event::DataMissing { object });
            }
        }
    }

    /// Removes data that the worker did not retain when it handled this event.
    pub fn store_after(&mut self, at: ProcessId, event: &Event) {
        let entries = &mut self.worker_shell(at).store.entries;
        match event {
            Event::TaskEnded { end, .. } | Event::CallEnded { end, .. } => {
                for value in end.outcome.iter().flatten() {
                    let object = value.payload.stored_object();
                    if let Some(object) =
                        object.filter(|id| entries.get(id).is_some_and(|e| !e.kept))
                    {
                        entries.remove(&object);
                    }
                }
            }
            Event::Yielded { value, .. } => {
                if let Some(object) = value.payload.stored_object()
                    && entries.get(&object).is_some_and(|entry| !entry.kept)
                {
                    entries.remove(&object);
                }
            }
            Event::ExecutorDied { executor, .. } => {
                entries.retain(|_, entry| entry.kept || entry.maker != Maker::Executor(*executor));
            }
            _ => {}
        }
    }

    /// Checks that every copy that the controller knows of is in the store of its worker.
    pub fn check_copies(&mut self) {
        let copies = self.controller_shell(self.controller).machine.all_copies();
        for (object, copies) in copies {
            // A task that runs again may yield an item again which no client holds any more and
            // whose data is just being evicted. Such an item is an object until its consumer says
            // that it had the item before.
            if self.oracle.given_again.contains(&object) && !self.is_anybodys(object) {
                continue;
            }
            for copy in copies {
                let Some(at) = self.store_of(&copy) else { continue };
                let store = &self.worker_shell(at).store;
                let there = store.entries.contains_key(&object) || store.lost.contains(&object);
                assert!(there, "{object} is held, but {at:?} has evicted its data");
            }
        }
    }

    fn is_anybodys(&self, object: ObjectId) -> bool {
        let has = |role: &ProcessShell| match role {
            ProcessShell::Client(shell) => shell.user.objects.contains(&object),
            ProcessShell::Controller(_) | ProcessShell::Worker(_) => false,
        };
        !self.living(has).is_empty()
    }

    /// Checks that the controller knows of all data in the stores of workers.
    pub fn check_forgotten(&mut self) {
        let copies = self.controller_shell(self.controller).machine.all_copies();
        let known: BTreeSet<(ObjectId, Session)> = copies
            .into_iter()
            .flat_map(|(object, copies)| copies.into_iter().map(move |copy| (object, copy.worker)))
            .collect();
        for id in self.living(|role| matches!(role, ProcessShell::Worker(_))) {
            let Some(session) = self.worker_shell(id).machine.session() else { continue };
            for (object, entry) in &self.worker_shell(id).store.entries {
                let abandoned = !entry.kept; // Its client died before it reported the data.
                let known = known.contains(&(*object, session));
                assert!(
                    known || abandoned,
                    "{id:?} retains the data of {object}, and the controller does not know"
                );
            }
        }
    }
}
