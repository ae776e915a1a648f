//! Tickets: short-lived tokens for gRPC clients that are not Marline processes, such as grpcurl and
//! workers in other languages.
//!
//! gRPC does not prove the server's identity, so such a client must never send the cluster's token.
//! It sends a ticket, `CLUSTER.EPOCH.SECONDS.PROOF`:
//!
//! - the cluster's id,
//! - the controller's epoch,
//! - the time when the ticket was made, in seconds since 1970,
//! - HMAC-SHA-256 over a label and the text before the last dot, keyed with the token, in
//!   hexadecimal digits.
//!
//! A process that overhears a ticket can use it at this controller for [`TICKET_LIFE`], and at no
//! other.

use super::credentials::{ClusterIdentity, Token};
use super::handshake::keyed;
use hmac::Mac;
use marline_core::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a ticket is valid.
pub(crate) const TICKET_LIFE: Duration = Duration::from_secs(60);
/// How far the clock of the machine that made a ticket may be ahead of the clock here.
const CLOCK_AHEAD: Duration = Duration::from_secs(5);
const LABEL: &[u8] = b"marline ticket 1\0";

/// Returns the current time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn signed_part(incarnation: ClusterIdentity, made_at: u64) -> String {
    format!("{}.{}.{made_at}", incarnation.cluster, incarnation.epoch.0)
}

/// Makes a ticket.
pub(crate) fn make(token: &Token, incarnation: ClusterIdentity, made_at: u64) -> String {
    let words = signed_part(incarnation, made_at);
    let mut mac = keyed(token);
    mac.update(LABEL);
    mac.update(words.as_bytes());
    let proof = mac.finalize().into_bytes();
    let proof: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{words}.{proof}")
}

/// Checks the ticket in a request's `authorization` metadata.
pub(super) fn check(
    given: Option<&[u8]>,
    token: &Token,
    incarnation: ClusterIdentity,
    now: u64,
) -> Result<(), Error> {
    let next = "`marline token` prints one that is good for 60 s";
    let Some(given) = given else {
        let words = format!("the short-lived token is missing or wrong: {next}");
        return Err(Error::denied(words));
    };
    let ticket = std::str::from_utf8(given).ok().and_then(|text| text.strip_prefix("Bearer "));
    let parts: Vec<&str> = ticket.unwrap_or_default().split('.').collect();
    let [_, _, made_at, proof] = parts[..] else {
        // Older releases, and clients written for them, sent the token itself.
        return Err(Error::incompatible(format!(
            "gRPC takes short-lived tokens only, not the cluster's token; processes of older releases cannot connect: {next}"
        )));
    };
    let wrong = || Error::denied(format!("the short-lived token is missing or wrong: {next}"));
    let made_at: u64 = made_at.parse().map_err(|_| wrong())?;
    let proof = unhex(proof).ok_or_else(wrong)?;
    let mut mac = keyed(token);
    mac.update(LABEL);
    // The proof covers this cluster and this epoch: a ticket for another has a different proof.
    mac.update(signed_part(incarnation, made_at).as_bytes());
    mac.verify_slice(&proof).map_err(|_| wrong())?;
    if now.saturating_sub(made_at) > TICKET_LIFE.as_secs() {
        let age = now - made_at;
        let life = TICKET_LIFE.as_secs();
        let words =
            format!("the short-lived token is {age} s old and was good for {life} s: {next}");
        return Err(Error::denied(words));
    }
    if made_at > now + CLOCK_AHEAD.as_secs() {
        let words = "the short-lived token was made in the future: set the clocks of both machines";
        return Err(Error::denied(words));
    }
    Ok(())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok()?;
        pair.bytes().all(|digit| digit.is_ascii_hexdigit()).then_some(())?;
        u8::from_str_radix(pair, 16).ok()
    };
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(byte).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::error::ErrorKind;
    use marline_core::id::{ClusterId, ControllerEpoch};

    const NOW: u64 = 1_800_000_000;

    fn incarnation(cluster: u128, epoch: u64) -> ClusterIdentity {
        ClusterIdentity { cluster: ClusterId::from_u128(cluster), epoch: ControllerEpoch(epoch) }
    }

    fn token() -> Token {
        Some("secret".into())
    }

    fn check_at(ticket: &str, now: u64) -> Result<(), ErrorKind> {
        let given = format!("Bearer {ticket}");
        check(Some(given.as_bytes()), &token(), incarnation(1, 1), now).map_err(|e| e.kind())
    }

    #[test]
    fn a_ticket_is_good_for_its_life_and_no_longer() {
        let ticket = make(&token(), incarnation(1, 1), NOW);
        let life = TICKET_LIFE.as_secs();
        for now in [NOW - CLOCK_AHEAD.as_secs(), NOW, NOW + life] {
            assert_eq!(check_at(&ticket, now), Ok(()), "{now}");
        }
        for now in [0, NOW - CLOCK_AHEAD.as_secs() - 1, NOW + life + 1] {
            assert_eq!(check_at(&ticket, now), Err(ErrorKind::Denied), "{now}");
        }
    }

    #[test]
    fn a_ticket_is_good_for_one_token_one_cluster_one_epoch_and_one_time() {
        let good = make(&token(), incarnation(1, 1), NOW);
        let others = [
            make(&Some("Secret".into()), incarnation(1, 1), NOW),
            make(&None, incarnation(1, 1), NOW),
            make(&token(), incarnation(2, 1), NOW),
            make(&token(), incarnation(1, 2), NOW),
            good.replace(&NOW.to_string(), &(NOW + 1).to_string()),
            good[..good.len() - 2].to_owned(),
            good.clone() + "00",
            format!("{}zz", &good[..good.len() - 2]),
            "....".chars().take(3).collect(),
        ];
        for other in others {
            assert_eq!(check_at(&other, NOW), Err(ErrorKind::Denied), "{other}");
        }
    }

    #[test]
    fn a_plain_token_in_place_of_a_ticket_is_incompatible() {
        assert_eq!(check_at("secret", NOW), Err(ErrorKind::Incompatible));
        let nothing = check(None, &token(), incarnation(1, 1), NOW).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::Denied);
        assert!(nothing.message().contains("`marline token`"), "{nothing}");
    }
}
