//! Stories of a controller: what happens to it, and what it then asks for.

use super::*;
use crate::error::{Error, ErrorKind, Failure};
use crate::hold::Holder;
use crate::id::{Session, Thing};
use crate::lease::Pong;
use crate::message::{ActorPlace, End, FromClient, FromWorker, Instance, Refusal};
use crate::message::{ToClient, ToWorker, Try};
use crate::payload::{Outcome, Payload, Value};
use crate::resources::{Amount, Resources};
use crate::schedule::Provided;
use crate::spec::{ActorOptions, ActorSpec, Budget, Lifetime, RETRY_DELAY, RetryOn};
use crate::spec::{Target, TaskOptions, TaskSpec};

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
        self.happens(Event::ClientSaid { session, message });
    }

    fn worker_says(&mut self, session: Session, message: FromWorker) {
        self.happens(Event::WorkerSaid { session, message });
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
        let id = SessionId::from_u128(number);
        self.happens(joins(id, 1, Role::Client));
        let Effect::Opened(session) = self.next() else { panic!("it may join") };
        self.effects.clear(); // How many submissions are welcome.
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
        let provides = Arc::new(Provided { names, preemptible });
        let hostname = format!("node-{number}");
        let info = WorkerInfo { hostname, resources, provides, ..WorkerInfo::default() };
        let id = SessionId::from_u128(number);
        self.happens(joins(id, 1, Role::Worker(info)));
        let Effect::Opened(session) = self.next() else { panic!("it may join") };
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
        assert_eq!(self.tells(client), created);
        self.is_nowhere(client, actor);
        instance
    }

    fn end(&mut self, worker: Session, attempt: Try, end: End, next: Option<Try>) {
        self.end_after(SECOND, worker, attempt, end, next);
    }

    fn end_after(
        &mut self,
        ran_for: Duration,
        worker: Session,
        attempt: Try,
        end: End,
        next: Option<Try>,
    ) {
        let kept = Vec::new();
        self.worker_says(worker, FromWorker::Ended { attempt, end, kept, ran_for, next });
    }

    fn finish(&mut self, worker: Session, attempt: Try) {
        self.end(worker, attempt, End::Finished(vec![value("done")]), None);
    }

    fn dies(&mut self, session: Session) {
        self.happens(Event::ProcessDied { session, how: "killed by signal 9".into() });
        let Effect::Over { session: over, cause: EndCause::Died(_) } = self.next() else {
            panic!("proof of death ends a session")
        };
        assert_eq!(over, session);
    }

    /// The first effect that was not looked at.
    fn next(&mut self) -> Effect {
        self.effects.pop_front().expect("something is asked for")
    }

    /// ... which tells this client something.
    fn tells(&mut self, client: Session) -> ToClient {
        let Effect::ToClient { to, message } = self.next() else { panic!("a client is told") };
        assert_eq!(to, client);
        message
    }

    /// ... which asks something of this worker.
    fn orders(&mut self, worker: Session) -> ToWorker {
        let Effect::ToWorker { to, message } = self.next() else { panic!("a worker is asked") };
        assert_eq!(to, worker);
        message
    }

    /// ... which gives this worker this task: with a grant, or into its backlog.
    fn gives(&mut self, worker: Session, task: u128, granted: bool) -> (Try, Vec<Value>) {
        let ToWorker::Assign { spec, attempt, values, grant, .. } = self.orders(worker) else {
            panic!("a task is given out")
        };
        assert_eq!((spec.id, grant.is_some()), (task_id(task), granted));
        (Try { task: spec.id, attempt }, values)
    }

    fn assigns(&mut self, worker: Session, task: u128) -> Try {
        self.gives(worker, task, true).0
    }

    fn backlogs(&mut self, worker: Session, task: u128) -> Try {
        self.gives(worker, task, false).0
    }

    /// ... which sends this call to this worker's instance.
    fn executes(&mut self, worker: Session, call: u128) -> Try {
        let ToWorker::Execute { spec, attempt, .. } = self.orders(worker) else {
            panic!("a call is sent")
        };
        assert_eq!(spec.id, task_id(call));
        Try { task: spec.id, attempt }
    }

    /// ... which has this worker make this actor.
    fn instantiates(&mut self, worker: Session, actor: ActorId) -> Instance {
        let ToWorker::Instantiate { spec, epoch, .. } = self.orders(worker) else {
            panic!("an instance is made")
        };
        assert_eq!(spec.id, actor);
        Instance { actor, epoch }
    }

    /// ... which tells this client how its task ended.
    fn ends(&mut self, client: Session, task: u128) -> Outcome {
        let ToClient::TaskEnded { task: ended, outcome } = self.tells(client) else {
            panic!("a task ends")
        };
        assert_eq!(ended, task_id(task));
        outcome
    }

    /// ... which tells this client that the actor can only be waited for.
    fn is_nowhere(&mut self, client: Session, actor: ActorId) {
        let place = ActorPlace::Nowhere;
        assert_eq!(self.tells(client), ToClient::ActorChanged { actor, place });
    }

    /// ... which tells this client why the actor is gone for good.
    fn is_dead(&mut self, client: Session, id: ActorId) -> Error {
        let ToClient::ActorChanged { actor, place: ActorPlace::Dead(error) } = self.tells(client)
        else {
            panic!("an actor dies")
        };
        assert_eq!(actor, id);
        error
    }

    fn nothing_left(&self) {
        assert_eq!(self.effects, [], "effects that nobody expected");
    }

    fn holds(&self, client: Session, thing: Thing) -> bool {
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
    Event::SessionOpened { id, request, local: false, role }
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
        holds: Vec::new(),
        returns: 1,
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
    }
}

