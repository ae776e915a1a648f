//! Attacks on every listening socket of a cluster: each kind of connection, and each gRPC
//! operation, without the token, with another token, and with bytes that a process that knows the
//! token sent before.
//!
//! The dialler's bytes are made here from docs/protocol.md, not by the code under test.

#[path = "control/generic.rs"]
mod generic;

use generic::ReflectionClient;
use hmac::{Hmac, KeyInit, Mac};
use marline_runtime::control::Tickets;
use marline_runtime::core::controller::Config;
use marline_runtime::core::error::Error;
use marline_runtime::core::resources::Resources;
use marline_runtime::{
    Controller, ExecutorOptions, Instance, Invocation, Program, Reply, StoreOptions, Worker,
    WorkerOptions,
};
use serde_json::json;
use sha2::Sha256;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Code;

const TOKEN: &str = "a secret that nobody guesses";
/// A timeout that no correct run reaches, however slow the machine is.
const DEADLINE: Duration = Duration::from_secs(60);
/// Longer than a write takes if the socket has room: a write that takes longer has none.
const WRITES_WITHIN: Duration = Duration::from_millis(500);
/// Links, data, the object store, uploads, gRPC.
const KINDS: [u8; 5] = [1, 2, 3, 4, 5];
const REPLY_BYTES: usize = 1 + 16 + 8 + 32 + 32;

struct Nothing;

impl Program for Nothing {
    fn provides(&self) -> Vec<String> {
        vec!["nothing".into()]
    }
    fn run(&self, _: &Invocation) -> Result<Reply, Error> {
        Ok(Reply::default())
    }
    fn construct(&self, _: &Invocation) -> Result<Arc<dyn Instance>, Error> {
        Err(Error::unsupported("there are no actors here"))
    }
}

struct Cluster {
    /// The addresses of all listening sockets.
    doors: Vec<String>,
    _folder: tempfile::TempDir,
    _worker: Worker,
    controller: Controller,
}

fn cluster() -> Cluster {
    let folder = tempfile::tempdir().unwrap();
    let mut controller =
        Controller::start("127.0.0.1:0", Some(TOKEN.into()), Config::default()).unwrap();
    let socket = format!("unix:{}", folder.path().join("controller").display());
    let sockets = [controller.also_listen(&socket).unwrap(), controller.address().to_owned()];
    let at = format!("unix:{}", folder.path().join("worker").display());
    let worker = Worker::join(WorkerOptions {
        controller: controller.address().into(),
        token: Some(TOKEN.into()),
        listen: Some(at.clone()),
        resources: Resources::cpus(1),
        preemptible: false,
        program: Arc::new(Nothing),
        executors: ExecutorOptions::Threads,
        store: Some(StoreOptions { limit: 1 << 20, spill: None, ..StoreOptions::default() }),
        config: Default::default(),
    });
    let doors = sockets.into_iter().chain([at]).collect();
    Cluster { doors, _folder: folder, _worker: worker.unwrap(), controller }
}

trait Wire: Read + Write {
    fn no_more(&self);
}

impl Wire for TcpStream {
    fn no_more(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write); // The peer may have closed it already.
    }
}

impl Wire for UnixStream {
    fn no_more(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write); // The peer may have closed it already.
    }
}

fn connect(door: &str) -> Box<dyn Wire> {
    match door.strip_prefix("unix:") {
        Some(path) => {
            let socket = UnixStream::connect(path).unwrap();
            socket.set_read_timeout(Some(DEADLINE)).unwrap();
            socket.set_write_timeout(Some(WRITES_WITHIN)).unwrap();
            Box::new(socket)
        }
        None => {
            let socket = TcpStream::connect(door).unwrap();
            socket.set_read_timeout(Some(DEADLINE)).unwrap();
            socket.set_write_timeout(Some(WRITES_WITHIN)).unwrap();
            Box::new(socket)
        }
    }
}

fn hello(kind: u8, nonce: [u8; 32]) -> Vec<u8> {
    [&b"MRLN\x02"[..], &[kind], &nonce].concat()
}

/// Returns the proof of a role (1: dialler, 2: listener) for the listener's reply.
fn proof(token: &str, role: u8, kind: u8, nonce: [u8; 32], reply: &[u8; REPLY_BYTES]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).unwrap();
    mac.update(b"marline handshake 2\0");
    mac.update(&[role, kind]);
    mac.update(&reply[1..25]); // The cluster and the epoch.
    mac.update(&nonce);
    mac.update(&reply[25..57]);
    mac.finalize().into_bytes().to_vec()
}

