//! The messages between a worker and an executor process. They are the messages between a
//! controller and a worker, without a link. Each is preceded by its length: four bytes, big-endian.
//!
//! - To the executor: `assign_task`, `instantiate_actor`, `execute_actor_method`.
//! - From the executor: `joined` when it is up, `attempt_yielded` and `attempt_ended` for tasks and
//!   calls, `actor_ready` or `actor_failed`, `actor_destroyed` when the actor ends itself, and
//!   `blocked`, `resumed`, `dropped`.

use super::run::{Command, ExecutorReport};
use crate::net::MAX_MESSAGE_BYTES;
use crate::wire::convert;
use crate::wire::frame::Direction;
use crate::wire::message::Message;
use crate::wire::v1;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use marline_core::error::Error;
use marline_core::message::{ActorExitReason, AttemptEnd, FromWorker, ToWorker};
use prost::Message as _;
use std::time::Duration;

const LENGTH_BYTES: usize = 4;

fn encode(message: Message) -> Vec<u8> {
    frame(&convert::encode_message(message))
}

fn frame(wire: &v1::Message) -> Vec<u8> {
    let length = wire.encoded_len();
    let mut bytes = Vec::with_capacity(LENGTH_BYTES + length);
    bytes.put_u32(u32::try_from(length).expect("payloads are bounded far below 4 GiB"));
    wire.encode(&mut bytes).expect("a Vec has room");
    bytes
}

/// Encodes a command to an executor.
pub(super) fn encode_command(command: Command) -> Vec<u8> {
    match command {
        Command::Run { spec, attempt, values, grant } => {
            frame(&convert::encode_run(&spec, attempt, values, grant))
        }
        Command::Call { spec, attempt, values } => {
            frame(&convert::encode_call(&spec, attempt, values))
        }
        Command::Construct { spec, epoch, values, grant, checkpoints } => {
            let make = ToWorker::Instantiate { spec, epoch, values, grant, checkpoints };
            encode(Message::ToWorker(make))
        }
    }
}

/// Decodes a command to an executor.
pub(super) fn decode_command(frame: Bytes) -> Result<Command, Error> {
    let wire = decode(frame)?;
    match convert::decode_message(wire, Direction::ControllerToWorker)? {
        Message::ToWorker(ToWorker::Assign { spec, attempt, values, shape: _, grant }) => {
            Ok(Command::Run { spec, attempt, values, grant: grant.unwrap_or_default() })
        }
        Message::ToWorker(ToWorker::Instantiate { spec, epoch, values, grant, checkpoints }) => {
            Ok(Command::Construct { spec, epoch, values, grant, checkpoints })
        }
        Message::ToWorker(ToWorker::Execute { spec, attempt, epoch: _, values }) => {
            Ok(Command::Call { spec, attempt, values })
        }
        message => Err(Error::invalid(format!("no command to an executor: {message:?}"))),
    }
}

/// Encodes the report that the executor is up.
pub(super) fn encode_ready() -> Vec<u8> {
    encode(Message::FromWorker(FromWorker::Joined))
}

/// Encodes a report of an executor.
pub(super) fn encode_report(report: ExecutorReport) -> Vec<u8> {
    encode(Message::FromWorker(match report {
        ExecutorReport::RunEnded { attempt, end }
        | ExecutorReport::CallFinished { attempt, end } => {
            let (kept, ran_for, next) = (end.still_held, Duration::ZERO, None);
            let end = match end.outcome {
                Ok(values) => AttemptEnd::Finished(values),
                Err(error) => AttemptEnd::Failed(error.bounded()),
            };
            FromWorker::Ended { attempt, end, kept, ran_for, next }
        }
        ExecutorReport::InputsUnavailable { attempt, error } => {
            let (end, ran_for) = (AttemptEnd::Lost(error.bounded()), Duration::ZERO);
            FromWorker::Ended { attempt, end, kept: Vec::new(), ran_for, next: None }
        }
        ExecutorReport::Yielded { attempt, index, value } => {
            FromWorker::Yielded { attempt, to: None, index, value }
        }
        ExecutorReport::Constructed { instance, result: Ok(()) } => {
            FromWorker::ActorReady { instance }
        }
        ExecutorReport::Constructed { instance, result: Err(error) } => {
            FromWorker::ActorFailed { instance, error: error.bounded() }
        }
        ExecutorReport::Exited { instance } => {
            FromWorker::ActorDestroyed { instance, exit: ActorExitReason::Exited }
        }
        ExecutorReport::Blocked { attempt, blocked: true } => FromWorker::Blocked { attempt },
        ExecutorReport::Blocked { attempt, blocked: false } => FromWorker::Resumed { attempt },
    }))
}

/// Decodes a report of an executor.
pub(super) fn decode_report(frame: Bytes) -> Result<FromWorker, Error> {
    match convert::decode_message(decode(frame)?, Direction::WorkerToController)? {
        Message::FromWorker(message) => Ok(message),
        message => Err(Error::invalid(format!("no report of an executor: {message:?}"))),
    }
}

