//! Both sides of the handshake, and attackers that replay, reflect, cut and reorder overheard
//! bytes.

use super::*;
use crate::net::credentials::test_secret;
use crate::net::io;
use marline_core::error::ErrorKind;
use tokio::io::{DuplexStream, duplex};

const TOKEN: &str = "a secret";
/// The size of the pipe, in bytes: more than one handshake.
const ROOM: usize = 1 << 10;

fn token(words: &str) -> Token {
    Some(words.into())
}

/// Starts a listener for one connection. Returns the dialler's end of the connection.
fn listens(
    secret: Credentials,
) -> (DuplexStream, tokio::task::JoinHandle<io::Result<ConnectionKind>>) {
    let (ours, mut theirs) = duplex(ROOM);
    let listener = io().spawn(async move { accept(&mut theirs, &secret).await });
    (ours, listener)
}

fn dials(
    token: Token,
    kind: ConnectionKind,
    secret: Credentials,
) -> (io::Result<ClusterIdentity>, io::Result<ConnectionKind>) {
    let (mut ours, listener) = listens(secret);
    io().block_on(async move {
        let dialled = dial(&mut ours, kind, &token).await;
        drop(ours);
        (dialled, listener.await.unwrap())
    })
}

fn kind_of(refused: io::Result<ClusterIdentity>) -> ErrorKind {
    rejection(&refused.unwrap_err()).expect("a refusal").kind()
}

#[test]
fn both_sides_prove_the_token_and_the_listener_learns_the_kind() {
    for kind in ConnectionKind::ALL {
        let secret = test_secret(TOKEN);
        let (dialled, accepted) = dials(token(TOKEN), kind, secret.clone());
        assert_eq!(accepted.unwrap(), kind);
        assert_eq!(
            Some(dialled.unwrap()),
            secret.required_from_peers().map(|(_, incarnation)| incarnation)
        );
    }
}

