//! A process of the simulated world: a machine with its links, a clock of its own, and whether the
//! nemesis has frozen or killed it.

use crate::client::ClientShell;
use crate::controller::ControllerShell;
use crate::net::{ConnectionId, Frame};
use crate::worker::WorkerShell;
use marline_core::id::{Session, TaskId};
use marline_core::link::{Incarnation, Link};
use marline_core::message::{FromClient, FromHost, FromWorker, ToClient, ToHost, ToWorker};
use marline_core::random::Random;
use marline_core::time::Time;
use marline_core::worker;
use std::collections::VecDeque;

/// The id of a process in the simulated world. Ids are never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId(pub usize);

/// All messages that travel on links.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    FromClient(FromClient),
    ToClient(ToClient),
    FromWorker(FromWorker),
    ToWorker(ToWorker),
    ToHost(ToHost),
    FromHost(FromHost),
}

/// An event that reaches a process.
#[derive(Clone, Debug)]
pub enum Input {
    /// A frame, on this connection.
    Frame { connection: ConnectionId, from: ProcessId, frame: Frame },
    /// A connection is known to be broken.
    Broken { connection: ConnectionId },
    /// A timer: the machine checks what is due.
    Wake,
    /// The process connects (again) to the controller, or to a host.
    Connect { host: Option<Session> },
    /// The process asks (again) to join.
    Join { request: u64 },
    /// One of its executors reports an event.
    Executor(worker::Event),
    /// Its user does something new.
    UserActs,
    /// Its user consumes the next item of a stream.
    Take { task: TaskId },
    /// There is proof that a session's process is dead.
    Died { session: Session },
    /// The process is asked to drain (a worker) or to shut down (a controller).
    Drain,
}

/// One end of a link, and the connection that carries it now.
#[derive(Debug)]
pub struct LinkEnd {
    pub link: Link<Message>,
    pub connection: Option<ConnectionId>,
}

impl LinkEnd {
    pub fn new(incarnation: u64) -> LinkEnd {
        LinkEnd { link: Link::new(Incarnation(incarnation)), connection: None }
    }
}

/// The clock of a process. It starts at a random time, and runs up to 2 % fast or slow.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: u64,
    /// How much faster it runs than the time of the world, in thousandths. Negative if it is slow.
    fast: i64,
}

impl Clock {
    pub fn new(random: &mut Random) -> Clock {
        Clock { began: random.below(1 << 40), fast: random.below(41) as i64 - 20 }
    }

    pub fn read(&self, now: u64) -> Time {
        let elapsed = i128::from(now) * i128::from(1000 + self.fast) / 1000;
        Time::from_nanos(self.began + elapsed as u64)
    }

    /// Returns a moment, in the time of the world, at which the clock shows `time` or a little
    /// more.
    pub fn when(&self, time: Time) -> u64 {
        let elapsed = i128::from(time.as_nanos().saturating_sub(self.began));
        (elapsed * 1000 / i128::from(1000 + self.fast)) as u64 + 2
    }
}

/// The machine of a process, in the shell that carries out its effects.
#[derive(Debug)]
pub enum ProcessShell {
    Controller(Box<ControllerShell>),
    Worker(Box<WorkerShell>),
    Client(Box<ClientShell>),
}

#[derive(Debug)]
pub struct Process {
    pub role: ProcessShell,
    pub alive: bool,
    pub frozen: bool,
    /// The inputs that arrived while it was frozen, in order.
    pub backlog: VecDeque<Input>,
    pub clock: Clock,
    /// When its next timer goes off, if it has one.
    pub wake: Option<u64>,
}
