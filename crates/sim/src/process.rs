//! A process: a machine with its links, its own clock, and the moods that the nemesis puts it in.

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

/// A process of the simulated world; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId(pub usize);

/// Everything that travels on links.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    FromClient(FromClient),
    ToClient(ToClient),
    FromWorker(FromWorker),
    ToWorker(ToWorker),
    ToHost(ToHost),
    FromHost(FromHost),
}

/// What can reach a process.
#[derive(Clone, Debug)]
pub enum Input {
    /// A frame, on this connection.
    Frame { connection: ConnectionId, from: ProcessId, frame: Frame },
    /// A connection is known to be broken.
    Broken { connection: ConnectionId },
    /// Time to look at the clock.
    Wake,
    /// Time to connect (again) to the controller, or to a host.
    Connect { host: Option<Session> },
    /// Time to ask to join (again).
    Join { request: u64 },
    /// One of its executors said something.
    Executor(worker::Event),
    /// Its user has an idea.
    Idea,
    /// Its user takes the next item of a stream.
    Take { task: TaskId },
    /// There is proof that a session's process is dead.
    Died { session: Session },
    /// It is asked to drain.
    Drain,
}

/// One end of a link, and the connection that it is on now.
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

/// A process's own clock: it began somewhere, and runs a little fast or slow.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: u64,
    /// Parts in a thousand by which it is fast.
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

    /// The first moment at which the clock shows `time` or more.
    pub fn when(&self, time: Time) -> u64 {
        let elapsed = i128::from(time.as_nanos().saturating_sub(self.began));
        (elapsed * 1000 / i128::from(1000 + self.fast)) as u64 + 2
    }
}

/// Which machine it is.
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
    /// What came while it was frozen.
    pub backlog: VecDeque<Input>,
    pub clock: Clock,
    /// When it is to be woken, if it is.
    pub wake: Option<u64>,
}
