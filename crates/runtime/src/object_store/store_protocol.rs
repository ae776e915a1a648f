//! The messages between a process and the object store of its node, over a socket that also carries
//! descriptors. Four bytes with its length precede each message. Both ends are the same version of
//! the same program or package, so no other program needs to know the format.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use marline_core::error::Error;
use marline_core::id::{ObjectId, Session, SessionEpoch, SessionId, TaskId};
use marline_core::object_store::BlobId;
use marline_objects::{Access, Block};
use marline_wire::convert::{decode_error, encode_error};

/// The longest message, in bytes: an error at its longest, and the fields around it.
const MAX_BYTES: usize = 1 << 20;

/// A message of a process. `number` is the number of the request: the process chooses it, and the
/// reply and the release of the request repeat it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StoreRequest {
    /// Requests room for this many bytes. `ahead`: the process does not need the room yet, and gets
    /// it only if the store has much room.
    Create { number: u64, bytes: u64, ahead: bool },
    /// Says that the granted room is filled: it is the data of this object, and does not change any
    /// more.
    Seal { number: u64, object: ObjectId },
    /// Discards the data that the process made for this object.
    Discard { object: ObjectId },
    /// Requests the data of this object, to read it.
    Read { number: u64, object: ObjectId },
    /// Releases a request: the process waits for it no more, reads the blob no more, or will not
    /// fill the room.
    Release { number: u64 },
    /// Says that the process is about to fork.
    Fork,
    /// Requests that the data of this object, which the process made, is saved so that it outlives
    /// the node.
    Save { number: u64, object: ObjectId },
    /// Asks why requests are not answered yet. The reply is `Refused`. Its error is `Exhausted` if
    /// a request of any process waits for room. `number` is the number of this message.
    ExplainWait { number: u64 },
}

/// A message of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StoreReply {
    /// Grants room or a pin. `passed`: the descriptor of the segment for this access comes with the
    /// message, because the process does not have it yet.
    Granted { number: u64, granted: GrantedBlob, passed: Option<Access> },
    /// The object is saved, if `durable`. Otherwise the cluster needs no durable data.
    Saved { number: u64, durable: bool },
    /// The request is refused.
    Refused { number: u64, error: Error },
    /// A segment is gone: the process may unmap it, since nothing in it will be read or filled any
    /// more.
    SegmentGone { segment: u32 },
}

/// A blob that a process may fill or read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GrantedBlob {
    pub blob: BlobId,
    pub block: Block,
    pub bytes: u64,
    /// How often memory of the segment had been returned to the system when the block was
    /// allocated. 0 if the blob is to be read.
    pub trims: u64,
    /// The session of the worker that has the store, if there is one.
    pub worker: Option<Session>,
}

impl StoreRequest {
    pub fn encode(self) -> BytesMut {
        let mut to = begin();
        match self {
            StoreRequest::Create { number, bytes, ahead } => {
                to.put_u8(1);
                to.put_u64(number);
                to.put_u64(bytes);
                to.put_u8(ahead.into());
            }
            StoreRequest::Seal { number, object } => {
                to.put_u8(2);
                to.put_u64(number);
                put_object(&mut to, object);
            }
            StoreRequest::Read { number, object } => {
                to.put_u8(3);
                to.put_u64(number);
                put_object(&mut to, object);
            }
            StoreRequest::Release { number } => {
                to.put_u8(4);
                to.put_u64(number);
            }
            StoreRequest::Fork => to.put_u8(5),
            StoreRequest::Discard { object } => {
                to.put_u8(6);
                put_object(&mut to, object);
            }
            StoreRequest::Save { number, object } => {
                to.put_u8(7);
                to.put_u64(number);
                put_object(&mut to, object);
            }
            StoreRequest::ExplainWait { number } => {
                to.put_u8(8);
                to.put_u64(number);
            }
        }
        end(to)
    }

