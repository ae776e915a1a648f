//! The protocol between a worker and an executor process. Its messages are in
//! `proto/marline/executor/v1`. A thread that is an executor gets the same commands and gives the
//! same reports, without encoding them.

use crate::convert::field::{all, each, millis, present, required, within};
use crate::convert::ids::{actor_id, actor_id_bytes, task_id, task_id_bytes};
use crate::executor_v1 as v1;
use crate::length_prefix;
use bytes::Bytes;
use marline_core::error::Error;
use marline_core::id::{ActorEpoch, Attempt, TaskId};
use marline_core::payload::{Payload, Value};
use marline_core::spec::{ActorSpec, Target, TaskOptions, TaskSpec};
use marline_core::worker::UserCodeResult;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;

/// A command to an executor.
#[derive(Clone, PartialEq, Debug)]
pub enum ExecutorCommand {
    /// Runs a function.
    RunTask {
        /// The task. Decoded, it has only the fields that an executor needs.
        spec: Arc<TaskSpec>,
        /// The number of the attempt.
        attempt: Attempt,
        /// The values of the references among the arguments, in order.
        values: Vec<Value>,
        /// The indexes of the GPUs that are granted.
        gpus: Vec<u32>,
    },
    /// Constructs the actor of this executor.
    ConstructActor {
        /// The actor.
        spec: Arc<ActorSpec>,
        /// The epoch of the instance.
        epoch: ActorEpoch,
        /// The values of the references among the arguments, in order.
        values: Vec<Value>,
        /// The indexes of the GPUs that are granted.
        gpus: Vec<u32>,
        /// The actor's saved states, the newest first.
        checkpoints: Vec<Payload>,
    },
    /// Runs a method of the actor.
    CallMethod {
        /// The call. Decoded, it has only the fields that an executor needs.
        spec: Arc<TaskSpec>,
        /// The number of the attempt.
        attempt: Attempt,
        /// The values of the references among the arguments, in order.
        values: Vec<Value>,
    },
}

/// A report of an executor. Each becomes the [event](marline_core::worker::Event) of the same name.
#[derive(Clone, PartialEq, Debug)]
pub enum ExecutorReport {
    /// The executor is up.
    Ready,
    /// User code of a task ended.
    TaskEnded {
        /// The task.
        task: TaskId,
        /// How its user code ended.
        end: UserCodeResult,
    },
    /// A task did not start: one of its inputs could not be brought to the executor.
    InputsUnavailable {
        /// The task.
        task: TaskId,
        /// The reason.
        error: Error,
    },
    /// The constructor of the actor ended.
    Constructed {
        /// The error, if it failed.
        result: Result<(), Error>,
    },
    /// A call to the actor ended.
    CallEnded {
        /// The call.
        call: TaskId,
        /// How its user code ended.
        end: UserCodeResult,
    },
    /// User code yielded an item.
    Yielded {
        /// The task or call.
        task: TaskId,
        /// The number of the item.
        index: u32,
        /// The item.
        value: Value,
    },
    /// The actor ends itself: it starts no more calls.
    ActorExited,
    /// User code waits for other work.
    Blocked,
    /// User code goes on after it was blocked.
    Resumed,
}

impl ExecutorCommand {
    /// Encodes the command, with its length.
    pub fn encode(self) -> Vec<u8> {
        use v1::command::Kind;
        let kind = match self {
            ExecutorCommand::RunTask { spec, attempt, values, gpus } => {
                let work = Some(encode_work(&spec, attempt, values));
                Kind::RunTask(v1::RunTask { work, gpus })
            }
            ExecutorCommand::ConstructActor { spec, epoch, values, gpus, checkpoints } => {
                Kind::ConstructActor(v1::ConstructActor {
                    spec: Some(spec.into()),
                    epoch: epoch.0,
                    values: all(values),
                    gpus,
                    checkpoints: all(checkpoints),
                })
            }
            ExecutorCommand::CallMethod { spec, attempt, values } => {
                Kind::CallMethod(encode_work(&spec, attempt, values))
            }
        };
        length_prefix::encode(&v1::Command { kind: Some(kind) })
    }

