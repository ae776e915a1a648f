use super::*;
use crate::random::Random;

/// Two ends and the packets between them. A connection that breaks loses the packets that are still
/// on it.
struct Wire {
    ends: [Link<u64>; 2],
    between: [VecDeque<Packet<u64>>; 2],
    connection: u64,
    up: bool,
    delivered: [Vec<u64>; 2],
    lost: [(Vec<u64>, Vec<u64>); 2],
}

impl Wire {
    fn new() -> Wire {
        Wire {
            ends: [Link::new(Incarnation(1)), Link::new(Incarnation(1))],
            between: Default::default(),
            connection: 0,
            up: false,
            delivered: Default::default(),
            lost: Default::default(),
        }
    }

    fn take(&mut self, end: usize, out: Vec<LinkEffect<u64>>) {
        for output in out {
            match output {
                LinkEffect::Transmit(packet) if self.up => self.between[end].push_back(packet),
                LinkEffect::Transmit(_) => {}
                LinkEffect::Deliver(message) => self.delivered[end].push(message),
                LinkEffect::Lost { unsent, unacknowledged } => {
                    self.lost[end].0.extend(unsent);
                    self.lost[end].1.extend(unacknowledged);
                }
                LinkEffect::Break(rule) => panic!("end {end} broke: {rule}"),
            }
        }
        self.ends[end].check_invariants();
    }

    fn connect(&mut self) {
        self.cut();
        self.connection += 1;
        self.up = true;
        for end in 0..2 {
            let mut out = Vec::new();
            assert!(self.ends[end].connected(self.connection, &mut out));
            self.take(end, out);
        }
    }

    fn cut(&mut self) {
        self.up = false;
        self.between = Default::default();
        for end in &mut self.ends {
            end.disconnected(self.connection);
        }
    }

    fn send(&mut self, end: usize, message: u64) {
        let mut out = Vec::new();
        self.ends[end].send(message, 8, &mut out);
        self.take(end, out);
    }

    fn step(&mut self, from: usize) -> bool {
        let Some(packet) = self.between[from].pop_front() else { return false };
        let mut out = Vec::new();
        self.ends[1 - from].received(self.connection, packet, &mut out);
        self.take(1 - from, out);
        true
    }

    fn settle(&mut self) {
        loop {
            let mut moved = self.step(0) | self.step(1);
            for end in 0..2 {
                let mut out = Vec::new();
                self.ends[end].acknowledge(&mut out);
                moved |= !out.is_empty();
                self.take(end, out);
            }
            if !moved {
                return;
            }
        }
    }
}

#[test]
fn every_message_arrives_once_in_order_however_often_the_connection_breaks() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut wire = Wire::new();
        let mut sent = [0, 0];
        for _ in 0..400 {
            match random.below(20) {
                0 => wire.cut(),
                1 | 2 => wire.connect(),
                3..=9 => {
                    let end = random.below(2) as usize;
                    sent[end] += 1;
                    wire.send(end, sent[end]);
                }
                10..=18 => drop(wire.step(random.below(2) as usize)),
                _ => {
                    let mut out = Vec::new();
                    let end = random.below(2) as usize;
                    wire.ends[end].acknowledge(&mut out);
                    wire.take(end, out);
                }
            }
        }
        wire.connect();
        wire.settle();
        for end in 0..2 {
            let expected: Vec<u64> = (1..=sent[1 - end]).collect();
            assert_eq!(wire.delivered[end], expected, "seed {seed}");
            assert_eq!(wire.ends[end].unacknowledged(), 0, "seed {seed}");
        }
    }
}

#[test]
fn a_new_incarnation_of_the_peer_returns_unsent_and_unacknowledged_messages() {
    let mut wire = Wire::new();
    wire.connect();
    wire.settle();
    wire.send(0, 1);
    wire.settle();
    wire.send(0, 2);
    wire.cut();
    wire.send(0, 3);
    wire.ends[1] = Link::new(Incarnation(2));
    wire.connect();
    wire.settle();
    assert_eq!(wire.lost[0], (vec![3], vec![2]));
    wire.send(0, 4);
    wire.settle();
    assert_eq!(wire.delivered[1], [1, 4]);
}

#[test]
fn old_connections_are_ignored_and_earlier_incarnations_are_rejected() {
    let mut link = Link::<u64>::new(Incarnation(5));
    let mut out = Vec::new();
    assert!(link.connected(1, &mut out));
    link.received(1, Packet::Hello { from: Incarnation(2), knows: None, seen: 0 }, &mut out);
    assert!(link.connected(2, &mut out));
    assert!(!link.connected(1, &mut out), "a delayed connection is rejected");
    out.clear();
    link.received(1, Packet::Data { sequence: 1, seen: 0, message: 7 }, &mut out);
    assert_eq!(out, []);
    link.received(2, Packet::Hello { from: Incarnation(1), knows: None, seen: 0 }, &mut out);
    assert_eq!(out, [LinkEffect::Break("an earlier incarnation")]);
}

#[test]
fn a_peer_that_breaks_the_rules_loses_its_connection() {
    let hello = Packet::Hello { from: Incarnation(1), knows: None, seen: 0 };
    let cases: [(Vec<Packet<u64>>, &str); 6] = [
        (vec![Packet::Data { sequence: 1, seen: 0, message: 1 }], "data before hello"),
        (vec![Packet::Seen(0)], "acknowledgement before hello"),
        (vec![hello.clone(), hello.clone()], "a second hello"),
        (vec![hello.clone(), Packet::Seen(1)], "it acknowledges a message that was not sent"),
        (
            vec![hello.clone(), Packet::Data { sequence: 2, seen: 0, message: 1 }],
            "a message is missing before this one",
        ),
        (
            vec![Packet::Hello { from: Incarnation(1), knows: Some(Incarnation(9)), seen: 4 }],
            "its hello contradicts its acknowledgements",
        ),
    ];
    for (packets, rule) in cases {
        let mut link = Link::new(Incarnation(9));
        let mut out = Vec::new();
        assert!(link.connected(1, &mut out));
        for packet in packets {
            link.received(1, packet, &mut out);
        }
        assert_eq!(out.last(), Some(&LinkEffect::Break(rule)));
        assert!(!link.is_up());
    }
}

#[test]
fn the_window_limits_the_unacknowledged_bytes_of_a_link() {
    let mut link = Link::new(Incarnation(1));
    let mut out = Vec::new();
    assert!(link.connected(1, &mut out));
    link.received(1, Packet::Hello { from: Incarnation(1), knows: None, seen: 0 }, &mut out);
    out.clear();
    for message in 0..10_u64 {
        link.send(message, MAX_WINDOW_BYTES / 4, &mut out);
        link.check_invariants();
    }
    assert_eq!(out.len(), 4);
    link.received(1, Packet::Seen(2), &mut out);
    assert_eq!(out.len(), 6);
    link.send(10, 2 * MAX_WINDOW_BYTES, &mut out);
    link.received(1, Packet::Seen(6), &mut out);
    link.received(1, Packet::Seen(10), &mut out);
    assert_eq!(out.len(), 11, "a message larger than the window goes alone");
    link.check_invariants();
}
