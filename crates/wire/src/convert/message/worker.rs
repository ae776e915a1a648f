//! Messages between workers and the controller.

use super::output::{decode_printed, printed};
use super::{decode_cancel_mode, encode_cancel_mode, encode_system_limit, misplaced, refusal};
use crate::convert::field::{all, each, millis, nanos, optional, required};
use crate::convert::ids::{task_id, task_id_bytes};
use crate::frame::Direction;
use crate::v1::{self, attempt_ended, message::Kind};
use marline_core::Error;
use marline_core::id::{ActorEpoch, Attempt, ObjectId};
use marline_core::message::{
    ActorExitReason, AttemptEnd, CallReport, CopyLocation, FromWorker, Instance, ShapeId, ToWorker,
};
use std::time::Duration;

impl From<ToWorker> for Kind {
    fn from(message: ToWorker) -> Kind {
        match message {
            ToWorker::Assign { spec, attempt, values, shape, grant } => {
                Kind::AssignTask(v1::AssignTask {
                    spec: Some(spec.into()),
                    attempt: attempt.0,
                    values: all(values),
                    shape: shape.0,
                    grant: grant.map(v1::Grant::from),
                })
            }
            ToWorker::Execute { spec, attempt, epoch, values } => {
                Kind::ExecuteActorMethod(v1::ExecuteActorMethod {
                    spec: Some(spec.into()),
                    attempt: attempt.0,
                    epoch: epoch.0,
                    values: all(values),
                })
            }
            ToWorker::TakeBack(attempt) => Kind::TakeBack(attempt.into()),
            ToWorker::CancelAttempt { attempt, mode } => {
                let (force, alone) = encode_cancel_mode(mode);
                let attempt = Some(attempt.into());
                Kind::CancelAttempt(v1::CancelAttempt { attempt, force, alone })
            }
            ToWorker::Took { attempt, count } => {
                Kind::AttemptTook(v1::AttemptTook { attempt: Some(attempt.into()), count })
            }
            ToWorker::Instantiate { spec, epoch, values, grant, checkpoints } => {
                Kind::InstantiateActor(v1::InstantiateActor {
                    spec: Some(spec.into()),
                    epoch: epoch.0,
                    values: all(values),
                    grant: Some(grant.into()),
                    checkpoints: all(checkpoints),
                })
            }
            ToWorker::Destroy(instance) => Kind::DestroyActor(instance.into()),
            ToWorker::Kill(instance) => Kind::KillActorInstance(instance.into()),
            ToWorker::Checkpointed { instance, sequence } => {
                let instance = Some(instance.into());
                Kind::Checkpointed(v1::Checkpoint { instance, sequence, payload: None })
            }
            ToWorker::Watched { session, alive } => {
                Kind::Watched(v1::Watched { session: Some(session.into()), alive })
            }
            ToWorker::SessionEnded { session } => Kind::SessionEnded(session.into()),
            ToWorker::Entrusted { call } => Kind::Entrusted(call.into()),
            ToWorker::Keep { object } => Kind::Keep(object.into()),
            ToWorker::Forget { object } => Kind::Forget(object.into()),
            ToWorker::Located { object, copies } => Kind::Located(located(object, copies)),
            ToWorker::Bring { object, from } => Kind::Bring(located(object, Ok(from))),
            ToWorker::Erase { object } => Kind::Erase(object.into()),
            ToWorker::Leave => Kind::Leave(v1::Nothing {}),
            ToWorker::Drain { grace } => Kind::DrainGraceMs(millis(grace)),
            ToWorker::WindUp { grace } => Kind::WindUpGraceMs(millis(grace)),
        }
    }
}

