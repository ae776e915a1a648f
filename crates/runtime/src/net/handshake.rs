//! The handshake: two Marline processes prove to each other that they know the cluster's token,
//! without sending it.
//!
//! ```text
//! dialler  → listener   "MRLN", version, kind of connection, nonce                 HELLO_BYTES
//! listener → dialler    0, cluster id, controller epoch, nonce, listener's proof    1 + REPLY_BYTES
//! dialler  → listener   dialler's proof                                             PROOF_BYTES
//! ```
//!
//! Each proof is HMAC-SHA-256, keyed with the token, over a label, the role (dialler or listener),
//! the kind of connection, the cluster id, the controller epoch and both nonces. The listener
//! proves first: after its hello, a dialler sends nothing to a process that does not know the
//! token. The dialler proves next, before the listener reads anything else.
//!
//! *Why it is safe.*
//!
//! - A proof is valid for one role: a listener's proof that is sent back to the listener is not a
//!   dialler's proof.
//! - A proof is valid for one kind of connection: a proof made for one kind opens no other.
//! - Both nonces are in the proof, and each side makes a new nonce for each handshake: an old proof
//!   is worth nothing.
//! - Every field has a fixed length: no two different inputs have the same bytes.
//!
//! The handshake does not keep out an attacker between both ends who forwards their bytes: that
//! takes TLS.
//!
//! A cluster without a token uses the empty key. Then the proofs say only that both sides expect no
//! token.
//!
//! Instead of 0 the listener may answer 1 and its version (it speaks another version), or 2 (it
//! belongs to no cluster yet).

use super::credentials::{ClusterIdentity, Credentials, Token};
use hmac::{Hmac, KeyInit, Mac};
use marline_core::error::{Error, Ran};
use marline_core::id::{ClusterId, ControllerEpoch};
use sha2::Sha256;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The time limit of one handshake, however slowly bytes arrive.
pub(crate) const AUTHENTICATE_WITHIN: Duration = Duration::from_secs(5);

const MAGIC: &[u8; 4] = b"MRLN";
/// The first byte of a connection between Marline processes. gRPC starts with a `P`.
pub(super) const FIRST_BYTE: u8 = MAGIC[0];
/// The version of the handshake, and of the protocol that follows it.
const VERSION: u8 = 2;
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
const HELLO_BYTES: usize = MAGIC.len() + 2 + NONCE_BYTES;
const REPLY_BYTES: usize = 16 + 8 + NONCE_BYTES + PROOF_BYTES;
/// The prefix of every proof. Nothing else that is authenticated with the token uses this label.
const LABEL: &[u8] = b"marline handshake 2\0";

const PROOF_FOLLOWS: u8 = 0;
const OTHER_VERSION: u8 = 1;
const NO_CLUSTER: u8 = 2;

type Nonce = [u8; NONCE_BYTES];
pub(super) type Proof = [u8; PROOF_BYTES];

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionKind {
    /// A connection of a link.
    Link = 1,
    /// A connection that requests the data of large values.
    Data = 2,
    /// A connection of a process on the same machine that uses the object store.
    Store = 3,
    /// A connection that brings a large value of a client without an object store.
    Upload = 4,
    /// A connection on which gRPC follows: joining, and the unary operations.
    Grpc = 5,
}

impl ConnectionKind {
    pub const ALL: [ConnectionKind; 5] = [
        ConnectionKind::Link,
        ConnectionKind::Data,
        ConnectionKind::Store,
        ConnectionKind::Upload,
        ConnectionKind::Grpc,
    ];

