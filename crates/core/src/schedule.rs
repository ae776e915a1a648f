//! Placement: which waiting work goes to which worker, and what it is granted there.
//!
//! Work of the same *shape* (what it requires, what it takes, whether it may be preempted) waits in one
//! queue. Workers that provide the same things form a *pool*, in which they are sorted by what they
//! have free. A decision looks at the front of a queue and the top of a pool, so it costs the same
//! with ten tasks waiting or a million, and nearly the same with ten workers or ten thousand.
//!
//! Two things can make work runnable: work arrives (its shape becomes *fresh*), or a worker gets room
//! (it becomes *roomy*). [`Schedule::step`] settles these until none is left. Then the promise holds
//! that [`check_invariants`](Schedule::check_invariants) checks: nothing waits that could run.
//!
//! Short tasks would spend more time on their way than running, so a worker also gets a *backlog* of
//! tasks of a shape that runs there: when one ends, the next takes over its grant at once. When
//! another worker has room and nothing waits, unstarted work is taken back for it.
//!
//! Work whose arguments are large goes to the worker that has most of them, within limits: `locality.rs`.
//!
//! This machine knows nothing of tasks or actors beyond [`Work`]; the controller tells it what happened
//! and does what it says.

use crate::account::{Grant, ResourceAccount};
use crate::id::{ActorId, TaskId};
use crate::map::{Map, Set};
use crate::message::ShapeId;
use crate::resources::Resources;
use pool::Pool;
use shape::{Queued, Shape};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use waiting_shapes::{ResourceSummary, WaitingShapes};

mod check;
mod feasible;
mod locality;
mod pool;
mod shape;
#[cfg(test)]
mod tests;
mod waiting_shapes;

pub use feasible::UnrunnableReason;
pub use pool::WorkerCapabilities;
pub use shape::Demand;

/// Something to be placed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Work {
    /// A task.
    Task(TaskId),
    /// An actor to be instantiated.
    Actor(ActorId),
}

/// A worker's number here; used again when it has gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerIndex(pub u32);

/// A place in a queue, for leaving it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    shape: ShapeId,
    number: i64,
}

impl Ticket {
    /// Which queue.
    pub fn shape(self) -> ShapeId {
        self.shape
    }
}

/// What the controller is to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Step {
    /// Give this work to this worker, with a grant to start now, or without into its backlog.
    Place { work: Work, shape: ShapeId, worker: WorkerIndex, grant: Option<Grant> },
    /// Ask `from` to give back the last task of this shape in its backlog; `idle` has room for it.
    TakeBack { from: WorkerIndex, shape: ShapeId, idle: WorkerIndex },
}

/// How much work a backlog holds per slot, in time: enough to cover the way to the controller and back.
const BACKLOG_TIME: Duration = Duration::from_millis(2);
/// The most tasks in a backlog per slot.
const MAX_BACKLOG: u32 = 32;
/// Shapes that are idle are remembered (for how long their tasks take) up to this many.
const MAX_SHAPES: usize = 4096;

#[derive(Debug)]
struct PoolMember {
    account: ResourceAccount,
    pool: usize,
    /// Whether new work may be placed here.
    open: bool,
    /// Pieces of work with a grant here, to break ties.
    load: u32,
    /// For each shape: tasks running with a grant, and tasks in the backlog.
    shapes: Map<ShapeId, Occupancy>,
    roomy: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Occupancy {
    slots: u32,
    /// Slots whose tasks wait for other work: they will not be left to anybody soon.
    lent: u32,
    backlog: u32,
}

impl Occupancy {
    /// Its backlog, if there is one or could be: a worker whose slots all wait for other work leaves
    /// nothing to anybody soon.
    fn listed(&self) -> Option<u32> {
        (self.slots > self.lent || self.backlog > 0).then_some(self.backlog)
    }

