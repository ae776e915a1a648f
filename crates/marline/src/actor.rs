//! Actors: an actor is created once and called many times. Its calls run one after the other.

use crate::answer::Answer;
use crate::client::Client;
use crate::codec::{Arguments, Encoded};
use crate::handle::TaskHandle;
use marline_runtime::core::error::Error;
use marline_runtime::core::id::{ActorId, Referent};
use marline_runtime::core::resources::Resources;
use marline_runtime::core::spec::{
    ActorOptions, ActorSpec, Budget, Lifetime, Target, TaskOptions, TaskSpec,
};
use marline_runtime::{Pending, new_actor_id, new_task_id};
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::Arc;

/// An actor that is about to be created: its name and options. [`Client::actor`] returns one.
pub struct ActorBuilder<'a> {
    client: &'a Client,
    class: Arc<str>,
    name: Option<Arc<str>>,
    namespace: Arc<str>,
    options: ActorOptions,
}

impl<'a> ActorBuilder<'a> {
    pub(crate) fn new(client: &'a Client, class: &str) -> ActorBuilder<'a> {
        ActorBuilder {
            client,
            class: class.into(),
            name: None,
            namespace: "default".into(),
            options: ActorOptions::default(),
        }
    }

    /// Names the actor, so that [`Client::get_actor`] finds it. Names are in the namespace
    /// `default`, unless [`namespace`](Self::namespace) names another.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the namespace of the name.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Uses the actor of this class that has the name already, if there is one. An actor of another
    /// class with this name is an `AlreadyExists` error. Needs a [`name`](Self::name).
    pub fn get_if_exists(mut self) -> Self {
        self.options.get_if_exists = true;
        self
    }

    /// Lets the actor live until it is deleted, not only until its last handle is dropped.
    pub fn detached(mut self) -> Self {
        self.options.lifetime = Lifetime::Detached;
        self
    }

    /// Sets how often the actor is restarted after it was lost. The default is never.
    pub fn max_restarts(mut self, budget: Budget) -> Self {
        self.options.max_restarts = budget;
        self
    }

    /// Sets how often a call that may have run is sent again. The default is never.
    pub fn max_task_retries(mut self, budget: Budget) -> Self {
        self.options.max_task_retries = budget;
        self
    }

    /// Sets the resources that the actor takes while it lives. The default is none. To be placed,
    /// it also needs the resources of [`placement`](Self::placement).
    pub fn resources(mut self, resources: Resources) -> Self {
        self.options.resources = resources;
        self
    }

    /// Sets the resources that a worker must have free for the actor to be placed there. The
    /// default is one CPU. The actor does not take them: once it is placed, other work can have all
    /// but [`resources`](Self::resources).
    ///
    /// ```
    /// use marline::{Cluster, Program, Resources};
    ///
    /// struct Clerk;
    /// let program = Program::new().actor("Clerk", || Clerk, |clerk| clerk.method("work", |_: &mut Clerk| 1));
    /// let no_cpu = Resources { memory: 1 << 30, ..Resources::default() };
    /// let cluster = Cluster::builder().resources(no_cpu).start(program)?;
    /// let clerk = cluster.client().actor("Clerk").placement(Resources::default()).create(())?;
    /// assert_eq!(clerk.call::<i32>("work", ())?.wait()?, 1); // A CPU would never come.
    /// # Ok::<(), marline::Error>(())
    /// ```
    pub fn placement(mut self, resources: Resources) -> Self {
        self.options.placement = resources;
        self
    }

    /// Sets all options at once.
    pub fn options(mut self, options: ActorOptions) -> Self {
        self.options = options;
        self
    }

    /// Creates the actor. Calls wait until it is ready. If its constructor fails, calls fail with
    /// that error.
    pub fn create(self, args: impl Arguments) -> Result<ActorHandle, Error> {
        let client = self.client.clone();
        let Encoded { payload, needs, _stored } = Encoded::new(&client, &args)?;
        let spec = ActorSpec {
            id: new_actor_id(),
            class: self.class,
            args: payload,
            needs,
            referents: Vec::new(),
            name: self.name,
            namespace: self.namespace,
            options: Arc::new(self.options),
            interface: Default::default(),
        };
        let actor = client.inner.create_actor(Arc::new(spec))?.wait()??;
        Ok(ActorHandle::new(client, actor))
    }
}

/// A handle to an actor. The actor ends when its last handle is dropped and its last call has
/// ended, unless it is detached.
pub struct ActorHandle {
    client: Client,
    id: ActorId,
    options: Arc<TaskOptions>,
}

impl ActorHandle {
    pub(crate) fn new(client: Client, id: ActorId) -> ActorHandle {
        let options = TaskOptions { max_retries: Budget::Unlimited, ..TaskOptions::default() };
        ActorHandle { client, id, options: Arc::new(options) }
    }

    /// Returns the actor's id.
    pub fn id(&self) -> ActorId {
        self.id
    }

    /// Calls a method. Calls through handles of one client run in the order in which they were
    /// made. A call whose arguments are not there yet waits for them, and the calls after it wait
    /// behind it.
    pub fn call<T: DeserializeOwned + 'static>(
        &self,
        method: &str,
        args: impl Arguments,
    ) -> Result<TaskHandle<T>, Error> {
        let client = &self.client;
        let Encoded { payload, needs, _stored } = Encoded::new(client, &args)?;
        let spec = Arc::new(TaskSpec {
            id: new_task_id(),
            target: Target::Method { actor: self.id, method: method.into() },
            args: payload,
            needs,
            referents: Vec::new(),
            returns: 1,
            stream_window: None,
            options: self.options.clone(),
        });
        let (tell, pending) = Pending::with_callback();
        let (answer, tell) = Answer::of_call(client, spec.id, tell);
        client.inner.call_when_resolved(spec.clone(), tell)?;
        Ok(TaskHandle::of_call(client.clone(), spec.id, pending, answer))
    }

    /// Ends the actor for good: it is not restarted.
    pub fn delete(&self) -> Result<(), Error> {
        self.client.inner.delete_actor(self.id)
    }
}

impl fmt::Debug for ActorHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ActorHandle({})", self.id)
    }
}

impl Clone for ActorHandle {
    fn clone(&self) -> Self {
        self.client.inner.hold(Referent::Actor(self.id));
        ActorHandle { client: self.client.clone(), id: self.id, options: self.options.clone() }
    }
}

impl Drop for ActorHandle {
    fn drop(&mut self) {
        self.client.inner.release(Referent::Actor(self.id));
    }
}