fn raised(class: &str) -> Error {
    let failure = Failure { class: class.into(), ..Failure::default() };
    Error::failed("it was not meant to be", failure)
}

fn crashed() -> Error {
    Error::unavailable(crate::Ran::Maybe, "its executor died: killed by signal 9")
}

// Sessions.

#[test]
fn a_killed_session_lets_go_of_what_it_held_and_its_tasks_are_cancelled() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let object = ObjectId::of(task_id(90), 0);
    rig.client_says(client, FromClient::Put { object, value: value("kept") });
    rig.submit(client, task(1));
    let running = rig.assigns(worker, 1);
    rig.submit(client, task(2));
    assert_eq!(rig.controller.kept(), (1, 4));

    rig.dies(client);
    let order = ToWorker::CancelAttempt { attempt: running, force: true };
    assert_eq!(rig.orders(worker), order);
    assert_eq!(rig.state_of(2), TaskState::Cancelled, "it had not started");
    assert_eq!(rig.controller.kept(), (0, 0));

    rig.end(worker, running, End::Cancelled, None);
    assert_eq!(rig.state_of(1), TaskState::Cancelled);
    assert_eq!(rig.controller.holds().all_things().count(), 0);
    rig.nothing_left();
}

#[test]
fn a_session_that_is_silent_for_its_lease_is_over_and_what_it_says_then_is_fenced() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.silent = vec![client];
    rig.pass(29 * SECOND);
    assert!(rig.controller.is_alive(client));
    rig.pass(SECOND);
    assert_eq!(rig.next(), Effect::Over { session: client, cause: EndCause::LeaseOver });

    rig.submit(client, task(1));
    assert_eq!(rig.next(), Effect::Fence(client));
    assert_eq!(rig.controller.counters().fenced, 1);
    assert_eq!(rig.controller.pending_tasks(), 0);
    rig.nothing_left();
}

#[test]
fn joining_again_ends_the_earlier_session_and_a_request_that_comes_late_is_ignored() {
    let mut rig = Rig::new();
    let before = rig.client(1);
    rig.happens(joins(before.id, 2, Role::Client));
    assert_eq!(rig.next(), Effect::Over { session: before, cause: EndCause::Replaced });
    let Effect::Opened(after) = rig.next() else { panic!("it may join again") };
    assert!(after.id == before.id && after.epoch > before.epoch);
    rig.effects.clear();

    rig.happens(joins(before.id, 1, Role::Client));
    assert!(rig.controller.is_alive(after));
    rig.nothing_left();
}

#[test]
fn a_host_that_watches_a_session_hears_of_its_end_once() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let watch = FromWorker::Watch { session: client };
    rig.worker_says(worker, watch.clone());
    rig.worker_says(worker, watch.clone());
    for _ in 0..2 {
        let watched = ToWorker::Watched { session: client, alive: true };
        assert_eq!(rig.orders(worker), watched);
    }

    rig.happens(Event::SessionClosed { session: client });
    assert_eq!(rig.next(), Effect::Over { session: client, cause: EndCause::Closed });
    assert_eq!(rig.orders(worker), ToWorker::SessionEnded { session: client });
    rig.worker_says(worker, watch);
    assert_eq!(rig.orders(worker), ToWorker::Watched { session: client, alive: false });
    rig.nothing_left();
}

#[test]
fn a_session_that_watches_itself_ends_without_harm() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.client_says(client, FromClient::Watch { session: client });
    rig.nothing_left(); // It lives, and there is nothing to say.
    rig.worker_says(worker, FromWorker::Watch { session: worker });
    let watched = ToWorker::Watched { session: worker, alive: true };
    assert_eq!(rig.orders(worker), watched);
    rig.dies(client);
    rig.dies(worker);
    assert_eq!(rig.controller.session_count(), 0);
    rig.nothing_left();
}

// Workers.

#[test]
fn a_suspect_worker_gets_no_new_work_and_is_trusted_again() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.silent = vec![worker];
    rig.pass(15 * SECOND); // Pinged at 10, silent for `suspect_after` at 15.
    assert_eq!(rig.controller.list_workers()[0].state, WorkerState::Suspect);
    rig.submit(client, task(1));
    rig.nothing_left();

    rig.silent.clear();
    rig.pass(5 * SECOND); // Pinged at 20, and answers.
    assert_eq!(rig.controller.list_workers()[0].state, WorkerState::Healthy);
    rig.assigns(worker, 1);
    rig.nothing_left();
}

#[test]
fn lost_worker_requeues_its_running_tasks() {
    let mut rig = Rig::new();
    let (client, first) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let attempt = rig.assigns(first, 1);
    rig.worker_says(first, FromWorker::Started { attempt });
    let second = rig.worker(3, 1);

    rig.dies(first);
    rig.nothing_left();
    rig.pass(RETRY_DELAY);
    let again = rig.assigns(second, 1);
    assert_eq!((attempt.attempt, again.attempt), (Attempt(1), Attempt(2)));
    rig.finish(second, again);
    assert_eq!(rig.ends(client, 1), Ok(vec![value("done")]));
    rig.nothing_left();
}

#[test]
fn a_task_lost_once_more_than_it_may_be_retried_fails_and_may_have_run() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let options = TaskOptions { max_retries: Budget::Times(1), ..TaskOptions::default() };
    rig.submit(client, task_with(1, options));
    let first = rig.worker(2, 1);
    rig.assigns(first, 1);
    rig.dies(first);
    let second = rig.worker(3, 1);
    rig.pass(RETRY_DELAY);
    rig.assigns(second, 1);

    rig.dies(second);
    let error = rig.ends(client, 1).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Unavailable, true));
    assert!(error.message().contains("on node-3 was lost: its process died"), "{error}");
    rig.nothing_left();
}