/// Sends a hello to a socket. Returns the connection and the listener's reply.
fn greeted(door: &str, kind: u8, nonce: [u8; 32]) -> (Box<dyn Wire>, [u8; REPLY_BYTES]) {
    let mut wire = connect(door);
    wire.write_all(&hello(kind, nonce)).unwrap();
    let mut reply = [0; REPLY_BYTES];
    wire.read_exact(&mut reply).unwrap();
    assert_eq!(reply[0], 0, "a proof follows");
    (wire, reply)
}

/// Returns whether the listener closes the connection after these bytes, without any answer.
fn is_shut(wire: &mut dyn Wire, said: &[u8]) -> bool {
    let mut more = Vec::new();
    let _ = wire.write_all(said);
    // Bytes that each service would answer: a frame, a request for a piece, an upload, a gRPC
    // request.
    let _ = wire.write_all(&[0; 64]);
    wire.no_more();
    match wire.read_to_end(&mut more) {
        Ok(_) => more.is_empty(),
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset && more.is_empty(),
    }
}

#[test]
fn every_listening_socket_proves_first_that_it_knows_the_token() {
    let cluster = cluster();
    for door in &cluster.doors {
        for kind in KINDS {
            let nonce = [kind; 32];
            let (_, reply) = greeted(door, kind, nonce);
            assert_eq!(reply[57..], proof(TOKEN, 2, kind, nonce, &reply), "{door} {kind}");
            let (_, again) = greeted(door, kind, nonce);
            assert_ne!(again[25..], reply[25..], "its nonce is new each time");
        }
    }
}

#[test]
fn a_listener_rejects_wrong_replayed_and_reflected_proofs() {
    let cluster = cluster();
    for door in &cluster.doors {
        for kind in KINDS {
            let nonce = [7; 32];
            for wrong in ["", "a secret that nobody guesseS"] {
                let (mut wire, reply) = greeted(door, kind, nonce);
                let proof = proof(wrong, 1, kind, nonce, &reply);
                assert!(is_shut(&mut *wire, &proof), "{door} {kind} {wrong:?}");
            }
            // A proof that was valid once, at this very socket.
            let (mut wire, reply) = greeted(door, kind, nonce);
            let good = proof(TOKEN, 1, kind, nonce, &reply);
            wire.write_all(&good).unwrap();
            let (mut wire, _) = greeted(door, kind, nonce);
            assert!(is_shut(&mut *wire, &good), "{door} {kind}: replayed");
            // The listener's own proof, sent back to it.
            let (mut wire, reply) = greeted(door, kind, nonce);
            assert!(is_shut(&mut *wire, &reply[57..]), "{door} {kind}: reflected");
            // A proof for another kind of connection.
            let (mut wire, reply) = greeted(door, kind, nonce);
            let other = proof(TOKEN, 1, kind % 5 + 1, nonce, &reply);
            assert!(is_shut(&mut *wire, &other), "{door} {kind}: for another kind");
        }
        let mut wire = connect(door);
        assert!(is_shut(&mut *wire, &hello(6, [0; 32])), "there is no sixth kind");
    }
}

#[test]
fn every_grpc_operation_requires_a_ticket() {
    let cluster = cluster();
    let address = cluster.controller.address();
    let known = ReflectionClient::connect(address, Some(TOKEN)).unwrap();
    let stranger = known.without_token();
    let cluster_id = known.ok("ClusterResources", json!({}))["cluster_id"].clone();
    let good = Tickets::at(address, Some(TOKEN.into())).unwrap().ticket();
    assert!(good.starts_with(cluster_id.as_str().unwrap()), "{good} names its cluster");
    let parts: Vec<&str> = good.split('.').collect();
    let (made_at, epoch): (u64, u64) = (parts[2].parse().unwrap(), parts[1].parse().unwrap());
    let bad = [
        (None, Code::PermissionDenied),
        (Some(ticket("a guess", parts[0], epoch, made_at)), Code::PermissionDenied),
        (Some(ticket(TOKEN, parts[0], epoch, made_at - 61)), Code::PermissionDenied),
        (Some(ticket(TOKEN, parts[0], epoch, made_at + 60)), Code::PermissionDenied),
        (Some(ticket(TOKEN, parts[0], epoch - 1, made_at)), Code::PermissionDenied),
        (Some(ticket(TOKEN, &parts[0].replace('0', "1"), epoch, made_at)), Code::PermissionDenied),
        (Some(TOKEN.to_owned()), Code::FailedPrecondition), // As older releases sent it.
    ];
    let operations = known.every_operation();
    assert!(operations.contains("/marline.v1.Links/Join"), "{operations:?}");
    assert!(operations.iter().any(|name| name.contains("ServerReflection")), "{operations:?}");
    for operation in &operations {
        for (ticket, code) in &bad {
            let words = ticket.as_ref().map(|ticket| format!("Bearer {ticket}"));
            let answer = stranger.call_with(operation, words.as_deref()).unwrap_err();
            assert_eq!(answer.code(), *code, "{operation} with {ticket:?}: {answer}");
        }
        // The answer does not matter here, only that the request was accepted.
        let own = ticket(TOKEN, parts[0], epoch, made_at);
        assert_eq!(own, good, "any process that knows the token can make a ticket");
        let answer = stranger.call_with(operation, Some(&format!("Bearer {own}")));
        let code = answer.err().map(|status| status.code());
        assert_ne!(code, Some(Code::PermissionDenied), "{operation}");
    }
    let elsewhere = ReflectionClient::connect(&cluster.doors[2], None);
    assert_eq!(elsewhere.err().unwrap().code(), Code::PermissionDenied, "a worker checks it too");
}

