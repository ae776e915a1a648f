//! What a process knows of its cluster that others must not: the token, and which start of which cluster it belongs to.

use marline_core::id::{ClusterId, ControllerEpoch};
use std::sync::{Arc, Mutex};

/// The cluster's token, if it has one.
pub(crate) type Token = Option<Arc<str>>;

/// One start of one cluster's controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClusterIdentity {
    pub cluster: ClusterId,
    pub epoch: ControllerEpoch,
}

/// The token of this process's cluster, and which cluster that is. A worker changes both when it joins another cluster;
/// all clones see the change.
#[derive(Clone, Default)]
pub(crate) struct Credentials(Arc<Mutex<CredentialsState>>);

#[derive(Default)]
struct CredentialsState {
    token: Token,
    incarnation: Option<ClusterIdentity>,
}

impl Credentials {
    /// The secret of a process that has not joined yet: it lets nobody in.
    pub fn new(token: Token) -> Credentials {
        Credentials(Arc::new(Mutex::new(CredentialsState { token, incarnation: None })))
    }

    /// The secret of a process that belongs to a cluster.
    pub fn of(token: Token, incarnation: ClusterIdentity) -> Credentials {
        let incarnation = Some(incarnation);
        Credentials(Arc::new(Mutex::new(CredentialsState { token, incarnation })))
    }

    fn with<R>(&self, what: impl FnOnce(&mut CredentialsState) -> R) -> R {
        what(&mut self.0.lock().expect("nothing panics under it"))
    }

    /// The token with which this process connects to others.
    pub fn token(&self) -> Token {
        self.with(|known| known.token.clone())
    }

    /// The process is about to join a cluster that has another token. Until it has joined, it lets nobody in.
    pub fn replace_token(&self, token: Token) {
        self.with(|known| *known = CredentialsState { token, incarnation: None });
    }

    /// The process has joined this cluster.
    pub fn joined(&self, incarnation: ClusterIdentity) {
        self.with(|known| known.incarnation = Some(incarnation));
    }

    /// What those who connect must know; nothing while this process belongs to no cluster.
    pub fn required_from_peers(&self) -> Option<(Token, ClusterIdentity)> {
        self.with(|known| Some((known.token.clone(), known.incarnation?)))
    }
}

/// The secret of a process that tests let others connect to.
#[cfg(test)]
pub(crate) fn test_secret(token: &str) -> Credentials {
    let incarnation =
        ClusterIdentity { cluster: ClusterId::from_u128(1), epoch: ControllerEpoch(1) };
    Credentials::of(Some(token.into()), incarnation)
}
