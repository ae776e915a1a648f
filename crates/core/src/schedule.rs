//! Placement: which waiting work goes to which worker, and which resources it is granted there.
//!
//! - Work of the same *shape* (one [`Demand`]: what the work requires and takes, and whether it may
//!   be preempted) waits in one queue.
//! - Workers that provide the same things form a *pool*, which sorts them by their free resources.
//! - A decision looks at the front of a queue and the top of a pool. So it costs the same with ten
//!   waiting tasks or a million, and nearly the same with ten workers or ten thousand.
//!
//! Two things can make work runnable: work arrives (its shape goes to `shapes_to_place`), or a
//! worker gets room (it goes to `workers_to_fill`). [`Schedule::step`] works through both until
//! they are empty. Then [`check_invariants`](Schedule::check_invariants) holds: no work waits that
//! could run.
//!
//! Short tasks would spend more time on their way than running. So a worker also gets a *backlog*
//! of tasks of a shape that runs there: when a task ends, the next one takes over its grant at
//! once. When another worker has room and no work waits for it, unstarted work is taken back from a
//! backlog.
//!
//! - `shape.rs`: demands, and the queue of one shape.
//! - `pool.rs`: what a worker provides, and the sorted workers of one pool.
//! - `locality.rs`: how work goes to the worker that has the most bytes of its arguments.
//! - `waiting_shapes.rs`: which shapes have waiting work, and which of them could run here at all.
//! - `feasible.rs`: why work cannot run here, in words.
//! - `check.rs`: the invariants.
//!
//! The schedule knows nothing of tasks or actors beyond [`Work`]. The controller reports events to
//! it, and carries out its steps.

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

/// A piece of work that is to be placed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Work {
    /// A task.
    Task(TaskId),
    /// An actor of which an instance is to be created.
    Actor(ActorId),
}

/// The number of a worker in the schedule. It is used again after the worker has gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerIndex(pub u32);

/// The place of a piece of work in a queue. It serves to withdraw the work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    shape: ShapeId,
    number: i64,
}

impl Ticket {
    /// Returns the shape whose queue it is.
    pub fn shape(self) -> ShapeId {
        self.shape
    }
}

/// The next step for the controller to carry out.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Step {
    /// Assign `work` to `worker`: with a `grant` to start it now, without one into the backlog.
    Place { work: Work, shape: ShapeId, worker: WorkerIndex, grant: Option<Grant> },
    /// Ask `from` to give back the last task of `shape` in its backlog, since `idle` has room for
    /// it.
    TakeBack { from: WorkerIndex, shape: ShapeId, idle: WorkerIndex },
}

/// How much work a backlog holds per slot, in running time. It is enough to cover the round trip to
/// the controller.
const BACKLOG_TIME: Duration = Duration::from_millis(2);
/// The most tasks in a backlog per slot.
const MAX_BACKLOG: u32 = 32;
/// How many shapes are remembered. Beyond that, unused shapes are dropped, and with them how long
/// their tasks take.
const MAX_SHAPES: usize = 4096;

#[derive(Debug)]
struct PoolMember {
    account: ResourceAccount,
    pool: usize,
    /// Whether new work may be placed at the worker.
    open: bool,
    /// How many pieces of work have a grant at the worker. Breaks ties between workers.
    load: u32,
    /// For each shape: tasks that run with a grant, and tasks in the backlog.
    shapes: Map<ShapeId, Occupancy>,
    /// Whether the worker is in `workers_to_fill`.
    roomy: bool,
}

/// How much work of one shape a worker has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Occupancy {
    /// Pieces of work that have a grant.
    slots: u32,
    /// Slots whose tasks wait for other work. No backlog task takes over such a grant soon.
    lent: u32,
    /// Tasks in the backlog.
    backlog: u32,
}

impl Occupancy {
    /// Returns the length of the backlog, if there is a backlog or may be one. Returns `None` for
    /// an empty backlog if the tasks of all slots wait for other work, since no grant is free soon.
    fn listed(&self) -> Option<u32> {
        (self.slots > self.lent || self.backlog > 0).then_some(self.backlog)
    }

    /// Returns whether the backlog has room for one more task, with at most `depth` tasks per slot.
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
    /// Shapes whose first work may have become runnable.
    shapes_to_place: VecDeque<ShapeId>,
    /// Workers that may have got room.
    workers_to_fill: VecDeque<WorkerIndex>,
    /// Work that was withdrawn and is still in its queue.
    withdrawn: Set<Ticket>,
    /// The number of the newest queued work. New work gets the next higher one.
    last_number: i64,
    /// The number of the oldest queued work. Work that waits again gets the next lower one.
    first_number: i64,
    /// How much work waits in all queues.
    queued: usize,
}