fn ticket(token: &str, cluster: &str, epoch: u64, made_at: u64) -> String {
    let words = format!("{cluster}.{epoch}.{made_at}");
    let mut mac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).unwrap();
    mac.update(b"marline ticket 1\0");
    mac.update(words.as_bytes());
    let proof = mac.finalize().into_bytes();
    let proof: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{words}.{proof}")
}

/// Waits until a connection has ended in any way. Returns whether it has.
fn has_ended(wire: &mut dyn Wire) -> bool {
    match wire.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn an_unauthenticated_peer_is_dropped_however_slowly_it_sends() {
    let cluster = cluster();
    let whole = hello(2, [1; 32]);
    let said: [&[u8]; 5] = [b"", b"M", &whole[..20], &whole, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"];
    let tried = |door: &str| {
        let mut unauthenticated = said.map(|said| {
            let mut stranger = connect(door);
            stranger.write_all(said).unwrap();
            stranger
        });
        // A stranger that sends a byte now and then, for longer than its time limit.
        let mut slow = connect(door);
        let until = Instant::now() + DEADLINE;
        let mut bytes = whole.iter().chain(std::iter::repeat(&0));
        while slow.write_all(&[*bytes.next().unwrap()]).is_ok() {
            assert!(Instant::now() < until, "{door} still accepts its bytes");
            std::thread::sleep(Duration::from_millis(200));
        }
        for (stranger, said) in unauthenticated.iter_mut().zip(said) {
            assert!(has_ended(&mut **stranger), "{door} still listens after {said:?}");
        }
    };
    std::thread::scope(|threads| {
        let tries = cluster.doors.iter().map(|door| threads.spawn(move || tried(door)));
        tries.collect::<Vec<_>>().into_iter().for_each(|tried| tried.join().unwrap());
    });
}

/// Returns an HTTP/2 frame of the connection itself, with this type and payload.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, 0], &[0; 4], payload].concat()
}

#[test]
fn an_unauthenticated_peer_that_does_not_read_is_dropped() {
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    let cluster = cluster();
    let pings = frame(PING, &[7; 8]).repeat(1_000);
    let tried = |door: &str| {
        let mut stranger = connect(door);
        stranger.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        stranger.write_all(&frame(SETTINGS, &[])).unwrap();
        // Once the answers to many pings fill the socket, the listener cannot answer. Then it reads
        // no more.
        let (until, mut at, mut blocked) = (Instant::now() + DEADLINE, 0, false);
        loop {
            match stranger.write(&pings[at..]) {
                Ok(written) => at = (at + written) % pings.len(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => blocked = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    break assert!(blocked, "{door}: it was dropped before the socket was full");
                }
            }
            assert!(Instant::now() < until, "{door}: the connection is still open");
        }
    };
    std::thread::scope(|threads| {
        let tries = cluster.doors.iter().map(|door| threads.spawn(move || tried(door)));
        tries.collect::<Vec<_>>().into_iter().for_each(|tried| tried.join().unwrap());
    });
}

#[test]
fn many_unauthenticated_peers_are_dropped_and_do_not_block_a_client() {
    let cluster = cluster();
    let address = cluster.controller.address();
    let mut unauthenticated: Vec<_> = (0..400).map(|_| connect(address)).collect();
    for stranger in &mut unauthenticated {
        let _ = stranger.write_all(b"M");
    }
    let known = ReflectionClient::connect(address, Some(TOKEN)).unwrap();
    known.ok("ClusterResources", json!({}));
    assert!(unauthenticated.iter_mut().all(|stranger| has_ended(&mut **stranger)));
    known.ok("ClusterResources", json!({}));
}