impl TryFrom<Kind> for ToWorker {
    type Error = Error;
    fn try_from(kind: Kind) -> Result<ToWorker, Error> {
        Ok(match kind {
            Kind::AssignTask(wire) => ToWorker::Assign {
                spec: required(wire.spec, "AssignTask.spec")?,
                attempt: Attempt(wire.attempt),
                values: each(wire.values, "AssignTask.values")?,
                shape: ShapeId(wire.shape),
                grant: optional(wire.grant, "AssignTask.grant")?,
            },
            Kind::ExecuteActorMethod(wire) => ToWorker::Execute {
                spec: required(wire.spec, "ExecuteActorMethod.spec")?,
                attempt: Attempt(wire.attempt),
                epoch: ActorEpoch(wire.epoch),
                values: each(wire.values, "ExecuteActorMethod.values")?,
            },
            Kind::TakeBack(attempt) => ToWorker::TakeBack(attempt.try_into()?),
            Kind::CancelAttempt(wire) => ToWorker::CancelAttempt {
                attempt: required(wire.attempt, "CancelAttempt.attempt")?,
                mode: decode_cancel_mode(wire.force, wire.alone),
            },
            Kind::AttemptTook(wire) => ToWorker::Took {
                attempt: required(wire.attempt, "AttemptTook.attempt")?,
                count: wire.count,
            },
            Kind::InstantiateActor(wire) => ToWorker::Instantiate {
                spec: required(wire.spec, "InstantiateActor.spec")?,
                epoch: ActorEpoch(wire.epoch),
                values: each(wire.values, "InstantiateActor.values")?,
                grant: required(wire.grant, "InstantiateActor.grant")?,
                checkpoints: each(wire.checkpoints, "InstantiateActor.checkpoints")?,
            },
            Kind::DestroyActor(instance) => ToWorker::Destroy(instance.try_into()?),
            Kind::KillActorInstance(instance) => ToWorker::Kill(instance.try_into()?),
            Kind::Checkpointed(wire) => ToWorker::Checkpointed {
                instance: required(wire.instance, "Checkpoint.instance")?,
                sequence: wire.sequence,
            },
            Kind::Watched(wire) => ToWorker::Watched {
                session: required(wire.session, "Watched.session")?,
                alive: wire.alive,
            },
            Kind::SessionEnded(session) => ToWorker::SessionEnded { session: session.try_into()? },
            Kind::Entrusted(call) => ToWorker::Entrusted { call: call.try_into()? },
            Kind::Keep(object) => ToWorker::Keep { object: object.try_into()? },
            Kind::Forget(object) => ToWorker::Forget { object: object.try_into()? },
            Kind::Bring(wire) => {
                let (object, from) = copies(wire)?;
                ToWorker::Bring { object, from: from? }
            }
            Kind::Erase(object) => ToWorker::Erase { object: object.try_into()? },
            Kind::Leave(v1::Nothing {}) => ToWorker::Leave,
            Kind::Located(wire) => {
                let (object, copies) = copies(wire)?;
                ToWorker::Located { object, copies }
            }
            Kind::DrainGraceMs(grace) => ToWorker::Drain { grace: Duration::from_millis(grace) },
            Kind::WindUpGraceMs(grace) => ToWorker::WindUp { grace: Duration::from_millis(grace) },
            _elsewhere => return Err(misplaced(Direction::ControllerToWorker)),
        })
    }
}