#[test]
fn refused_work_costs_nothing() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, once(1));
    let attempt = rig.assigns(worker, 1);
    rig.worker_says(worker, FromWorker::Refused { attempt, reason: Refusal::Full });
    rig.nothing_left(); // The worker could not start an executor: it is left alone for a while.

    rig.pass(rig.controller.config().full_pause);
    let again = rig.assigns(worker, 1);
    rig.finish(worker, again);
    assert_eq!(rig.ends(client, 1), Ok(vec![value("done")]));
    assert_eq!(rig.controller.counters().refused, 1);
    rig.nothing_left();
}

#[test]
fn a_worker_that_is_full_twice_is_left_alone_until_the_later_pause_is_over() {
    let mut rig = Rig::with(Config { full_pause: 4 * SECOND, ..Config::default() });
    let (client, worker) = (rig.client(1), rig.worker(2, 2));
    rig.submit(client, task(1));
    rig.submit(client, task(2));
    let [first, second] = [1, 2].map(|number| rig.assigns(worker, number));
    let full = |attempt| FromWorker::Refused { attempt, reason: Refusal::Full };
    rig.worker_says(worker, full(first));
    rig.pass(3 * SECOND);
    rig.worker_says(worker, full(second));
    rig.pass(4 * SECOND - Duration::from_millis(1));
    rig.nothing_left(); // The first pause was over at 4, the second is at 7.
    rig.pass(Duration::from_millis(1));
    rig.assigns(worker, 2);
    rig.assigns(worker, 1);
    rig.nothing_left();
}

#[test]
fn a_preempted_task_runs_elsewhere_at_no_cost() {
    let mut rig = Rig::new();
    let (client, leaving) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, once(1));
    let attempt = rig.assigns(leaving, 1);
    let staying = rig.worker(3, 1);
    rig.worker_says(leaving, FromWorker::Draining);
    rig.worker_says(leaving, FromWorker::Started { attempt });
    rig.nothing_left();

    // Its grace is over: the worker killed the attempt, and gives it back.
    rig.worker_says(leaving, FromWorker::Refused { attempt, reason: Refusal::Draining });
    rig.assigns(staying, 1);
    rig.nothing_left();
}

#[test]
fn what_must_not_be_preempted_avoids_preemptible_workers() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.worker_offering(2, Resources::cpus(8), true);
    rig.submit(client, task_with(1, TaskOptions { preemptible: false, ..TaskOptions::default() }));
    rig.nothing_left();
    let safe = rig.worker(3, 1);
    rig.assigns(safe, 1);
    rig.nothing_left();
}

#[test]
fn drain_moves_actors_at_no_cost() {
    let mut rig = Rig::new();
    let (client, leaving) = (rig.client(1), rig.worker(2, 1));
    let instance = rig.create(client, leaving, actor(7));
    let staying = rig.worker(3, 1);
    let grace = 60 * SECOND;
    rig.ask(|controller, now, effects| controller.drain(now, leaving.id, grace, effects)).unwrap();
    assert_eq!(rig.orders(leaving), ToWorker::Drain { grace });

    rig.worker_says(leaving, FromWorker::ActorDestroyed { instance, idle: false });
    rig.is_nowhere(client, instance.actor);
    let moved = rig.instantiates(staying, instance.actor);
    assert_eq!(moved.epoch, instance.epoch.next());
    assert_eq!(rig.controller.actor_status(instance.actor).unwrap().restarts, 0);

    rig.worker_says(leaving, FromWorker::Leaving);
    assert_eq!(rig.next(), Effect::Over { session: leaving, cause: EndCause::Closed });
    rig.nothing_left();
}

// Tasks.

#[test]
fn a_task_submitted_twice_runs_once() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 2));
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    rig.submit(client, task(1));
    rig.nothing_left();
    rig.finish(worker, attempt);
    assert_eq!(rig.ends(client, 1), Ok(vec![value("done")]));

    rig.submit(client, task(1));
    assert_eq!(rig.ends(client, 1), Ok(vec![value("done")]), "it is told again how it ended");
    assert_eq!(rig.controller.counters().submitted, 1);
    rig.nothing_left();
}

#[test]
fn a_live_task_that_another_session_submits_too_answers_both_and_both_hold_its_results() {
    let mut rig = Rig::new();
    let (first, second, worker) = (rig.client(1), rig.client(2), rig.worker(3, 1));
    rig.submit(first, task(1));
    let attempt = rig.assigns(worker, 1);
    let result = ObjectId::of(task_id(1), 0);
    for _ in 0..2 {
        rig.submit(second, task(1));
        rig.nothing_left();
        assert!(rig.holds(second, Thing::Object(result)));
    }

    rig.finish(worker, attempt);
    assert_eq!(rig.ends(first, 1), Ok(vec![value("done")]));
    assert_eq!(rig.ends(second, 1), Ok(vec![value("done")]), "it is told once");
    rig.dies(first);
    assert_eq!(rig.controller.kept().0, 1, "the other session holds the result");
    rig.client_says(second, FromClient::Fetch { object: result });
    let ready = ToClient::ObjectReady { object: result, value: Ok(value("done")) };
    assert_eq!(rig.tells(second), ready);
    rig.client_says(second, FromClient::Release { thing: Thing::Object(result) });
    assert_eq!(rig.controller.kept(), (0, 0));
    rig.nothing_left();
}

