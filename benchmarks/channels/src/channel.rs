//! The traits between shapes and rivals: what a stream, a ping or a select needs of
//! a queue-like channel. A rival implements `TaskChannel` (its ends are awaited),
//! `ThreadChannel` (its ends block their thread), or both. A shape knows only these
//! traits. Other kinds of channel have a trait beside their shape:
//! `shapes/oneshot.rs`, `shapes/newest.rs`, `shapes/batch.rs`.

/// How many values a channel holds before a send waits; 0 is a rendezvous.
#[derive(Clone, Copy, PartialEq)]
pub enum Capacity {
    Bounded(usize),
    Unbounded,
}

impl Capacity {
    pub fn name(self) -> String {
        match self {
            Capacity::Bounded(size) => format!("capacity {size}"),
            Capacity::Unbounded => "unbounded".into(),
        }
    }
}

/// How many ends a channel has on each side.
#[derive(Clone, Copy)]
pub struct Ends {
    pub senders: usize,
    pub receivers: usize,
}

impl Ends {
    pub const SINGLE: Ends = Ends { senders: 1, receivers: 1 };
}

/// A payload. It is cheap to make, so that the time is that of the channel.
pub trait Message: Send + Sync + Unpin + 'static {
    const NAME: &'static str;
    const BYTES: usize;
    fn new(index: u64) -> Self;
}

impl Message for u64 {
    const NAME: &'static str = "u64";
    const BYTES: usize = 8;
    fn new(index: u64) -> Self {
        index
    }
}

impl Message for [u64; 32] {
    const NAME: &'static str = "256 bytes";
    const BYTES: usize = 256;
    fn new(index: u64) -> Self {
        [index; 32]
    }
}

pub type Opened<Tx, Rx> = Option<(Vec<Tx>, Vec<Rx>)>;

/// A channel used from async tasks.
pub trait TaskChannel<T>: 'static {
    const NAME: &'static str;
    /// Whether it is built for one producer or one consumer only. Such a rival is expected to be
    /// faster.
    const SPECIALISED: bool = false;
    type Tx: Send + 'static;
    type Rx: Send + 'static;
    /// Opens a channel. Returns `None` if this rival has no such channel.
    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx>;
    /// Sends a value. Returns whether the channel accepted it.
    fn send(tx: &mut Self::Tx, value: T) -> impl Future<Output = bool> + Send;
    /// Receives a value. Returns `None` when the channel is closed and empty.
    fn recv(rx: &mut Self::Rx) -> impl Future<Output = Option<T>> + Send;
    fn try_recv(rx: &mut Self::Rx) -> Option<T>;
}

/// A channel used from operating-system threads.
pub trait ThreadChannel<T>: 'static {
    const NAME: &'static str;
    const SPECIALISED: bool = false;
    type Tx: Send + 'static;
    type Rx: Send + 'static;
    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx>;
    fn send(tx: &mut Self::Tx, value: T) -> bool;
    fn recv(rx: &mut Self::Rx) -> Option<T>;
    fn try_recv(rx: &mut Self::Rx) -> Option<T>;
}
