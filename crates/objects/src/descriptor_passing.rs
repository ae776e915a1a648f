//! Passes file descriptors over Unix sockets, beside bytes.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The most descriptors in one message.
pub const MAX_DESCRIPTORS: usize = 4;

/// Sends bytes, and descriptors with the first byte. Returns how many of the bytes were sent.
pub fn send(socket: impl AsFd, bytes: &[u8], passed: &[BorrowedFd<'_>]) -> io::Result<usize> {
    assert!(passed.len() <= MAX_DESCRIPTORS && !bytes.is_empty());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !passed.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(passed)), "there is room");
    }
    loop {
        let slices = [IoSlice::new(bytes)];
        match sendmsg(&socket, &slices, &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return Ok(sent?),
        }
    }
}

/// Receives bytes, and the descriptors that came with them. No bytes: the peer has closed the
/// socket.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut slices = [IoSliceMut::new(buffer)];
        match recvmsg(&socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let passed = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(passed) => passed.collect(),
        _ => Vec::new(), // The enum is not ours; the socket is not set to receive anything else.
    });
    Ok((received.bytes, passed.collect()))
}