#[test]
fn whoever_submitted_a_task_too_is_told_how_it_ends_when_its_owner_is_gone() {
    let mut rig = Rig::new();
    let (owner, other, worker) = (rig.client(1), rig.client(2), rig.worker(3, 2));
    for client in [owner, other] {
        (1..=3).for_each(|number| rig.submit(client, task(number)));
    }
    let running = [1, 2].map(|number| rig.assigns(worker, number));
    rig.nothing_left();

    rig.dies(owner);
    for attempt in running {
        let cancel = ToWorker::CancelAttempt { attempt, force: true };
        assert_eq!(rig.orders(worker), cancel);
    }
    let queued = rig.ends(other, 3).unwrap_err();
    assert_eq!(queued.kind(), ErrorKind::Cancelled);
    rig.end(worker, running[0], End::Cancelled, None);
    assert_eq!(rig.ends(other, 1).unwrap_err().kind(), ErrorKind::Cancelled);
    rig.finish(worker, running[1]); // It was done before it heard.
    assert_eq!(rig.ends(other, 2), Ok(vec![value("done")]));
    for number in 1..=3 {
        assert!(rig.holds(other, Thing::Object(ObjectId::of(task_id(number), 0))));
    }
    rig.nothing_left();
}

#[test]
fn a_task_of_nobody_that_a_session_submits_too_answers_it_and_its_results_outlive_their_ttl() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit_ownerless(task(1)).unwrap();
    let attempt = rig.assigns(worker, 1);
    rig.submit(client, task(1));
    rig.finish(worker, attempt);
    assert_eq!(rig.next(), Effect::Ended(task_id(1)));
    assert_eq!(rig.ends(client, 1), Ok(vec![value("done")]));
    rig.pass(rig.controller.config().result_ttl);
    assert_eq!(rig.controller.task_result(task_id(1)), Ok(Ok(vec![value("done")])));
    rig.nothing_left();
}

#[test]
fn an_ended_task_that_another_session_submits_answers_it_at_once_and_its_results_are_held() {
    let mut rig = Rig::new();
    let (first, second, worker) = (rig.client(1), rig.client(2), rig.worker(3, 1));
    rig.submit(first, task(1));
    let attempt = rig.assigns(worker, 1);
    rig.finish(worker, attempt);
    rig.ends(first, 1).unwrap();

    rig.submit(second, task(1));
    assert_eq!(rig.ends(second, 1), Ok(vec![value("done")]));
    assert!(rig.holds(second, Thing::Object(ObjectId::of(task_id(1), 0))));
    rig.dies(first);
    assert_eq!(rig.controller.task_result(task_id(1)), Ok(Ok(vec![value("done")])));
    rig.dies(second);
    assert_eq!(rig.controller.kept(), (0, 0));
    rig.nothing_left();
}

#[test]
fn the_results_of_a_task_are_all_of_them_or_not_found() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    for (number, values) in [(1, vec![]), (2, vec![value("one"), value("two")])] {
        rig.submit(client, TaskSpec { returns: values.len() as u32, ..task(number) });
        let attempt = rig.assigns(worker, number);
        rig.end(worker, attempt, End::Finished(values.clone()), None);
        assert_eq!(rig.ends(client, number), Ok(values.clone()));
        assert_eq!(rig.controller.task_result(task_id(number)), Ok(Ok(values)));
    }

    let thing = Thing::Object(ObjectId::of(task_id(2), 1));
    rig.client_says(client, FromClient::Release { thing });
    assert_eq!(rig.controller.kept().0, 1, "the first result is still here");
    let error = rig.controller.task_result(task_id(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    rig.nothing_left();
}

#[test]
fn what_user_code_raises_is_final_unless_its_class_is_to_be_retried() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let retry_on = RetryOn::Classes(vec!["IOError".into()]);
    let options = TaskOptions { retry_on, max_retries: Budget::Times(1), ..TaskOptions::default() };
    let mut fails = |spec: TaskSpec, class: &str| {
        let number = spec.id.as_u128();
        rig.submit(client, spec);
        let mut attempts = 0;
        while rig.state_of(number) != TaskState::Failed {
            rig.pass(RETRY_DELAY);
            let attempt = rig.assigns(worker, number);
            rig.end(worker, attempt, End::Failed(raised(class)), None);
            attempts += 1;
        }
        assert_eq!(rig.ends(client, number).unwrap_err().failure().unwrap().class, class);
        rig.nothing_left();
        attempts
    };
    assert_eq!(fails(task(1), "IOError"), 1);
    assert_eq!(fails(task_with(2, options.clone()), "ValueError"), 1);
    assert_eq!(fails(task_with(3, options), "IOError"), 2);
}

#[test]
fn a_task_gets_the_values_it_waited_for() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 2));
    rig.submit(client, task(1));
    let feeder = rig.assigns(worker, 1);
    rig.submit(client, TaskSpec { needs: vec![ObjectId::of(task_id(1), 0)], ..task(2) });
    assert_eq!(rig.why_waits(2), "1 values that it needs");
    rig.nothing_left();

    // The client lets go at once: the task that waits holds what it needs.
    let fed = Thing::Object(ObjectId::of(task_id(1), 0));
    rig.client_says(client, FromClient::Release { thing: fed });
    rig.finish(worker, feeder);
    rig.ends(client, 1).unwrap();
    let (attempt, values) = rig.gives(worker, 2, true);
    assert_eq!(values, [value("done")]);
    rig.finish(worker, attempt);
    rig.ends(client, 2).unwrap();
    assert!(!rig.controller.holds().is_held(fed));
    rig.nothing_left();
}