impl Schedule {
    /// Adds a worker. It gets work once it is [opened](Schedule::set_open).
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
            Some(worker_index) => {
                self.workers[worker_index.0 as usize] = Some(worker);
                worker_index
            }
            None => {
                self.workers.push(Some(worker));
                WorkerIndex(self.workers.len() as u32 - 1)
            }
        }
    }

    /// Opens a worker for new work, or closes it.
    pub fn set_open(&mut self, worker_index: WorkerIndex, open: bool) {
        if self.worker(worker_index).open == open {
            return;
        }
        self.remove_from_pool(worker_index);
        self.list_backlogs(worker_index, false);
        self.worker_mut(worker_index).open = open;
        self.insert_into_pool(worker_index);
        self.list_backlogs(worker_index, true);
        if open {
            self.worker_opened(worker_index);
            self.mark_roomy(worker_index);
        } else {
            self.worker_closed(worker_index);
        }
    }

    /// Changes what a worker provides. The grants at the worker stay.
    pub fn set_provides(&mut self, worker_index: WorkerIndex, provides: Arc<WorkerCapabilities>) {
        let was_open = self.worker(worker_index).open;
        self.set_open(worker_index, false);
        let pool = self.pool_of(provides);
        let before = std::mem::replace(&mut self.worker_mut(worker_index).pool, pool);
        self.pools[pool].members += 1;
        self.pools[before].members -= 1;
        self.set_open(worker_index, was_open);
    }

    /// Removes a worker, with all grants and backlogs there.
    pub fn remove_worker(&mut self, worker_index: WorkerIndex) {
        self.remove_from_pool(worker_index);
        self.list_backlogs(worker_index, false);
        let worker =
            self.workers[worker_index.0 as usize].take().expect("a worker is removed once");
        self.worker_closed(worker_index);
        self.pools[worker.pool].members -= 1;
        for (id, occupancy) in worker.shapes {
            let shape = self.shape_mut(id);
            shape.slots -= occupancy.slots;
            shape.backlog -= occupancy.backlog;
            self.note_backlog(id);
            self.retire(id);
        }
        self.workers_to_fill.retain(|roomy| *roomy != worker_index);
        self.vacant.push(worker_index);
    }

    /// Returns a worker's account.
    pub fn account(&self, worker_index: WorkerIndex) -> &ResourceAccount {
        &self.worker(worker_index).account
    }

    /// Returns how much work waits in queues.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Adds work to the queue of its shape: to the front if it waits `again`, otherwise to the
    /// back. `near` is the worker that it should preferably run at.
    pub fn enqueue(
        &mut self,
        work: Work,
        key: Demand,
        near: Option<WorkerIndex>,
        again: bool,
    ) -> Ticket {
        let shape = self.shape_of(key);
        let number = if again { &mut self.first_number } else { &mut self.last_number };
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
            // Other work of the shape waits already, so no worker has room for it.
            self.shape_mut(shape).queue.push_back(queued);
        }
        ticket
    }

    /// Removes work from its queue.
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

    /// Returns a grant to the worker's account. Its work ended, and no backlog task took it over.
    pub fn give_back(&mut self, worker_index: WorkerIndex, shape: ShapeId, grant: &Grant) {
        self.remove_from_pool(worker_index);
        let worker = self.worker_mut(worker_index);
        worker.account.return_grant(grant);
        worker.load -= 1;
        self.insert_into_pool(worker_index);
        self.occupy(worker_index, shape, |occupancy| occupancy.slots -= 1);
        self.shape_mut(shape).slots -= 1;
        self.mark_roomy(worker_index);
        self.retire(shape);
    }

    /// Notes that a backlog task took over the grant of a task that ended.
    pub fn take_over(&mut self, worker_index: WorkerIndex, shape: ShapeId) {
        self.leave_backlog(worker_index, shape);
        self.refill(shape);
    }

    /// Takes one task out of a worker's backlog.
    pub fn leave_backlog(&mut self, worker_index: WorkerIndex, shape: ShapeId) {
        self.occupy(worker_index, shape, |occupancy| occupancy.backlog -= 1);
        self.shape_mut(shape).backlog -= 1;
        self.note_backlog(shape);
        self.retire(shape);
    }

    /// Undoes a placement whose work is not assigned after all.
    pub fn undo_placement(
        &mut self,
        worker_index: WorkerIndex,
        shape: ShapeId,
        grant: Option<&Grant>,
    ) {
        match grant {
            Some(grant) => self.give_back(worker_index, shape, grant),
            None => self.leave_backlog(worker_index, shape),
        }
    }

    /// Tries to place more work of this shape: a backlog may have got room.
    fn refill(&mut self, shape: ShapeId) {
        if self.shapes[shape.0 as usize].as_ref().is_some_and(|shape| !shape.queue.is_empty()) {
            self.shapes_to_place.push_back(shape);
        }
    }

    /// Tries again to fill a worker: a task that was taken back for it has come, or has ended.
    pub fn recheck_worker(&mut self, worker_index: WorkerIndex) {
        if self.workers[worker_index.0 as usize].is_some() {
            self.mark_roomy(worker_index);
        }
    }

    /// Notes how long a task of this shape ran.
    pub fn note_time(&mut self, shape: ShapeId, took: Duration) {
        let shape = self.shape_mut(shape);
        shape.note_time(took);
    }

    /// Frees the CPUs of a grant while its work waits for other work.
    pub fn lend_cpu(&mut self, worker_index: WorkerIndex, shape: ShapeId, grant: &Grant) {
        self.occupy(worker_index, shape, |occupancy| occupancy.lent += 1);
        self.remove_from_pool(worker_index);
        self.worker_mut(worker_index).account.lend_cpu(grant);
        self.insert_into_pool(worker_index);
        self.mark_roomy(worker_index);
    }

    /// Takes the CPUs of a grant back: its work goes on.
    pub fn reclaim_cpu(&mut self, worker_index: WorkerIndex, shape: ShapeId, grant: &Grant) {
        self.occupy(worker_index, shape, |occupancy| occupancy.lent -= 1);
        self.remove_from_pool(worker_index);
        self.worker_mut(worker_index).account.reclaim_cpu(grant);
        self.insert_into_pool(worker_index);
        self.refill(shape);
    }

    /// Returns the next step, or `None` when there is nothing more to do.
    pub fn step(&mut self) -> Option<Step> {
        while let Some(shape) = self.shapes_to_place.front().copied() {
            if let Some(step) = self.place_anywhere(shape) {
                return Some(step);
            }
            self.shapes_to_place.pop_front();
        }
        while let Some(worker_index) = self.workers_to_fill.front().copied() {
            let step = self.fill_worker(worker_index);
            if matches!(step, Some(Step::Place { .. })) {
                return step;
            }
            // One piece of work is taken back at a time. When it comes, `recheck_worker` lists the
            // worker again.
            self.workers_to_fill.pop_front();
            self.worker_mut(worker_index).roomy = false;
            if step.is_some() {
                return step;
            }
        }
        None
    }

    /// Places the first work of a shape: near its arguments, otherwise at the worker with most
    /// room, or into the shortest backlog.
    fn place_anywhere(&mut self, id: ShapeId) -> Option<Step> {
        let shape = self.shapes[id.0 as usize].as_ref()?;
        if shape.queue.is_empty() {
            return None;
        }
        let pools = self.pools_of(id);
        let shape = self.shape(id);
        let found = pools.iter().filter_map(|pool| {
            self.pools[*pool].roomiest(&shape.demand.resources, |worker_index| {
                self.worker(worker_index).account.fits(&shape.demand.resources)
            })
        });
        if let Some((_, worker_index)) = found.max_by_key(|(free, _)| *free) {
            let worker_index = self.worker_for_first(id, worker_index);
            return Some(self.place(id, worker_index, self.index_to_run_at(id, worker_index)));
        }
        let depth = shape.backlog_depth(BACKLOG_TIME, MAX_BACKLOG);
        if depth == 0 || shape.slots == 0 || self.others_wait_longer(id) {
            return None;
        }
        let shortest = pools.iter().filter_map(|pool| self.pools[*pool].shortest_backlog(id));
        let (_, worker_index) = shortest.min()?;
        let worker_index = self.backlog_for_first(id, worker_index, depth);
        let has_room = self.worker(worker_index).shapes[&id].has_room(depth);
        has_room.then(|| self.place_in_backlog(id, worker_index))
    }

    /// Places the work that has waited longest among that which fits at this worker. Otherwise
    /// takes unstarted work back from the backlog of another worker.
    fn fill_worker(&mut self, worker_index: WorkerIndex) -> Option<Step> {
        let worker = self.worker(worker_index);
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
            let step = self.place(id, worker_index, self.index_to_run_at(id, worker_index));
            self.refill(id);
            return Some(step);
        }
        let stealable = self.backlogged.iter().copied().filter(|id| fits(*id));
        for id in stealable {
            let longest = self.pools.iter().filter_map(|pool| pool.longest_backlog(id));
            if let Some((_, from)) = longest.filter(|(backlog, _)| *backlog > 0).max() {
                return Some(Step::TakeBack { from, shape: id, idle: worker_index });
            }
        }
        None
    }

    fn place(&mut self, id: ShapeId, worker_index: WorkerIndex, index: usize) -> Step {
        let work = self.pop(id, index);
        self.remove_from_pool(worker_index);
        let key = &self.shape(id).demand;
        let takes = key.takes.as_ref().unwrap_or(&key.resources).clone();
        let worker = self.worker_mut(worker_index);
        let grant = worker.account.take(&takes).expect("the work fits");
        worker.load += 1;
        self.insert_into_pool(worker_index);
        self.occupy(worker_index, id, |occupancy| occupancy.slots += 1);
        self.shape_mut(id).slots += 1;
        Step::Place { work, shape: id, worker: worker_index, grant: Some(grant) }
    }

    fn place_in_backlog(&mut self, id: ShapeId, worker_index: WorkerIndex) -> Step {
        let work = self.pop(id, 0);
        self.occupy(worker_index, id, |occupancy| occupancy.backlog += 1);
        self.shape_mut(id).backlog += 1;
        self.note_backlog(id);
        Step::Place { work, shape: id, worker: worker_index, grant: None }
    }

    /// Changes how much work of a shape a worker has, and the worker's place among the sorted
    /// backlogs.
    fn occupy(
        &mut self,
        worker_index: WorkerIndex,
        id: ShapeId,
        change: impl FnOnce(&mut Occupancy),
    ) {
        let worker = self.workers[worker_index.0 as usize]
            .as_mut()
            .expect("a worker index in use has a worker");
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
            self.pools[worker.pool].move_backlog(worker_index, id, before, listed(&after));
        }
    }

    fn list_backlogs(&mut self, worker_index: WorkerIndex, list: bool) {
        let worker =
            self.workers[worker_index.0 as usize].as_ref().expect("a worker that is listed exists");
        if worker.open {
            for (id, occupancy) in &worker.shapes {
                let here = occupancy.listed();
                let (from, to) = if list { (None, here) } else { (here, None) };
                self.pools[worker.pool].move_backlog(worker_index, *id, from, to);
            }
        }
    }

    fn pop(&mut self, id: ShapeId, index: usize) -> Work {
        self.unlist_waiting(id);
        let shape = self.shape_mut(id);
        shape.overtaken = if index == 0 { 0 } else { shape.overtaken + 1 };
        let work = shape.queue.remove(index).expect("work waits").work;
        self.queued -= 1;
        self.trim_front(id);
        self.list_waiting(id);
        work
    }

    /// Drops all withdrawn work from a queue.
    fn sweep(&mut self, id: ShapeId) {
        self.unlist_waiting(id);
        let shape = self.shapes[id.0 as usize].as_mut().expect("a shape with work exists");
        let left = &mut self.withdrawn;
        shape.queue.retain(|one| !left.remove(&Ticket { shape: id, number: one.number }));
        shape.left = 0;
        self.list_waiting(id);
    }

    /// Drops withdrawn work from the front of a queue.
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

    fn mark_roomy(&mut self, worker_index: WorkerIndex) {
        let worker = self.worker_mut(worker_index);
        if worker.open && !worker.roomy {
            worker.roomy = true;
            self.workers_to_fill.push_back(worker_index);
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

    /// Forgets an unused shape, if too many are remembered.
    fn retire(&mut self, id: ShapeId) {
        if self.by_key.len() <= MAX_SHAPES || !self.shape(id).is_unused() {
            return;
        }
        let shape = self.shapes[id.0 as usize].take().expect("the shape exists");
        self.by_key.remove(&shape.demand);
        self.shapes_to_place.retain(|fresh| *fresh != id);
        self.vacant_shapes.push(id);
    }

    fn insert_into_pool(&mut self, worker_index: WorkerIndex) {
        let worker =
            self.workers[worker_index.0 as usize].as_ref().expect("a worker that is listed exists");
        if worker.open {
            self.pools[worker.pool].insert(worker_index, worker);
        }
    }

    fn remove_from_pool(&mut self, worker_index: WorkerIndex) {
        let worker =
            self.workers[worker_index.0 as usize].as_ref().expect("a worker that is listed exists");
        if worker.open {
            self.pools[worker.pool].remove(worker_index, worker);
        }
    }

    fn worker(&self, worker_index: WorkerIndex) -> &PoolMember {
        self.workers[worker_index.0 as usize].as_ref().expect("a worker index in use has a worker")
    }

    fn worker_mut(&mut self, worker_index: WorkerIndex) -> &mut PoolMember {
        self.workers[worker_index.0 as usize].as_mut().expect("a worker index in use has a worker")
    }

    fn shape(&self, id: ShapeId) -> &Shape {
        self.shapes[id.0 as usize].as_ref().expect("a shape in use exists")
    }

    fn shape_mut(&mut self, id: ShapeId) -> &mut Shape {
        self.shapes[id.0 as usize].as_mut().expect("a shape in use exists")
    }
}
