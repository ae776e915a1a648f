//! A lease limits how long a session may act without contact. It has two ends, the controller's and
//! the holder's.
//!
//! The controller pings, and each ping names the last pong that arrived. The holder counts its
//! lease from when it *sent* that pong, less a margin. The controller counts from when the pong
//! *arrived*. A pong arrives after it was sent, so the holder stops before the controller gives the
//! holder's work away. This is so even if only one direction of the connection is cut, and without
//! a comparison of the two clocks. The margin covers clocks that run at different speeds, and the
//! time that the holder takes to stop.
//!
//! A pong counts for its holder once a later ping names it. When a silence begins, the last pong
//! that counts may therefore be two pings old. A process survives any silence of at most
//! [`LeaseTerms::tolerated_silence`].

use crate::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// The length of leases, and how often they are renewed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseTerms {
    /// A session is over when it has not answered a ping for this long.
    pub lease: Duration,
    /// How often the controller pings.
    pub ping_interval: Duration,
}

/// How many pings there are in the length of a lease. More pings cost more. Fewer pings shorten the
/// silence that a session survives, by two intervals.
const PINGS_PER_LEASE: u32 = 20;

const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Default for LeaseTerms {
    fn default() -> LeaseTerms {
        LeaseTerms::of(Duration::from_secs(30))
    }
}

impl LeaseTerms {
    /// The terms of a session in the controller's own process: nothing expires for a hundred years.
    pub const FOREVER: LeaseTerms = LeaseTerms { lease: CENTURY, ping_interval: CENTURY };

    /// Returns the terms of a lease of this length.
    pub const fn of(lease: Duration) -> LeaseTerms {
        // A lease of less than twenty nanoseconds would have an interval of zero.
        let interval = lease.as_nanos() as u64 / PINGS_PER_LEASE as u64;
        let interval = if interval == 0 { 1 } else { interval };
        LeaseTerms { lease, ping_interval: Duration::from_nanos(interval) }
    }

    /// Returns the longest silence in either direction that a session survives. It is four fifths
    /// of the lease, less the time that messages take.
    pub fn tolerated_silence(&self) -> Duration {
        self.lease.saturating_sub(self.margin() + 2 * self.ping_interval)
    }

    /// Returns how much earlier the holder's lease ends: a tenth of the lease.
    pub fn margin(&self) -> Duration {
        self.lease / 10
    }
}

/// A ping: the controller asks whether the session is alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ping {
    /// The number of this ping: 1, 2, …
    pub number: u64,
    /// The number of the last pong that arrived, or 0 if only the opening of the session has.
    pub last_pong: u64,
}

/// The answer to a ping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pong {
    /// The ping's number.
    pub number: u64,
}

/// The controller's end of a lease.
#[derive(Clone, Debug)]
pub struct GrantedLease {
    /// The number of the last pong that arrived; 0 before the first.
    heard: u64,
    /// When the lease was last renewed, by a pong or a request.
    heard_at: Time,
    /// The number of the last ping.
    asked: u64,
    /// When the first unanswered ping was sent.
    silent_since: Option<Time>,
}

impl GrantedLease {
    /// Starts the lease of a session that was opened at `now`.
    pub fn new(now: Time) -> GrantedLease {
        GrantedLease { heard: 0, heard_at: now, asked: 0, silent_since: None }
    }

    /// Returns the next ping.
    pub fn new_ping(&mut self, now: Time) -> Ping {
        self.asked += 1;
        self.silent_since.get_or_insert(now);
        Ping { number: self.asked, last_pong: self.heard }
    }

    /// Records a pong. A late pong, or one to a ping that was never sent, changes nothing.
    pub fn pong(&mut self, now: Time, pong: Pong) {
        if pong.number > self.heard && pong.number <= self.asked {
            self.heard = pong.number;
            self.heard_at = now;
            self.silent_since = None;
        }
    }

    /// Renews the lease because the holder sent a request without a ping. The holder counts from
    /// when it sent that request, which was before `now`.
    pub fn renew(&mut self, now: Time) {
        self.heard_at = self.heard_at.max(now);
    }

    /// Returns when the session ends unless a pong arrives before.
    pub fn ends_at(&self, terms: &LeaseTerms) -> Time {
        self.heard_at + terms.lease
    }

    /// Returns when the first unanswered ping was sent, if there is one.
    pub fn silent_since(&self) -> Option<Time> {
        self.silent_since
    }
}

/// The holder's end of a lease.
#[derive(Clone, Debug)]
pub struct HeldLease {
    terms: LeaseTerms,
    /// When each pong was sent that no ping has named yet, oldest first.
    sent: VecDeque<(u64, Time)>,
    ends_at: Time,
}

