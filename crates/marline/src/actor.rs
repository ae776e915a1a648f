//! Actors: made once, called many times, one call after another.

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

/// An actor to be created.
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

    /// The name it is found by, in the namespace `default`.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The namespace its name counts in.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// If an actor of this class has the name already, that is the one that is meant; one of another
    /// class is `AlreadyExists`. It needs a name.
    pub fn get_if_exists(mut self) -> Self {
        self.options.get_if_exists = true;
        self
    }

    /// It lives until it is deleted, not until its last handle goes.
    pub fn detached(mut self) -> Self {
        self.options.lifetime = Lifetime::Detached;
        self
    }

    /// How often it may be made again after it was lost (never, unless said otherwise).
    pub fn max_restarts(mut self, budget: Budget) -> Self {
        self.options.max_restarts = budget;
        self
    }

    /// How often a call that may have run is sent again (never, unless said otherwise).
    pub fn max_task_retries(mut self, budget: Budget) -> Self {
        self.options.max_task_retries = budget;
        self
    }

    /// What it takes while it lives (nothing, unless said otherwise). To be placed it also needs what
    /// [`placement`](Self::placement) says.
    pub fn resources(mut self, resources: Resources) -> Self {
        self.options.resources = resources;
        self
    }

    /// What must be free at a worker for it to be placed there (one CPU, unless said otherwise). It is
    /// not taken: once the actor is placed, others can have it, all but what
    /// [`resources`](Self::resources) says.
    ///
    /// ```
    /// use marline::{Cluster, Program, Resources};
    ///
    /// struct Clerk;
    /// let program = Program::new().actor("Clerk", || Clerk, |clerk| clerk.method("work", |_: &mut Clerk| 1));
    /// let no_cpu = Resources { memory: 1 << 30, ..Resources::default() };
    /// let cluster = Cluster::builder().resources(no_cpu).start(program)?;
    /// let clerk = cluster.client().actor("Clerk").placement(Resources::default()).create(())?;
    /// assert_eq!(clerk.call::<i32>("work", ())?.wait()?, 1); // It would wait for a CPU for ever.
    /// # Ok::<(), marline::Error>(())
    /// ```
    pub fn placement(mut self, resources: Resources) -> Self {
        self.options.placement = resources;
        self
    }

    /// All options at once.
    pub fn options(mut self, options: ActorOptions) -> Self {
        self.options = options;
        self
    }

    /// Creates it. Calls wait until it is ready; a constructor that fails fails them.
    pub fn create(self, args: impl Arguments) -> Result<ActorHandle, Error> {
        let client = self.client.clone();
        let Encoded { payload, needs, _stored } = Encoded::new(&client, &args)?;
        let spec = ActorSpec {
            id: new_actor_id(),
            class: self.class,
            args: payload,
            needs,
            holds: Vec::new(),
            name: self.name,
            namespace: self.namespace,
            options: Arc::new(self.options),
            interface: Default::default(),
        };
        let actor = client.inner.create_actor(Arc::new(spec))?.wait()??;
        Ok(ActorHandle::new(client, actor))
    }
}

/// A handle to an actor. The actor lives at least as long as one of them, and its calls.
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

    /// The actor's id.
    pub fn id(&self) -> ActorId {
        self.id
    }

    /// Calls a method. Calls through handles of one client run in the order in which they were made: one that needs
    /// what has not come waits for it, and those after it wait behind it.
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

    /// Ends the actor for good.
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