impl From<FromWorker> for Kind {
    fn from(message: FromWorker) -> Kind {
        match message {
            FromWorker::Joined => Kind::Joined(v1::Nothing {}),
            FromWorker::Refused { attempt, reason } => Kind::Refused(v1::Refused {
                attempt: Some(attempt.into()),
                reason: v1::Refusal::from(reason).into(),
                lack: encode_system_limit(reason).into(),
            }),
            FromWorker::Unable { runtime, error } => {
                Kind::Unable(v1::Unable { runtime: runtime.to_string(), error: Some(error.into()) })
            }
            FromWorker::Able { runtime } => Kind::Able(runtime.to_string()),
            FromWorker::Started { attempt } => Kind::TaskStarted(attempt.into()),
            FromWorker::Ended { attempt, end, kept, ran_for, next } => {
                Kind::AttemptEnded(v1::AttemptEnded {
                    attempt: Some(attempt.into()),
                    end: Some(end.into()),
                    kept: all(kept),
                    ran_for_ns: nanos(ran_for),
                    next: next.map(v1::Try::from),
                })
            }
            FromWorker::Yielded { attempt, to, index, value } => {
                Kind::AttemptYielded(v1::AttemptYielded {
                    attempt: Some(attempt.into()),
                    to: to.map(v1::Session::from),
                    index,
                    value: Some(value.into()),
                })
            }
            FromWorker::Blocked { attempt } => Kind::Blocked(attempt.into()),
            FromWorker::Resumed { attempt } => Kind::Resumed(attempt.into()),
            FromWorker::ActorReady { instance } => Kind::ActorReady(instance.into()),
            FromWorker::ActorFailed { instance, error } => Kind::ActorFailed(lost(instance, error)),
            FromWorker::ActorDied { instance, error } => Kind::ActorDied(lost(instance, error)),
            FromWorker::ActorDestroyed { instance, exit: why } => {
                let (idle, exited) = (why == ActorExitReason::Idle, why == ActorExitReason::Exited);
                let instance = Some(instance.into());
                Kind::ActorDestroyed(v1::ActorDestroyed { instance, idle, exited })
            }
            FromWorker::Checkpoint { instance, sequence, payload } => {
                let (instance, payload) = (Some(instance.into()), Some(payload.into()));
                Kind::Checkpoint(v1::Checkpoint { instance, sequence, payload })
            }
            FromWorker::Watch { session } => Kind::Watch(session.into()),
            FromWorker::ActorRefused { instance, reason } => {
                let (reason, lack) =
                    (v1::Refusal::from(reason).into(), encode_system_limit(reason).into());
                let instance = Some(instance.into());
                Kind::ActorRefused(v1::ActorRefused { instance, reason, lack })
            }
            FromWorker::Entrust { call, to, contains, stored, instance, kept } => {
                Kind::Entrust(v1::Entrust {
                    call: Some(call.into()),
                    to: Some(to.into()),
                    contains: all(contains),
                    stored: all(stored),
                    instance: Some(instance.into()),
                    kept: all(kept),
                })
            }
            FromWorker::Dropped { instance, things } => {
                Kind::Dropped(v1::Dropped { instance: Some(instance.into()), things: all(things) })
            }
            FromWorker::Locate { object } => Kind::Locate(object.into()),
            FromWorker::Copied { object } => Kind::Copied(object.into()),
            FromWorker::CopyLost { object, error } => {
                let (object, error) = (Some(object.into()), Some(error.into()));
                Kind::CopyLost(v1::CopyLost { object, error })
            }
            FromWorker::CallsEnded(reports) => {
                Kind::CallsEnded(v1::CallsEnded { reports: all(reports) })
            }
            FromWorker::Printed { source, output } => Kind::Printed(printed(source, output)),
            FromWorker::NotBrought { object, error } => {
                let (object, error) = (Some(object.into()), Some(error.into()));
                Kind::NotBrought(v1::CopyLost { object, error })
            }
            FromWorker::Draining => Kind::Draining(v1::Nothing {}),
            FromWorker::Emptied => Kind::Emptied(v1::Nothing {}),
            FromWorker::Leaving => Kind::Leaving(v1::Nothing {}),
        }
    }
}