    /// Decodes a command that was received without its length.
    pub fn decode(bytes: Bytes) -> Result<ExecutorCommand, Error> {
        use v1::command::Kind;
        match present(decode::<v1::Command>(bytes)?.kind, "Command.kind")? {
            Kind::RunTask(v1::RunTask { work, gpus }) => {
                let (spec, attempt, values) = decode_work(present(work, "RunTask.work")?)?;
                Ok(ExecutorCommand::RunTask { spec, attempt, values, gpus })
            }
            Kind::ConstructActor(wire) => Ok(ExecutorCommand::ConstructActor {
                spec: required(wire.spec, "ConstructActor.spec")?,
                epoch: ActorEpoch(wire.epoch),
                values: each(wire.values, "ConstructActor.values")?,
                gpus: wire.gpus,
                checkpoints: each(wire.checkpoints, "ConstructActor.checkpoints")?,
            }),
            Kind::CallMethod(work) => {
                let (spec, attempt, values) = decode_work(work)?;
                Ok(ExecutorCommand::CallMethod { spec, attempt, values })
            }
        }
    }
}

impl ExecutorReport {
    /// Encodes the report, with its length.
    pub fn encode(self) -> Vec<u8> {
        use v1::report::Kind;
        let kind = match self {
            ExecutorReport::Ready => Kind::Ready(true),
            ExecutorReport::TaskEnded { task, end } => Kind::TaskEnded(encode_end(task, end)),
            ExecutorReport::InputsUnavailable { task, error } => {
                let error = Some(error.bounded().into());
                Kind::InputsUnavailable(v1::InputsUnavailable { task: task_id_bytes(task), error })
            }
            ExecutorReport::Constructed { result: Ok(()) } => Kind::ActorConstructed(true),
            ExecutorReport::Constructed { result: Err(error) } => {
                Kind::ConstructorFailed(error.bounded().into())
            }
            ExecutorReport::CallEnded { call, end } => Kind::CallEnded(encode_end(call, end)),
            ExecutorReport::Yielded { task, index, value } => {
                let (task, value) = (task_id_bytes(task), Some(value.into()));
                Kind::Yielded(v1::Yielded { task, index, value })
            }
            ExecutorReport::ActorExited => Kind::ActorExited(true),
            ExecutorReport::Blocked => Kind::Blocked(true),
            ExecutorReport::Resumed => Kind::Resumed(true),
        };
        length_prefix::encode(&v1::Report { kind: Some(kind) })
    }

    /// Decodes a report that was received without its length.
    pub fn decode(bytes: Bytes) -> Result<ExecutorReport, Error> {
        use v1::report::Kind;
        Ok(match present(decode::<v1::Report>(bytes)?.kind, "Report.kind")? {
            Kind::Ready(_) => ExecutorReport::Ready,
            Kind::TaskEnded(wire) => {
                let (task, end) = decode_end(wire)?;
                ExecutorReport::TaskEnded { task, end }
            }
            Kind::InputsUnavailable(wire) => ExecutorReport::InputsUnavailable {
                task: task_id(&wire.task, "InputsUnavailable.task")?,
                error: required(wire.error, "InputsUnavailable.error")?,
            },
            Kind::ActorConstructed(_) => ExecutorReport::Constructed { result: Ok(()) },
            Kind::ConstructorFailed(error) => {
                let error = Error::try_from(error);
                let error = error.map_err(|error| within("Report.constructor_failed", error))?;
                ExecutorReport::Constructed { result: Err(error) }
            }
            Kind::CallEnded(wire) => {
                let (call, end) = decode_end(wire)?;
                ExecutorReport::CallEnded { call, end }
            }
            Kind::Yielded(wire) => ExecutorReport::Yielded {
                task: task_id(&wire.task, "Yielded.task")?,
                index: wire.index,
                value: required(wire.value, "Yielded.value")?,
            },
            Kind::ActorExited(_) => ExecutorReport::ActorExited,
            Kind::Blocked(_) => ExecutorReport::Blocked,
            Kind::Resumed(_) => ExecutorReport::Resumed,
        })
    }
}

fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, Error> {
    M::decode(bytes).map_err(|error| Error::invalid(format!("invalid message: {error}")))
}

/// Encodes the fields that an executor needs: each command is encoded and decoded for one executor,
/// so every field costs time.
fn encode_work(spec: &TaskSpec, attempt: Attempt, values: Vec<Value>) -> v1::Work {
    // Each field is named, so that a new one must be considered here.
    let TaskSpec { id, target, args, needs: _, referents: _, returns, stream_window, options } =
        spec;
    let TaskOptions {
        timeout,
        durable,
        resources: _,
        max_retries: _,
        retry_on: _,
        retry_delay: _,
        preemptible: _,
    } = &**options;
    v1::Work {
        id: task_id_bytes(*id),
        attempt: attempt.0,
        name: target.name().to_string(),
        actor: target.actor().map(actor_id_bytes).unwrap_or_default(),
        args: Some(args.clone().into()),
        values: all(values),
        returns: *returns,
        stream_window: *stream_window,
        timeout_ms: timeout.map(millis),
        durable: *durable,
    }
}

fn decode_work(wire: v1::Work) -> Result<(Arc<TaskSpec>, Attempt, Vec<Value>), Error> {
    // Each field is named, as in `encode_work`. An executor has the defaults of the others.
    let TaskOptions { resources, max_retries, retry_on, retry_delay, preemptible, .. } =
        TaskOptions::default();
    let options = TaskOptions {
        timeout: wire.timeout_ms.map(Duration::from_millis),
        durable: wire.durable,
        resources,
        max_retries,
        retry_on,
        retry_delay,
        preemptible,
    };
    let name = Arc::from(wire.name);
    let target = match &*wire.actor {
        [] => Target::Function(name),
        actor => Target::Method { actor: actor_id(actor, "Work.actor")?, method: name },
    };
    let spec = TaskSpec {
        id: task_id(&wire.id, "Work.id")?,
        target,
        args: required(wire.args, "Work.args")?,
        needs: Vec::new(),
        referents: Vec::new(),
        returns: wire.returns,
        stream_window: wire.stream_window,
        options: Arc::new(options),
    };
    Ok((Arc::new(spec), Attempt(wire.attempt), each(wire.values, "Work.values")?))
}

fn encode_end(id: TaskId, end: UserCodeResult) -> v1::UserCodeEnded {
    let (values, error) = match end.outcome {
        Ok(values) => (all(values), None),
        Err(error) => (Vec::new(), Some(error.bounded().into())),
    };
    v1::UserCodeEnded { id: task_id_bytes(id), values, error, still_held: all(end.still_held) }
}

