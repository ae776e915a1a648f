//! Stories of a controller: what happens to it, and what it then asks for.

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
mod bring;
mod control;
mod cycles;
mod limits;
mod lists;
mod objects;
mod output;
mod sessions;
mod stored;
mod streams;
mod tasks;
mod unknown;
mod workers;

const SECOND: Duration = Duration::from_secs(1);

/// A controller, the time, and what it asked for that no test has looked at yet.
struct Rig {
    controller: Controller,
    now: Time,
    effects: VecDeque<Effect>,
    /// Sessions that answer no ping.
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

    /// Asks something of the controller, and checks that its state adds up.
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

    /// Time passes. Pings are answered by all but the silent.
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

    /// A client that is told next what it may submit.
    fn promised_client(&mut self, number: u128) -> Session {
        self.happens(joins(SessionId::from_u128(number), 1, Role::Client));
        let Effect::OpenSession(session) = self.next() else { panic!("it may join") };
        session
    }

    /// A worker with so many CPUs that provides `add`, `mul` and all actors.
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
        let Effect::OpenSession(session) = self.next() else { panic!("it may join") };
        self.worker_says(session, FromWorker::Joined);
        session
    }

    fn submit(&mut self, client: Session, spec: TaskSpec) {
        self.client_says(client, FromClient::Submit(Arc::new(spec)));
    }

    /// Submits a task that no session owns.
    fn submit_ownerless(&mut self, spec: TaskSpec) -> Result<(), Error> {
        let spec = Arc::new(spec);
        self.ask(|controller, now, effects| controller.submit(now, Owner::Cluster, spec, effects))
    }

    /// A client creates an actor, and a worker with room for it is told to make its first instance.
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

    /// The first effect that was not looked at.
    fn next(&mut self) -> Effect {
        self.effects.pop_front().expect("something is asked for")
    }

    /// ... which tells this client something.
    fn next_to_client(&mut self, client: Session) -> ToClient {
        let Effect::ToClient { to, message } = self.next() else { panic!("a client is told") };
        assert_eq!(to, client);
        message
    }

    /// ... which asks something of this worker.
    fn next_to_worker(&mut self, worker: Session) -> ToWorker {
        let Effect::ToWorker { to, message } = self.next() else { panic!("a worker is asked") };
        assert_eq!(to, worker);
        message
    }

    /// ... which gives this worker this task: with a grant, or into its backlog.
    fn gives(&mut self, worker: Session, task: u128, granted: bool) -> (AttemptId, Vec<Value>) {
        let ToWorker::Assign { spec, attempt, values, grant, .. } = self.next_to_worker(worker)
        else {
            panic!("a task is given out")
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

    /// ... which sends this call to this worker's instance.
    fn executes(&mut self, worker: Session, call: u128) -> AttemptId {
        let ToWorker::Execute { spec, attempt, .. } = self.next_to_worker(worker) else {
            panic!("a call is sent")
        };
        assert_eq!(spec.id, task_id(call));
        AttemptId { task: spec.id, attempt }
    }

    /// ... which has this worker make this actor.
    fn instantiates(&mut self, worker: Session, actor: ActorId) -> Instance {
        let ToWorker::Instantiate { spec, epoch, .. } = self.next_to_worker(worker) else {
            panic!("an instance is made")
        };
        assert_eq!(spec.id, actor);
        Instance { actor, epoch }
    }

    /// ... which tells this client how its task ended.
    fn ends(&mut self, client: Session, task: u128) -> Outcome {
        let ToClient::TaskEnded { task: ended, outcome } = self.next_to_client(client) else {
            panic!("a task ends")
        };
        assert_eq!(ended, task_id(task));
        outcome
    }

    /// ... which tells this client that the actor can only be waited for.
    fn is_nowhere(&mut self, client: Session, actor: ActorId) {
        let place = ActorPlace::Nowhere;
        assert_eq!(self.next_to_client(client), ToClient::ActorChanged { actor, place });
    }

    /// ... which tells this client why the actor is gone for good.
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
        assert_eq!(self.effects, [], "effects that nobody expected");
    }

    fn holds(&self, client: Session, thing: Referent) -> bool {
        self.controller.holds().holds(Holder::Session(client.id), thing)
    }

    fn state_of(&self, task: u128) -> TaskState {
        self.controller.task_status(task_id(task)).expect("it is known").state
    }

    fn why_waits(&self, task: u128) -> String {
        self.controller.task_status(task_id(task)).unwrap().waits_for.expect("it waits")
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

/// `add`: one CPU, one result, three retries.
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

/// A task with no retries: whatever costs one ends it.
fn once(number: u128) -> TaskSpec {
    task_with(number, TaskOptions { max_retries: Budget::Times(0), ..TaskOptions::default() })
}

fn call(number: u128, actor: ActorId) -> TaskSpec {
    TaskSpec { target: Target::Method { actor, method: "get".into() }, ..task(number) }
}

/// A nameless `Counter` without restarts that dies with its last handle.
fn actor(number: u128) -> ActorSpec {
    actor_with(number, ActorOptions::default())
}

fn actor_with(number: u128, options: ActorOptions) -> ActorSpec {
    ActorSpec {
        id: ActorId::from_u128(number),
        class: "Counter".into(),
        args: Payload::default(),
        needs: Vec::new(),
        holds: Vec::new(),
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
