//! The question: what does a task that does nothing cost, there and back, and how many tasks run in
//! a second?

use super::{Goals, rows};
use crate::arguments::Settings;
use crate::contest::{Contestant, Score, play};
use crate::marline_cluster::{MarlineCluster, Transport};
use crate::report::Row;
use crate::rivals::{grpc, mailbox, socket};

pub fn ask(settings: &Settings) -> Vec<Row> {
    let shape = |transport: Transport| format!("task/{}", transport.name());
    contest(settings, shape, MarlineCluster::task, goals)
}

fn goals(transport: Transport) -> Goals {
    match transport {
        Transport::Embedded => {
            Goals { round_trip: Some((mailbox::NAME, 1.0 / 3.0)), rate: Some(100_000.0) }
        }
        Transport::Processes => Goals { round_trip: Some((grpc::STREAM, 0.0)), rate: None },
        Transport::Tcp | Transport::Unix => {
            Goals { round_trip: Some((grpc::STREAM, 1.0 / 2.5)), rate: Some(50_000.0) }
        }
    }
}

/// Runs Marline and its rivals over each transport, all in the same rounds.
pub fn contest(
    settings: &Settings,
    shape: impl Fn(Transport) -> String,
    ours: impl Fn(&MarlineCluster) -> Contestant,
    goals: impl Fn(Transport) -> Goals,
) -> Vec<Row> {
    let wanted = Transport::ALL.into_iter().filter(|one| settings.wants(&shape(*one)));
    let mut clusters = Vec::new();
    let mut contestants = Vec::new();
    let mut groups = Vec::new();
    for transport in wanted {
        let cluster = MarlineCluster::start(transport);
        let first = contestants.len();
        contestants.push(ours(&cluster));
        contestants.extend(rivals(transport));
        groups.push((transport, first..contestants.len()));
        clusters.push(cluster);
    }
    let scores: Vec<Score> = play(&mut contestants, settings);
    let group = |(transport, range): (Transport, std::ops::Range<usize>)| {
        rows(&shape(transport), &scores[range], goals(transport))
    };
    groups.into_iter().flat_map(group).collect()
}

fn rivals(transport: Transport) -> Vec<Contestant> {
    match transport {
        Transport::Embedded => vec![mailbox::contestant()],
        Transport::Tcp | Transport::Unix | Transport::Processes => vec![
            grpc::stream(transport),
            grpc::stream_on_one_thread(transport),
            grpc::unary(transport),
            socket::contestant(transport),
        ],
    }
}
