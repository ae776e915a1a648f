//! Tests of a controller. Each test sends it events, and checks every effect that it pushes.
//! [`Rig`] drives the controller, keeps the time, and checks the invariants after every event.

use super::*;
use crate::error::{Error, ErrorKind, Failure};
use crate::hold::Holder;
use crate::id::{IdPrefix, Referent, Session};
use crate::lease::Pong;
use crate::message::{
    ActorExitReason, ActorPlace, AttemptEnd, FromClient, FromWorker, Instance, Refusal,
};
use crate::message::{AttemptId, CancelMode, ToClient, ToWorker};
use crate::payload::{Outcome, Payload, Value};
use crate::resources::{Amount, Resources};
use crate::schedule::WorkerCapabilities;
use crate::spec::{ActorOptions, ActorSpec, Budget, Lifetime, RETRY_DELAY, RetryOn};
use crate::spec::{Target, TaskOptions, TaskSpec};

mod actors;
mod copies;
mod cycles;
mod limits;
mod lists;
mod objects;
mod output;
mod pull;
mod sessions;
mod streams;
mod tasks;
mod unlinked;
mod unrunnable;
mod workers;

const SECOND: Duration = Duration::from_secs(1);

/// A controller, the time, and the effects that the test has not looked at yet.
struct Rig {
    controller: Controller,
    now: Time,
    effects: VecDeque<Effect>,
    /// The sessions that answer no ping.
    silent: Vec<Session>,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(Config::default())
    }

    fn with(config: Config) -> Rig {
        let (effects, silent) = (VecDeque::new(), Vec::new());
        Rig { controller: Controller::new(config), now: Time::ZERO, effects, silent }
    }

    /// Calls the controller, collects the effects, and checks the invariants.
    fn ask<R>(&mut self, ask: impl FnOnce(&mut Controller, Time, &mut Vec<Effect>) -> R) -> R {
        let mut effects = Vec::new();
        let answer = ask(&mut self.controller, self.now, &mut effects);
        self.controller.check_invariants();
        self.effects.extend(effects);
        answer
    }

    fn happens(&mut self, event: Event) {
        self.ask(|controller, now, effects| controller.handle(now, event, effects));
    }

    fn client_says(&mut self, session: Session, message: FromClient) {
        self.happens(Event::ClientMessageReceived { session, message });
    }

    fn worker_says(&mut self, session: Session, message: FromWorker) {
        self.happens(Event::WorkerMessageReceived { session, message });
    }

    /// Lets time pass. All sessions but the silent ones answer their pings.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(wake) = self.controller.next_wake().filter(|wake| *wake <= until) {
            self.now = wake;
            self.happens(Event::TimePassed);
            for effect in std::mem::take(&mut self.effects) {
                if let Effect::Ping { to, ping } = effect {
                    if !self.silent.contains(&to) {
                        let pong = Pong { number: ping.number };
                        self.happens(Event::PongReceived { session: to, pong });
                    }
                } else {
                    self.effects.push_back(effect);
                }
            }
        }
        self.now = until;
    }

    fn client(&mut self, number: u128) -> Session {
        self.nothing_left();
        let session = self.promised_client(number);
        self.effects.clear();
        session
    }

    /// Joins a client. The next effect is its first promise of room.
    fn promised_client(&mut self, number: u128) -> Session {
        self.happens(joins(SessionId::from_u128(number), 1, Role::Client));
        let Effect::OpenSession(session) = self.next() else { panic!("the client may join") };
        session
    }

    /// Joins a worker that has `cpus` CPUs and provides `add`, `mul` and all actors.
    fn worker(&mut self, number: u128, cpus: u32) -> Session {
        self.worker_offering(number, Resources::cpus(cpus), false)
    }

    fn worker_offering(
        &mut self,
        number: u128,
        resources: Resources,
        preemptible: bool,
    ) -> Session {
        let names = ["add", "mul", "actor:*"].map(Arc::from).into();
        let provides =
            Arc::new(WorkerCapabilities { names, preemptible, ..WorkerCapabilities::default() });
        let hostname = format!("node-{number}");
        let (store, durable) = (Some("socket".into()), true);
        let info =
            WorkerInfo { hostname, resources, provides, store, durable, ..WorkerInfo::default() };
        let id = SessionId::from_u128(number);
        self.happens(joins(id, 1, Role::Worker(info)));
        let Effect::OpenSession(session) = self.next() else { panic!("the worker may join") };
        self.worker_says(session, FromWorker::Joined);
        session
    }

    fn submit(&mut self, client: Session, spec: TaskSpec) {
        self.client_says(client, FromClient::Submit(Arc::new(spec)));
    }

    /// Submits a task that the cluster owns.
    fn submit_ownerless(&mut self, spec: TaskSpec) -> Result<(), Error> {
        let spec = Arc::new(spec);
        self.ask(|controller, now, effects| controller.submit(now, Owner::Cluster, spec, effects))
    }

    /// Lets a client create an actor, and checks that `worker` is told to create the first
    /// instance.
    fn create(&mut self, client: Session, worker: Session, spec: ActorSpec) -> Instance {
        let actor = spec.id;
        self.client_says(client, FromClient::CreateActor(Arc::new(spec)));
        let instance = self.instantiates(worker, actor);
        let created = ToClient::ActorCreated { requested: actor, actor: Ok(actor) };
        assert_eq!(self.next_to_client(client), created);
        self.is_nowhere(client, actor);
        instance
    }

    fn end(
        &mut self,
        worker: Session,
        attempt: AttemptId,
        end: AttemptEnd,
        next: Option<AttemptId>,
    ) {
        self.end_after(SECOND, worker, attempt, end, next);
    }

    fn end_after(
        &mut self,
        ran_for: Duration,
        worker: Session,
        attempt: AttemptId,
        end: AttemptEnd,
        next: Option<AttemptId>,
    ) {
        let kept = Vec::new();
        self.worker_says(worker, FromWorker::Ended { attempt, end, kept, ran_for, next });
    }

    fn finish(&mut self, worker: Session, attempt: AttemptId) {
        self.end(worker, attempt, AttemptEnd::Finished(vec![value("done")]), None);
    }

    fn dies(&mut self, session: Session) {
        self.happens(Event::ProcessDied { session, how: "killed by signal 9".into() });
        let Effect::EndSession { session: over, cause: SessionEndCause::Died(_) } = self.next()
        else {
            panic!("proof of death ends a session")
        };
        assert_eq!(over, session);
    }

    /// Takes the first effect that the test has not looked at.
    fn next(&mut self) -> Effect {
        self.effects.pop_front().expect("there is an effect")
    }

    /// Takes the next effect, which must be a message to this client.
    fn next_to_client(&mut self, client: Session) -> ToClient {
        let Effect::ToClient { to, message } = self.next() else { panic!("a message to a client") };
        assert_eq!(to, client);
        message
    }

    /// Takes the next effect, which must be a message to this worker.
    fn next_to_worker(&mut self, worker: Session) -> ToWorker {
        let Effect::ToWorker { to, message } = self.next() else { panic!("a message to a worker") };
        assert_eq!(to, worker);
        message
    }

    /// Takes the next effect, which must assign this task to this worker: with a grant, or into its
    /// backlog.
    fn gives(&mut self, worker: Session, task: u128, granted: bool) -> (AttemptId, Vec<Value>) {
        let ToWorker::Assign { spec, attempt, values, grant, .. } = self.next_to_worker(worker)
        else {
            panic!("a task is assigned")
        };
        assert_eq!((spec.id, grant.is_some()), (task_id(task), granted));
        (AttemptId { task: spec.id, attempt }, values)
    }

    fn assigns(&mut self, worker: Session, task: u128) -> AttemptId {
        self.gives(worker, task, true).0
    }

    fn backlogs(&mut self, worker: Session, task: u128) -> AttemptId {
        self.gives(worker, task, false).0
    }

    /// Takes the next effect, which must send this call to this worker's instance.
    fn executes(&mut self, worker: Session, call: u128) -> AttemptId {
        let ToWorker::Execute { spec, attempt, .. } = self.next_to_worker(worker) else {
            panic!("a call is sent")
        };
        assert_eq!(spec.id, task_id(call));
        AttemptId { task: spec.id, attempt }
    }

    /// Takes the next effect, which must tell this worker to create an instance of this actor.
    fn instantiates(&mut self, worker: Session, actor: ActorId) -> Instance {
        let ToWorker::Instantiate { spec, epoch, .. } = self.next_to_worker(worker) else {
            panic!("an instance is created")
        };
        assert_eq!(spec.id, actor);
        Instance { actor, epoch }
    }

    /// Takes the next effect, which must tell this client how its task ended.
    fn ends(&mut self, client: Session, task: u128) -> Outcome {
        let ToClient::TaskEnded { task: ended, outcome } = self.next_to_client(client) else {
            panic!("a task ends")
        };
        assert_eq!(ended, task_id(task));
        outcome
    }

    /// Takes the next effect, which must tell this client that the actor is nowhere yet.
    fn is_nowhere(&mut self, client: Session, actor: ActorId) {
        let place = ActorPlace::Nowhere;
        assert_eq!(self.next_to_client(client), ToClient::ActorChanged { actor, place });
    }

    /// Takes the next effect, which must tell this client why the actor is dead.
    fn is_dead(&mut self, client: Session, id: ActorId) -> Error {
        let ToClient::ActorChanged { actor, place: ActorPlace::Dead(error) } =
            self.next_to_client(client)
        else {
            panic!("an actor dies")
        };
        assert_eq!(actor, id);
        error
    }

    fn nothing_left(&self) {
        assert_eq!(self.effects, [], "unexpected effects");
    }

    fn holds(&self, client: Session, thing: Referent) -> bool {
        self.controller.holds().holds(Holder::Session(client.id), thing)
    }

    fn state_of(&self, task: u128) -> TaskState {
        self.controller.task_status(task_id(task)).expect("the task is known").state
    }

    fn why_waits(&self, task: u128) -> String {
        self.controller.task_status(task_id(task)).unwrap().waits_for.expect("the task waits")
    }
}

