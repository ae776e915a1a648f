//! The client: submits tasks and commands, creates actors, and puts and gets values.

use crate::actor::{ActorBuilder, ActorHandle};
use crate::codec::{Arguments, Encoded, decode, encode};
use crate::handle::TaskHandle;
use crate::reference::ObjectRef;
use bytes::Bytes;
use marline_runtime::core::error::Error;
use marline_runtime::core::id::ObjectId;
use marline_runtime::core::payload::Payload;
use marline_runtime::core::resources::Resources;
use marline_runtime::core::spec::{Budget, RetryOn, Target, TaskOptions, TaskSpec};
use marline_runtime::{CommandEnd, CommandLine, new_task_id, wait_for_some};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A client of a cluster. Cheap to clone.
///
/// A client ends with its process, or with its last clone and the last handle that came from it.
/// Then its unfinished work is stopped, actors end that only this client had handles to, and its
/// values are freed: no process is left that could ask for them. Only a
/// [detached](ActorBuilder::detached) actor and a command of `marline run --detach` outlive their
/// client.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: marline_runtime::Client,
}

impl Client {
    pub(crate) fn new(inner: marline_runtime::Client) -> Client {
        Client { inner }
    }

    /// Connects to a controller at `host:port` or `unix:/path`; see
    /// [`Controller`](crate::Controller).
    pub fn connect(address: &str) -> Result<Client, Error> {
        marline_runtime::Client::connect(address, None).map(Client::new)
    }

    /// Connects to a controller that requires this token.
    pub fn connect_with_token(address: &str, token: &str) -> Result<Client, Error> {
        marline_runtime::Client::connect(address, Some(token.into())).map(Client::new)
    }

    /// Connects to the cluster that `marline up` (or `marline controller`) runs on this machine for
    /// this user. When that cluster has ended, the client joins the next one that runs here.
    ///
    /// ```no_run
    /// use marline::{Client, CommandLine};
    ///
    /// let client = Client::local()?; // `marline up` runs in another terminal
    /// let line = CommandLine { argv: vec!["uname".into()], ..Default::default() };
    /// print!("{}", String::from_utf8_lossy(&client.command(&line).submit()?.wait()?.stdout));
    /// # Ok::<(), marline::Error>(())
    /// ```
    pub fn local() -> Result<Client, Error> {
        marline_runtime::Client::connect_here(None).map(Client::new)
    }

    /// Sets what happens to warnings. By default they are printed to standard error. Example: 10 s
    /// after a task was submitted that no worker could ever run, the client warns of it.
    pub fn on_warning(&self, warn: impl Fn(&str) + Send + Sync + 'static) {
        self.inner.on_warning(warn);
    }

