//! Which controller a worker or a client joins. Whoever joined an address stays with it; whoever joined
//! "the cluster that runs here" looks again each time, since the next one is another process with
//! another socket and another token.

use crate::net::server::Token;
use crate::record::{self, Cluster, read_token};
use marline_core::error::Error;
use std::path::PathBuf;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) enum Upstream {
    /// The controller at this address.
    At { address: String, token: Token },
    /// The one that runs on this machine for this user; with the token of its record, unless another
    /// file is named.
    Here { token_file: Option<PathBuf> },
}

/// Where it is at the moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// Where others reach it.
    pub address: String,
    /// The quickest way to it from here.
    pub nearest: String,
    pub token: Token,
    /// What is written down of it, if it was looked up.
    record: Option<Cluster>,
}

impl Upstream {
    /// Looks where it is. One that was found before and still runs is meant again, whatever else runs.
    pub fn find(&self, before: Option<&Found>) -> Result<Found, Error> {
        match self {
            Upstream::At { address, token } => Ok(Found {
                address: address.clone(),
                nearest: address.clone(),
                token: token.clone(),
                record: None,
            }),
            Upstream::Here { token_file } => {
                let before = before.and_then(|found| found.record.as_ref());
                let cluster = record::look()?.only(before)?;
                let token = read_token(token_file.as_ref().unwrap_or(&cluster.token_file))?;
                Ok(Found {
                    address: cluster.address.clone(),
                    nearest: cluster.nearest().into(),
                    token: Some(token.into()),
                    record: Some(cluster),
                })
            }
        }
    }

    /// The same for those who must not be kept: files are read on another thread.
    pub async fn find_again(&self, before: &Found) -> Result<Found, Error> {
        if let Upstream::At { .. } = self {
            return Ok(before.clone());
        }
        let (upstream, before) = (self.clone(), before.clone());
        let looked = tokio::task::spawn_blocking(move || upstream.find(Some(&before)));
        looked.await.expect("looking does not panic")
    }
}