fn joins(id: SessionId, request: u64, role: Role) -> Event {
    Event::JoinRequested { id, request, local: false, role }
}

fn task_id(number: u128) -> TaskId {
    TaskId::from_u128(number)
}

fn value(text: &'static str) -> Value {
    Payload::raw(text).into()
}

/// Returns a task that calls `add`: one CPU, one result, three retries.
fn task(number: u128) -> TaskSpec {
    TaskSpec {
        id: task_id(number),
        target: Target::Function("add".into()),
        args: Payload::default(),
        needs: Vec::new(),
        referents: Vec::new(),
        returns: 1,
        stream_window: None,
        options: Arc::default(),
    }
}

fn task_with(number: u128, options: TaskOptions) -> TaskSpec {
    TaskSpec { options: Arc::new(options), ..task(number) }
}

/// Returns a task without retries: the first loss ends it.
fn once(number: u128) -> TaskSpec {
    task_with(number, TaskOptions { max_retries: Budget::Times(0), ..TaskOptions::default() })
}

fn call(number: u128, actor: ActorId) -> TaskSpec {
    TaskSpec { target: Target::Method { actor, method: "get".into() }, ..task(number) }
}

/// Returns a nameless `Counter` without restarts that dies with its last handle.
fn actor(number: u128) -> ActorSpec {
    actor_with(number, ActorOptions::default())
}

fn actor_with(number: u128, options: ActorOptions) -> ActorSpec {
    ActorSpec {
        id: ActorId::from_u128(number),
        class: "Counter".into(),
        args: Payload::default(),
        needs: Vec::new(),
        referents: Vec::new(),
        name: None,
        namespace: "".into(),
        options: Arc::new(options),
        interface: Default::default(),
    }
}

fn raised(class: &str) -> Error {
    let failure = Failure { class: class.into(), ..Failure::default() };
    Error::failed("it was not meant to be", failure)
}

fn crashed() -> Error {
    Error::unavailable(crate::Ran::Maybe, "its executor died: killed by signal 9")
}
