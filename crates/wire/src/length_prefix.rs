//! Messages on a plain socket: each follows its length in four bytes, big-endian.

use crate::MAX_MESSAGE_BYTES;
use crate::v1;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use marline_core::error::Error;
use prost::Message;

const LENGTH_BYTES: usize = 4;

/// Appends a message.
pub(crate) fn put(message: &impl Message, to: &mut impl BufMut) {
    let length = message.encoded_len();
    to.put_u32(u32::try_from(length).expect("messages are bounded far below 4 GiB"));
    message.encode(to).expect("the buffer grows");
}

/// Encodes one message.
pub(crate) fn encode(message: &impl Message) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LENGTH_BYTES + message.encoded_len());
    put(message, &mut bytes);
    bytes
}

/// Appends frames that are sent together.
pub fn put_frames(frames: &v1::Frames, to: &mut BytesMut) {
    to.reserve(LENGTH_BYTES + frames.encoded_len());
    put(frames, to);
}

/// Takes the first frames from the received bytes. `None` if they have not arrived whole.
pub fn next_frames(received: &mut BytesMut) -> Result<Option<Vec<v1::Frame>>, Error> {
    let Some(bytes) = next(received)? else { return Ok(None) };
    let frames = v1::Frames::decode(bytes);
    let frames = frames.map_err(|error| Error::invalid(format!("invalid frames: {error}")))?;
    Ok(Some(frames.frames))
}

/// Takes the bytes of the first message from the received bytes. `None` if it has not arrived
/// whole.
pub fn next(received: &mut BytesMut) -> Result<Option<Bytes>, Error> {
    let Some(length) = received.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_MESSAGE_BYTES {
        return Err(Error::too_large(format!(
            "a message has {length} bytes, the limit is {MAX_MESSAGE_BYTES} (MAX_MESSAGE_BYTES)"
        )));
    }
    if received.len() < LENGTH_BYTES + length {
        received.reserve(LENGTH_BYTES + length - received.len());
        return Ok(None);
    }
    received.advance(LENGTH_BYTES);
    Ok(Some(received.split_to(length).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;
    use marline_core::link::Packet;

    #[test]
    fn a_message_arrives_whole_however_its_bytes_are_split() {
        let frames = v1::Frames { frames: vec![Frame::Packet(Packet::Seen(7)).into_wire()] };
        let (mut bytes, mut received) = (BytesMut::new(), BytesMut::new());
        put_frames(&frames, &mut bytes);
        let (last, rest) = bytes.split_last().unwrap();
        for byte in rest {
            received.put_u8(*byte);
            assert_eq!(next_frames(&mut received).unwrap(), None, "it is not whole yet");
        }
        received.put_u8(*last);
        assert_eq!(next_frames(&mut received).unwrap(), Some(frames.frames));
        assert!(received.is_empty());
    }

    #[test]
    fn a_length_beyond_the_limit_is_rejected_before_anything_is_read() {
        let mut received = BytesMut::from(&u32::MAX.to_be_bytes()[..]);
        assert!(next(&mut received).unwrap_err().message().contains("MAX_MESSAGE_BYTES"));
    }

    #[test]
    fn bytes_that_are_no_frames_are_rejected() {
        let mut received = BytesMut::from(&[0, 0, 0, 1, 0xff][..]);
        let words = next_frames(&mut received).unwrap_err().message().to_owned();
        assert!(words.starts_with("invalid frames"), "{words}");
    }
}
