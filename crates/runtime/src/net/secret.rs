//! What a process knows of its cluster that others must not: the token, and which start of which cluster it belongs to.

use marline_core::id::{ClusterId, ControllerEpoch};
use std::sync::{Arc, Mutex};

/// The cluster's token, if it has one.
pub(crate) type Token = Option<Arc<str>>;

/// One start of one cluster's controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Incarnation {
    pub cluster: ClusterId,
    pub epoch: ControllerEpoch,
}

/// The token of this process's cluster, and which cluster that is. A worker changes both when it joins another cluster;
/// all clones see the change.
#[derive(Clone, Default)]
pub(crate) struct Secret(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    token: Token,
    incarnation: Option<Incarnation>,
}

impl Secret {
    /// The secret of a process that has not joined yet: it lets nobody in.
    pub fn new(token: Token) -> Secret {
        Secret(Arc::new(Mutex::new(Known { token, incarnation: None })))
    }

    /// The secret of a process that belongs to a cluster.
    pub fn of(token: Token, incarnation: Incarnation) -> Secret {
        let incarnation = Some(incarnation);
        Secret(Arc::new(Mutex::new(Known { token, incarnation })))
    }

    fn with<R>(&self, what: impl FnOnce(&mut Known) -> R) -> R {
        what(&mut self.0.lock().expect("nothing panics under it"))
    }

    /// The token with which this process connects to others.
    pub fn token(&self) -> Token {
        self.with(|known| known.token.clone())
    }

    /// The process is about to join a cluster that has another token. Until it has joined, it lets nobody in.
    pub fn replace_token(&self, token: Token) {
        self.with(|known| *known = Known { token, incarnation: None });
    }

    /// The process has joined this cluster.
    pub fn joined(&self, incarnation: Incarnation) {
        self.with(|known| known.incarnation = Some(incarnation));
    }

    /// What those who connect must know; nothing while this process belongs to no cluster.
    pub fn inside(&self) -> Option<(Token, Incarnation)> {
        self.with(|known| Some((known.token.clone(), known.incarnation?)))
    }
}

/// The secret of a process that tests let others connect to.
#[cfg(test)]
pub(crate) fn test_secret(token: &str) -> Secret {
    let incarnation = Incarnation { cluster: ClusterId::from_u128(1), epoch: ControllerEpoch(1) };
    Secret::of(Some(token.into()), incarnation)
}
