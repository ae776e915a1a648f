//! Messages: one file for each pair of roles.
//!
//! The wire has one closed list of all messages. Which of them belong on a link depends on the
//! roles at its ends, so decoding takes the [`Direction`]. Each direction decodes its own messages
//! and rejects the others. The tests send every message there is, and so prove that no message is
//! without a direction.

mod client;
mod host;
mod output;
mod worker;

use super::field::{present, unknown, within};
use super::ids::task_id_bytes;
use crate::frame::Direction;
use crate::message::Message;
use crate::v1::{self, message::Kind};
use marline_core::Error;
use marline_core::id::TaskId;
use marline_core::message::{CancelMode, Refusal, SystemLimit};

pub(crate) fn encode(message: Message) -> v1::Message {
    let kind = match message {
        Message::FromClient(message) => Kind::from(message),
        Message::ToClient(message) => Kind::from(message),
        Message::FromWorker(message) => Kind::from(message),
        Message::ToWorker(message) => Kind::from(message),
        Message::ToHost(message) => Kind::from(message),
        Message::FromHost(message) => Kind::from(message),
    };
    v1::Message { kind: Some(kind) }
}

pub(crate) fn decode(wire: v1::Message, direction: Direction) -> Result<Message, Error> {
    let kind = present(wire.kind, "Message.kind")?;
    let name = name(&kind);
    let message = match direction {
        Direction::ClientToController => kind.try_into().map(Message::FromClient),
        Direction::ControllerToClient => kind.try_into().map(Message::ToClient),
        Direction::WorkerToController => kind.try_into().map(Message::FromWorker),
        Direction::ControllerToWorker => kind.try_into().map(Message::ToWorker),
        Direction::CallerToHost => kind.try_into().map(Message::ToHost),
        Direction::HostToCaller => kind.try_into().map(Message::FromHost),
    };
    message.map_err(|error| within(name, error))
}

/// Returns the error for a message that belongs to another direction.
fn misplaced(direction: Direction) -> Error {
    Error::invalid(format!("this is not sent {direction}"))
}

/// Returns the wire's two flags for a mode: `force`, and `alone`.
fn encode_cancel_mode(mode: CancelMode) -> (bool, bool) {
    match mode {
        CancelMode::Graceful => (false, false),
        CancelMode::GracefulAlone => (false, true),
        CancelMode::Force => (true, false),
    }
}

fn decode_cancel_mode(force: bool, alone: bool) -> CancelMode {
    match (force, alone) {
        (false, false) => CancelMode::Graceful,
        (false, true) => CancelMode::GracefulAlone,
        (true, _) => CancelMode::Force,
    }
}

fn cancel_task(task: TaskId, mode: CancelMode) -> v1::CancelTask {
    let (force, alone) = encode_cancel_mode(mode);
    v1::CancelTask { task: task_id_bytes(task), force, alone }
}

impl From<Refusal> for v1::Refusal {
    fn from(refusal: Refusal) -> v1::Refusal {
        match refusal {
            Refusal::TakenBack => v1::Refusal::TakenBack,
            Refusal::Draining => v1::Refusal::Draining,
            Refusal::Full | Refusal::SystemLimit(_) => v1::Refusal::Full,
            Refusal::NotStarted => v1::Refusal::NotStarted,
            Refusal::NotHere => v1::Refusal::NotHere,
        }
    }
}

/// Returns the limit that made a worker refuse, if it is known.
fn encode_system_limit(refusal: Refusal) -> v1::Lack {
    match refusal {
        Refusal::SystemLimit(SystemLimit::Descriptors) => v1::Lack::Descriptors,
        Refusal::SystemLimit(SystemLimit::Processes) => v1::Lack::Processes,
        Refusal::SystemLimit(SystemLimit::Memory) => v1::Lack::Memory,
        Refusal::TakenBack
        | Refusal::Draining
        | Refusal::Full
        | Refusal::NotStarted
        | Refusal::NotHere => v1::Lack::Unspecified,
    }
}

fn refusal(number: i32, lack: i32) -> Result<Refusal, Error> {
    match v1::Refusal::try_from(number) {
        Ok(v1::Refusal::TakenBack) => Ok(Refusal::TakenBack),
        Ok(v1::Refusal::Draining) => Ok(Refusal::Draining),
        // A later version may know further limits: then it is enough that the worker is full.
        Ok(v1::Refusal::Full) => Ok(match v1::Lack::try_from(lack) {
            Ok(v1::Lack::Descriptors) => Refusal::SystemLimit(SystemLimit::Descriptors),
            Ok(v1::Lack::Processes) => Refusal::SystemLimit(SystemLimit::Processes),
            Ok(v1::Lack::Memory) => Refusal::SystemLimit(SystemLimit::Memory),
            Ok(v1::Lack::Unspecified) | Err(_) => Refusal::Full,
        }),
        Ok(v1::Refusal::NotStarted) => Ok(Refusal::NotStarted),
        Ok(v1::Refusal::NotHere) => Ok(Refusal::NotHere),
        Ok(v1::Refusal::Unspecified) | Err(_) => Err(unknown("Refused.reason", number)),
    }
}

