//! The question: what do the decisions of the controller cost, without sockets, threads and other
//! machines?
//!
//! A task is four events (submitted, started, ended, result released) and their effects. With short
//! tasks the backlogs fill, and a task that takes over the grant of another does not report its
//! start.

use crate::arguments::Settings;
use crate::child::{Child, ready};
use crate::contest::median;
use crate::memory::resident_here;
use crate::report::{Better, Row};
use marline_core::controller::{Config, Controller, Effect, Event, Role, WorkerInfo};
use marline_core::id::{ObjectId, Referent, Session, SessionId, TaskId};
use marline_core::message::{
    AttemptEnd, AttemptId, FromClient, FromWorker, Refusal, ToClient, ToWorker,
};
use marline_core::payload::{Payload, Value};
use marline_core::resources::{Amount, Resources};
use marline_core::schedule::WorkerCapabilities;
use marline_core::spec::{Target, TaskOptions, TaskSpec};
use marline_core::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

const WORKERS: [usize; 4] = [10, 100, 1_000, 10_000];
/// How many tasks wait at the controller, besides those at workers.
const WAITING: usize = 1_000;
const PENDING: [usize; 2] = [1_000, 1_000_000];
/// How many tasks one measurement has.
const TASKS: usize = 100_000;
/// How many pending tasks another client has, each of a shape of its own.
const SHAPES: usize = 20_000;
/// The factor by which many workers, or much waiting work, may at most raise the cost of a task.
const GROWTH: f64 = 1.5;

/// How long tasks report to have run: too long for backlogs, or no time at all.
const KINDS: [(&str, Duration); 2] =
    [("tasks of a second", Duration::from_secs(1)), ("tasks of no time", Duration::ZERO)];

pub fn ask(settings: &Settings) -> Vec<Row> {
    let mut rows = Vec::new();
    if settings.wants("decisions/workers") {
        for (kind, ran_for) in KINDS {
            rows.extend(by_workers(settings, kind, ran_for));
        }
    }
    if settings.wants("decisions/pending") {
        for (kind, ran_for) in KINDS {
            rows.extend(by_pending(settings, kind, ran_for));
        }
    }
    if settings.wants("decisions/shapes") {
        rows.extend(by_shapes(settings));
    }
    if settings.wants("decisions/memory") {
        rows.push(memory());
    }
    rows
}

/// Runs one shape alone, for a profiler: with this many workers, or this many pending tasks.
/// Returns the nanoseconds per task.
pub fn profile(what: &str, time: Duration) -> Option<f64> {
    let (kind, ran_for) = match what.strip_prefix("short-") {
        Some(rest) => (rest, Duration::ZERO),
        None => (what, Duration::from_secs(1)),
    };
    let mut office = match kind.split_once('-')? {
        ("workers", count) => FakeCluster::busy(count.parse().ok()?, WAITING, ran_for),
        ("pending", count) => FakeCluster::busy(10, count.parse().ok()?, ran_for),
        _ => return None,
    };
    let begin = Instant::now();
    let mut costs = Vec::new();
    while begin.elapsed() < time {
        costs.push(office.work(TASKS));
    }
    median(costs)
}

/// Measures the cost over the number of workers. Many workers have many tasks, so a control has few
/// workers and as many tasks: the difference of its cost to the first is the price of the tasks,
/// not of the workers.
fn by_workers(settings: &Settings, kind: &str, ran_for: Duration) -> Vec<Row> {
    let mut all: Vec<FakeCluster> =
        WORKERS.iter().map(|workers| FakeCluster::busy(*workers, WAITING, ran_for)).collect();
    let alive = all.last().expect("there are many workers").controller.pending_tasks();
    all.push(FakeCluster::busy(WORKERS[0], alive, ran_for));
    let costs = interleaved(&mut all, settings);
    let few = format!("{} workers", WORKERS[0]);
    let row = |shape: &str, metric: String, cost: f64, goal: f64| {
        let row = Row::new(shape, &metric, "ns", Better::Lower, cost);
        row.rival(&few, costs[0]).against(&few, goal)
    };
    let by_workers = WORKERS.iter().zip(&costs).map(|(workers, cost)| {
        let goal = if *workers == 10_000 { 1.0 / GROWTH } else { 0.0 };
        row("decisions/workers", format!("{workers} workers, {kind}"), *cost, goal)
    });
    let metric = format!("{few}, {alive} tasks alive, {kind}");
    let control = row("decisions/workers (control)", metric, costs[WORKERS.len()], 0.0);
    by_workers.chain([control]).collect()
}

