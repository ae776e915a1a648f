//! The nemesis: which faults happen, and when.

use crate::controller::LEASE;
use crate::process::{Input, ProcessId, ProcessShell};
use crate::world::{ProcessKind, SimEvent, World};
use marline_core::id::Session;
use marline_core::lease::LeaseTerms;
use marline_core::random::Random;
use std::time::Duration;

#[derive(Debug)]
pub struct Nemesis {
    /// The longest time that a frame takes while no fault slows it.
    pub usual_delay: Duration,
    /// The kinds of faults in this world. Each world has only some kinds, and so more of each.
    kinds: Vec<Fault>,
    /// The longest time between two faults.
    pause: Duration,
    /// Whether silences are the only faults in this world. Each is a little shorter than sessions
    /// survive, or a little longer than their lease. With other faults it would not be known
    /// whether a session must survive.
    silences: bool,
    pub pending_restarts: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    BreakConnection,
    CutOneWay,
    CutBothWays,
    FreezeWorker,
    FreezeClient,
    FreezeController,
    KillWorker,
    KillClient,
    KillController,
    Drain,
    Slow,
    NewWorker,
    CloseClient,
}

const FAULTS: [Fault; 13] = [
    Fault::BreakConnection,
    Fault::CutOneWay,
    Fault::CutBothWays,
    Fault::FreezeWorker,
    Fault::FreezeClient,
    Fault::FreezeController,
    Fault::KillWorker,
    Fault::KillClient,
    Fault::KillController,
    Fault::Drain,
    Fault::Slow,
    Fault::NewWorker,
    Fault::CloseClient,
];

impl Nemesis {
    pub fn new(random: &mut Random) -> Nemesis {
        let mut kinds: Vec<Fault> = FAULTS.into_iter().filter(|_| random.one_in(3)).collect();
        // Losing the controller ends all sessions, and so hides other bugs. Few worlds have this
        // fault.
        if random.below(4) != 0 {
            kinds.retain(|fault| *fault != Fault::KillController);
        }
        let usual_delay =
            [Duration::from_micros(100), Duration::from_millis(20), Duration::from_millis(300)];
        Nemesis {
            usual_delay: usual_delay[random.below(3) as usize],
            kinds,
            pause: Duration::from_secs(1 + random.below(15)),
            silences: random.one_in(10),
            pending_restarts: 0,
        }
    }
}

impl World {
    pub fn strike(&mut self) {
        if !self.faults {
            return;
        }
        if self.nemesis.silences {
            return self.silence();
        }
        let pause = self.random.up_to(self.nemesis.pause);
        self.schedule_in(pause, SimEvent::Strike);
        if self.nemesis.kinds.is_empty() {
            return;
        }
        let fault = self.nemesis.kinds[self.random.below(self.nemesis.kinds.len() as u64) as usize];
        self.report.faults += 1;
        match fault {
            Fault::BreakConnection => {
                let connections: Vec<_> = self.net.connections.keys().copied().collect();
                if !connections.is_empty() {
                    let index = self.random.below(connections.len() as u64) as usize;
                    self.break_connection(connections[index]);
                }
            }
            Fault::CutOneWay | Fault::CutBothWays => self.cut(fault == Fault::CutBothWays),
            Fault::FreezeWorker => self.freeze(|role| matches!(role, ProcessShell::Worker(_))),
            Fault::FreezeClient => self.freeze(|role| matches!(role, ProcessShell::Client(_))),
            Fault::FreezeController => {
                self.freeze(|role| matches!(role, ProcessShell::Controller(_)))
            }
            Fault::KillWorker => {
                self.kill(|role| matches!(role, ProcessShell::Worker(_)), ProcessKind::Worker)
            }
            Fault::KillClient => {
                self.kill(|role| matches!(role, ProcessShell::Client(_)), ProcessKind::Client)
            }
            // Half of the controllers shut down in good order, the others are killed.
            Fault::KillController if self.random.one_in(2) => {
                if let Some(id) = self.one_of(|role| matches!(role, ProcessShell::Controller(_))) {
                    self.soon(id, Duration::from_millis(1), Input::Drain);
                }
            }
            Fault::KillController => {
                self.kill(
                    |role| matches!(role, ProcessShell::Controller(_)),
                    ProcessKind::Controller,
                );
            }
            Fault::Drain => {
                if let Some(id) = self.one_of(|role| matches!(role, ProcessShell::Worker(_))) {
                    self.soon(id, Duration::from_millis(1), Input::Drain);
                    self.start_another(ProcessKind::Worker);
                }
            }
            Fault::Slow => {
                self.net.delay = match self.random.below(3) {
                    0 => Duration::from_secs(8),
                    1 => Duration::from_secs(1),
                    _ => self.nemesis.usual_delay,
                };
            }
            Fault::NewWorker => self.start_another(ProcessKind::Worker),
            Fault::CloseClient => {
                if let Some(id) = self.one_of(|role| matches!(role, ProcessShell::Client(_))) {
                    self.close_client(id);
                }
            }
        }
    }

