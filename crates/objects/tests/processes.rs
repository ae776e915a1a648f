//! Two processes: one owns the memory, the other maps a passed segment to read and to fill blocks.

use marline_objects::{Access, Arena, Block, MappedSegments, descriptor_passing};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// The variable that tells a process that it is the other one.
const OTHER: &str = "MARLINE_OBJECTS_OTHER";

/// Starts this program again to run one function of it. The standard input of the child is a
/// socket.
fn start(function: &str) -> (Child, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", function, "--ignored", "--nocapture"])
        .env(OTHER, "1")
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(there)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (child, here)
}

/// Encodes the message of this test: a block, and how many of its bytes are used.
fn encode(block: Block, len: usize) -> Vec<u8> {
    [block.segment.into(), block.offset, block.len, len as u64]
        .iter()
        .flat_map(|number: &u64| number.to_le_bytes())
        .collect()
}

fn decode(bytes: &[u8]) -> (Block, usize) {
    let mut numbers = bytes.chunks(8).map(|number| u64::from_le_bytes(number.try_into().unwrap()));
    let mut next = || numbers.next().unwrap();
    (Block { segment: next() as u32, offset: next(), len: next() }, next() as usize)
}

#[test]
fn another_process_reads_a_block_in_place_and_fills_another_block() {
    let arena = Arena::default();
    let (mut child, socket) = start("the_other");
    let mut room = arena.allocate(1_000_000).unwrap();
    room.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8);
    let given = room.seal();
    let (block, range) = given.place();
    let segment = arena.segment(block.segment).unwrap();
    let passed = [segment.descriptor(Access::Read), segment.descriptor(Access::Write)];
    descriptor_passing::send(&socket, &encode(block, range.end), &passed).unwrap();
    let answer = arena.allocate(1_000_000).unwrap();
    descriptor_passing::send(&socket, &encode(answer.block(), answer.len()), &[]).unwrap();
    let mut done = [0; 1];
    assert_eq!(descriptor_passing::receive(&socket, &mut done).unwrap().0, 1);
    let answer = answer.seal();
    assert!(answer.iter().zip(given.iter()).all(|(answer, given)| *answer == 255 - given));
    assert!(child.wait().unwrap().success());
}

#[test]
#[ignore = "the other process of the test above"]
fn the_other() {
    if std::env::var_os(OTHER).is_none() {
        return;
    }
    let socket = std::io::stdin();
    let (windows, mut bytes) = (MappedSegments::default(), [0; 32]);
    let (count, passed) = descriptor_passing::receive(socket.as_fd(), &mut bytes).unwrap();
    assert_eq!((count, passed.len()), (32, 2));
    let (block, len) = decode(&bytes);
    assert!(windows.view(block, len, |_| ()).is_err(), "the segment is not mapped yet");
    for (access, descriptor) in [Access::Read, Access::Write].into_iter().zip(passed) {
        windows.add(block.segment, access, descriptor).unwrap();
        assert!(windows.has(block.segment, access));
    }
    assert!(windows.view(Block { len: 1 << 40, ..block }, 1 << 40, |_| ()).is_err());
    let given = windows.view(block, len, |_| ()).unwrap();
    assert_eq!(descriptor_passing::receive(socket.as_fd(), &mut bytes).unwrap().0, 32);
    let (block, len) = decode(&bytes);
    let mut answer = windows.writable(block, len, 0, |_| ()).unwrap();
    answer.iter_mut().zip(given.iter()).for_each(|(answer, given)| *answer = 255 - given);
    descriptor_passing::send(socket.as_fd(), &[1], &[]).unwrap();
}
