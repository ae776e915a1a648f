//! The secrets of a process: the cluster's token, and the start of the cluster that the process
//! belongs to.

use marline_core::id::{ClusterId, ControllerEpoch};
use std::sync::{Arc, Mutex};

/// The cluster's token. `None` if the cluster has no token.
pub(crate) type Token = Option<Arc<str>>;

/// The identity of a cluster, and of one start of its controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClusterIdentity {
    pub cluster: ClusterId,
    pub epoch: ControllerEpoch,
}

/// The token of this process's cluster, and the identity of that cluster. A worker changes both
/// when it joins another cluster. All clones see the change.
#[derive(Clone, Default)]
pub(crate) struct Credentials(Arc<Mutex<CredentialsState>>);

#[derive(Default)]
struct CredentialsState {
    token: Token,
    incarnation: Option<ClusterIdentity>,
}

impl Credentials {
    /// Creates the credentials of a process that has not joined a cluster yet: it accepts no
    /// connection.
    pub fn new(token: Token) -> Credentials {
        Credentials(Arc::new(Mutex::new(CredentialsState { token, incarnation: None })))
    }

    /// Creates the credentials of a process that belongs to a cluster.
    pub fn of(token: Token, incarnation: ClusterIdentity) -> Credentials {
        let incarnation = Some(incarnation);
        Credentials(Arc::new(Mutex::new(CredentialsState { token, incarnation })))
    }

    fn with<R>(&self, what: impl FnOnce(&mut CredentialsState) -> R) -> R {
        what(&mut self.0.lock().expect("nothing panics under it"))
    }

    /// Returns the token with which this process connects to others.
    pub fn token(&self) -> Token {
        self.with(|known| known.token.clone())
    }

    /// Replaces the token before the process joins another cluster. Until it has joined, the
    /// process accepts no connection.
    pub fn replace_token(&self, token: Token) {
        self.with(|known| *known = CredentialsState { token, incarnation: None });
    }

    /// Sets the cluster that the process has joined.
    pub fn joined(&self, incarnation: ClusterIdentity) {
        self.with(|known| known.incarnation = Some(incarnation));
    }

    /// Returns what a peer must prove to connect. `None` while this process belongs to no cluster.
    pub fn required_from_peers(&self) -> Option<(Token, ClusterIdentity)> {
        self.with(|known| Some((known.token.clone(), known.incarnation?)))
    }
}

/// Returns credentials for a process of a test that accepts connections.
#[cfg(test)]
pub(crate) fn test_secret(token: &str) -> Credentials {
    let incarnation =
        ClusterIdentity { cluster: ClusterId::from_u128(1), epoch: ControllerEpoch(1) };
    Credentials::of(Some(token.into()), incarnation)
}