    fn one_of(&mut self, kind: impl Fn(&ProcessShell) -> bool) -> Option<ProcessId> {
        let living = self.living(kind);
        (!living.is_empty()).then(|| living[self.random.below(living.len() as u64) as usize])
    }

    fn some_time(&mut self) -> Duration {
        let most = match self.random.below(3) {
            0 => Duration::from_secs(2),
            1 => Duration::from_secs(15),
            _ => Duration::from_secs(60),
        };
        self.random.up_to(most)
    }

    fn cut(&mut self, both: bool) {
        let (Some(a), Some(b)) = (self.one_of(|_| true), self.one_of(|_| true)) else { return };
        // Most traffic is with the controller, so most cuts are there.
        let b = if self.random.one_in(3) { b } else { self.controller };
        let (a, b) = if self.random.one_in(2) { (a, b) } else { (b, a) };
        if a == b {
            return;
        }
        let time = self.some_time();
        self.cut_for(a, b, time);
        if both {
            self.cut_for(b, a, time);
        }
    }

    fn freeze(&mut self, kind: impl Fn(&ProcessShell) -> bool) {
        if let Some(id) = self.one_of(kind) {
            let time = self.some_time();
            self.freeze_for(id, time);
        }
    }

    /// Makes a silence: for a while one or both directions are cut, or a process is frozen.
    fn silence(&mut self) {
        let survives = self.random.below(4) > 0;
        let time = match survives {
            true => {
                // Less than sessions tolerate: clocks run up to a fiftieth fast or slow, and
                // messages take time.
                let longest =
                    LeaseTerms::of(LEASE).tolerated_silence() * 95 / 100 - 4 * self.net.delay;
                longest * (700 + self.random.below(301) as u32) / 1_000
            }
            false => LEASE + self.random.up_to(LEASE / 3),
        };
        // One direction after the other: the controller's messages arrive late, and the answers do
        // not arrive.
        let in_turn = !survives && self.random.one_in(2);
        let late =
            if in_turn { LEASE / 10 + self.random.up_to(LEASE * 2 / 3) } else { Duration::ZERO };
        let next = late + time + LEASE / 2 + self.random.up_to(self.nemesis.pause);
        self.schedule_in(next, SimEvent::Strike);
        let Some(other) = self.one_of(|role| !matches!(role, ProcessShell::Controller(_))) else {
            return;
        };
        self.report.faults += 1;
        if survives {
            let settled = time + 4 * self.net.delay + Duration::from_secs(1);
            self.schedule_in(settled, SimEvent::Survived(self.joined()));
        }
        let controller = self.controller;
        if in_turn {
            self.cut_for(controller, other, late);
            let just_before = late - Duration::from_millis(1);
            return self.schedule_in(just_before, SimEvent::Cut(other, controller, time));
        }
        match self.random.below(5) {
            0 => self.freeze_for(controller, time),
            1 => self.freeze_for(other, time),
            2 => self.cut_for(controller, other, time),
            3 => self.cut_for(other, controller, time),
            _ => {
                self.cut_for(controller, other, time);
                self.cut_for(other, controller, time);
            }
        }
    }

