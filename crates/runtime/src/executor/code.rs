//! The code of functions, for runtimes whose executors are forks. There, the last value of each
//! task with pickled arguments is the function's code. Tasks of clients in other languages name a
//! function that can be imported, and have no code.
//!
//! A worker sends the code of a function to each of its executors once. The executor stores the
//! code when it arrives, even if the task that brought it never runs. If code does not arrive
//! complete, the worker sends it again with the next task: see [`ReceivedCode::complete`].
//!
//! Code in the node's object store is never left out, since no bytes are copied for it.

use super::Program;
use bytes::Bytes;
use marline_core::error::{Error, Ran};
use marline_core::map::{Map, Set};
use marline_core::payload::{Encoding, Payload, Value};
use marline_core::spec::TaskSpec;
use marline_wire::executor::{ExecutorCommand, ExecutorReport};
use std::sync::{Arc, Mutex};

/// The functions whose code an executor was sent. On the worker's side.
#[derive(Default)]
pub(super) struct SentCode(Mutex<Set<Arc<str>>>);

impl SentCode {
    /// Removes the code from a task if the executor was sent it before.
    pub fn leave_out(&self, command: &mut ExecutorCommand) {
        let Some((spec, code)) = code_of(command) else { return };
        let name = spec.target.name().clone();
        if code.payload.stored.is_none()
            && !self.0.lock().expect("nothing panics under it").insert(name)
        {
            *code = Value::default();
        }
    }

    /// Forgets what was sent, because the executor lacks code that it was sent. All code is sent
    /// again when it is next needed.
    pub fn forget(&self) {
        self.0.lock().expect("nothing panics under it").clear();
    }
}

/// The code that an executor has received. On the executor's side.
#[derive(Default)]
pub(super) struct ReceivedCode(Map<Arc<str>, Payload>);

impl ReceivedCode {
    /// Stores the code that comes with a task. If the worker left the code out, adds the stored
    /// code. Fails if the code is missing or incomplete. Then the task must not start, and the
    /// error is the report for the worker.
    pub fn complete(
        &mut self,
        program: &dyn Program,
        command: &mut ExecutorCommand,
    ) -> Result<(), ExecutorReport> {
        let Some((spec, code)) = code_of(command) else { return Ok(()) };
        let name = spec.target.name();
        let whole = if code.payload.stored.is_some() {
            true
        } else if *code == Value::default() {
            self.0.get(name).map(|kept| code.payload = kept.clone()).is_some()
        } else {
            let whole = program.is_code_of(name, &code.payload);
            if whole {
                self.0.insert(name.clone(), detached(&code.payload));
            }
            whole
        };
        if whole {
            return Ok(());
        }
        let words = format!("the code of {name:?} did not arrive complete at this executor");
        let error = Error::unavailable(Ran::No, words);
        Err(ExecutorReport::InputsUnavailable { task: spec.id, error })
    }
}

/// Returns the spec of a task and its last value, if that value is the code of the function.
fn code_of(command: &mut ExecutorCommand) -> Option<(&TaskSpec, &mut Value)> {
    match command {
        ExecutorCommand::RunTask { spec, values, .. }
            if spec.args.encoding == Encoding::Pickle5 =>
        {
            Some((spec, values.last_mut()?))
        }
        ExecutorCommand::RunTask { .. }
        | ExecutorCommand::ConstructActor { .. }
        | ExecutorCommand::CallMethod { .. } => None,
    }
}

/// Copies a payload. The original would keep the whole message alive in which it arrived.
fn detached(payload: &Payload) -> Payload {
    let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
    let (inline, buffers) = (copy(&payload.inline), payload.buffers.iter().map(copy).collect());
    Payload { inline, buffers, ..payload.clone() }
}

#[cfg(test)]
mod tests {
    use super::super::{Instance, Invocation, Reply};
    use super::*;
    use marline_core::id::{Attempt, ObjectId, TaskId};
    use marline_core::spec::Target;