fn by_pending(settings: &Settings, kind: &str, ran_for: Duration) -> Vec<Row> {
    let mut all: Vec<FakeCluster> =
        PENDING.iter().map(|pending| FakeCluster::busy(10, *pending, ran_for)).collect();
    let costs = interleaved(&mut all, settings);
    let few = format!("{} pending", PENDING[0]);
    let row = |(pending, cost): (&usize, &f64)| {
        let metric = format!("{pending} pending, {kind}");
        let row = Row::new("decisions/pending", &metric, "ns", Better::Lower, *cost);
        let goal = if *pending == PENDING[1] { 1.0 / GROWTH } else { 0.0 };
        row.rival(&few, costs[0]).against(&few, goal)
    };
    PENDING.iter().zip(&costs).map(row).collect()
}

/// Measures the cost while tasks of another client wait, each with a demand of its own: for a
/// resource that no worker has, or for one that is taken.
fn by_shapes(settings: &Settings) -> Vec<Row> {
    let office = || FakeCluster::busy(10, WAITING, Duration::from_secs(1));
    let (mut infeasible, mut taken) = (office(), office());
    for number in 0..SHAPES {
        let name = format!("resource {number}");
        infeasible.submit_needing(Resources::one_cpu().with_custom(&name, Amount::ONE));
    }
    taken.take_a_gpu();
    for number in 0..SHAPES {
        taken.submit_needing(
            Resources::one_cpu()
                .with_gpus(Amount(1 + number as i64 % 9_999))
                .with_memory(number as u64 / 9_999),
        );
    }
    let costs = interleaved(&mut [office(), infeasible, taken], settings);
    let row = |kind: &str, cost: f64| {
        let metric = format!("beside {SHAPES} shapes of work that {kind}");
        let row = Row::new("decisions/shapes", &metric, "ns", Better::Lower, cost);
        row.rival("no other shapes", costs[0]).against("no other shapes", 0.0)
    };
    vec![row("no worker could run", costs[1]), row("waits for a GPU", costs[2])]
}

/// Returns the nanoseconds per task of each cluster: the median of rounds in which all take turns.
fn interleaved(all: &mut [FakeCluster], settings: &Settings) -> Vec<f64> {
    let mut costs = vec![Vec::new(); all.len()];
    for office in all.iter_mut() {
        office.work(settings.count(TASKS));
    }
    for _ in 0..settings.rounds {
        for (office, costs) in all.iter_mut().zip(&mut costs) {
            costs.push(office.work(settings.count(TASKS)));
        }
    }
    costs.into_iter().map(|costs| median(costs).expect("there was a round")).collect()
}

/// Measures the resident memory that a million pending tasks add to a new process.
fn memory() -> Row {
    let child = Child::start(&["pending", "1000000"]);
    let taken: f64 = child.ready_line.parse().expect("a number");
    let metric = "1,000,000 pending (resident, fresh process)";
    Row::new("decisions/memory", metric, "MiB", Better::Lower, taken).asked(1024.0)
}

/// Prints the MiB that this many pending tasks take. As tasks that come over a link, they share no
/// data.
pub fn pending_here(count: usize) {
    let before = resident_here();
    let mut office = FakeCluster::new(0, Duration::ZERO);
    for _ in 0..count {
        let spec = TaskSpec {
            target: Target::Function(NAME.into()),
            options: Arc::new(TaskOptions::default()),
            ..office.next_spec()
        };
        office.submit(Arc::new(spec));
    }
    ready(&(resident_here() - before).to_string());
    drop(office);
}