#[test]
fn another_token_is_denied_in_both_directions() {
    let (with, without) = (test_secret(TOKEN), Credentials::new(None));
    without.joined(with.required_from_peers().unwrap().1);
    let cases =
        [(token("a guess"), with.clone()), (None, with.clone()), (token(TOKEN), without.clone())];
    for (token, secret) in cases {
        let (dialled, accepted) = dials(token, ConnectionKind::Link, secret);
        assert_eq!(kind_of(dialled), ErrorKind::Denied);
        // The dialler closed the connection: it sends no proof to a listener that cannot prove
        // itself.
        assert_eq!(accepted.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
    let (dialled, accepted) = dials(None, ConnectionKind::Link, without);
    assert!(dialled.is_ok() && accepted.is_ok(), "neither side has a token");
}

#[test]
fn a_process_without_a_cluster_rejects_every_connection() {
    for key in [None, token(TOKEN)] {
        let (dialled, accepted) = dials(key.clone(), ConnectionKind::Link, Credentials::new(key));
        assert_eq!(kind_of(dialled), ErrorKind::Unavailable);
        assert!(accepted.is_err());
    }
}

/// The bytes of a handshake that succeeds.
struct Heard {
    hello: Vec<u8>,
    reply: Vec<u8>,
    proof: Vec<u8>,
}

/// Forwards the bytes of both sides, and records them.
fn overheard(kind: ConnectionKind) -> Heard {
    let (mut listener, accepted) = listens(test_secret(TOKEN));
    let (mut dialler, mut ours) = duplex(ROOM);
    io().block_on(async move {
        let dialled = tokio::spawn(async move { dial(&mut ours, kind, &token(TOKEN)).await });
        let mut heard = Heard {
            hello: vec![0; HELLO_BYTES],
            reply: vec![0; 1 + REPLY_BYTES],
            proof: vec![0; PROOF_BYTES],
        };
        dialler.read_exact(&mut heard.hello).await.unwrap();
        listener.write_all(&heard.hello).await.unwrap();
        listener.read_exact(&mut heard.reply).await.unwrap();
        dialler.write_all(&heard.reply).await.unwrap();
        dialler.read_exact(&mut heard.proof).await.unwrap();
        listener.write_all(&heard.proof).await.unwrap();
        dialled.await.unwrap().unwrap();
        accepted.await.unwrap().unwrap();
        heard
    })
}

/// Sends these bytes at once and closes the connection. Returns the listener's result.
fn says(bytes: &[u8]) -> io::Result<ConnectionKind> {
    let (mut ours, listener) = listens(test_secret(TOKEN));
    io().block_on(async move {
        ours.write_all(bytes).await.unwrap();
        ours.shutdown().await.unwrap();
        let mut answer = Vec::new();
        ours.read_to_end(&mut answer).await.unwrap();
        listener.await.unwrap()
    })
}

#[test]
fn a_replayed_handshake_is_denied() {
    for kind in ConnectionKind::ALL {
        let Heard { hello, proof, .. } = overheard(kind);
        let refused = says(&[hello, proof].concat()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{kind:?}");
    }
}

#[test]
fn a_listener_rejects_its_own_proof() {
    let (mut ours, listener) = listens(test_secret(TOKEN));
    let refused = io().block_on(async move {
        let dialler = Dialler::new(ConnectionKind::Link, &None).unwrap();
        ours.write_all(&dialler.hello()).await.unwrap();
        let mut reply = [0; 1 + REPLY_BYTES];
        ours.read_exact(&mut reply).await.unwrap();
        ours.write_all(&reply[1 + REPLY_BYTES - PROOF_BYTES..]).await.unwrap();
        listener.await.unwrap().unwrap_err()
    });
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
}

#[test]
fn a_dialler_denies_a_listener_that_reflects_its_nonce() {
    let (mut ours, mut theirs) = duplex(ROOM);
    let dialled = io().block_on(async move {
        let dialled =
            tokio::spawn(async move { dial(&mut ours, ConnectionKind::Grpc, &token(TOKEN)).await });
        let mut hello = vec![0; HELLO_BYTES];
        theirs.read_exact(&mut hello).await.unwrap();
        // The dialler's own nonce, and a proof that was overheard on another connection.
        let heard = overheard_reply().await;
        let mut reply = heard[..1 + 16 + 8].to_vec();
        reply.extend(&hello[HELLO_BYTES - NONCE_BYTES..]);
        reply.extend(&heard[1 + REPLY_BYTES - PROOF_BYTES..]);
        theirs.write_all(&reply).await.unwrap();
        dialled.await.unwrap()
    });
    assert_eq!(kind_of(dialled), ErrorKind::Denied);
}

/// Returns a listener's reply to an attacker.
async fn overheard_reply() -> Vec<u8> {
    let (mut ours, mut theirs) = duplex(ROOM);
    tokio::spawn(async move { accept(&mut theirs, &test_secret(TOKEN)).await });
    ours.write_all(&Dialler::new(ConnectionKind::Grpc, &None).unwrap().hello()).await.unwrap();
    let mut reply = vec![0; 1 + REPLY_BYTES];
    ours.read_exact(&mut reply).await.unwrap();
    reply
}

/// An attacker between both sides changes the dialler's hello. Returns the result of each side.
fn changed(change: fn(&mut [u8])) -> (io::Result<ClusterIdentity>, io::Result<ConnectionKind>) {
    let (mut listener, accepted) = listens(test_secret(TOKEN));
    let (mut dialler, mut ours) = duplex(ROOM);
    io().block_on(async move {
        let dialled =
            tokio::spawn(async move { dial(&mut ours, ConnectionKind::Data, &token(TOKEN)).await });
        let mut hello = vec![0; HELLO_BYTES];
        dialler.read_exact(&mut hello).await.unwrap();
        change(&mut hello);
        listener.write_all(&hello).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut dialler, &mut listener).await;
        drop((dialler, listener));
        (dialled.await.unwrap(), accepted.await.unwrap())
    })
}

#[test]
fn a_hello_that_is_changed_on_its_way_fails_the_handshake() {
    let to_another_door = changed(|hello| hello[MAGIC.len() + 1] = ConnectionKind::Upload as u8);
    let with_another_nonce = changed(|hello| hello[HELLO_BYTES - 1] ^= 1);
    for (dialled, accepted) in [to_another_door, with_another_nonce] {
        assert_eq!(kind_of(dialled), ErrorKind::Denied);
        assert!(accepted.is_err());
    }
}

#[test]
fn another_version_is_incompatible_and_an_older_handshake_is_rejected() {
    let (dialled, accepted) = changed(|hello| hello[MAGIC.len()] = VERSION + 1);
    assert_eq!(kind_of(dialled), ErrorKind::Incompatible);
    assert!(accepted.is_err());
    for older in [&b"MRL1\0\0\0\x08a secret\0\0\0\0"[..], b"DATA\0\0\0\x08a secret"] {
        assert_eq!(says(older).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}

#[test]
fn a_handshake_that_is_cut_or_out_of_order_is_rejected() {
    let Heard { hello, reply, proof } = overheard(ConnectionKind::Data);
    let whole = [hello.clone(), proof.clone()].concat();
    for end in 0..whole.len() {
        assert!(says(&whole[..end]).is_err(), "after {end} bytes");
    }
    let disorder = [
        [proof.clone(), hello.clone()].concat(),
        [hello.clone(), hello.clone()].concat(),
        [hello.clone(), reply, proof.clone()].concat(),
        [hello, vec![0; PROOF_BYTES]].concat(),
    ];
    for bytes in disorder {
        assert!(says(&bytes).is_err());
    }
}

#[test]
fn a_dialler_rejects_an_answer_that_is_no_handshake() {
    let answers: [&[u8]; 4] =
        [b"HTTP/1.1 400 Bad Request\r\n", b"", &[0; 20], &[0; 1 + REPLY_BYTES]];
    for answer in answers {
        let (mut ours, mut theirs) = duplex(ROOM);
        let dialled = io().block_on(async move {
            theirs.write_all(answer).await.unwrap();
            theirs.shutdown().await.unwrap();
            dial(&mut ours, ConnectionKind::Grpc, &token(TOKEN)).await
        });
        let kind = kind_of(dialled);
        assert!(
            [ErrorKind::Denied, ErrorKind::Unavailable].contains(&kind),
            "{answer:?}: {kind:?}"
        );
    }
}
