//! Connections that have not proved yet that they know the token, here called strangers. A listener
//! has at most [`MAX_UNAUTHENTICATED`] of them, each for at most
//! [`AUTHENTICATE_WITHIN`](super::handshake::AUTHENTICATE_WITHIN).
//!
//! When there are too many, the pool closes the oldest connection of the peer that has the most. So
//! a peer that makes many connections pushes out its own, and not those of others. A peer is a user
//! of this machine, or another address (see [`PeerIdentity`]).

use super::peer_identity::PeerIdentity;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// The most connections that may be unproved at a time. This is many more than a cluster makes at
/// once, and an eighth of the fewest descriptors (1024) that a process has on most systems.
pub(super) const MAX_UNAUTHENTICATED: usize = 128;

/// See the [module](self).
#[derive(Clone, Default)]
pub(super) struct UnauthenticatedPool(Arc<Mutex<Pool>>);

#[derive(Default)]
struct Pool {
    /// The strangers, in the order in which they came.
    waiting: BTreeMap<u64, Waiting>,
    next: u64,
}

struct Waiting {
    peer: PeerIdentity,
    /// Dropping it tells the connection to close.
    _keeps: oneshot::Sender<()>,
}

/// A stranger's entry in the pool. Dropping it removes the entry.
pub(super) struct PoolEntry {
    pool: UnauthenticatedPool,
    number: u64,
    /// Ends when the connection must close.
    pub pushed_out: oneshot::Receiver<()>,
}

impl UnauthenticatedPool {
    fn with<R>(&self, what: impl FnOnce(&mut Pool) -> R) -> R {
        what(&mut self.0.lock().expect("nothing panics under it"))
    }

    /// Adds a new connection. If the pool is full, closes another one.
    pub fn enter(&self, peer: PeerIdentity) -> PoolEntry {
        let (stays, pushed_out) = oneshot::channel();
        let number = self.with(|pool| {
            if pool.waiting.len() >= MAX_UNAUTHENTICATED {
                pool.push_out();
            }
            let number = pool.next;
            pool.next += 1;
            pool.waiting.insert(number, Waiting { peer, _keeps: stays });
            number
        });
        PoolEntry { pool: self.clone(), number, pushed_out }
    }

    /// Closes one connection to free its descriptor. Returns whether there was one.
    pub fn close_one(&self) -> bool {
        self.with(Pool::push_out)
    }
}

impl Pool {
    fn push_out(&mut self) -> bool {
        let mut counts: BTreeMap<PeerIdentity, usize> = BTreeMap::new();
        for waiting in self.waiting.values() {
            *counts.entry(waiting.peer).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        let goes = self.waiting.iter().find(|(_, waiting)| counts[&waiting.peer] == most);
        let goes = goes.map(|(number, _)| *number);
        goes.is_some_and(|number| self.waiting.remove(&number).is_some())
    }
}

impl Drop for PoolEntry {
    fn drop(&mut self) {
        self.pool.with(|pool| pool.waiting.remove(&self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::error::TryRecvError;

    fn stays(place: &mut PoolEntry) -> bool {
        place.pushed_out.try_recv() == Err(TryRecvError::Empty)
    }

    #[test]
    fn a_peer_with_many_connections_pushes_out_its_own_oldest() {
        let pool = UnauthenticatedPool::default();
        let (honest, greedy) = (PeerIdentity::User(1), PeerIdentity::User(2));
        let mut first = pool.enter(honest);
        let mut many: Vec<PoolEntry> =
            (1..MAX_UNAUTHENTICATED).map(|_| pool.enter(greedy)).collect();
        assert!(many.iter_mut().all(stays));
        let mut second = pool.enter(honest);
        assert!(stays(&mut first) && stays(&mut second));
        assert!(!stays(&mut many[0]) && many[1..].iter_mut().all(stays));
        let mut later: Vec<PoolEntry> = (0..1_000).map(|_| pool.enter(greedy)).collect();
        assert!(stays(&mut first) && stays(&mut second));
        let stay = many.iter_mut().chain(&mut later).filter_map(|place| stays(place).then_some(()));
        assert_eq!(stay.count(), MAX_UNAUTHENTICATED - 2);
        assert!(stays(later.last_mut().unwrap()), "the newest stays");
    }

    #[test]
    fn a_dropped_pool_entry_makes_room_for_another() {
        let pool = UnauthenticatedPool::default();
        let mut first = pool.enter(PeerIdentity::User(1));
        for _ in 0..10 * MAX_UNAUTHENTICATED {
            drop(pool.enter(PeerIdentity::User(1)));
        }
        assert!(stays(&mut first));
        assert!(pool.close_one() && !stays(&mut first));
        assert!(!pool.close_one(), "the pool is empty");
    }
}