const NAME: &str = "nothing";

/// A controller, with a simulated client and simulated workers.
struct FakeCluster {
    controller: Controller,
    now: Time,
    effects: Vec<Effect>,
    client: Session,
    workers: Vec<FakeWorker>,
    /// The attempts that run, in the order in which they started: the worker, the attempt, and
    /// whether its start is reported already.
    running: VecDeque<(usize, AttemptId, bool)>,
    /// How many tasks wait in backlogs.
    backlogged: usize,
    ran_for: Duration,
    name: Arc<str>,
    options: Arc<TaskOptions>,
    result: Value,
    next_task: u128,
}

/// A worker with one CPU.
struct FakeWorker {
    session: Session,
    backlog: VecDeque<AttemptId>,
}

impl FakeCluster {
    fn new(workers: usize, ran_for: Duration) -> FakeCluster {
        let config = Config { max_pending_tasks: 4_000_000, ..Config::default() };
        let mut office = FakeCluster {
            controller: Controller::new(config),
            now: Time::ZERO,
            effects: Vec::new(),
            client: Session::default(),
            workers: Vec::new(),
            running: VecDeque::new(),
            backlogged: 0,
            ran_for,
            name: NAME.into(),
            options: Arc::default(),
            result: Payload::message_pack(&b"\xc0"[..]).into(),
            next_task: 0,
        };
        office.client = office.join(0, Role::Client);
        let provides = Arc::new(WorkerCapabilities {
            names: [NAME.into()].into(),
            ..WorkerCapabilities::default()
        });
        for number in 1..=workers {
            let info = WorkerInfo {
                resources: Resources::cpus(1),
                provides: provides.clone(),
                ..WorkerInfo::default()
            };
            let session = office.join(number as u128, Role::Worker(info));
            office.workers.push(FakeWorker { session, backlog: VecDeque::new() });
            office.happens(Event::WorkerMessageReceived { session, message: FromWorker::Joined });
        }
        office
    }

    /// Returns a cluster whose workers are full, and at whose controller this many tasks wait.
    fn busy(workers: usize, waiting: usize, ran_for: Duration) -> FakeCluster {
        let mut office = FakeCluster::new(workers, ran_for);
        // There are no backlogs until the controller knows how long tasks take. Then waiting tasks
        // fill them.
        for _ in 0..workers + waiting {
            let spec = Arc::new(office.next_spec());
            office.submit(spec);
        }
        office.work(workers);
        while office.waiting() < waiting {
            let spec = Arc::new(office.next_spec());
            office.submit(spec);
        }
        office
    }

    /// How many tasks wait at the controller.
    fn waiting(&self) -> usize {
        self.controller.pending_tasks() - self.running.len() - self.backlogged
    }

    fn join(&mut self, number: u128, role: Role) -> Session {
        let id = SessionId::from_u128(number);
        let event = Event::JoinRequested { id, request: 1, local: false, role };
        self.controller.handle(self.now, event, &mut self.effects);
        let opened = self.effects.drain(..).find_map(|effect| match effect {
            Effect::OpenSession(session) => Some(session),
            _ => None,
        });
        opened.expect("a client or worker may join")
    }

    fn next_spec(&mut self) -> TaskSpec {
        self.next_task += 1;
        // As in real ids, the front is ordered by time and the rest is random.
        let random = self.next_task.wrapping_mul(0x9e37_79b9_7f4a_7c15) & u128::from(u64::MAX);
        TaskSpec {
            id: TaskId::from_u128(self.next_task << 64 | random),
            target: Target::Function(self.name.clone()),
            args: Payload::message_pack(vec![0x90; 16]),
            needs: Vec::new(),
            referents: Vec::new(),
            returns: 1,
            stream_window: None,
            options: self.options.clone(),
        }
    }

    /// Submits a task that needs these resources. It waits for ever.
    fn submit_needing(&mut self, resources: Resources) {
        let options = Arc::new(TaskOptions { resources, ..TaskOptions::default() });
        let spec = TaskSpec { options, ..self.next_spec() };
        self.submit(Arc::new(spec));
    }