fn decode_end(wire: v1::UserCodeEnded) -> Result<(TaskId, UserCodeResult), Error> {
    let id = task_id(&wire.id, "UserCodeEnded.id")?;
    let outcome = match wire.error {
        None => Ok(each(wire.values, "UserCodeEnded.values")?),
        Some(error) => Err(required(Some(error), "UserCodeEnded.error")?),
    };
    let still_held = each(wire.still_held, "UserCodeEnded.still_held")?;
    Ok((id, UserCodeResult { outcome, still_held }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::sample;
    use bytes::BytesMut;
    use marline_core::error::Ran;
    use marline_core::id::Referent;

    /// Takes the one message from the bytes that a process would write.
    fn received(bytes: Vec<u8>) -> Bytes {
        let mut bytes = BytesMut::from(&bytes[..]);
        let message = length_prefix::next(&mut bytes).unwrap().unwrap();
        assert!(bytes.is_empty());
        message
    }

    /// A task with only the fields that an executor needs.
    fn reduced(spec: TaskSpec, options: TaskOptions) -> Arc<TaskSpec> {
        let options = Arc::new(TaskOptions {
            timeout: options.timeout,
            durable: options.durable,
            ..TaskOptions::default()
        });
        Arc::new(TaskSpec { needs: Vec::new(), referents: Vec::new(), options, ..spec })
    }

    #[test]
    fn commands_round_trip_with_every_field_that_an_executor_needs() {
        let options =
            TaskOptions { timeout: Some(Duration::from_secs(7)), ..sample::task_options() };
        assert!(options.durable, "the sample has no default");
        let full = TaskSpec { options: Arc::new(options.clone()), ..sample::task_spec() };
        let method = Target::Method { actor: sample::instance().actor, method: "add".into() };
        let values = vec![Value::default()];
        for target in [Target::Function("f".into()), method] {
            let spec = TaskSpec { target, ..full.clone() };
            let run = |spec: Arc<TaskSpec>| {
                let (values, gpus) = (values.clone(), vec![1, 2]);
                ExecutorCommand::RunTask { spec, attempt: Attempt(2), values, gpus }
            };
            let call = |spec: Arc<TaskSpec>| ExecutorCommand::CallMethod {
                spec,
                attempt: Attempt(2),
                values: values.clone(),
            };
            let sent = Arc::new(spec.clone());
            let arrived = reduced(spec, options.clone());
            let decode = |command: ExecutorCommand| {
                ExecutorCommand::decode(received(command.encode())).unwrap()
            };
            assert_eq!(decode(run(sent.clone())), run(arrived.clone()));
            assert_eq!(decode(call(sent)), call(arrived));
        }
    }

    #[test]
    fn the_command_to_construct_an_actor_arrives_whole() {
        let command = ExecutorCommand::ConstructActor {
            spec: Arc::new(sample::actor_spec()),
            epoch: sample::instance().epoch,
            values: vec![Value::default()],
            gpus: vec![3],
            checkpoints: vec![sample::payload()],
        };
        assert_eq!(ExecutorCommand::decode(received(command.clone().encode())).unwrap(), command);
    }

    #[test]
    fn reports_arrive_whole() {
        let (task, error) = (sample::attempt().task, Error::unavailable(Ran::No, "no argument"));
        let still_held = vec![Referent::Object(sample::object())];
        let end = |outcome| UserCodeResult { outcome, still_held: still_held.clone() };
        for report in [
            ExecutorReport::Ready,
            ExecutorReport::TaskEnded { task, end: end(Ok(vec![Value::default()])) },
            ExecutorReport::TaskEnded { task, end: end(Ok(Vec::new())) },
            ExecutorReport::TaskEnded { task, end: end(Err(Error::not_found("no such key"))) },
            ExecutorReport::InputsUnavailable { task, error: error.clone() },
            ExecutorReport::Constructed { result: Ok(()) },
            ExecutorReport::Constructed { result: Err(error) },
            ExecutorReport::CallEnded { call: task, end: end(Ok(vec![Value::default()])) },
            ExecutorReport::Yielded { task, index: 3, value: Value::default() },
            ExecutorReport::ActorExited,
            ExecutorReport::Blocked,
            ExecutorReport::Resumed,
        ] {
            let arrived = ExecutorReport::decode(received(report.clone().encode())).unwrap();
            assert_eq!(arrived, report);
        }
    }

    #[test]
    fn invalid_messages_are_rejected_by_name() {
        let refused =
            |bytes: Vec<u8>| ExecutorReport::decode(bytes.into()).unwrap_err().message().to_owned();
        assert!(refused(vec![0xff]).starts_with("invalid message"));
        assert!(refused(Vec::new()).starts_with("Report.kind is missing"));
        let command =
            v1::Command { kind: Some(v1::command::Kind::CallMethod(v1::Work::default())) };
        let words = ExecutorCommand::decode(command.encode_to_vec().into()).unwrap_err();
        assert!(words.message().starts_with("Work.id has 0 bytes"), "{words}");
    }
}