    /// A program for which code is complete if it begins with the function's name.
    struct Named;

    impl Program for Named {
        fn provides(&self) -> Vec<String> {
            Vec::new()
        }

        fn run(&self, _: &Invocation) -> Result<Reply, Error> {
            unreachable!("nothing is run here")
        }

        fn construct(&self, _: &Invocation) -> Result<Arc<dyn Instance>, Error> {
            unreachable!("nothing is run here")
        }

        fn comes_with_code(&self) -> bool {
            true
        }

        fn is_code_of(&self, name: &str, code: &Payload) -> bool {
            code.inline.starts_with(name.as_bytes())
        }
    }

    fn task(function: &str, code: Payload) -> ExecutorCommand {
        let spec = TaskSpec {
            id: TaskId::from_u128(1),
            target: Target::Function(function.into()),
            args: Payload { encoding: Encoding::Pickle5, ..Payload::default() },
            needs: Vec::new(),
            referents: Vec::new(),
            returns: 1,
            stream_window: None,
            options: Arc::default(),
        };
        let values = vec![Payload::raw("argument").into(), code.into()];
        let (spec, attempt, gpus) = (Arc::new(spec), Attempt(1), Vec::new());
        ExecutorCommand::RunTask { spec, attempt, values, gpus }
    }

    fn code(command: &ExecutorCommand) -> Payload {
        let ExecutorCommand::RunTask { values, .. } = command else { panic!("it is a task") };
        values[1].payload.clone()
    }

    #[test]
    fn code_is_sent_once_and_reaches_every_task() {
        let (sent, mut received) = (SentCode::default(), ReceivedCode::default());
        let whole = Payload { code_version: 11, ..Payload::raw("f: return 1") };
        for time in 0..3 {
            let mut command = task("f", whole.clone());
            sent.leave_out(&mut command);
            assert_eq!(code(&command) == Payload::default(), time > 0, "sent with the first only");
            received.complete(&Named, &mut command).expect("it is here");
            assert_eq!(code(&command), whole);
        }
    }

    #[test]
    fn code_that_did_not_arrive_whole_is_sent_again() {
        let (sent, mut received) = (SentCode::default(), ReceivedCode::default());
        let mut command = task("f", Payload::raw("x: flipped"));
        sent.leave_out(&mut command);
        let Err(ExecutorReport::InputsUnavailable { error, .. }) =
            received.complete(&Named, &mut command)
        else {
            panic!("the task must not begin")
        };
        assert_eq!(error.message(), "the code of \"f\" did not arrive complete at this executor");
        // A task that the worker sent before it received that report has not started, either.
        let mut command = task("f", Payload::raw("f: return 1"));
        sent.leave_out(&mut command);
        assert!(received.complete(&Named, &mut command).is_err());
        sent.forget();
        let mut command = task("f", Payload::raw("f: return 1"));
        sent.leave_out(&mut command);
        received.complete(&Named, &mut command).expect("it came with this task");
    }

    #[test]
    fn the_last_argument_of_a_task_without_code_is_unchanged() {
        let sent = SentCode::default();
        for _ in 0..2 {
            let mut command = task("f", Payload::raw("the last argument"));
            let ExecutorCommand::RunTask { spec, .. } = &mut command else { unreachable!() };
            Arc::make_mut(spec).args.encoding = Encoding::MessagePack;
            sent.leave_out(&mut command);
            assert_eq!(code(&command), Payload::raw("the last argument"));
        }
    }

    #[test]
    fn a_reference_to_stored_code_is_sent_with_every_task() {
        let (sent, mut received) = (SentCode::default(), ReceivedCode::default());
        let stored = Payload::default().stored_as(ObjectId::of(TaskId::from_u128(2), 0));
        for _ in 0..2 {
            let mut command = task("f", stored.clone());
            sent.leave_out(&mut command);
            received.complete(&Named, &mut command).expect("it is in the store");
            assert_eq!(code(&command), stored);
        }
    }
}
