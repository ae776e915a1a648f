//! Messages between callers and the workers that host their actors.

use super::{cancel_task, decode_cancel_mode, encode_system_limit, misplaced, refusal};
use crate::convert::field::{all, each, required};
use crate::convert::ids::{task_id, task_id_bytes};
use crate::frame::Direction;
use crate::v1::{self, message::Kind};
use marline_core::Error;
use marline_core::id::{ActorEpoch, Attempt};
use marline_core::message::{FromHost, ToHost};

impl From<ToHost> for Kind {
    fn from(message: ToHost) -> Kind {
        match message {
            ToHost::Call { spec, attempt, epoch, number, values, took } => Kind::Call(v1::Call {
                spec: Some(spec.into()),
                attempt: attempt.0,
                epoch: epoch.0,
                number,
                values: all(values),
                took,
            }),
            ToHost::CancelCall { call, mode } => Kind::CancelCall(cancel_task(call, mode)),
            ToHost::Took { call, count } => {
                Kind::CallTook(v1::Took { task: task_id_bytes(call), count })
            }
        }
    }
}

impl TryFrom<Kind> for ToHost {
    type Error = Error;
    fn try_from(kind: Kind) -> Result<ToHost, Error> {
        Ok(match kind {
            Kind::Call(wire) => ToHost::Call {
                spec: required(wire.spec, "Call.spec")?,
                attempt: Attempt(wire.attempt),
                epoch: ActorEpoch(wire.epoch),
                number: wire.number,
                values: each(wire.values, "Call.values")?,
                took: wire.took,
            },
            Kind::CancelCall(wire) => ToHost::CancelCall {
                call: task_id(&wire.task, "CancelTask.task")?,
                mode: decode_cancel_mode(wire.force, wire.alone),
            },
            Kind::CallTook(wire) => {
                ToHost::Took { call: task_id(&wire.task, "Took.task")?, count: wire.count }
            }
            _elsewhere => return Err(misplaced(Direction::CallerToHost)),
        })
    }
}

impl From<FromHost> for Kind {
    fn from(message: FromHost) -> Kind {
        match message {
            FromHost::CallEnded { attempt, outcome, items } => Kind::CallEnded(v1::CallEnded {
                attempt: Some(attempt.into()),
                outcome: Some(outcome.into()),
                items,
            }),
            FromHost::CallRefused { attempt, reason } => Kind::CallRefused(v1::Refused {
                attempt: Some(attempt.into()),
                reason: v1::Refusal::from(reason).into(),
                lack: encode_system_limit(reason).into(),
            }),
            FromHost::CallLost { attempt, error } => Kind::CallLost(v1::CallLost {
                attempt: Some(attempt.into()),
                error: Some(error.into()),
            }),
        }
    }
}

impl TryFrom<Kind> for FromHost {
    type Error = Error;
    fn try_from(kind: Kind) -> Result<FromHost, Error> {
        Ok(match kind {
            Kind::CallEnded(wire) => FromHost::CallEnded {
                attempt: required(wire.attempt, "CallEnded.attempt")?,
                outcome: required(wire.outcome, "CallEnded.outcome")?,
                items: wire.items,
            },
            Kind::CallRefused(wire) => FromHost::CallRefused {
                attempt: required(wire.attempt, "Refused.attempt")?,
                reason: refusal(wire.reason, wire.lack)?,
            },
            Kind::CallLost(wire) => FromHost::CallLost {
                attempt: required(wire.attempt, "CallLost.attempt")?,
                error: required(wire.error, "CallLost.error")?,
            },
            _elsewhere => return Err(misplaced(Direction::HostToCaller)),
        })
    }
}
