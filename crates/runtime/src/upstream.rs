//! Which controller a worker or a client joins.
//!
//! A process that was given an address and a token always uses them. Otherwise it looks up the
//! missing part in the [records](crate::record) of this machine each time it joins: the next
//! controller is another process, with another socket and another token.

use crate::cluster_record::{self, ClusterRecord, read_token};
use crate::net::credentials::Token;
use marline_core::error::{Error, Ran};
use std::path::PathBuf;
use std::sync::Arc;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) enum Upstream {
    /// The controller at this address.
    At { address: String, token: Token },
    /// The controller at this address. The token comes from its record, if it runs on this machine
    /// for this user. Otherwise there is no token.
    Named { address: String },
    /// The only controller that runs on this machine for this user.
    Here { token: UpstreamToken },
}

/// Which token to send to a cluster that was found by its record.
#[derive(Clone, Debug)]
pub(crate) enum UpstreamToken {
    /// The token that the record names.
    Recorded,
    /// The token in this file.
    File(PathBuf),
    /// This token.
    Given(Arc<str>),
}

/// Where the controller is at the moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FoundController {
    /// The address at which other machines reach it.
    pub address: String,
    /// The address to dial from this process.
    pub nearest: String,
    pub token: Token,
    /// Its record, if it was found by one.
    record: Option<ClusterRecord>,
}

impl FoundController {
    fn at(address: &str, token: Token) -> FoundController {
        FoundController { address: address.into(), nearest: address.into(), token, record: None }
    }

    fn recorded(cluster: ClusterRecord, token: &UpstreamToken) -> Result<FoundController, Error> {
        let token = match token {
            UpstreamToken::Recorded => cluster.token()?.into(),
            UpstreamToken::File(file) => read_token(file)?.into(),
            UpstreamToken::Given(token) => token.clone(),
        };
        Ok(FoundController {
            address: cluster.address.clone(),
            nearest: cluster.nearest().into(),
            token: Some(token),
            record: Some(cluster),
        })
    }
}

impl Upstream {
    /// Selects the controller at this address, with this token if there is one.
    pub fn named(address: &str, token: Token) -> Upstream {
        let address = address.to_owned();
        match token {
            Some(_) => Upstream::At { address, token },
            None => Upstream::Named { address },
        }
    }

    /// Finds the controller. If the one that was found `before` still runs, returns it again,
    /// whatever else runs.
    pub fn find(&self, before: Option<&FoundController>) -> Result<FoundController, Error> {
        let before = before.and_then(|found| found.record.as_ref());
        match self {
            Upstream::At { address, token } => Ok(FoundController::at(address, token.clone())),
            Upstream::Named { address } => {
                match (cluster_record::list_clusters().unwrap_or_default().at(address), before) {
                    // The address that the user named is dialled, even if a socket of this machine
                    // is nearer. The process may be in another network namespace, or its user may
                    // want the network in between.
                    (Some(cluster), _) => {
                        let found = FoundController::recorded(cluster, &UpstreamToken::Recorded)?;
                        Ok(FoundController { nearest: found.address.clone(), ..found })
                    }
                    (None, None) => Ok(FoundController::at(address, None)),
                    // A process that had a token does not continue without one: otherwise peers
                    // could connect to it without a token.
                    (None, Some(_)) => {
                        let words = format!("the cluster at {address} has ended");
                        Err(Error::unavailable(Ran::No, words))
                    }
                }
            }
            Upstream::Here { token } => FoundController::recorded(
                cluster_record::list_clusters()?.only_cluster(before)?,
                token,
            ),
        }
    }

    /// Like [`find`](Upstream::find), for an async task, which must not block: another thread reads
    /// the files.
    pub async fn find_again(&self, before: &FoundController) -> Result<FoundController, Error> {
        if let Upstream::At { .. } = self {
            return Ok(before.clone());
        }
        let (upstream, before) = (self.clone(), before.clone());
        let looked = tokio::task::spawn_blocking(move || upstream.find(Some(&before)));
        looked.await.expect("looking does not panic")
    }
}