    /// Returns the sessions of all processes that are part of the cluster.
    fn joined(&self) -> Vec<(ProcessId, Session)> {
        let living = self.living(|_| true).into_iter();
        living.filter_map(|id| Some((id, self.session_of(id)?))).collect()
    }

    /// Returns the session of a process, if both the process and the controller consider it alive.
    fn session_of(&self, id: ProcessId) -> Option<Session> {
        let session = match &self.processes[id.0].role {
            ProcessShell::Controller(_) => None,
            ProcessShell::Worker(shell) => shell.machine.session(),
            // The fuzz client may be fenced for what it sends, so it promises nothing.
            ProcessShell::Client(shell) => {
                shell.machine.session().filter(|_| !shell.is_fuzz_client)
            }
        };
        let ProcessShell::Controller(controller) = &self.processes[self.controller.0].role else {
            panic!("the controller is one")
        };
        session.filter(|session| controller.machine.is_alive(*session))
    }

    pub fn check_survived(&self, sessions: &[(ProcessId, Session)]) {
        for (id, session) in sessions {
            assert_eq!(
                self.session_of(*id),
                Some(*session),
                "{id:?} had to survive a silence shorter than its lease tolerates"
            );
        }
    }

    fn freeze_for(&mut self, id: ProcessId, time: Duration) {
        self.processes[id.0].frozen = true;
        self.schedule_in(time, SimEvent::Thaw(id));
    }

    pub fn cut_for(&mut self, from: ProcessId, to: ProcessId, time: Duration) {
        self.net.cut.insert((from, to));
        self.schedule_in(time, SimEvent::Heal(from, to));
    }

    fn start_another(&mut self, what: ProcessKind) {
        let time = self.random.up_to(Duration::from_secs(10));
        self.schedule_in(time, SimEvent::Restart(what));
    }

    fn kill(&mut self, kind: impl Fn(&ProcessShell) -> bool, restart: ProcessKind) {
        let Some(id) = self.one_of(kind) else { return };
        self.bury(id);
        self.start_another(restart);
    }

    /// Ends the process of a controller that has shut down, and starts another one later.
    pub fn controller_ends(&mut self, id: ProcessId) {
        self.bury(id);
        self.start_another(ProcessKind::Controller);
    }

    /// Kills a process by force, with its executors. In half of the cases the controller gets proof
    /// of its death.
    fn bury(&mut self, id: ProcessId) {
        let process = &mut self.processes[id.0];
        process.alive = false;
        process.frozen = false;
        process.backlog.clear();
        let session = match &process.role {
            ProcessShell::Controller(_) => {
                self.oracle.controller_restarted();
                None
            }
            ProcessShell::Worker(shell) => shell.upstream.session,
            ProcessShell::Client(shell) => shell.upstream.session,
        };
        for connection in self.connections_of(id) {
            self.break_connection(connection);
        }
        self.kill_executors(id);
        if let Some(session) = session
            && self.random.one_in(2)
        {
            // As on the same host, where the controller sees that the process is gone.
            let controller = self.controller;
            self.soon(controller, Duration::from_millis(5), Input::Died { session });
        }
    }

    /// Lets a client leave in good order.
    fn close_client(&mut self, id: ProcessId) {
        if let Some(session) = self.client_shell(id).upstream.session
            && !self.processes[id.0].frozen
        {
            self.transmit_upstream(id, crate::net::Frame::Close { session });
            self.start_another(ProcessKind::Client);
            let process = &mut self.processes[id.0];
            process.alive = false;
        }
    }
}
