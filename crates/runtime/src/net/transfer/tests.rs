//! Transfers between nodes over connections that break. A proxy counts the bytes that they carry.

use super::*;
use crate::net::credentials::{Credentials, test_secret};
use crate::net::frame_connection::Socket;
use crate::object_store::{ObjectStoreHandle, StoreOptions};
use marline_core::id::{Session, SessionEpoch, SessionId};
use std::net::{Shutdown, TcpListener};
use std::sync::{Arc, Condvar};

const TOKEN: &str = "a secret";
/// A timeout that no correct run reaches, however slow the machine is.
const DEADLINE: Duration = Duration::from_secs(60);

fn object() -> ObjectId {
    ObjectId::of(TaskId::from_u128(7), 1)
}

fn token(words: &str) -> Token {
    Some(Arc::from(words))
}

/// Serves an accepted connection as a node does, if its peer passes the handshake.
pub(crate) fn serve_proved(store: ObjectStore, stream: TcpStream, secret: Credentials) {
    stream.set_nonblocking(true).unwrap();
    let io = crate::net::io();
    let _guard = io.enter();
    let mut socket = Socket::tcp(tokio::net::TcpStream::from_std(stream).unwrap());
    io.spawn(async move {
        if let Ok(kind) = handshake::accept(&mut socket, &secret).await {
            serve(store, socket.into_std().unwrap(), kind);
        }
    });
}

/// The traffic of a proxy.
#[derive(Default)]
pub(crate) struct Traffic {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    connections: usize,
    carried: usize,
    is_open: bool,
    is_over: bool,
}

impl Traffic {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait(&self, until: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, DEADLINE, |state| !until(state));
        let (_state, waited) = waited.unwrap();
        assert!(!waited.timed_out(), "the condition did not become true");
    }

    /// Returns how many connections were made in all.
    pub fn connections(&self) -> usize {
        self.state.lock().unwrap().connections
    }

    /// Returns how many bytes came from the store.
    pub fn carried(&self) -> usize {
        self.state.lock().unwrap().carried
    }

    /// Releases the threads in [`wait_until_open`](Traffic::wait_until_open).
    pub fn open(&self) {
        self.change(|state| state.is_open = true);
    }

    pub fn wait_until_open(&self) {
        self.wait(|state| state.is_open);
    }

    /// Stops the proxy: it carries nothing more and accepts no connection.
    pub fn end(&self) {
        self.change(|state| state.is_over = true);
    }

    fn is_over(&self) -> bool {
        self.state.lock().unwrap().is_over
    }
}

/// Changes the bytes from the store on the connection of this number. Returns whether the
/// connection goes on.
type Carry = dyn Fn(&Traffic, usize, &mut Vec<u8>) -> bool + Send + Sync;

/// Serves a store through a proxy. Returns the address of the proxy, and its traffic.
pub(crate) fn start_proxy(
    store: ObjectStore,
    carry: impl Fn(&Traffic, usize, &mut Vec<u8>) -> bool + Send + Sync + 'static,
) -> (String, Arc<Traffic>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (traffic, carry): (_, Arc<Carry>) = (Arc::<Traffic>::default(), Arc::new(carry));
    let seen = traffic.clone();
    thread::spawn(move || {
        for (number, theirs) in listener.incoming().flatten().enumerate() {
            if seen.is_over() {
                return;
            }
            seen.change(|state| state.connections += 1);
            let inner = TcpListener::bind("127.0.0.1:0").unwrap();
            let ours = TcpStream::connect(inner.local_addr().unwrap()).unwrap();
            serve_proved(store.clone(), inner.accept().unwrap().0, test_secret(TOKEN));
            let (mut asks, mut to_store) = (theirs.try_clone().unwrap(), ours.try_clone().unwrap());
            thread::spawn(move || drop(io::copy(&mut asks, &mut to_store)));
            let (seen, carry) = (seen.clone(), carry.clone());
            thread::spawn(move || pass_on(&seen, &*carry, number, ours, theirs));
        }
    });
    (address, traffic)
}

fn pass_on(
    traffic: &Traffic,
    carry: &Carry,
    number: usize,
    mut ours: TcpStream,
    mut theirs: TcpStream,
) {
    let mut piece = vec![0; 64 << 10];
    while let Ok(count @ 1..) = ours.read(&mut piece) {
        let mut part = piece[..count].to_vec();
        let goes_on = carry(traffic, number, &mut part) && !traffic.is_over();
        if !goes_on || theirs.write_all(&part).is_err() {
            break;
        }
        traffic.change(|state| state.carried += count);
    }
    let _ = theirs.shutdown(Shutdown::Both);
    let _ = ours.shutdown(Shutdown::Both);
}