    /// Whether one more may wait here, of so many per slot.
    fn has_room(&self, depth: u32) -> bool {
        self.backlog < depth * (self.slots - self.lent)
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Schedule {
    workers: Vec<Option<PoolMember>>,
    vacant: Vec<WorkerIndex>,
    pools: Vec<Pool>,
    shapes: Vec<Option<Shape>>,
    by_key: Map<Demand, ShapeId>,
    vacant_shapes: Vec<ShapeId>,
    /// Shapes with waiting work.
    waiting: WaitingShapes,
    /// Shapes with work in some backlog.
    backlogged: BTreeSet<ShapeId>,
    shapes_to_place: VecDeque<ShapeId>,
    workers_to_fill: VecDeque<WorkerIndex>,
    withdrawn: Set<Ticket>,
    next_number: i64,
    first_number: i64,
    queued: usize,
}

impl Schedule {
    /// A worker joined. It gets work once it is [opened](Schedule::open).
    pub fn add_worker(
        &mut self,
        provides: Arc<WorkerCapabilities>,
        capacity: Resources,
    ) -> WorkerIndex {
        let pool = self.pool_of(provides);
        self.pools[pool].members += 1;
        let worker = PoolMember {
            account: ResourceAccount::new(capacity),
            pool,
            open: false,
            load: 0,
            shapes: Map::default(),
            roomy: false,
        };
        match self.vacant.pop() {
            Some(slot) => {
                self.workers[slot.0 as usize] = Some(worker);
                slot
            }
            None => {
                self.workers.push(Some(worker));
                WorkerIndex(self.workers.len() as u32 - 1)
            }
        }
    }

    /// A worker may get work, or may not for now.
    pub fn open(&mut self, slot: WorkerIndex, open: bool) {
        if self.worker(slot).open == open {
            return;
        }
        self.unlist(slot);
        self.list_backlogs(slot, false);
        self.worker_mut(slot).open = open;
        self.list(slot);
        self.list_backlogs(slot, true);
        if open {
            self.worker_opened(slot);
            self.mark_roomy(slot);
        } else {
            self.worker_closed(slot);
        }
    }

    /// A worker provides something else from now on. It keeps what it was granted.
    pub fn set_provides(&mut self, slot: WorkerIndex, provides: Arc<WorkerCapabilities>) {
        let was_open = self.worker(slot).open;
        self.open(slot, false);
        let pool = self.pool_of(provides);
        let before = std::mem::replace(&mut self.worker_mut(slot).pool, pool);
        self.pools[pool].members += 1;
        self.pools[before].members -= 1;
        self.open(slot, was_open);
    }

    /// A worker is gone, with all it was granted.
    pub fn remove_worker(&mut self, slot: WorkerIndex) {
        self.unlist(slot);
        self.list_backlogs(slot, false);
        let worker = self.workers[slot.0 as usize].take().expect("a worker is removed once");
        self.worker_closed(slot);
        self.pools[worker.pool].members -= 1;
        for (id, occupancy) in worker.shapes {
            let shape = self.shape_mut(id);
            shape.slots -= occupancy.slots;
            shape.backlog -= occupancy.backlog;
            self.note_backlog(id);
            self.retire(id);
        }
        self.workers_to_fill.retain(|roomy| *roomy != slot);
        self.vacant.push(slot);
    }

    /// A worker's account.
    pub fn account(&self, slot: WorkerIndex) -> &ResourceAccount {
        &self.worker(slot).account
    }

    /// How much work waits in queues.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Work waits from now on; at the front, if it had waited before. It is better run on the worker `near`.
    pub fn enqueue(
        &mut self,
        work: Work,
        key: Demand,
        near: Option<WorkerIndex>,
        again: bool,
    ) -> Ticket {
        let shape = self.shape_of(key);
        let number = if again { &mut self.first_number } else { &mut self.next_number };
        *number += if again { -1 } else { 1 };
        let ticket = Ticket { shape, number: *number };
        let was_empty = self.shape(shape).queue.is_empty();
        let queued = Queued { number: ticket.number, work, preferred_worker: near };
        self.queued += 1;
        if was_empty {
            self.shape_mut(shape).queue.push_back(queued);
            self.begin_waiting(shape);
            self.shapes_to_place.push_back(shape);
        } else if again {
            self.unlist_waiting(shape);
            let queue = self.shape_mut(shape);
            queue.overtaken = 0;
            queue.queue.push_front(queued);
            self.list_waiting(shape);
        } else {
            // Others of the shape wait already, so nothing has room for it.
            self.shape_mut(shape).queue.push_back(queued);
        }
        ticket
    }

    /// Work waits no longer.
    pub fn withdraw(&mut self, ticket: Ticket) {
        self.queued -= 1;
        self.withdrawn.insert(ticket);
        let shape = self.shape_mut(ticket.shape);
        shape.left += 1;
        if shape.left * 2 > shape.queue.len() {
            self.sweep(ticket.shape);
        }
        self.trim(ticket.shape);
        self.retire(ticket.shape);
    }

    /// A grant comes back: what had it ended, and nothing took it over.
    pub fn give_back(&mut self, slot: WorkerIndex, shape: ShapeId, grant: &Grant) {
        self.unlist(slot);
        let worker = self.worker_mut(slot);
        worker.account.return_grant(grant);
        worker.load -= 1;
        self.list(slot);
        self.occupy(slot, shape, |occupancy| occupancy.slots -= 1);
        self.shape_mut(shape).slots -= 1;
        self.mark_roomy(slot);
        self.retire(shape);
    }

    /// The first of a backlog took over the grant of one that ended.
    pub fn take_over(&mut self, slot: WorkerIndex, shape: ShapeId) {
        self.leave_backlog(slot, shape);
        self.refill(shape);
    }

    /// One of a backlog is not there any more: it was given back, or cancelled.
    pub fn leave_backlog(&mut self, slot: WorkerIndex, shape: ShapeId) {
        self.occupy(slot, shape, |occupancy| occupancy.backlog -= 1);
        self.shape_mut(shape).backlog -= 1;
        self.note_backlog(shape);
        self.retire(shape);
    }

    /// What was just placed is not given to its worker after all.
    pub fn undo_placement(&mut self, slot: WorkerIndex, shape: ShapeId, grant: Option<&Grant>) {
        match grant {
            Some(grant) => self.give_back(slot, shape, grant),
            None => self.leave_backlog(slot, shape),
        }
    }

    /// There may be room in a backlog of this shape.
    fn refill(&mut self, shape: ShapeId) {
        if self.shapes[shape.0 as usize].as_ref().is_some_and(|shape| !shape.queue.is_empty()) {
            self.shapes_to_place.push_back(shape);
        }
    }

    /// A worker may have room that it had before: something was taken back for it.
    pub fn recheck_worker(&mut self, slot: WorkerIndex) {
        if self.workers[slot.0 as usize].is_some() {
            self.mark_roomy(slot);
        }
    }

    /// How long a task of this shape took.
    pub fn note_time(&mut self, shape: ShapeId, took: Duration) {
        let shape = self.shape_mut(shape);
        shape.note_time(took);
    }

    /// The work of a grant waits for other work: its CPUs are free for now.
    pub fn lend_cpu(&mut self, slot: WorkerIndex, shape: ShapeId, grant: &Grant) {
        self.occupy(slot, shape, |occupancy| occupancy.lent += 1);
        self.unlist(slot);
        self.worker_mut(slot).account.lend_cpu(grant);
        self.list(slot);
        self.mark_roomy(slot);
    }

    /// It goes on.
    pub fn reclaim_cpu(&mut self, slot: WorkerIndex, shape: ShapeId, grant: &Grant) {
        self.occupy(slot, shape, |occupancy| occupancy.lent -= 1);
        self.unlist(slot);
        self.worker_mut(slot).account.reclaim_cpu(grant);
        self.list(slot);
        self.refill(shape);
    }

    /// What to do next, until there is nothing to do.
    pub fn step(&mut self) -> Option<Step> {
        while let Some(shape) = self.shapes_to_place.front().copied() {
            if let Some(step) = self.place_anywhere(shape) {
                return Some(step);
            }
            self.shapes_to_place.pop_front();
        }
        while let Some(slot) = self.workers_to_fill.front().copied() {
            let step = self.fill_worker(slot);
            if matches!(step, Some(Step::Place { .. })) {
                return step;
            }
            // One piece is taken back at a time: when it comes, there is a look again.
            self.workers_to_fill.pop_front();
            self.worker_mut(slot).roomy = false;
            if step.is_some() {
                return step;
            }
        }
        None
    }

    /// Places the first of a shape near its arguments, else where there is most room, or into the shortest backlog.
    fn place_anywhere(&mut self, id: ShapeId) -> Option<Step> {
        let shape = self.shapes[id.0 as usize].as_ref()?;
        if shape.queue.is_empty() {
            return None;
        }
        let pools = self.pools_of(id);
        let shape = self.shape(id);
        let found = pools.iter().filter_map(|pool| {
            self.pools[*pool].roomiest(&shape.demand.resources, |slot| {
                self.worker(slot).account.fits(&shape.demand.resources)
            })
        });
        if let Some((_, slot)) = found.max_by_key(|(free, _)| *free) {
            let slot = self.worker_for_first(id, slot);
            return Some(self.place(id, slot, self.index_to_run_at(id, slot)));
        }
        let depth = shape.backlog_depth(BACKLOG_TIME, MAX_BACKLOG);
        if depth == 0 || shape.slots == 0 || self.others_wait_longer(id) {
            return None;
        }
        let shortest = pools.iter().filter_map(|pool| self.pools[*pool].shortest_backlog(id));
        let (_, slot) = shortest.min()?;
        let slot = self.backlog_for_first(id, slot, depth);
        let has_room = self.worker(slot).shapes[&id].has_room(depth);
        has_room.then(|| self.place_in_backlog(id, slot))
    }

    /// Places what has waited longest and fits here; else finds unstarted work elsewhere.
    fn fill_worker(&mut self, slot: WorkerIndex) -> Option<Step> {
        let worker = self.worker(slot);
        if !worker.open {
            return None;
        }
        let fits = |id: ShapeId| {
            let shape = self.shape(id);
            self.serves(worker.pool, shape) && worker.account.fits(&shape.demand.resources)
        };
        let room = ResourceSummary::of_room(&worker.account);
        let mut waiting = self.waiting.feasible.iter();
        let first = waiting.find(|((_, id), needs)| needs.may_fit(&room) && fits(*id));
        if let Some((_, id)) = first.map(|(at, _)| *at) {
            let step = self.place(id, slot, self.index_to_run_at(id, slot));
            self.refill(id);
            return Some(step);
        }
        let stealable = self.backlogged.iter().copied().filter(|id| fits(*id));
        for id in stealable {
            let longest = self.pools.iter().filter_map(|pool| pool.longest_backlog(id));
            if let Some((_, from)) = longest.filter(|(backlog, _)| *backlog > 0).max() {
                return Some(Step::TakeBack { from, shape: id, idle: slot });
            }
        }
        None
    }

    fn place(&mut self, id: ShapeId, slot: WorkerIndex, index: usize) -> Step {
        let work = self.pop(id, index);
        self.unlist(slot);
        let key = &self.shape(id).demand;
        let takes = key.takes.as_ref().unwrap_or(&key.resources).clone();
        let worker = self.worker_mut(slot);
        let grant = worker.account.take(&takes).expect("it was looked up that it fits");
        worker.load += 1;
        self.list(slot);
        self.occupy(slot, id, |occupancy| occupancy.slots += 1);
        self.shape_mut(id).slots += 1;
        Step::Place { work, shape: id, worker: slot, grant: Some(grant) }
    }

    fn place_in_backlog(&mut self, id: ShapeId, slot: WorkerIndex) -> Step {
        let work = self.pop(id, 0);
        self.occupy(slot, id, |occupancy| occupancy.backlog += 1);
        self.shape_mut(id).backlog += 1;
        self.note_backlog(id);
        Step::Place { work, shape: id, worker: slot, grant: None }
    }

    /// Changes what a worker has of a shape, and where that is sorted.
    fn occupy(&mut self, slot: WorkerIndex, id: ShapeId, change: impl FnOnce(&mut Occupancy)) {
        let worker = self.workers[slot.0 as usize].as_mut().expect("a slot in use has a worker");
        let before = worker.shapes.get(&id).copied();
        let mut after = before.unwrap_or_default();
        change(&mut after);
        if after == Occupancy::default() {
            worker.shapes.remove(&id);
        } else {
            worker.shapes.insert(id, after);
        }
        if worker.open {
            let listed = Occupancy::listed;
            let before = before.as_ref().and_then(listed);
            self.pools[worker.pool].move_backlog(slot, id, before, listed(&after));
        }
    }

    fn list_backlogs(&mut self, slot: WorkerIndex, list: bool) {
        let worker =
            self.workers[slot.0 as usize].as_ref().expect("a worker that is listed exists");
        if worker.open {
            for (id, occupancy) in &worker.shapes {
                let here = occupancy.listed();
                let (from, to) = if list { (None, here) } else { (here, None) };
                self.pools[worker.pool].move_backlog(slot, *id, from, to);
            }
        }
    }

    fn pop(&mut self, id: ShapeId, index: usize) -> Work {
        self.unlist_waiting(id);
        let shape = self.shape_mut(id);
        shape.overtaken = if index == 0 { 0 } else { shape.overtaken + 1 };
        let work = shape.queue.remove(index).expect("something waits").work;
        self.queued -= 1;
        self.trim_front(id);
        self.list_waiting(id);
        work
    }

    /// Drops all that left.
    fn sweep(&mut self, id: ShapeId) {
        self.unlist_waiting(id);
        let shape = self.shapes[id.0 as usize].as_mut().expect("a shape with work exists");
        let left = &mut self.withdrawn;
        shape.queue.retain(|one| !left.remove(&Ticket { shape: id, number: one.number }));
        shape.left = 0;
        self.list_waiting(id);
    }

    /// Drops those at the front that left.
    fn trim(&mut self, id: ShapeId) {
        self.unlist_waiting(id);
        self.trim_front(id);
        self.list_waiting(id);
    }

    fn trim_front(&mut self, id: ShapeId) {
        let shape = self.shapes[id.0 as usize].as_mut().expect("a shape with work exists");
        while let Some(first) = shape.queue.front() {
            if !self.withdrawn.remove(&Ticket { shape: id, number: first.number }) {
                break;
            }
            shape.left -= 1;
            shape.overtaken = 0;
            shape.queue.pop_front();
        }
    }

    fn mark_roomy(&mut self, slot: WorkerIndex) {
        let worker = self.worker_mut(slot);
        if worker.open && !worker.roomy {
            worker.roomy = true;
            self.workers_to_fill.push_back(slot);
        }
    }

    fn note_backlog(&mut self, id: ShapeId) {
        if self.shape(id).backlog > 0 {
            self.backlogged.insert(id);
        } else {
            self.backlogged.remove(&id);
        }
    }

    fn pools_of(&mut self, id: ShapeId) -> Arc<[usize]> {
        if let Some(pools) = &self.shape(id).pools {
            return pools.clone();
        }
        let key = &self.shape(id).demand;
        let serving = self.pools.iter().enumerate().filter(|(_, pool)| pool.provides.serves(key));
        let pools: Arc<[usize]> = serving.map(|(index, _)| index).collect();
        self.shape_mut(id).pools = Some(pools.clone());
        pools
    }

    fn shape_of(&mut self, key: Demand) -> ShapeId {
        if let Some(id) = self.by_key.get(&key) {
            return *id;
        }
        let id = self.vacant_shapes.pop().unwrap_or_else(|| {
            self.shapes.push(None);
            ShapeId(self.shapes.len() as u32 - 1)
        });
        self.shapes[id.0 as usize] = Some(Shape::new(key.clone()));
        self.by_key.insert(key, id);
        id
    }

    /// Forgets a shape that nothing is of, if too many are remembered.
    fn retire(&mut self, id: ShapeId) {
        if self.by_key.len() <= MAX_SHAPES || !self.shape(id).is_unused() {
            return;
        }
        let shape = self.shapes[id.0 as usize].take().expect("it is there");
        self.by_key.remove(&shape.demand);
        self.shapes_to_place.retain(|fresh| *fresh != id);
        self.vacant_shapes.push(id);
    }

    fn list(&mut self, slot: WorkerIndex) {
        let worker =
            self.workers[slot.0 as usize].as_ref().expect("a worker that is listed exists");
        if worker.open {
            self.pools[worker.pool].insert(slot, worker);
        }
    }

    fn unlist(&mut self, slot: WorkerIndex) {
        let worker =
            self.workers[slot.0 as usize].as_ref().expect("a worker that is listed exists");
        if worker.open {
            self.pools[worker.pool].remove(slot, worker);
        }
    }

    fn worker(&self, slot: WorkerIndex) -> &PoolMember {
        self.workers[slot.0 as usize].as_ref().expect("a slot in use has a worker")
    }

    fn worker_mut(&mut self, slot: WorkerIndex) -> &mut PoolMember {
        self.workers[slot.0 as usize].as_mut().expect("a slot in use has a worker")
    }

    fn shape(&self, id: ShapeId) -> &Shape {
        self.shapes[id.0 as usize].as_ref().expect("a shape in use exists")
    }

    fn shape_mut(&mut self, id: ShapeId) -> &mut Shape {
        self.shapes[id.0 as usize].as_mut().expect("a shape in use exists")
    }
}
