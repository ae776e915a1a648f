//! Handles to tasks and calls that were submitted: to wait for their results, or to pass these on
//! to other work.

use crate::answer::Answer;
use crate::client::Client;
use crate::codec::decode;
use crate::reference::ObjectRef;
use marline_runtime::Pending;
use marline_runtime::control::TaskStatus;
use marline_runtime::core::error::{Error, Ran};
use marline_runtime::core::id::{ObjectId, TaskId};
use marline_runtime::core::message::CancelMode;
use marline_runtime::core::payload::Outcome;
use serde::de::DeserializeOwned;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// A task or call that was submitted. Await the handle, or [`wait`](TaskHandle::wait) for it.
/// Dropping the handle does not stop the task.
pub struct TaskHandle<T> {
    client: Client,
    id: TaskId,
    pub(crate) pending: Pending<Outcome>,
    result: ResultSource<T>,
}

/// Where the result of a handle is. The handle holds it until it is dropped.
enum ResultSource<T> {
    /// The controller has the result, or knows where it is.
    Task(ObjectRef<T>),
    /// The result of a call comes to this process only.
    Call(Arc<Answer>),
}

impl<T: DeserializeOwned + 'static> TaskHandle<T> {
    /// Returns the handle of a task whose result is held already.
    pub(crate) fn of_task(client: Client, id: TaskId, pending: Pending<Outcome>) -> TaskHandle<T> {
        let result = ResultSource::Task(ObjectRef::new(client.clone(), ObjectId::of(id, 0)));
        TaskHandle { client, id, pending, result }
    }

    /// Returns the handle of a call whose answer also goes to `answer`.
    pub(crate) fn of_call(
        client: Client,
        id: TaskId,
        pending: Pending<Outcome>,
        answer: Arc<Answer>,
    ) -> TaskHandle<T> {
        TaskHandle { client, id, pending, result: ResultSource::Call(answer) }
    }

    /// Returns the task's id.
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// Whether the task has ended.
    pub fn is_done(&self) -> bool {
        self.pending.is_ready()
    }

    /// Blocks this thread until the task has ended, and returns its result.
    ///
    /// Inside a task, the waiting task lends its CPU to other tasks meanwhile. At most
    /// `max_blocked_executors` (1,000) tasks of a worker may wait at a time; the wait of one more
    /// fails with `Exhausted`. `MARLINE_MAX_BLOCKED_EXECUTORS` in the environment of the worker
    /// sets that limit. Awaiting a handle does not lend the CPU.
    pub fn wait(self) -> Result<T, Error> {
        let outcome = self.pending.wait()?;
        decode_outcome(&self.client, outcome)
    }

    /// Blocks this thread until the task has ended, or fails with `Timeout` when the time is over.
    /// After a timeout the handle can be waited for again. The result is returned once; another
    /// wait after that fails with `Invalid`. A task lends its CPU as with [`wait`](Self::wait).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<T, Error> {
        decode_outcome(&self.client, self.pending.wait_timeout(timeout)?)
    }

    /// Asks the controller for the status of the task: its state, its worker, its attempts, and why
    /// it waits.
    ///
    /// ```
    /// use marline::{Cluster, Program, Resources, TaskState};
    ///
    /// let cluster = Cluster::local(Program::new().task("one", || 1))?;
    /// let huge = Resources::cpus(10_000);
    /// let task = cluster.client().task("one").resources(huge).submit::<i32>(())?;
    /// let status = task.status()?;
    /// assert_eq!(status.state(), TaskState::Pending);
    /// assert!(status.waits_for.contains("no worker is large enough"));
    /// # Ok::<(), marline::Error>(())
    /// ```
    pub fn status(&self) -> Result<TaskStatus, Error> {
        self.client.inner.status(self.id)
    }

    /// Cancels the task. Waits for it fail with `Cancelled`, unless the task ended before.
    ///
    /// - A task that has not started ends at once.
    /// - A running task is asked to stop: its code sees that in
    ///   [`context`](crate::context)`().cancel`, and a command gets SIGTERM. If it has not stopped
    ///   after the worker's [`cancel_grace`](crate::WorkerBuilder::cancel_grace) (5 s), it is ended
    ///   together with its executor. An executor that is a thread cannot be ended: it runs on, and
    ///   its result is dropped.
    /// - A running call is asked to stop, but never ended by force, since that would end its actor.
    ///   After `cancel_grace` waits for the call fail with `Cancelled`, but the call occupies its
    ///   actor until it returns.
    pub fn cancel(&self) {
        self.client.inner.cancel(self.id, CancelMode::Graceful);
    }

    /// Returns a reference to the result, as an argument for other tasks. They wait for the result.
    pub fn result(&self) -> ObjectRef<T> {
        match &self.result {
            ResultSource::Task(object) => object.clone(),
            ResultSource::Call(answer) => answer.publish(&self.client),
        }
    }
}

impl<T> fmt::Debug for TaskHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskHandle({})", self.id)
    }
}

