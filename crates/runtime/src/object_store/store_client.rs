//! The store of this node, for a process that does not own it: requests travel over a socket, and
//! values are read and filled in place. Any number of threads send requests. One of the waiting
//! threads reads the replies for all of them.

use super::store_protocol::{GrantedBlob, StoreReply, StoreRequest};
use crate::executor::spin::Spin;
use bytes::BytesMut;
use marline_core::error::{Error, ErrorKind, Ran};
use marline_core::id::{ObjectId, Session};
use marline_core::map::Map;
use marline_objects::parts::Layout;
use marline_objects::{Access, MappedSegments, View, descriptor_passing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How many bytes are read at a time.
const READ_BYTES: usize = 16 << 10;
/// The largest value for which room is requested ahead. For a larger value, the request takes only
/// a small part of the time of the write.
const AHEAD_BYTES: u64 = 8 << 20;
/// The longest time since the last value at which room for the next is requested ahead.
const SOON: Duration = Duration::from_millis(2);
/// How long the store may take to explain a wait.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// See the [module](self).
pub(crate) struct ObjectStoreClient {
    socket: UnixStream,
    /// The id of the process that connected. A fork of it has the same socket, and must not use it.
    process: u32,
    windows: MappedSegments,
    state: Mutex<StoreClientState>,
    heard: Condvar,
    /// The spin of the thread that reads.
    spin: Mutex<Spin>,
    ahead: Mutex<AheadAllocation>,
    /// Whether a write to the socket has failed.
    is_gone: AtomicBool,
}

#[derive(Default)]
struct StoreClientState {
    next: u64,
    /// The requests that a thread waits for, each with its result once it has arrived.
    asked: Map<u64, Option<Result<Done, Error>>>,
    /// Whether one of the waiting threads reads the socket.
    has_reader: bool,
    /// How many threads wait until the reader has read.
    others: usize,
    received: BytesMut,
    descriptors: VecDeque<OwnedFd>,
    /// Segments that were passed to this process and are not mapped yet.
    segments: Map<(u32, Access), OwnedFd>,
    over: bool,
}

/// Room for the next of many values. It is requested when one value is written, and is granted
/// while the process makes the next.
#[derive(Default)]
struct AheadAllocation {
    /// The size of the last value, and when it was written.
    last: Option<(u64, Instant)>,
    /// The number of the request for room, and its size.
    asked: Option<(u64, u64)>,
}

/// The result of a request.
#[derive(Clone, Copy)]
enum Done {
    Granted(GrantedBlob),
    Saved { durable: bool },
}

impl ObjectStoreClient {
    pub fn new(socket: UnixStream) -> Arc<ObjectStoreClient> {
        let remote = Arc::new(ObjectStoreClient {
            socket,
            process: std::process::id(),
            windows: MappedSegments::default(),
            state: Mutex::default(),
            heard: Condvar::new(),
            spin: Mutex::default(),
            ahead: Mutex::default(),
            is_gone: AtomicBool::new(false),
        });
        super::forks::add_elsewhere(&remote);
        remote
    }

    /// Returns whether the store answers no more.
    pub fn is_over(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed) || self.state().over
    }

    fn state(&self) -> MutexGuard<'_, StoreClientState> {
        self.state.lock().expect("nothing panics under it")
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    fn check_ours(&self) -> Result<(), Error> {
        match self.is_ours() {
            true => Ok(()),
            false => Err(Error::invalid(
                "the connection to the node's store belongs to the process that was forked: a fork \
                 of a task cannot read or make large values",
            )),
        }
    }

    fn send_requests(&self, asks: &[StoreRequest]) -> Result<(), Error> {
        self.check_ours()?;
        let words: BytesMut = asks.iter().flat_map(|ask| ask.encode()).collect();
        // Requests are short: each is written as a whole.
        (&self.socket).write_all(&words).map_err(|_| {
            self.is_gone.store(true, Ordering::Relaxed);
            store_gone_error()
        })
    }

    /// Fills room with these parts, as the data of an object. The data belongs to this process
    /// until the cluster retains it. If the value is one of many in a row, requests room for the
    /// next.
    pub fn write(
        &self,
        object: ObjectId,
        parts: &[&[u8]],
        in_a_row: bool,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Session>, Error> {
        self.check_ours()?; // Room that was requested ahead does not belong to a fork.
        let layout = super::layout_of(parts)?;
        let bytes = layout.bytes() as u64;
        let (number, granted) = self.room(bytes, go_on)?;
        let filled = self
            .map(granted, Access::Write)
            .and_then(|()| {
                self.windows.writable(granted.block, layout.bytes(), granted.trims, |_| {})
            })
            .and_then(|mut room| layout.fill(&mut room, parts));
        if let Err(error) = filled {
            self.release_blob(number);
            return Err(super::unmappable(&error));
        }
        let seal = StoreRequest::Seal { number, object };
        if in_a_row && self.follows_soon(bytes) {
            let next = |number| StoreRequest::Create { number, bytes, ahead: true };
            let number = self.ask_after(Some(seal), next)?;
            let before = self.ahead().asked.replace((number, bytes));
            before.inspect(|(number, _)| self.cancel_request(*number)); // Another thread's room.
        } else {
            self.send_requests(&[seal])?;
        }
        Ok(granted.worker)
    }

    /// Returns room for this many bytes: the room that was requested ahead, or else the room that a
    /// new request is granted.
    fn room(
        &self,
        bytes: u64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(u64, GrantedBlob), Error> {
        let ahead = self.ahead().asked.take();
        if let Some((number, asked)) = ahead {
            if asked != bytes {
                self.cancel_request(number);
            } else if let Ok(granted) = self.wait_for_room(number, go_on)? {
                return Ok((number, granted));
            }
        }
        let number =
            self.ask_after(None, |number| StoreRequest::Create { number, bytes, ahead: false })?;
        let granted = self.wait_for_room(number, go_on)??;
        Ok((number, granted))
    }

    /// Waits for room that was requested. Cancels the request when `go_on` returns false.
    fn wait_for_room(
        &self,
        number: u64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Result<GrantedBlob, Error>, Error> {
        loop {
            if let Some(granted) = self.wait(number, Some(Instant::now() + super::LOOK_EVERY)) {
                return Ok(granted);
            }
            if !go_on() {
                self.cancel_request(number);
                return Err(super::given_up());
            }
        }
    }

    fn ahead(&self) -> MutexGuard<'_, AheadAllocation> {
        self.ahead.lock().expect("nothing panics under it")
    }

    /// Notes that a value was written. Returns whether another value of this size is likely to
    /// follow soon.
    fn follows_soon(&self, bytes: u64) -> bool {
        let (mut ahead, now) = (self.ahead(), Instant::now());
        let last = ahead.last.replace((bytes, now));
        bytes <= AHEAD_BYTES && last.is_some_and(|(last, then)| last == bytes && now - then <= SOON)
    }

    /// Notes that no value follows soon, and returns room that was requested ahead.
    pub fn pause(&self) {
        if self.is_ours() {
            self.ahead().last = None;
            self.give_back_ahead();
        }
    }

    /// Returns room that was requested ahead: another process may need it to make the value that
    /// this process waits for.
    fn give_back_ahead(&self) {
        let asked = self.ahead().asked.take();
        asked.inspect(|(number, _)| self.cancel_request(*number));
    }

    /// Saves the data of an object that this process made. Returns `true` after the data is on the
    /// disk, or `false` without saving if the cluster needs no durable data.
    pub fn save(&self, object: ObjectId) -> Result<bool, Error> {
        let number = self.ask_after(None, |number| StoreRequest::Save { number, object })?;
        match self.wait_done(number, None).expect("without a limit, it returns a result")? {
            Done::Saved { durable } => Ok(durable),
            Done::Granted(_) => Err(Error::internal("the store granted a blob to a save request")),
        }
    }

    /// Requests the data of an object. Returns the number of the request.
    pub fn read(&self, object: ObjectId) -> Result<u64, Error> {
        self.ask_after(None, |number| StoreRequest::Read { number, object })
    }

    /// Discards the data that this process made for an object.
    pub fn discard(&self, object: ObjectId) {
        // An error means that the store is gone.
        let _ = self.send_requests(&[StoreRequest::Discard { object }]);
    }

    /// Maps the blob that a read request was granted.
    pub fn show(
        self: &Arc<ObjectStoreClient>,
        object: ObjectId,
        number: u64,
        granted: GrantedBlob,
    ) -> Result<(View, Layout), Error> {
        let read = Read { remote: self.clone(), number };
        let shown = self.map(granted, Access::Read).and_then(|()| {
            self.windows.view(granted.block, granted.bytes as usize, |_| drop(read))
        });
        super::laid_out(object, shown.map_err(|error| super::unmappable(&error))?)
    }

    /// Maps a segment that was passed to this process, if it is not mapped yet.
    fn map(&self, granted: GrantedBlob, access: Access) -> std::io::Result<()> {
        let (segment, mut state) = (granted.block.segment, self.state());
        if let Some(descriptor) = state.segments.get(&(segment, access)) {
            self.windows.add(segment, access, descriptor)?;
            state.segments.remove(&(segment, access));
        }
        Ok(())
    }

    /// Releases a request. Called at most once for each number, since the store knows how far the
    /// request has come.
    fn release_blob(&self, number: u64) {
        if self.is_ours() {
            // An error means that the store is gone.
            let _ = self.send_requests(&[StoreRequest::Release { number }]);
        }
    }

    /// Tells the store that this process is about to fork: the fork may go on reading the blobs
    /// that this process has pinned.
    pub fn about_to_fork(&self) {
        let _ = self.send_requests(&[StoreRequest::Fork]);
    }

    /// Sends a request, after another message if there is one. Returns the number of the request.
    fn ask_after(
        &self,
        first: Option<StoreRequest>,
        ask: impl FnOnce(u64) -> StoreRequest,
    ) -> Result<u64, Error> {
        let number = {
            let mut state = self.state();
            if state.over {
                return Err(store_gone_error()); // Replies are not read any more.
            }
            state.next += 1;
            let number = state.next;
            state.asked.insert(number, None);
            number
        };
        let said: Vec<StoreRequest> = first.into_iter().chain([ask(number)]).collect();
        self.send_requests(&said).inspect_err(|_| drop(self.state().asked.remove(&number)))?;
        Ok(number)
    }

    /// Waits for the result of a request, and returns it, once. Returns `None` if the result has
    /// not arrived by `until`.
    pub fn wait(&self, number: u64, until: Option<Instant>) -> Option<Result<GrantedBlob, Error>> {
        let done = self.wait_done(number, until)?;
        Some(done.and_then(|done| match done {
            Done::Granted(granted) => Ok(granted),
            Done::Saved { .. } => Err(Error::internal("the store saved for a read request")),
        }))
    }

    fn wait_done(&self, number: u64, until: Option<Instant>) -> Option<Result<Done, Error>> {
        let mut state = self.state();
        loop {
            let came = state.asked.get_mut(&number).and_then(Option::take);
            if came.is_some() {
                state.asked.remove(&number);
                return came;
            }
            if state.over {
                state.asked.remove(&number);
                return Some(Err(store_gone_error()));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            if state.has_reader {
                state.others += 1;
                state = match left {
                    None => self.heard.wait(state).expect("nothing panics under it"),
                    Some(left) => {
                        self.heard.wait_timeout(state, left).expect("nothing panics under it").0
                    }
                };
                state.others -= 1;
                continue;
            }
            state.has_reader = true;
            drop(state);
            let received = self.receive(left);
            state = self.state();
            state.has_reader = false;
            match received {
                Ok(Some((bytes, descriptors))) => {
                    state.received.extend_from_slice(&bytes);
                    state.descriptors.extend(descriptors);
                    self.read_replies(&mut state);
                }
                Ok(None) => {}
                Err(_) => state.over = true,
            }
            if state.others > 0 {
                self.heard.notify_all();
            }
        }
    }

    /// Returns an `Exhausted` error with the usage of the store, if a request of any process waits
    /// for room.
    pub fn lack_of_room(&self) -> Option<Error> {
        let number = self.ask_after(None, |number| StoreRequest::ExplainWait { number }).ok()?;
        let answer = self.wait_done(number, Some(Instant::now() + ANSWERS_WITHIN));
        if answer.is_none() {
            self.state().asked.remove(&number);
        }
        answer?.err().filter(|error| error.kind() == ErrorKind::Exhausted)
    }

    /// Cancels a request. A reply that is on its way is ignored: the store takes back the room or
    /// the pin that it granted.
    pub fn cancel_request(&self, number: u64) {
        if self.is_ours() && self.state().asked.remove(&number).is_some() {
            self.release_blob(number);
        }
    }

    /// Reads the next bytes, if they arrive in time.
    fn receive(&self, left: Option<Duration>) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        let is_there = || {
            let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
            (poll(&mut ready, Some(&Timespec::default())) == Ok(1)).then_some(())
        };
        // The store answers at once if the data is in this node's memory: sooner than a thread can
        // sleep and be woken. So spin first.
        let came = self.spin.lock().expect("nothing panics under it").look(is_there);
        if came.is_none() {
            self.give_back_ahead();
        }
        if came.is_none()
            && let Some(left) = left
        {
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut ready, Some(&left)) {
                Ok(0) | Err(Errno::INTR) => return Ok(None),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut buffer = vec![0; READ_BYTES];
        let (count, descriptors) = descriptor_passing::receive(&self.socket, &mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer.truncate(count);
        Ok(Some((buffer, descriptors)))
    }

    fn read_replies(&self, state: &mut StoreClientState) {
        loop {
            match StoreReply::next(&mut state.received) {
                Ok(None) => return,
                Ok(Some(StoreReply::Granted { number, granted, passed })) => {
                    if let Some(access) = passed {
                        let Some(segment) = state.descriptors.pop_front() else {
                            return state.over = true;
                        };
                        state.segments.insert((granted.block.segment, access), segment);
                    }
                    state.answered(number, Ok(Done::Granted(granted)));
                }
                Ok(Some(StoreReply::Saved { number, durable })) => {
                    state.answered(number, Ok(Done::Saved { durable }));
                }
                Ok(Some(StoreReply::Refused { number, error })) => {
                    state.answered(number, Err(error));
                }
                Ok(Some(StoreReply::SegmentGone { segment })) => {
                    state.segments.retain(|(number, _), _| *number != segment);
                    self.windows.remove(segment);
                }
                Err(_) => return state.over = true,
            }
        }
    }
}

impl StoreClientState {
    fn answered(&mut self, number: u64, answer: Result<Done, Error>) {
        // A request that was cancelled is not in the map.
        if let Some(asked) = self.asked.get_mut(&number) {
            *asked = Some(answer);
        }
    }
}

/// A pin of this process. Dropping it unpins the blob.
struct Read {
    remote: Arc<ObjectStoreClient>,
    number: u64,
}

impl Drop for Read {
    fn drop(&mut self) {
        self.remote.release_blob(self.number);
    }
}

fn store_gone_error() -> Error {
    Error::unavailable(Ran::Maybe, "the worker that has this node's store is gone")
}

#[cfg(test)]
mod tests {
    use super::super::{ObjectStore, ObjectStoreHandle, StoreOptions};
    use super::*;
    use crate::net::credentials::Credentials;
    use marline_core::id::TaskId;
    use marline_core::payload::Payload;
    use marline_objects::Arena;

    /// Returns how many segments are mapped.
    fn mapped(windows: &MappedSegments, access: Access) -> usize {
        (0..100).filter(|number| windows.has(*number, access)).count()
    }

    #[test]
    fn a_process_that_writes_many_values_allocates_ahead_until_it_pauses() {
        const LIMIT: u64 = 8 << 20;
        let options = StoreOptions { limit: LIMIT, spill: None, ..StoreOptions::default() };
        let store = ObjectStore::new(&options, Credentials::new(None));
        let (ours, theirs) = UnixStream::pair().unwrap();
        store.add_peer(theirs).unwrap();
        let remote = ObjectStoreClient::new(ours);
        let objects = ObjectStoreHandle::elsewhere(remote.clone()).allocating_ahead();
        let asked = || remote.ahead().asked;
        let used = |bytes: u64| {
            let until = Instant::now() + Duration::from_secs(30);
            while store.usage().used != bytes {
                assert!(Instant::now() < until, "{} are used", store.usage().used);
                std::thread::yield_now();
            }
        };
        let object = ObjectId::of(TaskId::from_u128(7), 1);
        let value = |bytes: usize, byte: u8| vec![byte; bytes];
        let write_until = |bytes: usize, enough: &dyn Fn() -> bool| {
            for round in 0_u32..100_000 {
                if round > 0 && enough() {
                    return;
                }
                objects.write(object, &[&value(bytes, round as u8)], || true).unwrap();
                let payload = objects.open(&Payload::default().stored_as(object)).unwrap();
                assert!(payload.inline == value(bytes, round as u8), "round {round}");
            }
            panic!("the condition never became true");
        };
        write_until(200_000, &|| asked().is_some());
        write_until(200_000, &|| asked().is_some());
        let one = Layout::of([200_000]).unwrap().bytes() as u64;
        used(2 * one);
        // A value of another size returns the room, and so does a pause.
        write_until(100_000, &|| true);
        let other = Layout::of([100_000]).unwrap().bytes() as u64;
        used(other);
        write_until(100_000, &|| asked().is_some());
        objects.pause();
        used(other);
        // A store with little room grants none ahead. Writing works as well without it.
        let kept = ObjectId::of(TaskId::from_u128(8), 1);
        ObjectStoreHandle::here(store.clone())
            .write(kept, &[&value(LIMIT as usize / 2, 1)], || true)
            .unwrap();
        write_until(100_000, &|| asked().is_some());
        write_until(100_000, &|| true);
        objects.pause();
        let large = Layout::of([LIMIT as usize / 2]).unwrap().bytes() as u64;
        used(large + other);
        objects.discard(object);
        used(large);
    }

    #[test]
    fn growing_values_leave_no_old_segments_mapped() {
        let options = StoreOptions { limit: 1 << 30, spill: None, ..StoreOptions::default() };
        let store = ObjectStore::with(&options, Credentials::new(None), Arena::new(4096));
        let (ours, theirs) = UnixStream::pair().unwrap();
        store.add_peer(theirs).unwrap();
        let remote = ObjectStoreClient::new(ours);
        let (here, elsewhere) =
            (ObjectStoreHandle::here(store.clone()), ObjectStoreHandle::elsewhere(remote.clone()));
        for number in 1..20_u32 {
            let object = ObjectId::of(TaskId::from_u128(7), number);
            let value = vec![number as u8; 200_000 * number as usize];
            elsewhere.write(object, &[&value], || true).unwrap();
            let stored = Payload::default().stored_as(object);
            for objects in [&elsewhere, &here] {
                assert!(objects.open(&stored).unwrap().inline == value);
            }
            elsewhere.discard(object);
        }
        for access in [Access::Read, Access::Write] {
            assert_eq!(mapped(&remote.windows, access), 1, "only the last segment");
        }
        // The store unmaps its own segments after it has answered.
        let until = Instant::now() + Duration::from_secs(30);
        while mapped(&store.0.windows, Access::Read) > 1 {
            assert!(Instant::now() < until, "a removed segment is still mapped");
            std::thread::yield_now();
        }
    }
}