/// Returns the name of a message in `link.proto`.
pub(crate) fn name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Submit(_) => "submit",
        Kind::CancelTask(_) => "cancel_task",
        Kind::Put(_) => "put",
        Kind::Announce(_) => "announce",
        Kind::Resolve(_) => "resolve",
        Kind::Fetch(_) => "fetch",
        Kind::LocateForClient(_) => "locate_for_client",
        Kind::LocatedForClient(_) => "located_for_client",
        Kind::Hold(_) => "hold",
        Kind::Enclose(_) => "enclose",
        Kind::Accept(_) => "accept",
        Kind::Took(_) => "took",
        Kind::Yielded(_) => "yielded",
        Kind::AttemptTook(_) => "attempt_took",
        Kind::AttemptYielded(_) => "attempt_yielded",
        Kind::CallTook(_) => "call_took",
        Kind::Release(_) => "release",
        Kind::CreateActor(_) => "create_actor",
        Kind::FindActor(_) => "find_actor",
        Kind::Sync(_) => "sync",
        Kind::Synced(_) => "synced",
        Kind::ShowOutput(_) => "show_output",
        Kind::Shown(_) => "shown",
        Kind::Printed(_) => "printed",
        Kind::WatchActor(_) => "watch_actor",
        Kind::DeleteActor(_) => "delete_actor",
        Kind::KillActor(_) => "kill_actor",
        Kind::WatchSession(_) => "watch_session",
        Kind::Credit(_) => "credit",
        Kind::Unable(_) => "unable",
        Kind::Able(_) => "able",
        Kind::TaskEnded(_) => "task_ended",
        Kind::ObjectReady(_) => "object_ready",
        Kind::ActorCreated(_) => "actor_created",
        Kind::ActorFound(_) => "actor_found",
        Kind::ActorChanged(_) => "actor_changed",
        Kind::AssignTask(_) => "assign_task",
        Kind::ExecuteActorMethod(_) => "execute_actor_method",
        Kind::TakeBack(_) => "take_back",
        Kind::CancelAttempt(_) => "cancel_attempt",
        Kind::InstantiateActor(_) => "instantiate_actor",
        Kind::DestroyActor(_) => "destroy_actor",
        Kind::KillActorInstance(_) => "kill_actor_instance",
        Kind::Checkpointed(_) => "checkpointed",
        Kind::Checkpoint(_) => "checkpoint",
        Kind::Watched(_) => "watched",
        Kind::Entrusted(_) => "entrusted",
        Kind::Keep(_) => "keep",
        Kind::Forget(_) => "forget",
        Kind::Located(_) => "located",
        Kind::Bring(_) => "bring",
        Kind::Erase(_) => "erase",
        Kind::Leave(_) => "leave",
        Kind::DrainGraceMs(_) => "drain_grace_ms",
        Kind::WindUpGraceMs(_) => "wind_up_grace_ms",
        Kind::SessionEnded(_) => "session_ended",
        Kind::Warning(_) => "warning",
        Kind::Joined(_) => "joined",
        Kind::Refused(_) => "refused",
        Kind::TaskStarted(_) => "task_started",
        Kind::AttemptEnded(_) => "attempt_ended",
        Kind::Blocked(_) => "blocked",
        Kind::Resumed(_) => "resumed",
        Kind::ActorReady(_) => "actor_ready",
        Kind::ActorFailed(_) => "actor_failed",
        Kind::ActorDied(_) => "actor_died",
        Kind::ActorDestroyed(_) => "actor_destroyed",
        Kind::Watch(_) => "watch",
        Kind::ActorRefused(_) => "actor_refused",
        Kind::Entrust(_) => "entrust",
        Kind::Dropped(_) => "dropped",
        Kind::Locate(_) => "locate",
        Kind::Copied(_) => "copied",
        Kind::CopyLost(_) => "copy_lost",
        Kind::NotBrought(_) => "not_brought",
        Kind::Emptied(_) => "emptied",
        Kind::CallsEnded(_) => "calls_ended",
        Kind::Draining(_) => "draining",
        Kind::Leaving(_) => "leaving",
        Kind::Call(_) => "call",
        Kind::CancelCall(_) => "cancel_call",
        Kind::CallEnded(_) => "call_ended",
        Kind::CallRefused(_) => "call_refused",
        Kind::CallLost(_) => "call_lost",
    }
}