#[test]
fn a_task_fed_by_a_failed_task_fails_with_its_cause() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 2));
    rig.submit(client, task(1));
    let feeder = rig.assigns(worker, 1);
    rig.submit(client, TaskSpec { needs: vec![ObjectId::of(task_id(1), 0)], ..task(2) });
    rig.end(worker, feeder, End::Failed(raised("ValueError")), None);
    assert_eq!(rig.ends(client, 1), Err(raised("ValueError")));
    let error = rig.ends(client, 2).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Failed, false));
    assert_eq!(error.cause(), Some(&raised("ValueError")));
    rig.nothing_left();
}

#[test]
fn cancel_of_a_queued_task_ends_at_once() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    rig.assigns(worker, 1);
    rig.submit(client, task(2));
    rig.client_says(client, FromClient::Cancel { task: task_id(2), force: false });
    assert_eq!(rig.ends(client, 2).unwrap_err().kind(), ErrorKind::Cancelled);
    rig.nothing_left();
}

#[test]
fn cancel_racing_completion_ends_once() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    let cancel = FromClient::Cancel { task: task_id(1), force: false };
    rig.client_says(client, cancel.clone());
    assert_eq!(rig.orders(worker), ToWorker::CancelAttempt { attempt, force: false });

    rig.finish(worker, attempt); // It was done before it heard.
    assert_eq!(rig.ends(client, 1), Ok(vec![value("done")]));
    rig.client_says(client, cancel);
    let counters = rig.controller.counters();
    assert_eq!((counters.finished, counters.cancelled), (1, 0));
    rig.nothing_left();
}

#[test]
fn a_cancelled_task_is_not_retried_when_its_worker_is_lost() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    rig.client_says(client, FromClient::Cancel { task: task_id(1), force: false });
    assert_eq!(rig.orders(worker), ToWorker::CancelAttempt { attempt, force: false });
    rig.dies(worker);
    assert_eq!(rig.ends(client, 1).unwrap_err().kind(), ErrorKind::Cancelled);
    rig.nothing_left();
}

#[test]
fn stale_reports_change_nothing() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let old = rig.assigns(worker, 1);
    rig.worker_says(worker, FromWorker::Refused { attempt: old, reason: Refusal::TakenBack });
    let current = rig.assigns(worker, 1);
    let other = rig.worker(3, 1);

    rig.finish(worker, old);
    rig.finish(other, current); // It never had it.
    assert_eq!(rig.state_of(1), TaskState::Assigned);
    rig.finish(worker, current);
    rig.ends(client, 1).unwrap();
    rig.finish(worker, current);
    assert_eq!(rig.controller.counters().stale, 3);
    rig.nothing_left();
}

#[test]
fn blocked_task_lends_its_cpu() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, task(1));
    let parent = rig.assigns(worker, 1);
    rig.submit(client, task(2));
    rig.nothing_left();

    rig.worker_says(worker, FromWorker::Blocked { attempt: parent });
    let child = rig.assigns(worker, 2);
    rig.worker_says(worker, FromWorker::Resumed { attempt: parent });
    rig.submit(client, task(3));
    rig.finish(worker, child);
    rig.ends(client, 2).unwrap();
    rig.nothing_left(); // The account is even again, and nothing is free.
    rig.finish(worker, parent);
    rig.ends(client, 1).unwrap();
    rig.assigns(worker, 3);
    rig.nothing_left();
}

#[test]
fn short_tasks_wait_in_a_backlog_and_take_over_the_grant() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let quickly = Duration::from_micros(100);
    let done = || End::Finished(vec![value("done")]);
    rig.submit(client, task(1));
    let first = rig.assigns(worker, 1);
    rig.end_after(quickly, worker, first, done(), None);
    rig.ends(client, 1).unwrap();

    for number in 2..=4 {
        rig.submit(client, task(number));
    }
    let second = rig.assigns(worker, 2);
    let third = rig.backlogs(worker, 3);
    let fourth = rig.backlogs(worker, 4);
    rig.end_after(quickly, worker, second, done(), Some(third));
    rig.ends(client, 2).unwrap();
    assert_eq!(rig.state_of(3), TaskState::Running);

    // Another worker is idle: what has not started is asked back for it, at no cost.
    let idle = rig.worker(3, 1);
    assert_eq!(rig.orders(worker), ToWorker::TakeBack(fourth));
    rig.nothing_left();
    rig.worker_says(worker, FromWorker::Refused { attempt: fourth, reason: Refusal::TakenBack });
    rig.assigns(idle, 4);
    rig.nothing_left();
}

#[test]
fn what_was_asked_back_too_late_runs_where_it_is() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let done = || End::Finished(vec![value("done")]);
    rig.submit(client, task(1));
    let first = rig.assigns(worker, 1);
    rig.end_after(Duration::from_micros(100), worker, first, done(), None);
    rig.ends(client, 1).unwrap();
    rig.submit(client, task(2));
    rig.submit(client, task(3));
    let second = rig.assigns(worker, 2);
    let third = rig.backlogs(worker, 3);
    rig.worker(3, 1);
    assert_eq!(rig.orders(worker), ToWorker::TakeBack(third));

    rig.end(worker, second, done(), Some(third)); // It has started, and does not go back.
    rig.ends(client, 2).unwrap();
    rig.finish(worker, third);
    rig.ends(client, 3).unwrap();
    rig.nothing_left();
}