fn decode(frame: Bytes) -> Result<v1::Message, Error> {
    v1::Message::decode(frame).map_err(|error| Error::invalid(format!("a broken message: {error}")))
}

/// Takes the first complete frame from the bytes that were read.
pub(super) fn next_frame(read: &mut BytesMut) -> Result<Option<Bytes>, Error> {
    if read.len() < LENGTH_BYTES {
        return Ok(None);
    }
    let length = (&read[..LENGTH_BYTES]).get_u32() as usize;
    if length > MAX_MESSAGE_BYTES {
        return Err(Error::too_large(format!(
            "a message of {length} bytes, the limit is {MAX_MESSAGE_BYTES} (MAX_MESSAGE_BYTES)"
        )));
    }
    if read.len() < LENGTH_BYTES + length {
        read.reserve(LENGTH_BYTES + length - read.len());
        return Ok(None);
    }
    read.advance(LENGTH_BYTES);
    Ok(Some(read.split_to(length).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::convert::sample;
    use marline_core::account::Grant;
    use marline_core::error::Ran;
    use marline_core::id::{ActorEpoch, ActorId, Attempt, TaskId};
    use marline_core::message::{AttemptId, Instance};
    use marline_core::payload::Value;
    use marline_core::spec::{TaskOptions, TaskSpec};
    use marline_core::worker::UserCodeResult;
    use std::sync::Arc;

    fn only_frame(bytes: Vec<u8>) -> Bytes {
        let mut read = BytesMut::new();
        let (last, rest) = bytes.split_last().unwrap();
        for byte in rest {
            read.put_u8(*byte);
            assert_eq!(next_frame(&mut read).unwrap(), None, "it is not whole yet");
        }
        read.put_u8(*last);
        let frame = next_frame(&mut read).unwrap().unwrap();
        assert!(read.is_empty());
        frame
    }

    #[test]
    fn frames_come_whole_however_they_are_cut() {
        assert_eq!(decode_report(only_frame(encode_ready())).unwrap(), FromWorker::Joined);
    }

    #[test]
    fn an_executor_is_told_what_it_has_to_know() {
        let options =
            TaskOptions { timeout: Some(Duration::from_secs(7)), ..sample::task_options() };
        let spec = Arc::new(TaskSpec { options: Arc::new(options), ..sample::task_spec() });
        let (attempt, values) = (Attempt(2), vec![Value::default()]);
        let grant = Grant { gpus: vec![1], ..Grant::default() };
        let told = |command: Command| decode_command(only_frame(encode_command(command))).unwrap();
        let run = Command::Run { spec: spec.clone(), attempt, values: values.clone(), grant };
        let Command::Run { spec: same, attempt: Attempt(2), values: given, grant } = told(run)
        else {
            panic!("a task is to be run")
        };
        assert_eq!((given, grant.gpus), (values.clone(), vec![1]));
        assert_eq!((same.id, &same.target, &same.args), (spec.id, &spec.target, &spec.args));
        assert_eq!((same.returns, same.options.timeout), (spec.returns, spec.options.timeout));
        assert!(same.options.durable);
        let call = Command::Call { spec: spec.clone(), attempt, values };
        let Command::Call { spec: same, attempt: Attempt(2), .. } = told(call) else {
            panic!("a method is to be called")
        };
        assert_eq!((same.id, &same.args), (spec.id, &spec.args));
    }

    #[test]
    fn what_an_executor_says_arrives() {
        let attempt = AttemptId { task: TaskId::from_u128(1), attempt: Attempt(2) };
        let end = UserCodeResult {
            outcome: Err(Error::not_found("no such key")),
            still_held: Vec::new(),
        };
        let said =
            decode_report(only_frame(encode_report(ExecutorReport::RunEnded { attempt, end })))
                .unwrap();
        let FromWorker::Ended { attempt: same, end: AttemptEnd::Failed(error), .. } = said else {
            panic!("{said:?}")
        };
        assert_eq!((same, error.message()), (attempt, "no such key"));
        let error = Error::unavailable(Ran::No, "its argument did not come");
        let said =
            encode_report(ExecutorReport::InputsUnavailable { attempt, error: error.clone() });
        let said = decode_report(only_frame(said)).unwrap();
        let FromWorker::Ended { end: AttemptEnd::Lost(same), .. } = said else {
            panic!("{said:?}")
        };
        assert_eq!(same, error);
        let instance = Instance { actor: ActorId::from_u128(7), epoch: ActorEpoch(3) };
        let said = ExecutorReport::Constructed { instance, result: Ok(()) };
        let said = decode_report(only_frame(encode_report(said))).unwrap();
        assert_eq!(said, FromWorker::ActorReady { instance });
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_read() {
        let mut read = BytesMut::from(&u32::MAX.to_be_bytes()[..]);
        assert!(next_frame(&mut read).unwrap_err().message().contains("MAX_MESSAGE_BYTES"));
    }
}
