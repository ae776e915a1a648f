//! Which controller a worker or a client joins. A process that was told address and token stays with
//! them. A process that was not told both looks the rest up in the [records](crate::record) of this
//! machine each time it joins: the next controller is another process with another socket and another
//! token.

use crate::net::credentials::Token;
use crate::record::{self, ClusterRecord, read_token};
use marline_core::error::{Error, Ran};
use std::path::PathBuf;
use std::sync::Arc;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) enum Upstream {
    /// The controller at this address.
    At { address: String, token: Token },
    /// The controller at this address, with the token of its record if it runs on this machine for
    /// this user, and without a token otherwise.
    Named { address: String },
    /// The one that runs on this machine for this user.
    Here { token: UpstreamToken },
}

/// Which token is said to a cluster that was found by its record.
#[derive(Clone, Debug)]
pub(crate) enum UpstreamToken {
    /// The one that its record names.
    Recorded,
    /// The one in this file.
    File(PathBuf),
    /// This one.
    Given(Arc<str>),
}

/// Where it is at the moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FoundController {
    /// Where others reach it.
    pub address: String,
    /// The quickest way to it from here.
    pub nearest: String,
    pub token: Token,
    /// Its record, if it was looked up.
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
    /// The controller at this address, with this token if there is one.
    pub fn named(address: &str, token: Token) -> Upstream {
        let address = address.to_owned();
        match token {
            Some(_) => Upstream::At { address, token },
            None => Upstream::Named { address },
        }
    }

    /// Looks where it is. One that was found before and still runs is meant again, whatever else runs.
    pub fn find(&self, before: Option<&FoundController>) -> Result<FoundController, Error> {
        let before = before.and_then(|found| found.record.as_ref());
        match self {
            Upstream::At { address, token } => Ok(FoundController::at(address, token.clone())),
            Upstream::Named { address } => {
                match (record::list_clusters().unwrap_or_default().at(address), before) {
                    // An address that was named is dialled, though a socket of this machine may be nearer: the process
                    // may be in another network namespace, or its user may want the network in between.
                    (Some(cluster), _) => {
                        let found = FoundController::recorded(cluster, &UpstreamToken::Recorded)?;
                        Ok(FoundController { nearest: found.address.clone(), ..found })
                    }
                    (None, None) => Ok(FoundController::at(address, None)),
                    // A process that had a token does not go on without one: others of the cluster
                    // would need none either to connect to it.
                    (None, Some(_)) => {
                        let words = format!("the cluster at {address} has ended");
                        Err(Error::unavailable(Ran::No, words))
                    }
                }
            }
            Upstream::Here { token } => {
                FoundController::recorded(record::list_clusters()?.only_cluster(before)?, token)
            }
        }
    }

    /// The same where nothing may block: files are read on another thread.
    pub async fn find_again(&self, before: &FoundController) -> Result<FoundController, Error> {
        if let Upstream::At { .. } = self {
            return Ok(before.clone());
        }
        let (upstream, before) = (self.clone(), before.clone());
        let looked = tokio::task::spawn_blocking(move || upstream.find(Some(&before)));
        looked.await.expect("looking does not panic")
    }
}