#[test]
fn a_worker_whose_only_slot_is_blocked_gets_no_backlog() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let gpu = Resources::one_cpu().with_gpus(Amount::ONE);
    let worker = rig.worker_offering(2, gpu.clone(), false);
    let options = TaskOptions { resources: gpu, ..TaskOptions::default() };
    let quickly = Duration::from_micros(100);
    let done = || End::Finished(vec![value("done")]);
    rig.submit(client, task_with(1, options.clone()));
    let first = rig.assigns(worker, 1);
    rig.end_after(quickly, worker, first, done(), None);
    rig.ends(client, 1).unwrap();
    rig.submit(client, task_with(2, options.clone()));
    rig.submit(client, task_with(3, options.clone()));
    let second = rig.assigns(worker, 2);
    let third = rig.backlogs(worker, 3);

    // Its CPU is free now, its GPU is not: what waits for it has to wait here.
    rig.worker_says(worker, FromWorker::Blocked { attempt: second });
    rig.nothing_left();
    rig.worker_says(worker, FromWorker::Refused { attempt: third, reason: Refusal::TakenBack });
    rig.submit(client, task_with(4, options));
    rig.nothing_left();
    rig.submit(client, task(5));
    let child = rig.assigns(worker, 5);
    rig.end_after(quickly, worker, child, done(), None);
    rig.ends(client, 5).unwrap();
    rig.nothing_left();

    rig.worker_says(worker, FromWorker::Resumed { attempt: second });
    let third = rig.backlogs(worker, 3);
    rig.backlogs(worker, 4);
    rig.end_after(quickly, worker, second, done(), Some(third));
    rig.ends(client, 2).unwrap();
    rig.nothing_left();
}

#[test]
fn an_unknown_function_is_not_found_unless_no_worker_is_here() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let target = Target::Function("divide".into());
    rig.submit(client, TaskSpec { target: target.clone(), ..task(1) });
    assert!(rig.why_waits(1).starts_with("no worker is here"), "{}", rig.why_waits(1));
    rig.worker(2, 1);
    assert_eq!(rig.why_waits(1), "no worker provides \"divide\"");
    rig.nothing_left();

    rig.submit(client, TaskSpec { target, ..task(2) });
    let error = rig.ends(client, 2).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::NotFound, false));
    rig.nothing_left();
}

#[test]
fn infeasible_resources_are_named_in_status() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    let worker = rig.worker(2, 2);
    let asking = |resources| TaskOptions { resources, ..TaskOptions::default() };
    rig.submit(client, task_with(1, asking(Resources::cpus(8))));
    assert_eq!(rig.why_waits(1), "no worker is large enough for cpu 8: the largest offers cpu 2");
    rig.submit(client, task_with(2, asking(Resources::one_cpu().with_gpus(Amount::ONE))));
    assert!(rig.why_waits(2).contains("gpu 1"), "{}", rig.why_waits(2));
    rig.submit(client, task(3));
    rig.assigns(worker, 3); // What can run is not held up by what cannot.
    rig.nothing_left();
}

// Limits.

#[test]
fn submissions_beyond_the_limit_are_exhausted_and_name_the_limit() {
    let mut rig = Rig::with(Config { max_pending_tasks: 1, ..Config::default() });
    let worker = rig.worker(2, 1);
    rig.submit_ownerless(task(1)).unwrap();
    let attempt = rig.assigns(worker, 1);
    let error = rig.submit_ownerless(task(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("the limit is 1 (max_pending_tasks)"), "{error}");

    // A client is told the same, and is promised room as soon as there is some.
    let client = rig.client(1);
    rig.submit(client, task(3));
    assert_eq!(rig.ends(client, 3).unwrap_err().kind(), ErrorKind::Exhausted);
    rig.finish(worker, attempt);
    assert_eq!(rig.next(), Effect::Ended(task_id(1)));
    assert_eq!(rig.tells(client), ToClient::Credit { total: 1 });
    rig.nothing_left();
}

#[test]
fn submitting_ended_tasks_again_uses_up_no_credit() {
    let mut rig = Rig::with(Config { submit_window: 2, ..Config::default() });
    let (client, worker) = (rig.client(1), rig.worker(2, 1)); // Two are welcome.
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    assert_eq!(rig.tells(client), ToClient::Credit { total: 3 });
    rig.finish(worker, attempt);
    rig.ends(client, 1).unwrap();

    for total in 4..=9 {
        rig.submit(client, task(1));
        assert_eq!(rig.tells(client), ToClient::Credit { total });
        rig.ends(client, 1).unwrap();
        rig.nothing_left();
    }
    rig.submit(client, task(2));
    rig.assigns(worker, 2);
    assert_eq!(rig.tells(client), ToClient::Credit { total: 10 });
    rig.nothing_left();
}

#[test]
fn payloads_may_be_as_large_as_the_limit_and_not_one_byte_more() {
    let mut rig = Rig::with(Config { max_payload_bytes: 4, ..Config::default() });
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, TaskSpec { args: Payload::raw("fours"), ..task(1) });
    let error = rig.ends(client, 1).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::TooLarge, false));
    assert!(error.message().contains("5 bytes, the limit is 4 (max_payload_bytes)"), "{error}");

    for (number, result, fits) in [(2, "four", true), (3, "fours", false)] {
        rig.submit(client, TaskSpec { args: Payload::raw("four"), ..task(number) });
        let attempt = rig.assigns(worker, number);
        rig.end(worker, attempt, End::Finished(vec![value(result)]), None);
        let kind = rig.ends(client, number).map_err(|error| error.kind());
        assert_eq!(kind.err(), (!fits).then_some(ErrorKind::TooLarge));
    }

    let object = ObjectId::of(task_id(90), 0);
    rig.client_says(client, FromClient::Put { object, value: value("fours") });
    let ToClient::ObjectReady { value: Err(error), .. } = rig.tells(client) else {
        panic!("it is too large")
    };
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    rig.nothing_left();
}

