//! The question: what does a call to an actor cost, there and back, and how many calls are made in
//! a second?

use super::Goals;
use super::task::contest;
use crate::arguments::Settings;
use crate::marline_cluster::{MarlineCluster, Transport};
use crate::report::Row;
use crate::rivals::{grpc, mailbox};

pub fn ask(settings: &Settings) -> Vec<Row> {
    let shape = |transport: Transport| format!("call/{}", transport.name());
    contest(settings, shape, MarlineCluster::call, goals)
}

fn goals(transport: Transport) -> Goals {
    let round_trip = match transport {
        Transport::Embedded => (mailbox::NAME, 0.0),
        Transport::Tcp | Transport::Processes => (grpc::STREAM, 0.0),
        Transport::Unix => (grpc::STREAM, 1.0 / 1.3),
    };
    let rate = (transport != Transport::Processes).then_some(100_000.0);
    Goals { round_trip: Some(round_trip), rate }
}