impl<T: DeserializeOwned + 'static> Future for TaskHandle<T> {
    type Output = Result<T, Error>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let outcome = ready!(Pin::new(&mut this.pending).poll(cx))?;
        Poll::Ready(decode_outcome(&this.client, outcome))
    }
}

fn decode_outcome<T: DeserializeOwned + 'static>(
    client: &Client,
    outcome: Outcome,
) -> Result<T, Error> {
    let values = outcome?;
    let value = values.first().ok_or_else(without_value)?;
    decode(client, &value.payload)
}

/// Returns the error for an outcome without a value. The work has run, and the error says that it
/// may have.
pub(crate) fn without_value() -> Error {
    Error::internal("a result without a value").ran(Ran::Maybe)
}

#[cfg(test)]
mod tests {
    use crate::{ActorId, Cluster, Error, ErrorKind, ObjectId, Program, TaskHandle, TaskId};
    use serde::{Serialize, Serializer, ser};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    #[test]
    fn the_debug_output_of_a_handle_has_its_id() {
        let program = Program::new().task("one", || 1).actor("Clerk", || 0_u8, |clerk| clerk);
        let cluster = Cluster::local(program).unwrap();
        let client = cluster.client();
        let task: TaskHandle<i32> = client.task("one").submit(()).unwrap();
        let (id, value): (TaskId, ObjectId) = (task.id(), task.result().id());
        assert_eq!(format!("{task:?}"), format!("TaskHandle({id})"));
        assert_eq!(format!("{:?}", task.result()), format!("ObjectRef({value})"));
        let clerk = client.actor("Clerk").create(()).unwrap();
        let id: ActorId = clerk.id();
        assert_eq!(format!("{clerk:?}"), format!("ActorHandle({id})"));
        assert_eq!(format!("{client:?}"), "Client(of this process)");
    }

    /// A value that cannot be encoded.
    struct Opaque;

    impl Serialize for Opaque {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(ser::Error::custom("it is opaque"))
        }
    }

    #[test]
    fn an_error_after_the_work_ran_says_that_it_may_have_run() {
        let runs = Arc::new(AtomicU32::new(0));
        let run = {
            let runs = runs.clone();
            move || runs.fetch_add(1, Ordering::SeqCst) + 1
        };
        let (number, opaque) = (run.clone(), run.clone());
        let program = Program::new()
            .task("number", number)
            .task("opaque", move || (opaque(), Opaque).1)
            .task("square", |x: i64| x * x)
            .actor(
                "Clerk",
                || (),
                |clerk| {
                    let opaque = run.clone();
                    let clerk = clerk.method("number", move |_: &mut ()| run());
                    clerk.method("opaque", move |_: &mut ()| (opaque(), Opaque).1)
                },
            );
        let cluster = Cluster::local(program).unwrap();
        let client = cluster.client();
        let clerk = client.actor("Clerk").create(()).unwrap();
        let ran = |error: Error, times: u32| {
            assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Invalid, true), "{error}");
            assert_eq!(runs.load(Ordering::SeqCst), times);
        };
        // The caller asks for another type.
        ran(client.task("number").submit::<String>(()).unwrap().wait().unwrap_err(), 1);
        ran(clerk.call::<String>("number", ()).unwrap().wait().unwrap_err(), 2);
        let mut handle = client.task("number").submit::<String>(()).unwrap();
        ran(handle.wait_timeout(Duration::from_secs(60)).unwrap_err(), 3);
        let result = client.task("number").submit::<String>(()).unwrap().result();
        ran(client.get(&result).unwrap_err(), 4);
        let result = clerk.call::<String>("number", ()).unwrap().result();
        ran(client.get(&result).unwrap_err(), 5);
        // The executor cannot encode the result.
        ran(client.task("opaque").submit::<()>(()).unwrap().wait().unwrap_err(), 6);
        ran(clerk.call::<()>("opaque", ()).unwrap().wait().unwrap_err(), 7);
        // The function does not begin without its arguments.
        let error = client.task("square").submit::<i64>(("seven",)).unwrap().wait().unwrap_err();
        assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Invalid, false), "{error}");
    }

    #[test]
    fn a_wait_that_times_out_says_that_the_work_may_have_run() {
        let (begun, has_begun) = crate::channel::oneshot();
        let (stop, stopped) = crate::channel::bounded::<()>(1);
        let begun = std::sync::Mutex::new(Some(begun));
        let program = Program::new().task("hang", move || {
            let begun = begun.lock().unwrap().take();
            begun.map(|begun| begun.send(()));
            let _ = stopped.recv().wait();
        });
        let cluster = Cluster::local(program).unwrap();
        let client = cluster.client();
        let mut handle = client.task("hang").submit::<()>(()).unwrap();
        let mut has_begun = has_begun;
        has_begun.recv().timeout(Duration::from_secs(60)).wait().unwrap();
        let error = handle.wait_timeout(Duration::from_millis(1)).unwrap_err();
        assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Timeout, true));
        drop(stop);
        handle.wait().unwrap();
    }
}
