//! Tasks and calls that were submitted: waiting for what they come to, or having others wait.

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

/// A task that was submitted: await it, or [`wait`](TaskHandle::wait) for it. Dropping it does not stop
/// the task.
pub struct TaskHandle<T> {
    client: Client,
    id: TaskId,
    pub(crate) pending: Pending<Outcome>,
    result: ResultSource<T>,
}

/// What a handle keeps of a result until it goes.
enum ResultSource<T> {
    /// The controller has it.
    Task(ObjectRef<T>),
    /// It comes to this process alone.
    Call(Arc<Answer>),
}

impl<T: DeserializeOwned + 'static> TaskHandle<T> {
    /// A task whose result is held for this handle.
    pub(crate) fn of_task(client: Client, id: TaskId, pending: Pending<Outcome>) -> TaskHandle<T> {
        let result = ResultSource::Task(ObjectRef::new(client.clone(), ObjectId::of(id, 0)));
        TaskHandle { client, id, pending, result }
    }

    /// A call whose answer goes there too.
    pub(crate) fn of_call(
        client: Client,
        id: TaskId,
        pending: Pending<Outcome>,
        answer: Arc<Answer>,
    ) -> TaskHandle<T> {
        TaskHandle { client, id, pending, result: ResultSource::Call(answer) }
    }

    /// The task's id.
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.pending.is_ready()
    }

    /// Blocks this thread until it has ended.
    ///
    /// Inside a task, the task that waits lends its CPU to other tasks meanwhile. At most `max_blocked_executors`
    /// (1,000) tasks of a worker wait at a time; one more fails with `Exhausted`. `MARLINE_MAX_BLOCKED_EXECUTORS`
    /// sets that limit where the worker starts. Awaiting a handle lends nothing: a task that blocks on a future
    /// keeps its CPU.
    pub fn wait(self) -> Result<T, Error> {
        let outcome = self.pending.wait()?;
        decode_outcome(&self.client, outcome)
    }

    /// Blocks this thread until it has ended, or the time is over: then it can be waited for again. Its
    /// result is given once; asking again after that is `Invalid`. A task lends its CPU as with [`wait`](Self::wait).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<T, Error> {
        decode_outcome(&self.client, self.pending.wait_timeout(timeout)?)
    }

    /// What is known of it: where it is, how often it was tried, why it waits.
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

    /// Stops it; whoever waits for it gets `Cancelled`, unless it was faster.
    ///
    /// - What has not started ends at once.
    /// - A task that runs is asked to: code that looks at [`context`](crate::context)`().cancel` stops by
    ///   itself, a command gets SIGTERM. What has not stopped after the worker's
    ///   [`cancel_grace`](crate::WorkerBuilder::cancel_grace) (5 s) is ended with its executor. (An executor
    ///   that is a thread cannot be ended: it is left alone, and what it returns goes nowhere.)
    /// - A call that runs is only asked, since ending it by force would end its actor. After
    ///   `cancel_grace` nobody waits for it any more, but it goes on taking its place at the actor until it
    ///   returns.
    pub fn cancel(&self) {
        self.client.inner.cancel(self.id, CancelMode::Graceful);
    }

    /// Its result as an argument for other tasks, which then wait for it.
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

/// What a task or call ended with makes no sense: it has run.
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
    fn handles_can_be_printed_and_their_ids_named() {
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

    /// A value that refuses to be encoded.
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