impl TryFrom<Kind> for FromWorker {
    type Error = Error;
    fn try_from(kind: Kind) -> Result<FromWorker, Error> {
        Ok(match kind {
            Kind::Joined(v1::Nothing {}) => FromWorker::Joined,
            Kind::Refused(wire) => FromWorker::Refused {
                attempt: required(wire.attempt, "Refused.attempt")?,
                reason: refusal(wire.reason, wire.lack)?,
            },
            Kind::Unable(wire) => FromWorker::Unable {
                runtime: wire.runtime.into(),
                error: required(wire.error, "Unable.error")?,
            },
            Kind::Able(runtime) => FromWorker::Able { runtime: runtime.into() },
            Kind::TaskStarted(attempt) => FromWorker::Started { attempt: attempt.try_into()? },
            Kind::AttemptEnded(wire) => FromWorker::Ended {
                attempt: required(wire.attempt, "AttemptEnded.attempt")?,
                end: required(wire.end, "AttemptEnded.end")?,
                kept: each(wire.kept, "AttemptEnded.kept")?,
                ran_for: Duration::from_nanos(wire.ran_for_ns),
                next: optional(wire.next, "AttemptEnded.next")?,
            },
            Kind::AttemptYielded(wire) => FromWorker::Yielded {
                attempt: required(wire.attempt, "AttemptYielded.attempt")?,
                to: optional(wire.to, "AttemptYielded.to")?,
                index: wire.index,
                value: required(wire.value, "AttemptYielded.value")?,
            },
            Kind::Blocked(attempt) => FromWorker::Blocked { attempt: attempt.try_into()? },
            Kind::Resumed(attempt) => FromWorker::Resumed { attempt: attempt.try_into()? },
            Kind::ActorReady(instance) => FromWorker::ActorReady { instance: instance.try_into()? },
            Kind::ActorFailed(wire) => FromWorker::ActorFailed {
                instance: required(wire.instance, "ActorLost.instance")?,
                error: required(wire.error, "ActorLost.error")?,
            },
            Kind::ActorDied(wire) => FromWorker::ActorDied {
                instance: required(wire.instance, "ActorLost.instance")?,
                error: required(wire.error, "ActorLost.error")?,
            },
            Kind::ActorDestroyed(wire) => FromWorker::ActorDestroyed {
                instance: required(wire.instance, "ActorDestroyed.instance")?,
                exit: match (wire.exited, wire.idle) {
                    (true, _) => ActorExitReason::Exited,
                    (false, true) => ActorExitReason::Idle,
                    (false, false) => ActorExitReason::Requested,
                },
            },
            Kind::Checkpoint(wire) => FromWorker::Checkpoint {
                instance: required(wire.instance, "Checkpoint.instance")?,
                sequence: wire.sequence,
                payload: required(wire.payload, "Checkpoint.payload")?,
            },
            Kind::Watch(session) => FromWorker::Watch { session: session.try_into()? },
            Kind::ActorRefused(wire) => FromWorker::ActorRefused {
                instance: required(wire.instance, "ActorRefused.instance")?,
                reason: refusal(wire.reason, wire.lack)?,
            },
            Kind::Entrust(wire) => FromWorker::Entrust {
                call: required(wire.call, "Entrust.call")?,
                to: required(wire.to, "Entrust.to")?,
                contains: each(wire.contains, "Entrust.contains")?,
                stored: each(wire.stored, "Entrust.stored")?,
                instance: required(wire.instance, "Entrust.instance")?,
                kept: each(wire.kept, "Entrust.kept")?,
            },
            Kind::Dropped(wire) => FromWorker::Dropped {
                instance: required(wire.instance, "Dropped.instance")?,
                things: each(wire.things, "Dropped.things")?,
            },
            Kind::Locate(object) => FromWorker::Locate { object: object.try_into()? },
            Kind::Copied(object) => FromWorker::Copied { object: object.try_into()? },
            Kind::CopyLost(wire) => FromWorker::CopyLost {
                object: required(wire.object, "CopyLost.object")?,
                error: required(wire.error, "CopyLost.error")?,
            },
            Kind::CallsEnded(wire) => {
                FromWorker::CallsEnded(each(wire.reports, "CallsEnded.reports")?)
            }
            Kind::Printed(wire) => {
                let (source, output) = decode_printed(wire)?;
                FromWorker::Printed { source, output }
            }
            Kind::NotBrought(wire) => FromWorker::NotBrought {
                object: required(wire.object, "CopyLost.object")?,
                error: required(wire.error, "CopyLost.error")?,
            },
            Kind::Draining(v1::Nothing {}) => FromWorker::Draining,
            Kind::Emptied(v1::Nothing {}) => FromWorker::Emptied,
            Kind::Leaving(v1::Nothing {}) => FromWorker::Leaving,
            _elsewhere => return Err(misplaced(Direction::WorkerToController)),
        })
    }
}