/// Returns a store that has these bytes under a name.
fn store_with(bytes: &[u8]) -> ObjectStore {
    let options = StoreOptions { limit: 1 << 30, spill: None, ..StoreOptions::default() };
    let store = ObjectStore::new(&options, Credentials::new(None));
    write(&store, bytes);
    store
}

fn write(store: &ObjectStore, bytes: &[u8]) {
    ObjectStoreHandle::here(store.clone()).write(object(), &[bytes], || true).unwrap();
}

/// Carries this many bytes, then stops the proxy.
fn dies_after(bytes: usize) -> impl Fn(&Traffic, usize, &mut Vec<u8>) -> bool {
    move |traffic, _, _| {
        let goes_on = traffic.carried() < bytes;
        if !goes_on {
            traffic.end();
        }
        goes_on
    }
}

/// Pulls the object, or the rest of it, from these addresses.
fn fetch_from(
    addresses: &[&str],
    coming: &mut Option<PartialTransfer<Vec<u8>>>,
    token: &Token,
) -> Result<Vec<u8>, Error> {
    let worker = Session { id: SessionId::from_u128(1), epoch: SessionEpoch(1) };
    let copy = |address: &&str| CopyLocation { worker, address: Some((*address).into()) };
    let copies: Vec<CopyLocation> = addresses.iter().map(copy).collect();
    let wanted = TransferRequest { object: object(), token, should_continue: &|| true };
    let (whole, _) = pull(&copies, &wanted, coming, |bytes| Ok(vec![0; bytes]))?;
    let layout = marline_objects::parts::Layout::read(&whole).expect("the data has a layout");
    Ok(whole[layout.parts()[0].clone()].to_vec())
}