#[test]
fn results_without_an_owner_are_kept_for_their_ttl() {
    let mut rig = Rig::new();
    let worker = rig.worker(2, 1);
    rig.submit_ownerless(task(1)).unwrap();
    let not_yet = rig.controller.task_result(task_id(1)).unwrap_err();
    assert_eq!(not_yet.kind(), ErrorKind::NotReady);
    let attempt = rig.assigns(worker, 1);
    rig.finish(worker, attempt);
    assert_eq!(rig.next(), Effect::Ended(task_id(1)));

    let ttl = rig.controller.config().result_ttl;
    rig.pass(ttl - SECOND);
    assert_eq!(rig.controller.task_result(task_id(1)), Ok(Ok(vec![value("done")])));
    rig.pass(SECOND);
    let dropped = rig.controller.task_result(task_id(1)).unwrap_err();
    assert_eq!(dropped.kind(), ErrorKind::NotFound);
    assert_eq!(rig.controller.kept(), (0, 0));
    rig.nothing_left();
}

#[test]
fn the_oldest_kept_results_make_room_for_new_ones() {
    // Half of this is for them: two of four bytes each, with what an object takes besides.
    let mut rig = Rig::with(Config { max_result_bytes: 1_000, ..Config::default() });
    let worker = rig.worker(2, 1);
    for number in 1..=3 {
        rig.submit_ownerless(task(number)).unwrap();
        let attempt = rig.assigns(worker, number);
        rig.finish(worker, attempt);
        assert_eq!(rig.next(), Effect::Ended(task_id(number)));
    }
    assert_eq!(rig.controller.kept(), (2, 8));
    let kept = |number| rig.controller.task_result(task_id(number)).is_ok();
    assert_eq!([kept(1), kept(2), kept(3)], [false, true, true]);
    rig.nothing_left();
}

#[test]
fn only_what_a_session_holds_is_fetched() {
    let mut rig = Rig::new();
    let (holder, other) = (rig.client(1), rig.client(2));
    rig.submit(holder, task(1));
    let object = ObjectId::of(task_id(1), 0);
    rig.client_says(other, FromClient::Fetch { object });
    let Effect::ToClient { to, message: ToClient::ObjectReady { value: Err(error), .. } } =
        rig.next()
    else {
        panic!("the other is answered")
    };
    assert_eq!((to, error.kind()), (other, ErrorKind::Gone));
    rig.client_says(other, FromClient::Hold { thing: Thing::Object(object) });
    rig.client_says(other, FromClient::Fetch { object });
    rig.nothing_left();
}

// Actors.

#[test]
fn a_taken_name_is_already_exists_unless_get_if_exists() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 4));
    let name = Some(Arc::from("the counter"));
    let first = rig.create(client, worker, ActorSpec { name: name.clone(), ..actor(7) });

    let other = rig.client(3);
    let second = ActorSpec { name: name.clone(), ..actor(8) };
    rig.client_says(other, FromClient::CreateActor(Arc::new(second)));
    let ToClient::ActorCreated { actor: Err(error), .. } = rig.tells(other) else {
        panic!("the name is taken")
    };
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);

    let found = ActorOptions { get_if_exists: true, ..ActorOptions::default() };
    let third = ActorSpec { name: name.clone(), ..actor_with(9, found) };
    let requested = third.id;
    rig.client_says(other, FromClient::CreateActor(Arc::new(third)));
    let created = ToClient::ActorCreated { requested, actor: Ok(first.actor) };
    assert_eq!(rig.tells(other), created);
    rig.is_nowhere(other, first.actor);
    assert!(
        rig.controller.holds().holds(Holder::Session(other.id), Thing::Actor(first.actor)),
        "whoever finds it holds it"
    );

    // Names count within a namespace.
    rig.create(client, worker, ActorSpec { name, namespace: "mine".into(), ..actor(10) });
    rig.nothing_left();
}

#[test]
fn an_actor_that_another_session_creates_again_is_held_by_both() {
    let mut rig = Rig::new();
    let (first, second, worker) = (rig.client(1), rig.client(2), rig.worker(3, 4));
    let instance = rig.create(first, worker, actor(7));
    let id = instance.actor;
    rig.client_says(second, FromClient::CreateActor(Arc::new(actor(7))));
    let created = ToClient::ActorCreated { requested: id, actor: Ok(id) };
    assert_eq!(rig.tells(second), created);
    rig.is_nowhere(second, id);
    assert!(rig.holds(second, Thing::Actor(id)));

    rig.dies(first);
    rig.nothing_left();
    assert_eq!(rig.controller.actor_status(id).unwrap().state, ActorState::Creating);
    rig.client_says(second, FromClient::Release { thing: Thing::Actor(id) });
    assert_eq!(rig.orders(worker), ToWorker::Destroy(instance));
    assert_eq!(rig.is_dead(second, id).kind(), ErrorKind::Gone);
    rig.nothing_left();
}

#[test]
fn a_constructor_that_raises_frees_the_name_and_runs_once() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let name: Arc<str> = "the counter".into();
    let eager = ActorOptions { max_restarts: Budget::Unlimited, ..ActorOptions::default() };
    let spec = ActorSpec { name: Some(name.clone()), ..actor_with(7, eager) };
    let instance = rig.create(client, worker, spec);
    rig.submit(client, call(1, instance.actor));

    let error = raised("ValueError");
    rig.worker_says(worker, FromWorker::ActorFailed { instance, error: error.clone() });
    let failed = rig.ends(client, 1).unwrap_err();
    assert_eq!((failed.kind(), failed.may_have_run()), (ErrorKind::Failed, false));
    assert_eq!(rig.is_dead(client, instance.actor), error);
    let state = rig.controller.actor_status(instance.actor).unwrap().state;
    assert_eq!(state, ActorState::Dead(DeathCause::ConstructorFailed));
    rig.pass(60 * SECOND);
    rig.nothing_left();
    rig.create(client, worker, ActorSpec { name: Some(name), ..actor(8) });
    rig.nothing_left();
}