impl HeldLease {
    /// Starts the lease of a session that was opened by a request sent at `asked_at`.
    pub fn new(terms: LeaseTerms, asked_at: Time) -> HeldLease {
        HeldLease { terms, sent: VecDeque::new(), ends_at: asked_at + terms.lease - terms.margin() }
    }

    /// Answers a ping, unless the lease has ended.
    pub fn answer_ping(&mut self, now: Time, ping: Ping) -> Option<Pong> {
        if self.is_over(now) {
            return None;
        }
        while self.sent.front().is_some_and(|(number, _)| *number <= ping.last_pong) {
            let (number, sent_at) = self.sent.pop_front().expect("the front was just seen");
            if number == ping.last_pong {
                let from = if crate::planted!(LeaseFromWrongEnd) { now } else { sent_at };
                self.ends_at = self.ends_at.max(from + self.terms.lease - self.terms.margin());
            }
        }
        // A ping that was overtaken or repeated is answered too, but its pong prolongs nothing.
        if self.sent.back().is_none_or(|(number, _)| *number < ping.number) {
            self.sent.push_back((ping.number, now));
        }
        Some(Pong { number: ping.number })
    }

    /// Returns when the holder must have stopped.
    pub fn ends_at(&self) -> Time {
        self.ends_at
    }

    /// Returns whether the lease has ended, so that the holder must have stopped.
    pub fn is_over(&self, now: Time) -> bool {
        now >= self.ends_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: LeaseTerms =
        LeaseTerms { lease: Duration::from_secs(30), ping_interval: Duration::from_secs(10) };

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_held_lease_ends_before_the_granted_lease() {
        // The holder's clock is 1,000 s ahead: they are never compared.
        let mut granted = GrantedLease::new(at(5));
        let mut held = HeldLease::new(TERMS, at(1_004));
        assert_eq!(held.ends_at(), at(1_031));
        let ping = granted.new_ping(at(15));
        let pong = held.answer_ping(at(1_016), ping).unwrap();
        assert_eq!(held.ends_at(), at(1_031), "no ping has named the pong yet");
        granted.pong(at(17), pong);
        assert_eq!(granted.ends_at(&TERMS), at(47));
        let ping = granted.new_ping(at(25));
        held.answer_ping(at(1_026), ping).unwrap();
        assert_eq!(held.ends_at(), at(1_043), "from when the pong was sent, less a tenth");
    }

    /// Pings from the opening at time 0 until a silence begins. Returns when the lease then ends
    /// for the holder and for the controller.
    fn silent_from(terms: &LeaseTerms, silence: Duration) -> (Time, Time) {
        let start = at(0);
        let (mut granted, mut held) = (GrantedLease::new(start), HeldLease::new(*terms, start));
        let mut now = start + terms.ping_interval;
        while now < start + silence {
            let ping = granted.new_ping(now);
            let pong = held.answer_ping(now, ping).expect("nothing is silent yet");
            granted.pong(now, pong);
            now = now + terms.ping_interval;
        }
        (held.ends_at(), granted.ends_at(terms))
    }

    #[test]
    fn a_lease_survives_a_silence_of_four_fifths_of_its_length() {
        for lease in [30, 5, 3_600] {
            let terms = LeaseTerms::of(Duration::from_secs(lease));
            let tolerated = terms.tolerated_silence();
            assert_eq!(tolerated, terms.lease.mul_f64(0.8));
            for tenth in 0..1_000 {
                let begins = terms.ping_interval * tenth / 10;
                let ends = at(0) + begins + tolerated;
                let (holder, controller) = silent_from(&terms, begins);
                assert!(holder >= ends, "the holder stops {begins:?} after the opening");
                assert!(controller > holder, "the controller gives its work away first");
            }
        }
    }

    #[test]
    fn pongs_that_never_arrive_do_not_prolong_the_lease() {
        let mut granted = GrantedLease::new(at(0));
        let mut held = HeldLease::new(TERMS, at(0));
        for second in [10, 20] {
            let ping = granted.new_ping(at(second));
            assert!(held.answer_ping(at(second), ping).is_some());
        }
        assert_eq!(granted.silent_since(), Some(at(10)));
        assert_eq!(held.ends_at(), at(27));
        let ping = granted.new_ping(at(28));
        assert_eq!(held.answer_ping(at(28), ping), None, "a holder past its lease does not answer");
    }

    #[test]
    fn repeated_and_invented_pongs_do_not_prolong_the_lease() {
        let mut granted = GrantedLease::new(at(0));
        granted.new_ping(at(10));
        granted.pong(at(11), Pong { number: 7 });
        assert_eq!(granted.ends_at(&TERMS), at(30));
        granted.pong(at(12), Pong { number: 1 });
        granted.pong(at(20), Pong { number: 1 });
        assert_eq!(granted.ends_at(&TERMS), at(42));
        assert_eq!(granted.silent_since(), None);
    }
}