    /// Takes the next request from the received bytes. `None` if it has not arrived whole.
    pub fn next(from: &mut BytesMut) -> Result<Option<StoreRequest>, MalformedMessage> {
        let Some(mut words) = next(from)? else { return Ok(None) };
        let ask = match words.try_get_u8()? {
            1 => {
                let (number, bytes) = (words.try_get_u64()?, words.try_get_u64()?);
                StoreRequest::Create { number, bytes, ahead: words.try_get_u8()? == 1 }
            }
            2 => StoreRequest::Seal { number: words.try_get_u64()?, object: object(&mut words)? },
            3 => StoreRequest::Read { number: words.try_get_u64()?, object: object(&mut words)? },
            4 => StoreRequest::Release { number: words.try_get_u64()? },
            5 => StoreRequest::Fork,
            6 => StoreRequest::Discard { object: object(&mut words)? },
            7 => StoreRequest::Save { number: words.try_get_u64()?, object: object(&mut words)? },
            8 => StoreRequest::ExplainWait { number: words.try_get_u64()? },
            _ => return Err(MalformedMessage),
        };
        Ok(Some(ask))
    }
}

impl StoreReply {
    pub fn encode(&self) -> BytesMut {
        let mut to = begin();
        match self {
            StoreReply::Granted { number, granted, passed } => {
                to.put_u8(1);
                to.put_u64(*number);
                to.put_u64(granted.blob.0);
                to.put_u32(granted.block.segment);
                to.put_u64(granted.block.offset);
                to.put_u64(granted.block.len);
                to.put_u64(granted.bytes);
                to.put_u64(granted.trims);
                to.put_u8(match passed {
                    None => 0,
                    Some(Access::Read) => 1,
                    Some(Access::Write) => 2,
                });
                if let Some(worker) = granted.worker {
                    to.put_u128(worker.id.as_u128());
                    to.put_u64(worker.epoch.0);
                }
            }
            StoreReply::Saved { number, durable } => {
                to.put_u8(3);
                to.put_u64(*number);
                to.put_u8((*durable).into());
            }
            StoreReply::Refused { number, error } => {
                to.put_u8(2);
                to.put_u64(*number);
                to.put_slice(&encode_error(&error.clone().bounded()));
            }
            StoreReply::SegmentGone { segment } => {
                to.put_u8(4);
                to.put_u32(*segment);
            }
        }
        end(to)
    }

    pub fn next(from: &mut BytesMut) -> Result<Option<StoreReply>, MalformedMessage> {
        let Some(mut words) = next(from)? else { return Ok(None) };
        let answer = match words.try_get_u8()? {
            1 => {
                let number = words.try_get_u64()?;
                let blob = BlobId(words.try_get_u64()?);
                let (segment, offset) = (words.try_get_u32()?, words.try_get_u64()?);
                let block = Block { segment, offset, len: words.try_get_u64()? };
                let (bytes, trims) = (words.try_get_u64()?, words.try_get_u64()?);
                let passed = match words.try_get_u8()? {
                    0 => None,
                    1 => Some(Access::Read),
                    2 => Some(Access::Write),
                    _ => return Err(MalformedMessage),
                };
                let worker = match words.has_remaining() {
                    false => None,
                    true => Some(Session {
                        id: SessionId::from_u128(words.try_get_u128()?),
                        epoch: SessionEpoch(words.try_get_u64()?),
                    }),
                };
                let granted = GrantedBlob { blob, block, bytes, trims, worker };
                StoreReply::Granted { number, granted, passed }
            }
            2 => {
                let number = words.try_get_u64()?;
                let error = decode_error(&words).map_err(|_| MalformedMessage)?;
                StoreReply::Refused { number, error }
            }
            3 => StoreReply::Saved {
                number: words.try_get_u64()?,
                durable: words.try_get_u8()? == 1,
            },
            4 => StoreReply::SegmentGone { segment: words.try_get_u32()? },
            _ => return Err(MalformedMessage),
        };
        Ok(Some(answer))
    }
}

/// The received bytes are not a message: the other end is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MalformedMessage;

