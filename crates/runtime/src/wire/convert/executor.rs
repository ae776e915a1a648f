//! What executors are told of tasks and calls: the same as workers are, without what only a worker has to
//! know. It is made and read for each of them, so what is left out counts.

use super::field::{all, millis};
use super::ids::task_id_bytes;
use crate::wire::v1::{self, message::Kind};
use marline_core::account::Grant;
use marline_core::id::Attempt;
use marline_core::payload::Value;
use marline_core::spec::TaskSpec;

/// Run this task; of what it was granted, the executor shows it the GPUs.
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

/// Call this method. The executor knows which life of its actor it is.
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
