//! The messages in which a worker hands tasks and calls to its executors. They are the messages
//! that the worker got, without the fields that only a worker needs: each message is encoded and
//! decoded for one executor, so every field costs time.

use super::field::{all, millis};
use super::ids::task_id_bytes;
use crate::wire::v1::{self, message::Kind};
use marline_core::account::Grant;
use marline_core::id::Attempt;
use marline_core::payload::Value;
use marline_core::spec::TaskSpec;

/// Encodes the command to run a task. Of the grant, the executor only needs the GPUs.
pub(crate) fn encode_run(
    spec: &TaskSpec,
    attempt: Attempt,
    values: Vec<Value>,
    grant: Grant,
) -> v1::Message {
    let grant = (!grant.gpus.is_empty()).then(|| grant.into());
    let spec = Some(task_spec(spec));
    let (attempt, values, shape) = (attempt.0, all(values), 0);
    let kind = Kind::AssignTask(v1::AssignTask { spec, attempt, values, shape, grant });
    v1::Message { kind: Some(kind) }
}

/// Encodes the command to call a method. The executor knows the epoch of its actor.
pub(crate) fn encode_call(spec: &TaskSpec, attempt: Attempt, values: Vec<Value>) -> v1::Message {
    let spec = Some(task_spec(spec));
    let (attempt, values, epoch) = (attempt.0, all(values), 0);
    let call = v1::ExecuteActorMethod { spec, attempt, epoch, values };
    v1::Message { kind: Some(Kind::ExecuteActorMethod(call)) }
}

fn task_spec(spec: &TaskSpec) -> v1::TaskSpec {
    let (timeout_ms, durable) = (spec.options.timeout.map(millis), spec.options.durable);
    let options = (timeout_ms.is_some() || durable).then(|| v1::TaskOptions {
        timeout_ms,
        durable,
        ..Default::default()
    });
    v1::TaskSpec {
        id: task_id_bytes(spec.id),
        target: Some(spec.target.clone().into()),
        args: Some(spec.args.clone().into()),
        needs: Vec::new(),
        holds: Vec::new(),
        returns: spec.returns,
        stream: spec.stream_window,
        options,
    }
}