    /// Adds a worker with a GPU, and a task that takes the GPU for ever.
    fn take_a_gpu(&mut self) {
        let provides = Arc::new(WorkerCapabilities {
            names: [NAME.into()].into(),
            ..WorkerCapabilities::default()
        });
        let resources = Resources::cpus(1).with_gpus(Amount::ONE).with_memory(1 << 30);
        let info = WorkerInfo { resources, provides, ..WorkerInfo::default() };
        let session = self.join(self.workers.len() as u128 + 1, Role::Worker(info));
        self.workers.push(FakeWorker { session, backlog: VecDeque::new() });
        self.happens(Event::WorkerMessageReceived { session, message: FromWorker::Joined });
        self.submit_needing(Resources::default().with_gpus(Amount::ONE));
        let (index, ..) = self.running.pop_back().expect("the GPU was free");
        assert_eq!(index, self.workers.len() - 1, "only one worker has a GPU");
    }

    fn submit(&mut self, spec: Arc<TaskSpec>) {
        let message = FromClient::Submit(spec);
        self.happens(Event::ClientMessageReceived { session: self.client, message });
    }

    /// Lets this many tasks end, and submits as many. Returns the nanoseconds per task. Not
    /// inlined, so that profilers show it.
    #[inline(never)]
    fn work(&mut self, tasks: usize) -> f64 {
        let specs: Vec<Arc<TaskSpec>> = (0..tasks).map(|_| Arc::new(self.next_spec())).collect();
        let begin = Instant::now();
        for spec in specs {
            self.end_one();
            self.submit(spec);
        }
        begin.elapsed().as_nanos() as f64 / tasks as f64
    }

    fn end_one(&mut self) {
        let (index, attempt, reported) = self.running.pop_front().expect("all workers are busy");
        let session = self.workers[index].session;
        if !reported {
            self.happens(Event::WorkerMessageReceived {
                session,
                message: FromWorker::Started { attempt },
            });
        }
        let next = self.workers[index].backlog.pop_front();
        self.backlogged -= usize::from(next.is_some());
        self.running.extend(next.map(|next| (index, next, true)));
        let end = AttemptEnd::Finished(vec![self.result.clone()]);
        let (kept, ran_for) = (Vec::new(), self.ran_for);
        let message = FromWorker::Ended { attempt, end, kept, ran_for, next };
        self.happens(Event::WorkerMessageReceived { session, message });
    }

    /// Handles an event in the controller, and its effects in the simulated client and workers.
    fn happens(&mut self, event: Event) {
        self.now = self.now + Duration::from_nanos(100);
        self.controller.handle(self.now, event, &mut self.effects);
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::ToWorker { to, message } => self.worker_is_told(to, message),
                Effect::ToClient { message: ToClient::TaskEnded { task, outcome }, .. } => {
                    outcome.expect("it finished");
                    let thing = Referent::Object(ObjectId::of(task, 0));
                    let message = FromClient::Release { thing };
                    self.happens(Event::ClientMessageReceived { session: self.client, message });
                }
                Effect::ToClient { .. } => {}
                other => panic!("nobody asked for {other:?}"),
            }
        }
        self.effects = effects;
    }

    fn worker_is_told(&mut self, to: Session, message: ToWorker) {
        let index = to.id.as_u128() as usize - 1;
        match message {
            ToWorker::Assign { spec, attempt, grant, .. } => {
                let attempt = AttemptId { task: spec.id, attempt };
                match grant {
                    Some(_) => self.running.push_back((index, attempt, false)),
                    None => {
                        self.backlogged += 1;
                        self.workers[index].backlog.push_back(attempt);
                    }
                }
            }
            ToWorker::TakeBack(attempt) => {
                self.workers[index].backlog.retain(|other| *other != attempt);
                self.backlogged -= 1;
                let message = FromWorker::Refused { attempt, reason: Refusal::TakenBack };
                self.happens(Event::WorkerMessageReceived { session: to, message });
            }
            other => panic!("nobody asked for {other:?}"),
        }
    }
}