/// Decodes the copies of an object, or why there are none.
pub(crate) fn copies(
    wire: v1::Located,
) -> Result<(ObjectId, Result<Vec<CopyLocation>, Error>), Error> {
    let object = required(wire.object, "Located.object")?;
    let copies = match optional(wire.error, "Located.error")? {
        Some(error) => Err(error),
        None => Ok(each(wire.copies, "Located.copies")?),
    };
    Ok((object, copies))
}

pub(crate) fn located(object: ObjectId, copies: Result<Vec<CopyLocation>, Error>) -> v1::Located {
    let (copies, error) = match copies {
        Ok(copies) => (all(copies), None),
        Err(error) => (Vec::new(), Some(error.into())),
    };
    v1::Located { object: Some(object.into()), copies, error }
}

impl From<CopyLocation> for v1::CopyAt {
    fn from(copy: CopyLocation) -> v1::CopyAt {
        let address = copy.address.map(|address| address.to_string());
        v1::CopyAt { worker: Some(copy.worker.into()), address }
    }
}

impl TryFrom<v1::CopyAt> for CopyLocation {
    type Error = Error;
    fn try_from(wire: v1::CopyAt) -> Result<CopyLocation, Error> {
        let worker = required(wire.worker, "CopyAt.worker")?;
        Ok(CopyLocation { worker, address: wire.address.map(Into::into) })
    }
}

fn lost(instance: Instance, error: Error) -> v1::ActorLost {
    v1::ActorLost { instance: Some(instance.into()), error: Some(error.into()) }
}

impl From<AttemptEnd> for attempt_ended::End {
    fn from(end: AttemptEnd) -> attempt_ended::End {
        match end {
            AttemptEnd::Finished(values) => attempt_ended::End::Finished(values.into()),
            AttemptEnd::Failed(error) => attempt_ended::End::Failed(error.into()),
            AttemptEnd::Cancelled => attempt_ended::End::Cancelled(v1::Nothing {}),
            AttemptEnd::Lost(error) => attempt_ended::End::Lost(error.into()),
        }
    }
}

impl TryFrom<attempt_ended::End> for AttemptEnd {
    type Error = Error;
    fn try_from(wire: attempt_ended::End) -> Result<AttemptEnd, Error> {
        Ok(match wire {
            attempt_ended::End::Finished(values) => AttemptEnd::Finished(values.try_into()?),
            attempt_ended::End::Failed(error) => AttemptEnd::Failed(error.try_into()?),
            attempt_ended::End::Cancelled(v1::Nothing {}) => AttemptEnd::Cancelled,
            attempt_ended::End::Lost(error) => AttemptEnd::Lost(error.try_into()?),
        })
    }
}

impl From<CallReport> for v1::CallReport {
    fn from(report: CallReport) -> v1::CallReport {
        v1::CallReport {
            task: task_id_bytes(report.task),
            method: report.method.to_string(),
            instance: Some(report.instance.into()),
            ran_for_ns: nanos(report.ran_for),
            error: report.error.map(v1::Error::from),
        }
    }
}

impl TryFrom<v1::CallReport> for CallReport {
    type Error = Error;
    fn try_from(wire: v1::CallReport) -> Result<CallReport, Error> {
        Ok(CallReport {
            task: task_id(&wire.task, "CallReport.task")?,
            method: wire.method.into(),
            instance: required(wire.instance, "CallReport.instance")?,
            ran_for: Duration::from_nanos(wire.ran_for_ns),
            error: optional(wire.error, "CallReport.error")?,
        })
    }
}