    /// Returns a task that calls the function of this name, to be configured and submitted.
    pub fn task(&self, name: &str) -> TaskBuilder<'_> {
        TaskBuilder { client: self, name: name.into(), options: TaskOptions::default() }
    }

    /// Returns a task that runs a command, on a worker that [offers
    /// to](crate::WorkerBuilder::commands).
    ///
    /// ```no_run
    /// use marline::{Client, CommandLine};
    ///
    /// let client = Client::connect("127.0.0.1:7000")?;
    /// let line = CommandLine { argv: vec!["ls".into(), "-l".into()], ..Default::default() };
    /// let end = client.command(&line).submit()?.wait()?;
    /// println!("{}", String::from_utf8_lossy(&end.stdout));
    /// # Ok::<(), marline::Error>(())
    /// ```
    pub fn command<'a>(&'a self, line: &'a CommandLine) -> CommandBuilder<'a> {
        CommandBuilder { task: self.task(&line.function()), line }
    }

    /// Returns an actor of the class of this name, to be configured and created.
    pub fn actor(&self, class: &str) -> ActorBuilder<'_> {
        ActorBuilder::new(self, class)
    }

    /// Finds the actor that has this name.
    pub fn get_actor(&self, namespace: &str, name: &str) -> Result<ActorHandle, Error> {
        let actor = self.inner.find_actor(namespace, name)?.wait()??.id;
        Ok(ActorHandle::new(self.clone(), actor))
    }

    /// Puts a value where tasks can use it by reference, and returns the reference.
    ///
    /// ```
    /// use marline::{Cluster, Program};
    ///
    /// let program = Program::new().task("len", |words: Vec<String>| words.len());
    /// let cluster = Cluster::local(program)?;
    /// let client = cluster.client();
    /// let words = client.put(&vec!["a".to_owned(), "b".to_owned()])?;
    /// assert_eq!(client.task("len").submit::<usize>((&words,))?.wait()?, 2);
    /// assert_eq!(client.get(&words)?.len(), 2);
    /// # Ok::<(), marline::Error>(())
    /// ```
    pub fn put<T: Serialize>(&self, value: &T) -> Result<ObjectRef<T>, Error> {
        let id = self.inner.put(encode(value)?.into())?;
        Ok(ObjectRef::new(self.clone(), id))
    }

    /// Puts a value, as [`put`](Self::put) does, so that it outlives the node that has it. A large
    /// value is on the disk before this returns, in the folder that all workers share
    /// ([`durable_folder`](crate::WorkerBuilder::durable_folder)).
    pub fn put_durable<T: Serialize>(&self, value: &T) -> Result<ObjectRef<T>, Error> {
        let id = self.inner.put_durable(encode(value)?.into())?;
        Ok(ObjectRef::new(self.clone(), id))
    }

    /// Puts bytes. Large ones are copied once, into shared memory, where every process of this
    /// machine reads them. [`get`](Self::get) returns [`Bytes`] that point into that memory. So do
    /// the arguments of a function that takes `Bytes`.
    ///
    /// ```
    /// use marline::{Bytes, Cluster, Program};
    ///
    /// let program = Program::new().task("sum", |data: Bytes| data.iter().map(|b| u64::from(*b)).sum::<u64>());
    /// let cluster = Cluster::local(program)?;
    /// let client = cluster.client();
    ///
    /// let data = client.put_bytes(vec![1; 10_000_000])?;
    /// let tasks = (0..8).map(|_| client.task("sum").submit::<u64>((&data,)));
    /// for task in tasks.collect::<Result<Vec<_>, _>>()? {
    ///     assert_eq!(task.wait()?, 10_000_000);
    /// }
    /// let (one, other) = (client.get(&data)?, client.get(&data)?);
    /// assert_eq!(one.as_ptr(), other.as_ptr());
    /// drop((data, client, cluster)); // The value is freed; bytes that were read stay.
    /// assert!(one.iter().all(|byte| *byte == 1));
    /// # Ok::<(), marline::Error>(())
    /// ```
    pub fn put_bytes(&self, bytes: impl AsRef<[u8]>) -> Result<ObjectRef<Bytes>, Error> {
        let id = self.inner.put_bytes(bytes.as_ref())?;
        Ok(ObjectRef::new(self.clone(), id))
    }

    /// Blocks this thread until `count` of these tasks have ended, or the time is over. Returns how
    /// many have ended; [`TaskHandle::is_done`] says which. A task that waits lends its CPU, as
    /// [`TaskHandle::wait`] says.
    ///
    /// ```
    /// use marline::{Cluster, Program};
    /// use std::time::Duration;
    ///
    /// let cluster = Cluster::local(Program::new().task("square", |x: i64| x * x))?;
    /// let client = cluster.client();
    /// let mut tasks = Vec::new();
    /// for x in 0..10 {
    ///     tasks.push(client.task("square").submit::<i64>((x,))?);
    /// }
    /// let ended = client.wait(&mut tasks, 3, Some(Duration::from_secs(60)))?;
    /// assert!(ended >= 3 && tasks.iter().filter(|task| task.is_done()).count() >= 3);
    /// # Ok::<(), marline::Error>(())
    /// ```
    pub fn wait<T: DeserializeOwned + 'static>(
        &self,
        tasks: &mut [TaskHandle<T>],
        count: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut pending = tasks.iter_mut().map(|task| &mut task.pending);
        wait_for_some(&mut pending, count, deadline)
    }

    /// Returns the value of a reference. Blocks this thread until the value exists and its data is
    /// on this machine. A large value is read in shared memory: [`Bytes`] point into it, other
    /// types are decoded from it. A task lends its CPU meanwhile, as [`TaskHandle::wait`] says.
    pub fn get<T: DeserializeOwned + 'static>(&self, object: &ObjectRef<T>) -> Result<T, Error> {
        let value = self.inner.get(object.id())?.wait()??;
        decode(self, &value.payload)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.inner.address().as_deref().unwrap_or("of this process"))
    }
}