impl From<bytes::TryGetError> for MalformedMessage {
    fn from(_: bytes::TryGetError) -> MalformedMessage {
        MalformedMessage
    }
}

fn begin() -> BytesMut {
    let mut to = BytesMut::with_capacity(96);
    to.put_u32(0);
    to
}

fn end(mut to: BytesMut) -> BytesMut {
    let len = (to.len() - 4) as u32;
    to[..4].copy_from_slice(&len.to_be_bytes());
    to
}

fn next(from: &mut BytesMut) -> Result<Option<Bytes>, MalformedMessage> {
    let Some(len) = from.first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_be_bytes(*len) as usize;
    if len > MAX_BYTES {
        return Err(MalformedMessage);
    }
    if from.len() < 4 + len {
        return Ok(None);
    }
    from.advance(4);
    Ok(Some(from.split_to(len).freeze()))
}

fn put_object(to: &mut BytesMut, object: ObjectId) {
    to.put_u128(object.origin.as_u128());
    to.put_u32(object.index);
}

fn object(words: &mut Bytes) -> Result<ObjectId, MalformedMessage> {
    let origin = TaskId::from_u128(words.try_get_u128()?);
    Ok(ObjectId::of(origin, words.try_get_u32()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_round_trip() {
        let object = ObjectId::of(TaskId::from_u128(7), 3);
        let asks = [
            StoreRequest::Create { number: 1, bytes: 1 << 40, ahead: false },
            StoreRequest::Create { number: 1, bytes: 2, ahead: true },
            StoreRequest::Seal { number: 4, object },
            StoreRequest::Discard { object },
            StoreRequest::Read { number: 2, object },
            StoreRequest::Release { number: 5 },
            StoreRequest::Fork,
            StoreRequest::Save { number: 3, object },
            StoreRequest::ExplainWait { number: 6 },
        ];
        let mut stream: BytesMut = asks.iter().flat_map(|ask| ask.encode()).collect();
        let heard: Vec<StoreRequest> =
            std::iter::from_fn(|| StoreRequest::next(&mut stream).unwrap()).collect();
        assert_eq!(heard, asks);
        let worker = Some(Session { id: SessionId::from_u128(5), epoch: SessionEpoch(6) });
        let block = Block { segment: 1, offset: 4096, len: 8192 };
        let granted = GrantedBlob { blob: BlobId(9), block, bytes: 5000, trims: 3, worker };
        let answers = [
            StoreReply::Granted { number: 1, granted, passed: Some(Access::Read) },
            StoreReply::Granted { number: 1, granted, passed: Some(Access::Write) },
            StoreReply::Granted {
                number: 1,
                granted: GrantedBlob { worker: None, ..granted },
                passed: None,
            },
            StoreReply::Refused { number: 2, error: Error::exhausted("no room") },
            StoreReply::Saved { number: 3, durable: true },
            StoreReply::SegmentGone { segment: 7 },
        ];
        let mut stream: BytesMut = answers.iter().flat_map(StoreReply::encode).collect();
        let heard: Vec<StoreReply> =
            std::iter::from_fn(|| StoreReply::next(&mut stream).unwrap()).collect();
        assert_eq!(heard, answers);
    }

    #[test]
    fn malformed_messages_are_rejected() {
        let whole = StoreRequest::Create { number: 1, bytes: 2, ahead: false }.encode();
        assert_eq!(
            StoreRequest::next(&mut BytesMut::from(&whole[..10])),
            Ok(None),
            "the rest may follow"
        );
        let mut short = BytesMut::from(&[0, 0, 0, 2, 1, 7][..]);
        assert_eq!(StoreRequest::next(&mut short), Err(MalformedMessage));
        let mut unknown = BytesMut::from(&[0, 0, 0, 1, 77][..]);
        assert_eq!(StoreRequest::next(&mut unknown), Err(MalformedMessage));
        let mut long = BytesMut::from(&[0xff, 0, 0, 0][..]);
        assert_eq!(StoreReply::next(&mut long), Err(MalformedMessage));
    }
}