fn fetched(addresses: &[&str]) -> Result<Vec<u8>, Error> {
    fetch_from(addresses, &mut None, &token(TOKEN))
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

/// Returns a value of so many pieces that the few under way at a time count for little.
fn many_pieces() -> Vec<u8> {
    bytes(12 * PIECE_BYTES + 12_345)
}

/// Returns whether the traffic is small enough that received pieces were not sent again.
fn is_carried_once(large: &[u8], traffic: &[&Traffic]) -> bool {
    let carried: usize = traffic.iter().map(|traffic| traffic.carried()).sum();
    carried as f64 <= 1.4 * large.len() as f64
}

#[test]
fn a_pull_arrives_whole_however_often_connections_break() {
    let large = bytes(3 * PIECE_BYTES + 12_345);
    // The first six connections break in the middle of what they carry.
    let (address, _) =
        start_proxy(store_with(&large), |_, number, part| number >= 6 || part.len() < 30_000);
    assert!(fetched(&[&address]).unwrap() == large);
}

#[test]
fn a_piece_that_changed_on_its_way_is_pulled_again() {
    let small = bytes(200_000);
    let (address, _) = start_proxy(store_with(&small), |_, number, part| {
        if number < 2 && part.len() > 1_000 {
            part[500] ^= 1;
        }
        true
    });
    assert!(fetched(&[&address]).unwrap() == small);
}

#[test]
fn received_pieces_stay_when_another_source_sends_the_rest() {
    let large = many_pieces();
    let store = store_with(&large);
    let (dies, first) = start_proxy(store.clone(), dies_after(large.len() / 4 * 3));
    let (lives, second) = start_proxy(store, |_, _, _| true);
    assert!(fetched(&[&dies, &lives]).unwrap() == large);
    assert!(first.carried() >= large.len() / 4 * 3, "the first proxy stopped in the middle");
    assert!(is_carried_once(&large, &[&first, &second]));
}

#[test]
fn received_pieces_stay_when_a_pull_fails_and_is_tried_later() {
    let large = many_pieces();
    let store = store_with(&large);
    let (dies, first) = start_proxy(store.clone(), dies_after(large.len() / 4 * 3));
    let mut coming = None;
    let error = fetch_from(&[&dies], &mut coming, &token(TOKEN)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(coming.as_ref().is_some_and(|coming| coming.pieces() > 0));
    let (lives, second) = start_proxy(store, |_, _, _| true);
    assert!(fetch_from(&[&lives], &mut coming, &token(TOKEN)).unwrap() == large);
    assert!(is_carried_once(&large, &[&first, &second]));
}

#[test]
fn pieces_of_two_versions_of_a_value_are_never_put_together() {
    let (first, mut anew) = (many_pieces(), many_pieces());
    anew.iter_mut().for_each(|byte| *byte ^= 0x55);
    let (dies, _) = start_proxy(store_with(&first), dies_after(first.len() / 2));
    let (lives, _) = start_proxy(store_with(&anew), |_, _, _| true);
    assert!(fetched(&[&dies, &lives]).unwrap() == anew);

    // Now one store gets the second value while the first is pulled from it.
    let store = store_with(&first);
    let (address, _) = start_proxy(store.clone(), |_, _, _| true);
    let wanted =
        TransferRequest { object: object(), token: &token(TOKEN), should_continue: &|| true };
    let source = Source::new(&address, &wanted);
    let mut stream = source.connect().unwrap();
    let Ok(whole) = source.piece(&mut stream, None, 0, &mut []) else { panic!("it is stored") };
    assert!(source.piece(&mut stream, Some(whole), 0, &mut [0; 100]).is_ok());
    write(&store, &anew);
    let Err(Failure::Refused(error)) = source.piece(&mut stream, Some(whole), 0, &mut [0; 100])
    else {
        panic!("the version has changed")
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[test]
fn a_slow_source_is_not_given_up_while_bytes_arrive() {
    let small = bytes(PIECE_BYTES / 2);
    // Each of the first connections carries a part, and breaks.
    let (address, traffic) = start_proxy(store_with(&small), |traffic, number, _| {
        number >= 3 || traffic.carried() < small_part(number)
    });
    let wanted =
        TransferRequest { object: object(), token: &token(TOKEN), should_continue: &|| true };
    // The source began long ago.
    let mut source = Source::new(&address, &wanted);
    source.began -= 10 * GIVEN_UP_AFTER;
    assert!(source.quiet_for() > GIVEN_UP_AFTER);
    let (mut stream, mut room, over) = (None, vec![0; small.len()], AtomicBool::new(false));
    assert!(source.piece_again(&mut stream, None, 0, &mut room, &over).is_ok());
    assert!(traffic.connections() > 3 && source.quiet_for() < GIVEN_UP_AFTER);
}

/// Returns how many bytes were carried when the connection of this number breaks: more than one
/// part.
fn small_part(number: usize) -> usize {
    (number + 1) * 4 * PART_BYTES
}

#[test]
fn a_large_value_uses_all_allowed_connections_and_no_more() {
    let large = bytes((MAX_CONNECTIONS + 2) * PIECE_BYTES);
    let (address, traffic) = start_proxy(store_with(&large), |traffic, _, part| {
        if part.len() > 1_000 {
            traffic.wait(|state| state.connections >= MAX_CONNECTIONS);
        }
        true
    });
    assert!(fetched(&[&address]).unwrap() == large);
    assert_eq!(traffic.connections(), MAX_CONNECTIONS);
}

#[test]
fn a_pull_stops_when_no_caller_wants_the_value() {
    let large = many_pieces();
    let (address, traffic) = start_proxy(store_with(&large), |_, _, _| true);
    let copies = {
        let worker = Session { id: SessionId::from_u128(1), epoch: SessionEpoch(1) };
        [CopyLocation { worker, address: Some(address.as_str().into()) }]
    };
    let seen = traffic.clone();
    let go_on = move || seen.carried() < PIECE_BYTES;
    let wanted =
        TransferRequest { object: object(), token: &token(TOKEN), should_continue: &go_on };
    let came = pull(&copies, &wanted, &mut None, |bytes| Ok(vec![0; bytes]));
    assert_eq!(came.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(traffic.carried() < large.len());
}

#[test]
fn a_wrong_token_is_denied_and_an_unknown_object_is_not_found() {
    let (address, _) = start_proxy(store_with(&bytes(200_000)), |_, _, _| true);
    let guess =
        TransferRequest { object: object(), token: &token("a guess"), should_continue: &|| true };
    let error = Source::new(&address, &guess).connect().err().unwrap();
    assert_eq!(handshake::rejection(&error).unwrap().kind(), ErrorKind::Denied);
    let gone = ObjectId::of(TaskId::from_u128(8), 0);
    let gone = TransferRequest { object: gone, token: &token(TOKEN), should_continue: &|| true };
    let nobody = Source::new(&address, &gone);
    let mut stream = nobody.connect().unwrap();
    let Err(Failure::Refused(error)) = nobody.piece(&mut stream, None, 0, &mut []) else {
        panic!("the store does not have the object")
    };
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn a_dialler_sends_nothing_to_a_socket_of_another_user() {
    use rustix::process::{Uid, getuid};
    if !getuid().is_root() {
        return; // Only root can change its user.
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    let path = folder.path().join("store");
    let (is_there, listens) = std::sync::mpsc::channel();
    let there = path.clone();
    let other = thread::spawn(move || {
        // Change the user of this thread alone. The kernel reports the user at the time of
        // `listen`.
        let nobody = Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(there).unwrap();
        is_there.send(()).unwrap();
        let mut heard = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut heard).unwrap();
        heard
    });
    listens.recv().unwrap();
    let error = connect_to_object_store(path.to_str().unwrap(), &token(TOKEN)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(other.join().unwrap().is_empty());
}
