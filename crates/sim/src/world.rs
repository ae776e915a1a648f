//! The world: time, the queue of events, and the processes.

use crate::client::ClientShell;
use crate::controller::ControllerShell;
use crate::executor::{ExecutorStep, Executors};
use crate::nemesis::Nemesis;
use crate::net::{ConnectionId, Network};
use crate::oracle::Oracle;
use crate::process::{Clock, Input, Process, ProcessId, ProcessShell};
use crate::worker::WorkerShell;
use marline_core::id::{ObjectId, Session, TaskId};
use marline_core::random::Random;
use marline_core::worker::ExecutorId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How long faults go on, and how long work may take to end after them.
const FAULTS: Duration = Duration::from_secs(90);
const CALM: Duration = Duration::from_secs(400);
/// The most steps of a run. More are taken for an endless loop: a world of 130 processes that are
/// pinged as often as in the product takes 540,000.
const MAX_STEPS: u64 = 2_000_000;

/// One seed in this many checks its machines after every event. So does a seed with a trace.
const THOROUGH: u64 = 4;
/// Other seeds check their machines after one event in this many. A broken invariant mostly stays
/// broken, and the checks take most of the time of a thorough seed.
const EVENTS_A_CHECK: u64 = 8;

/// An event in the world.
#[derive(Debug)]
pub enum SimEvent {
    /// An input reaches a process.
    Arrive { to: ProcessId, input: Input },
    /// An executor takes its next step.
    Executor { worker: ProcessId, executor: ExecutorId, turn: ExecutorStep },
    /// The executors of a worker check its lease.
    Watchdog { worker: ProcessId },
    /// The arguments that a call of a client waits for arrive.
    Supply { client: ProcessId, call: TaskId },
    /// The value of an object that a client announced arrives.
    Resolve { client: ProcessId, object: ObjectId },
    /// The nemesis causes a fault.
    Strike,
    /// These sessions must have survived a silence.
    Survived(Vec<(ProcessId, Session)>),
    /// A frozen process goes on.
    Thaw(ProcessId),
    /// A direction is cut, for this long.
    Cut(ProcessId, ProcessId, Duration),
    /// A cut ends.
    Heal(ProcessId, ProcessId),
    /// A new process starts, in place of one that ended.
    Restart(ProcessKind),
}

#[derive(Clone, Copy, Debug)]
pub enum ProcessKind {
    Controller,
    Worker,
    Client,
}

/// Counts of the events in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Events that were handled.
    pub steps: u64,
    /// Tasks and calls that ended well.
    pub finished: u64,
    /// Tasks and calls that ended with an error.
    pub failed: u64,
    /// Faults that the nemesis caused.
    pub faults: u64,
}

#[derive(Debug)]
pub struct World {
    pub now: u64,
    turn: u64,
    queue: BTreeMap<(u64, u64), SimEvent>,
    pub random: Random,
    pub processes: Vec<Process>,
    pub net: Network,
    pub executors: Executors,
    pub oracle: Oracle,
    pub nemesis: Nemesis,
    /// The objects whose data was saved durably.
    pub saved: BTreeSet<ObjectId>,
    /// Whether the nemesis causes faults and users submit new work.
    pub faults: bool,
    /// Whether tasks are short and come in bursts.
    pub hasty: bool,
    pub controller: ProcessId,
    pub report: Report,
    pub trace: bool,
    is_thorough: bool,
}

/// Runs the world of one seed to its end. Panics if a promise is broken.
pub fn run(seed: u64, trace: bool) -> Report {
    let mut world = World::new(seed, trace);
    world.live();
    world.report
}

impl World {
    fn new(seed: u64, trace: bool) -> World {
        let mut random = Random::new(seed);
        let nemesis = Nemesis::new(&mut random);
        let mut world = World {
            now: 0,
            turn: 0,
            queue: BTreeMap::new(),
            net: Network::new(nemesis.usual_delay),
            random,
            processes: Vec::new(),
            executors: Executors::default(),
            oracle: Oracle::default(),
            nemesis,
            saved: BTreeSet::new(),
            faults: true,
            hasty: false,
            controller: ProcessId(0),
            report: Report::default(),
            trace,
            is_thorough: trace || seed.is_multiple_of(THOROUGH),
        };
        world.hasty = world.random.one_in(2);
        world.restart(ProcessKind::Controller);
        for _ in 0..2 + world.random.below(3) {
            world.restart(ProcessKind::Worker);
        }
        for _ in 0..1 + world.random.below(3) {
            world.restart(ProcessKind::Client);
        }
        if world.random.one_in(4) {
            let odd = ProcessId(world.processes.len());
            world.restart(ProcessKind::Client);
            world.client_shell(odd).is_fuzz_client = true;
        }
        world.schedule_in(Duration::from_secs(1), SimEvent::Strike);
        world
    }

    /// Whether the invariants of the machine that just handled an event are checked.
    pub fn is_checked(&self) -> bool {
        self.is_thorough || self.report.steps.is_multiple_of(EVENTS_A_CHECK)
    }

    fn live(&mut self) {
        let end_of_faults = FAULTS.as_nanos() as u64;
        self.run_until(end_of_faults);
        self.calm_down();
        self.run_until(end_of_faults + CALM.as_nanos() as u64);
        self.check_all_ended();
        self.release_everything();
        self.run_until(end_of_faults + 2 * CALM.as_nanos() as u64);
        self.check_nothing_left();
    }