    fn of(byte: u8) -> Option<ConnectionKind> {
        ConnectionKind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The side that makes a proof.
#[derive(Clone, Copy)]
enum Role {
    Dialler = 1,
    Listener = 2,
}

/// The input of both proofs of one handshake.
struct Transcript {
    kind: ConnectionKind,
    incarnation: ClusterIdentity,
    dialler: Nonce,
    listener: Nonce,
}

impl Transcript {
    fn mac(&self, role: Role, token: &Token) -> Hmac<Sha256> {
        let mut mac = keyed(token);
        mac.update(LABEL);
        mac.update(&[role as u8, self.kind as u8]);
        mac.update(&self.incarnation.cluster.as_u128().to_be_bytes());
        mac.update(&self.incarnation.epoch.0.to_be_bytes());
        mac.update(&self.dialler);
        mac.update(&self.listener);
        mac
    }

    fn prove(&self, role: Role, token: &Token) -> Proof {
        self.mac(role, token).finalize().into_bytes().into()
    }

    /// Returns whether a proof is valid. The comparison takes the same time wherever the proofs
    /// differ.
    fn proves(&self, role: Role, token: &Token, proof: &[u8]) -> bool {
        self.mac(role, token).verify_slice(proof).is_ok()
    }
}

/// Returns a message authentication code that is keyed with the token.
pub(super) fn keyed(token: &Token) -> Hmac<Sha256> {
    let token = token.as_deref().unwrap_or_default();
    Hmac::new_from_slice(token.as_bytes()).expect("a key may have any length")
}

fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    let mut filled = 0;
    while filled < NONCE_BYTES {
        let rest = &mut nonce[filled..];
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(nonce)
}

/// The dialler's side of a handshake.
struct Dialler<'a> {
    kind: ConnectionKind,
    token: &'a Token,
    nonce: Nonce,
}

impl<'a> Dialler<'a> {
    fn new(kind: ConnectionKind, token: &'a Token) -> io::Result<Dialler<'a>> {
        Ok(Dialler { kind, token, nonce: nonce()? })
    }

    fn hello(&self) -> Vec<u8> {
        let mut hello = MAGIC.to_vec();
        hello.extend([VERSION, self.kind as u8]);
        hello.extend(self.nonce);
        hello
    }

    /// Checks the listener's proof. Returns the dialler's own proof, and the cluster that the
    /// listener belongs to.
    fn check(&self, reply: &[u8; REPLY_BYTES]) -> Result<(Proof, ClusterIdentity), Error> {
        let (cluster, rest) = reply.split_at(16);
        let (epoch, rest) = rest.split_at(8);
        let (nonce, proof) = rest.split_at(NONCE_BYTES);
        let number = u128::from_be_bytes(cluster.try_into().expect("16 bytes"));
        let incarnation = ClusterIdentity {
            cluster: ClusterId::from_u128(number),
            epoch: ControllerEpoch(u64::from_be_bytes(epoch.try_into().expect("8 bytes"))),
        };
        let listener = nonce.try_into().expect("a nonce");
        let transcript = Transcript { kind: self.kind, incarnation, dialler: self.nonce, listener };
        if !transcript.proves(Role::Listener, self.token, proof) {
            return Err(Error::denied(
                "it belongs to another cluster, or the token is missing or wrong: \
                 pass the one of `marline up`",
            ));
        }
        Ok((transcript.prove(Role::Dialler, self.token), incarnation))
    }

    /// Returns the error for a listener that answered without a proof.
    fn refused(answer: u8, version: u8) -> Error {
        match answer {
            OTHER_VERSION => Error::incompatible(format!(
                "it speaks protocol {version}, this process speaks {VERSION}: use the same release"
            )),
            NO_CLUSTER => Error::unavailable(Ran::No, "it belongs to no cluster yet"),
            // Any other byte comes from another program.
            _ => Error::denied("another program answers there, not Marline: check the address"),
        }
    }
}

/// Wraps an error of the cluster in an I/O error. [`rejection`] finds it again.
fn carried(error: Error) -> io::Error {
    io::Error::other(error)
}

/// Returns the error with which a handshake was rejected. `None` if it failed for another reason.
pub(crate) fn rejection(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

fn hung_up(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => carried(Error::unavailable(
            Ran::No,
            "it closed the connection before it proved that it knows the cluster's token: \
             an older release, or another program, may use this address",
        )),
        _ => error,
    }
}

/// Does the dialler's side of the handshake on a connection. Returns the cluster that the other
/// process belongs to.
pub(crate) async fn dial<IO>(
    io: &mut IO,
    kind: ConnectionKind,
    token: &Token,
) -> io::Result<ClusterIdentity>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let dialler = Dialler::new(kind, token)?;
    let proves = async {
        io.write_all(&dialler.hello()).await?;
        let answer = io.read_u8().await.map_err(hung_up)?;
        if answer != PROOF_FOLLOWS {
            let version = if answer == OTHER_VERSION { io.read_u8().await? } else { 0 };
            return Err(carried(Dialler::refused(answer, version)));
        }
        let mut reply = [0; REPLY_BYTES];
        io.read_exact(&mut reply).await.map_err(hung_up)?;
        let (proof, incarnation) = dialler.check(&reply).map_err(carried)?;
        io.write_all(&proof).await?;
        Ok(incarnation)
    };
    tokio::time::timeout(AUTHENTICATE_WITHIN, proves).await.map_err(|_| io::ErrorKind::TimedOut)?
}

/// Does what [`dial`] does, on a blocking stream. Every read of `io` must fail once
/// [`AUTHENTICATE_WITHIN`] has passed since the handshake began.
pub(super) fn dial_blocking(
    io: &mut (impl io::Read + io::Write),
    kind: ConnectionKind,
    token: &Token,
) -> io::Result<ClusterIdentity> {
    let dialler = Dialler::new(kind, token)?;
    io.write_all(&dialler.hello())?;
    let mut answer = [0];
    io.read_exact(&mut answer).map_err(hung_up)?;
    if answer != [PROOF_FOLLOWS] {
        let mut version = [0];
        if answer == [OTHER_VERSION] {
            io.read_exact(&mut version)?;
        }
        return Err(carried(Dialler::refused(answer[0], version[0])));
    }
    let mut reply = [0; REPLY_BYTES];
    io.read_exact(&mut reply).map_err(hung_up)?;
    let (proof, incarnation) = dialler.check(&reply).map_err(carried)?;
    io.write_all(&proof)?;
    Ok(incarnation)
}

/// Does the listener's side of the handshake on a connection. Returns the kind of the connection.
/// Fails if the peer did not prove that it knows the token. The caller limits the time, and reads
/// nothing from the connection before this function has returned `Ok`.
pub(super) async fn accept<IO>(io: &mut IO, secret: &Credentials) -> io::Result<ConnectionKind>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let mut hello = [0; HELLO_BYTES];
    // Recognise an older peer by its first bytes: it may send fewer bytes than a whole hello.
    io.read_exact(&mut hello[..MAGIC.len() + 1]).await?;
    if &hello[..MAGIC.len()] != MAGIC {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if hello[MAGIC.len()] != VERSION {
        io.write_all(&[OTHER_VERSION, VERSION]).await?;
        return Err(io::ErrorKind::InvalidData.into());
    }
    io.read_exact(&mut hello[MAGIC.len() + 1..]).await?;
    let kind = ConnectionKind::of(hello[MAGIC.len() + 1]).ok_or(io::ErrorKind::InvalidData)?;
    let dialler = hello[MAGIC.len() + 2..].try_into().expect("a nonce");
    let Some((token, incarnation)) = secret.required_from_peers() else {
        io.write_all(&[NO_CLUSTER]).await?;
        return Err(io::ErrorKind::NotConnected.into());
    };
    let transcript = Transcript { kind, incarnation, dialler, listener: nonce()? };
    let mut reply = vec![PROOF_FOLLOWS];
    reply.extend(incarnation.cluster.as_u128().to_be_bytes());
    reply.extend(incarnation.epoch.0.to_be_bytes());
    reply.extend(transcript.listener);
    reply.extend(transcript.prove(Role::Listener, &token));
    io.write_all(&reply).await?;
    let mut proof = [0; PROOF_BYTES];
    io.read_exact(&mut proof).await?;
    match transcript.proves(Role::Dialler, &token, &proof) {
        true => Ok(kind),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Returns why [`accept`] failed, in words for the log.
pub(super) fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            "the peer left before it proved that it knows the token: it may have another".into()
        }
        io::ErrorKind::InvalidData => "the peer speaks another version, or is not Marline".into(),
        io::ErrorKind::NotConnected => "this process has not joined a cluster yet".into(),
        io::ErrorKind::PermissionDenied => "the peer does not know the token".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
