use super::*;
use crate::net::MAX_MESSAGE_BYTES;
use crate::net::io;
use crate::net::outbox::SendPriority;
use marline_core::link::Packet;
use marline_wire::frame::Frame;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream as Peer;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::channel;
use std::thread;

/// A timeout that no correct run reaches.
const DEADLINE: Duration = Duration::from_secs(30);

fn connected() -> (FrameConnection, Peer) {
    let (ours, theirs) = Peer::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_read_timeout(Some(DEADLINE)).unwrap();
    let _guard = io().enter();
    let socket = Socket::Unix(UnixStream::from_std(ours).unwrap());
    (FrameConnection::new(socket), theirs)
}

/// Counts received messages.
#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl FrameHandler for Count {
    fn received(&mut self, _: Vec<v1::Frame>) -> bool {
        // About as much work as a node does for a message, so that a peer can be faster.
        (0..2_000).for_each(|step: u32| _ = std::hint::black_box(step));
        self.0.fetch_add(1, Ordering::AcqRel);
        true
    }
    fn acknowledge(&mut self) {}
}

/// Returns a message of this many bytes that has only an unknown field.
fn filler(bytes: usize) -> Vec<u8> {
    let mut message = u32::try_from(bytes).unwrap().to_be_bytes().to_vec();
    // Field 15, with a length of five bytes.
    message.push(15 << 3 | 2);
    let content = bytes - 6;
    message.extend(
        (0..5).map(|at| (content >> (7 * at)) as u8 & 0x7f | if at < 4 { 0x80 } else { 0 }),
    );
    message.resize(4 + bytes, 0);
    message
}

fn seen() -> Frame {
    Frame::Packet(Packet::Seen(1))
}

/// Runs a connection. The returned receiver gets a value when the connection has ended.
fn carry(
    connection: FrameConnection,
    outbox: &Outbox,
    count: &Count,
) -> std::sync::mpsc::Receiver<()> {
    let (outbox, count) = (outbox.clone(), count.clone());
    let (tell, told) = channel();
    io().spawn(async move {
        connection.run(&outbox, count).await;
        let _ = tell.send(());
    });
    told
}

#[test]
fn a_peer_that_never_stops_sending_still_gets_frames() {
    let (connection, mut peer) = connected();
    let (outbox, count) = (connection.outbox(), Count::default());
    let ended = carry(connection, &outbox, &count);
    let mut floods = peer.try_clone().unwrap();
    let flood = thread::spawn(move || {
        let much = filler(16).repeat(4 << 10);
        while floods.write_all(&much).is_ok() {}
    });
    while count.0.load(Ordering::Acquire) < 10_000 {
        thread::yield_now();
    }
    let heard = count.0.load(Ordering::Acquire);
    assert!(outbox.push(seen(), SendPriority::Now));
    outbox.flush(false);
    peer.read_exact(&mut [0; 4]).expect("the peer gets a frame while it sends");
    let meanwhile = count.0.load(Ordering::Acquire) - heard;
    assert!(meanwhile < 200_000, "{meanwhile} messages arrived before the frame was written");
    peer.shutdown(Shutdown::Both).unwrap();
    ended.recv_timeout(DEADLINE).unwrap();
    flood.join().unwrap();
}

#[test]
fn messages_that_arrived_before_a_failed_write_are_delivered() {
    let (connection, mut peer) = connected();
    let (outbox, count) = (connection.outbox(), Count::default());
    for _ in 0..12 {
        peer.write_all(&filler(8 << 10)).unwrap();
    }
    drop(peer);
    // On a user's thread, before the connection reads.
    assert!(outbox.push(seen(), SendPriority::Now));
    while !connection.writer.write(outbox.shared()) {
        thread::yield_now();
    }
    let ended = carry(connection, &outbox, &count);
    ended.recv_timeout(DEADLINE).unwrap();
    assert_eq!(count.0.load(Ordering::Acquire), 12);
    assert!(!outbox.push(seen(), SendPriority::Now), "the outbox is closed");
}

#[test]
fn a_closed_connection_ends_even_if_its_peer_never_reads() {
    let (connection, peer) = connected();
    let (outbox, count) = (connection.outbox(), Count::default());
    let writer = connection.writer.clone();
    let ended = carry(connection, &outbox, &count);
    writer.rest.lock().unwrap().resize(8 << 20, 0);
    assert!(outbox.push(seen(), SendPriority::Now));
    outbox.flush(true);
    assert!(!writer.write(outbox.shared()), "the socket is full");
    // One more frame stays in the queue.
    let _ = outbox.push(seen(), SendPriority::Now);
    outbox.close();
    ended.recv_timeout(DEADLINE).expect("the connection has ended");
    drop(peer);
}

#[test]
fn a_message_at_the_limit_passes_and_a_byte_more_ends_the_connection() {
    let (connection, mut peer) = connected();
    let (outbox, count) = (connection.outbox(), Count::default());
    let ended = carry(connection, &outbox, &count);
    drop(outbox);
    peer.write_all(&filler(MAX_MESSAGE_BYTES)).unwrap();
    peer.write_all(&filler(6)).unwrap();
    while count.0.load(Ordering::Acquire) < 2 {
        assert!(ended.recv_timeout(Duration::from_millis(1)).is_err(), "the connection goes on");
    }
    // The length alone ends the connection.
    peer.write_all(&filler(MAX_MESSAGE_BYTES + 1)[..4]).unwrap();
    ended.recv_timeout(DEADLINE).expect("the connection has ended");
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    assert_eq!(count.0.load(Ordering::Acquire), 2);
}

#[test]
fn frames_leave_in_order_when_many_threads_flush_one_outbox() {
    let (connection, mut peer) = connected();
    let (outbox, count) = (connection.outbox(), Count::default());
    let ended = carry(connection, &outbox, &count);
    const THREADS: u64 = 4;
    const EACH: u64 = 5_000;
    // As a node does: push under a lock, flush outside of it.
    let next = Arc::new(Mutex::new(0));
    let threads = (0..THREADS).map(|thread| {
        let (outbox, next) = (outbox.clone(), next.clone());
        thread::spawn(move || {
            for round in 0..EACH {
                let priority = if round % 3 == 0 { SendPriority::Lazy } else { SendPriority::Now };
                let mut number = next.lock().unwrap();
                *number += 1;
                let flush = outbox.push(Frame::Packet(Packet::Seen(*number)), priority);
                drop(number);
                if flush {
                    outbox.flush(thread % 2 == 0);
                }
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut last = 0;
    while last < THREADS * EACH {
        let mut message = BytesMut::zeroed(4);
        peer.read_exact(&mut message).expect("every frame arrives");
        let length = u32::from_be_bytes(message[..].try_into().unwrap());
        message.resize(4 + length as usize, 0);
        peer.read_exact(&mut message[4..]).unwrap();
        for frame in next_frames(&mut message).unwrap().unwrap() {
            last += 1;
            assert_eq!(frame, Frame::Packet(Packet::Seen(last)).into_wire());
        }
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    outbox.close();
    ended.recv_timeout(DEADLINE).unwrap();
}