#[test]
fn an_actor_is_restarted_at_once_then_after_a_while_until_its_restarts_are_used_up() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let options = ActorOptions { max_restarts: Budget::Times(2), ..ActorOptions::default() };
    let first = rig.create(client, worker, actor_with(7, options));
    let died = |instance| FromWorker::ActorDied { instance, error: crashed() };

    rig.worker_says(worker, died(first));
    rig.is_nowhere(client, first.actor);
    let second = rig.instantiates(worker, first.actor);
    rig.worker_says(worker, died(first)); // Said of an epoch that is over: it costs nothing.
    rig.nothing_left();

    rig.worker_says(worker, died(second));
    rig.is_nowhere(client, first.actor);
    rig.nothing_left();
    rig.pass(RETRY_DELAY);
    let third = rig.instantiates(worker, first.actor);
    assert_eq!(third.epoch, ActorEpoch(3));

    rig.worker_says(worker, died(third));
    assert_eq!(rig.is_dead(client, first.actor).kind(), ErrorKind::Gone);
    let state = rig.controller.actor_status(first.actor).unwrap().state;
    assert_eq!(state, ActorState::Dead(DeathCause::RestartsUsedUp));
    rig.nothing_left();
}

#[test]
fn an_actor_ends_with_its_last_handle_unless_it_is_detached() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 2));
    let mortal = rig.create(client, worker, actor(7));
    let detached = ActorOptions { lifetime: Lifetime::Detached, ..ActorOptions::default() };
    let lasting = rig.create(client, worker, actor_with(8, detached.clone()));
    for instance in [mortal, lasting] {
        let thing = Thing::Actor(instance.actor);
        rig.client_says(client, FromClient::Release { thing });
    }
    assert_eq!(rig.orders(worker), ToWorker::Destroy(mortal));
    assert_eq!(rig.is_dead(client, mortal.actor).kind(), ErrorKind::Gone);
    let state = |actor| rig.controller.actor_status(actor).unwrap().state;
    assert_eq!(state(mortal.actor), ActorState::Dead(DeathCause::OwnerGone));
    assert_eq!(state(lasting.actor), ActorState::Creating);
    rig.nothing_left();

    // Without a session there is no handle, so only detached actors can be created.
    let mut create = |spec| {
        rig.ask(|controller, now, effects| {
            controller.create_actor(now, Owner::Cluster, Arc::new(spec), effects)
        })
    };
    assert_eq!(create(actor(9)).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(create(actor_with(10, detached)).is_ok());
}

#[test]
fn calls_wait_for_their_actor_and_reach_it_in_order() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let instance = rig.create(client, worker, actor(7));
    rig.submit(client, call(2, instance.actor));
    rig.submit(client, call(1, instance.actor));
    assert_eq!(rig.why_waits(1), "its actor to be ready");
    rig.nothing_left();

    rig.worker_says(worker, FromWorker::ActorReady { instance });
    let ToClient::ActorChanged { place: ActorPlace::Ready { host, .. }, .. } = rig.tells(client)
    else {
        panic!("it is ready")
    };
    assert_eq!(host, worker);
    rig.executes(worker, 2);
    rig.executes(worker, 1);
    rig.nothing_left();
}

#[test]
fn a_call_to_an_actor_that_is_not_here_did_not_run() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, call(1, ActorId::from_u128(99)));
    let unknown = rig.ends(client, 1).unwrap_err();
    assert_eq!((unknown.kind(), unknown.may_have_run()), (ErrorKind::NotFound, false));

    let instance = rig.create(client, worker, actor(7));
    rig.client_says(client, FromClient::DeleteActor { actor: instance.actor });
    assert_eq!(rig.orders(worker), ToWorker::Destroy(instance));
    rig.is_dead(client, instance.actor);
    rig.submit(client, call(2, instance.actor));
    let deleted = rig.ends(client, 2).unwrap_err();
    assert_eq!((deleted.kind(), deleted.may_have_run()), (ErrorKind::Gone, false));
    rig.nothing_left();
}

#[test]
fn a_lost_call_goes_to_the_next_instance_only_if_actor_and_call_allow_it() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let options = ActorOptions {
        max_restarts: Budget::Unlimited,
        max_task_retries: Budget::Times(1),
        ..ActorOptions::default()
    };
    let first = rig.create(client, worker, actor_with(7, options));
    rig.worker_says(worker, FromWorker::ActorReady { instance: first });
    rig.tells(client);
    rig.submit(client, call(1, first.actor));
    rig.submit(client, TaskSpec { target: call(2, first.actor).target, ..once(2) });
    rig.executes(worker, 1);
    rig.executes(worker, 2);

    rig.worker_says(worker, FromWorker::ActorDied { instance: first, error: crashed() });
    let lost = rig.ends(client, 2).unwrap_err();
    assert_eq!((lost.kind(), lost.may_have_run()), (ErrorKind::Unavailable, true));
    rig.is_nowhere(client, first.actor);
    let second = rig.instantiates(worker, first.actor);
    rig.worker_says(worker, FromWorker::ActorReady { instance: second });
    rig.tells(client);
    assert_eq!(rig.executes(worker, 1).attempt, Attempt(2));
    rig.nothing_left();
}