/// A task that is about to be submitted: its function and options. Made by [`Client::task`].
pub struct TaskBuilder<'a> {
    client: &'a Client,
    name: Arc<str>,
    options: TaskOptions,
}

impl TaskBuilder<'_> {
    /// Sets the resources that the task takes while it runs. The default is one CPU.
    pub fn resources(mut self, resources: Resources) -> Self {
        self.options.resources = resources;
        self
    }

    /// Sets how often the task may run again after its executor or worker was lost. The default is
    /// 3.
    pub fn max_retries(mut self, budget: Budget) -> Self {
        self.options.max_retries = budget;
        self
    }

    /// Sets which failures of the task's own code are retried like a loss, from the same budget.
    /// The default is none.
    pub fn retry_on(mut self, retry_on: RetryOn) -> Self {
        self.options.retry_on = retry_on;
        self
    }

    /// Saves a large result where it outlives the node that has it, as
    /// [`put_durable`](Client::put_durable) does.
    pub fn durable(mut self) -> Self {
        self.options.durable = true;
        self
    }

    /// Sets how long one attempt may take, from the start of its code. An attempt that takes longer
    /// is asked to stop, and is ended after the worker's `cancel_grace`, as
    /// [`cancel`](TaskHandle::cancel) says. Then the task fails with `Timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Sets all options at once.
    pub fn options(mut self, options: TaskOptions) -> Self {
        self.options = options;
        self
    }

    fn spec(self, args: Payload, needs: Vec<ObjectId>) -> Arc<TaskSpec> {
        Arc::new(TaskSpec {
            id: new_task_id(),
            target: Target::Function(self.name),
            args,
            needs,
            referents: Vec::new(),
            returns: 1,
            stream_window: None,
            options: Arc::new(self.options),
        })
    }

    /// Submits the task. Blocks this thread as long as the cluster takes no more tasks. If that
    /// takes long inside a task, the task lends its CPU.
    pub fn submit<T: DeserializeOwned + 'static>(
        self,
        args: impl Arguments,
    ) -> Result<TaskHandle<T>, Error> {
        let client = self.client.clone();
        let Encoded { payload, needs, _stored } = Encoded::new(&client, &args)?;
        let spec = self.spec(payload, needs);
        let pending = client.inner.submit(spec.clone())?;
        Ok(TaskHandle::of_task(client, spec.id, pending))
    }

    /// Submits the task if the cluster takes it at once. Else fails with `Exhausted`, and the error
    /// names the limit.
    pub fn try_submit<T: DeserializeOwned + 'static>(
        self,
        args: impl Arguments,
    ) -> Result<TaskHandle<T>, Error> {
        let client = self.client.clone();
        let Encoded { payload, needs, _stored } = Encoded::new(&client, &args)?;
        let spec = self.spec(payload, needs);
        let pending = client.inner.try_submit(spec.clone())?;
        Ok(TaskHandle::of_task(client, spec.id, pending))
    }
}

/// A command that is about to be submitted as a task. Made by [`Client::command`].
pub struct CommandBuilder<'a> {
    task: TaskBuilder<'a>,
    line: &'a CommandLine,
}

impl CommandBuilder<'_> {
    /// Sets the options of the task: resources, retries, timeout.
    pub fn options(mut self, options: TaskOptions) -> Self {
        self.task.options = options;
        self
    }

    /// Submits the command. The task fails if the command does not exit with status 0.
    pub fn submit(self) -> Result<TaskHandle<CommandEnd>, Error> {
        let client = self.task.client.clone();
        let spec = self.task.spec(self.line.encode()?, Vec::new());
        let pending = client.inner.submit(spec.clone())?;
        Ok(TaskHandle::of_task(client, spec.id, pending))
    }
}