    fn run_until(&mut self, end: u64) {
        while let Some(entry) = self.queue.first_entry() {
            let (at, _) = *entry.key();
            if at > end {
                break;
            }
            let happening = entry.remove();
            self.now = at;
            self.report.steps += 1;
            assert!(self.report.steps < MAX_STEPS, "the world does not come to rest");
            if self.trace {
                eprintln!("{:>12.6} {happening:?}", at as f64 / 1e9);
            }
            self.happen(happening);
        }
        self.now = end;
    }

    fn happen(&mut self, happening: SimEvent) {
        match happening {
            SimEvent::Arrive { to, input } => self.arrive(to, input),
            SimEvent::Executor { worker, executor, turn } => {
                self.executor_acts(worker, executor, turn)
            }
            SimEvent::Watchdog { worker } => self.watchdog(worker),
            SimEvent::Supply { client, call } => self.supply(client, call),
            SimEvent::Resolve { client, object } => self.resolve(client, object),
            SimEvent::Strike => self.strike(),
            SimEvent::Survived(sessions) => self.check_survived(&sessions),
            SimEvent::Thaw(process) => self.thaw(process),
            SimEvent::Cut(from, to, time) => self.cut_for(from, to, time),
            SimEvent::Heal(from, to) => self.heal(from, to),
            SimEvent::Restart(what) => self.restart(what),
        }
    }

    pub fn schedule(&mut self, at: u64, happening: SimEvent) {
        self.turn += 1;
        self.queue.insert((at.max(self.now), self.turn), happening);
    }

    pub fn schedule_in(&mut self, wait: Duration, happening: SimEvent) {
        self.schedule(self.now + wait.as_nanos() as u64, happening);
    }

    /// Schedules `input` for a process, after a random time of at most `wait`.
    pub fn soon(&mut self, to: ProcessId, wait: Duration, input: Input) {
        let wait = self.random.up_to(wait);
        self.schedule_in(wait, SimEvent::Arrive { to, input });
    }

    fn arrive(&mut self, to: ProcessId, input: Input) {
        let process = &mut self.processes[to.0];
        if !process.alive {
            if let Input::Frame { connection, .. } = input {
                self.arrived_nowhere(connection);
            }
            return;
        }
        if process.frozen {
            return process.backlog.push_back(input);
        }
        if matches!(input, Input::Wake) && process.wake.is_none_or(|wake| wake > self.now) {
            return;
        }
        match process.role {
            ProcessShell::Controller(_) => self.controller_input(to, input),
            ProcessShell::Worker(_) => self.worker_input(to, input),
            ProcessShell::Client(_) => self.client_input(to, input),
        }
        self.set_wake(to);
    }

    fn set_wake(&mut self, id: ProcessId) {
        let process = &mut self.processes[id.0];
        let next = match &process.role {
            ProcessShell::Controller(shell) => shell.machine.next_wake(),
            ProcessShell::Worker(shell) => shell.machine.next_wake(),
            ProcessShell::Client(shell) => shell.machine.next_wake(),
        };
        let at = next.map(|time| process.clock.when(time).max(self.now));
        if at != process.wake || at == Some(self.now) {
            process.wake = at;
            if let Some(at) = at {
                self.schedule(at, SimEvent::Arrive { to: id, input: Input::Wake });
            }
        }
    }

    pub fn restart(&mut self, what: ProcessKind) {
        let id = ProcessId(self.processes.len());
        let clock = Clock::new(&mut self.random);
        let role = match what {
            ProcessKind::Controller => {
                self.controller = id;
                ProcessShell::Controller(Box::new(ControllerShell::new(
                    id.0 as u64,
                    &mut self.random,
                )))
            }
            ProcessKind::Worker => {
                ProcessShell::Worker(Box::new(WorkerShell::new(id, self.faults, &mut self.random)))
            }
            ProcessKind::Client => ProcessShell::Client(Box::new(ClientShell::new(id))),
        };
        self.processes.push(Process {
            role,
            alive: true,
            frozen: false,
            backlog: VecDeque::new(),
            clock,
            wake: None,
        });
        if !matches!(what, ProcessKind::Controller) {
            self.soon(id, Duration::from_millis(100), Input::Join { request: 1 });
        }
        if matches!(what, ProcessKind::Client) {
            self.soon(id, Duration::from_secs(1), Input::UserActs);
        }
    }

    pub fn thaw(&mut self, id: ProcessId) {
        let process = &mut self.processes[id.0];
        if !process.frozen {
            return;
        }
        process.frozen = false;
        for input in std::mem::take(&mut process.backlog) {
            self.schedule(self.now, SimEvent::Arrive { to: id, input });
        }
        self.processes[id.0].wake = None;
        self.set_wake(id);
    }

    /// Returns all processes of a kind that are alive.
    pub fn living(&self, kind: impl Fn(&ProcessShell) -> bool) -> Vec<ProcessId> {
        let living = self.processes.iter().enumerate().filter(|(_, p)| p.alive && kind(&p.role));
        living.map(|(index, _)| ProcessId(index)).collect()
    }

    /// Ends the faults: cuts heal, frozen processes go on, and a missing controller starts.
    fn calm_down(&mut self) {
        self.faults = false;
        self.heal_all();
        self.net.delay = Duration::from_millis(1);
        for id in 0..self.processes.len() {
            self.thaw(ProcessId(id));
        }
        if !self.processes[self.controller.0].alive {
            self.restart(ProcessKind::Controller);
        }
        // Two new workers, which provide everything, since the faults are over.
        for _ in 0..2 {
            self.restart(ProcessKind::Worker);
        }
        self.nemesis.pending_restarts = 0;
    }

    pub fn connections_of(&self, id: ProcessId) -> Vec<ConnectionId> {
        let mine =
            self.net.connections.iter().filter(|(_, connection)| connection.ends.contains(&id));
        mine.map(|(connection, _)| *connection).collect()
    }
}
