//! The user of a client: submits random work, and remembers which results it is owed.

use crate::executor::{RAISED_IN_STREAM, UserCodeBehavior, item_made_by, items_of_task, made_by};
use crate::process::{Input, ProcessId, ProcessShell};
use crate::world::{SimEvent, World};
use marline_core::error::{Error, ErrorKind};
use marline_core::id::{ActorId, ObjectId, Referent, TaskId};
use marline_core::message::CancelMode;
use marline_core::payload::{Outcome, Payload, Value};
use marline_core::resources::{Amount, Resources};
use marline_core::spec::{
    ActorOptions, ActorSpec, Budget, CheckpointPolicy, Lifetime, RetryOn, Target, TaskOptions,
    TaskSpec, consumed_report_step,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Default)]
pub struct User {
    /// The references it has, one handle each.
    pub objects: Vec<ObjectId>,
    pub actors: Vec<ActorId>,
    /// The tasks and calls that it waits for, and how many results each returns.
    pub waits: BTreeMap<TaskId, u32>,
    calls: BTreeSet<TaskId>,
    fetching: BTreeSet<ObjectId>,
    creating: BTreeSet<ActorId>,
    streams: BTreeMap<TaskId, StreamProgress>,
}

/// How far the user is with a stream that it consumes.
#[derive(Debug, Default)]
struct StreamProgress {
    window: u32,
    /// How many items arrived.
    arrived: u32,
    /// How many items the user has consumed.
    consumed: u32,
    /// How many consumed items the user has reported.
    reported: u32,
    /// Whether the user has closed the stream.
    closed: bool,
    ended: bool,
}

impl User {
    /// Checks, at the end of a session, that everything the user waited for has ended. Forgets
    /// everything.
    pub fn end_session(&mut self) {
        assert!(
            self.waits.is_empty(),
            "a session ended and left its user waiting: {:?}",
            self.waits
        );
        assert!(self.fetching.is_empty() && self.creating.is_empty(), "a user was left waiting");
        *self = User::default();
    }

    fn begin_consuming(&mut self, spec: &TaskSpec) {
        if let Some(window) = spec.stream_window {
            self.streams.insert(spec.id, StreamProgress { window, ..StreamProgress::default() });
        }
    }

    /// Panics if the user still waits for anything, except under ids that the fuzz client has used.
    /// Returns how many waits of that kind there are.
    pub fn check_nothing_pending(&self, id: ProcessId, odd: &BTreeSet<TaskId>) -> usize {
        let waits = self.waits.keys().filter(|task| !odd.contains(task)).count();
        let fetching = self.fetching.iter().filter(|object| !odd.contains(&object.origin)).count();
        assert_eq!(waits, 0, "{id:?} still waits for {:?}; calls: {:?}", self.waits, self.calls);
        assert_eq!(fetching, 0, "{id:?} still waits for {:?}", self.fetching);
        assert!(self.creating.is_empty(), "{id:?} still waits for {:?}", self.creating);
        self.waits.len() + self.fetching.len()
    }
}

impl World {
    fn new_id(&mut self) -> u128 {
        self.oracle.next_id += 1;
        let id = u128::from(self.oracle.next_id) << 64 | u128::from(self.random.bits());
        self.oracle.recent.push_back(id);
        if self.oracle.recent.len() > 20 {
            self.oracle.recent.pop_front();
        }
        id
    }

    /// Lets the user do something random, and plans its next action.
    pub fn user_acts(&mut self, id: ProcessId) {
        if !self.faults {
            return;
        }
        let most = if self.random.one_in(3) { 2_000 } else { 300 };
        self.soon(id, Duration::from_millis(most), Input::UserActs);
        if self.client_shell(id).machine.session().is_none() {
            return;
        }
        match self.random.below(22) {
            0..=6 => {
                let burst = if self.hasty { 24 } else { 5 };
                for _ in 0..1 + self.random.below(burst) {
                    self.submit(id);
                }
            }
            7..=12 => {
                for _ in 0..1 + self.random.below(4) {
                    self.call(id);
                }
            }
            13 | 14 => self.create_actor(id),
            15 => self.put(id),
            16 => self.fetch(id),
            17 | 18 => self.let_go_of_object(id),
            19 => self.let_go_of_actor(id),
            20 => self.cancel(id),
            _ => self.find_or_delete(id),
        }
    }

    fn some_objects(&mut self, id: ProcessId, most: u64) -> Vec<ObjectId> {
        let count = self.random.below(most + 1);
        let objects = self.client_shell(id).user.objects.clone();
        let pick = |random: &mut marline_core::random::Random| {
            objects[random.below(objects.len() as u64) as usize]
        };
        (0..count).filter(|_| !objects.is_empty()).map(|_| pick(&mut self.random)).collect()
    }

    fn some_actor(&mut self, id: ProcessId) -> Option<ActorId> {
        let count = self.client_shell(id).user.actors.len() as u64;
        (count > 0).then(|| {
            let index = self.random.below(count) as usize;
            self.client_shell(id).user.actors[index]
        })
    }

    fn random_behavior(&mut self) -> UserCodeBehavior {
        match self.random.below(20) {
            0 => UserCodeBehavior::Raise,
            1 => UserCodeBehavior::Crash,
            2 | 3 => UserCodeBehavior::PassOn,
            4 | 5 => UserCodeBehavior::Block,
            6 => UserCodeBehavior::Ignore,
            7 | 8 => UserCodeBehavior::Keep,
            _ => UserCodeBehavior::Return,
        }
    }

    fn random_referents(&mut self, id: ProcessId) -> Vec<Referent> {
        let mut things: Vec<Referent> =
            self.some_objects(id, 2).into_iter().map(Referent::Object).collect();
        if self.random.one_in(4) {
            things.extend(self.some_actor(id).map(Referent::Actor));
        }
        things.sort_unstable();
        things.dedup();
        things
    }

    fn submit(&mut self, id: ProcessId) {
        let needs = self.some_objects(id, 2);
        let holds = self.random_referents(id);
        let resources = match self.random.below(8) {
            0 => Resources::cpus(2),
            1 => Resources::one_cpu().with_gpus(Amount(5_000)),
            2 => Resources::default(),
            3 => Resources::one_cpu().with_memory(600),
            4 => Resources::default().with_custom("disk", Amount(5_000)),
            _ => Resources::one_cpu(),
        };
        let name = if self.random.one_in(3) { "mul" } else { "add" };
        let options = TaskOptions {
            resources,
            max_retries: if self.random.one_in(4) { Budget::Times(0) } else { Budget::Times(3) },
            retry_on: if self.random.one_in(3) { RetryOn::Any } else { RetryOn::Never },
            timeout: self.random.one_in(6).then_some(Duration::from_secs(2)),
            preemptible: !self.random.one_in(6),
            ..TaskOptions::default()
        };
        let task = TaskId::from_u128(self.new_id());
        let stream = self.some_stream();
        let returns = if stream.is_some() { 1 } else { self.random.below(3) as u32 };
        let spec = Arc::new(TaskSpec {
            id: task,
            target: Target::Function(name.into()),
            args: self.random_behavior().args(),
            needs,
            referents: holds,
            returns,
            stream_window: stream,
            options: Arc::new(options),
        });
        let shell = self.client_shell(id);
        let mut effects = Vec::new();
        match shell.machine.submit(spec.clone(), &mut effects) {
            Ok(()) => {
                shell.user.waits.insert(task, returns);
                shell.user.objects.extend(spec.results());
                shell.user.begin_consuming(&spec);
                self.oracle.submitted(&spec);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}"),
        }
        self.client_effects(id, effects);
    }

    fn call(&mut self, id: ProcessId) {
        let Some(actor) = self.some_actor(id) else { return };
        let holds = self.random_referents(id);
        let behavior = self.random_behavior();
        let call = TaskId::from_u128(self.new_id());
        let timeout = self.random.one_in(8).then_some(Duration::from_secs(2));
        let deadline = self.random.one_in(8).then_some(Duration::from_secs(5));
        let spec = Arc::new(TaskSpec {
            id: call,
            target: Target::Method { actor, method: "increment".into() },
            args: behavior.args(),
            needs: Vec::new(),
            referents: holds,
            returns: 1,
            stream_window: self.some_stream(),
            options: Arc::new(TaskOptions {
                timeout,
                max_retries: Budget::Unlimited,
                ..TaskOptions::default()
            }),
        });
        let now = self.processes[id.0].clock.read(self.now);
        let later = self.random.one_in(6);
        if later {
            let wait = self.random.up_to(Duration::from_secs(2));
            self.schedule_in(wait, SimEvent::Supply { client: id, call });
        }
        let shell = self.client_shell(id);
        let session = shell.machine.session().expect("it was looked up");
        let mut effects = Vec::new();
        let deadline = deadline.map(|deadline| now + deadline);
        let values = (!later).then(Vec::new);
        shell
            .machine
            .call(spec.clone(), values, deadline, &mut effects)
            .expect("a good call is made");
        shell.user.waits.insert(call, 1);
        shell.user.calls.insert(call);
        shell.user.begin_consuming(&spec);
        self.oracle.called(&spec, session);
        self.client_effects(id, effects);
    }

    /// Supplies the arguments that a call waits for, or an error instead.
    pub fn supply(&mut self, id: ProcessId, call: TaskId) {
        let values = match self.random.one_in(5) {
            true => Err(Error::cancelled("what it needs was cancelled")),
            false => Ok(Vec::new()),
        };
        if let ProcessShell::Client(shell) = &mut self.processes[id.0].role {
            let mut effects = Vec::new();
            shell.machine.supply(call, values, &mut effects);
            self.client_effects(id, effects);
        }
    }

    fn create_actor(&mut self, id: ProcessId) {
        if self.client_shell(id).user.actors.len() > 6 {
            return;
        }
        let actor = ActorId::from_u128(self.new_id());
        let holds = self.random_referents(id);
        // The fuzz client may have announced an object that the actor needs, and never send its
        // value.
        let mut needs = self.some_objects(id, 1);
        needs.retain(|object| !self.oracle.fuzzed_ids.contains(&object.origin));
        let named = self.random.one_in(2);
        let options = ActorOptions {
            resources: if self.random.one_in(3) {
                Resources { cpu: Amount(1_000), ..Resources::default() }
            } else {
                Resources::default()
            },
            max_restarts: match self.random.below(4) {
                0 => Budget::Times(0),
                1 => Budget::Unlimited,
                _ => Budget::Times(3),
            },
            max_task_retries: if self.random.one_in(2) {
                Budget::Times(0)
            } else {
                Budget::Times(2)
            },
            max_concurrency: if self.random.one_in(4) { 3 } else { 1 },
            max_pending_calls: if self.random.one_in(4) { 2 } else { 1_000 },
            lifetime: if named && self.random.one_in(2) {
                Lifetime::Detached
            } else {
                Lifetime::NonDetached
            },
            get_if_exists: self.random.one_in(2) && named,
            preemptible: !self.random.one_in(6),
            idle_ttl: self.random.one_in(8).then_some(Duration::from_secs(10)),
            checkpoints: self.random.one_in(3).then(|| CheckpointPolicy {
                every_calls: Some(1 + self.random.below(5) as u32),
                interval: self.random.one_in(3).then_some(Duration::from_secs(1)),
            }),
            ..ActorOptions::default()
        };
        let name = named.then(|| format!("name-{}", self.random.below(3)).into());
        let spec = ActorSpec {
            id: actor,
            class: "Counter".into(),
            args: if self.random.one_in(10) {
                UserCodeBehavior::Raise
            } else {
                UserCodeBehavior::Return
            }
            .args(),
            needs,
            referents: holds,
            name,
            namespace: "default".into(),
            options: Arc::new(options),
            interface: Default::default(),
        };
        let shell = self.client_shell(id);
        let mut effects = Vec::new();
        shell.machine.create_actor(Arc::new(spec), &mut effects).expect("a good actor is created");
        shell.user.creating.insert(actor);
        self.client_effects(id, effects);
    }

    fn put(&mut self, id: ProcessId) {
        let object = ObjectId::of(TaskId::from_u128(self.new_id()), 0);
        let contains = self.random_referents(id);
        let mut value = Value { payload: Payload::raw(vec![7; 100]), referents: contains };
        let later = self.random.one_in(2);
        if later {
            let wait = self.random.up_to(Duration::from_secs(5));
            self.schedule_in(wait, SimEvent::Resolve { client: id, object });
        }
        let at = (!later && self.random.one_in(2))
            .then(|| self.store_put(id, object, &mut value))
            .flatten();
        let shell = self.client_shell(id);
        let mut effects = Vec::new();
        let accepted = match later {
            true => shell.machine.announce(object, &mut effects),
            false => shell.machine.put(object, value, at, &mut effects),
        };
        accepted.expect("it is joined");
        shell.user.objects.push(object);
        self.client_effects(id, effects);
    }

    /// Sends the value of an object that the client announced, or an error instead.
    pub fn resolve(&mut self, id: ProcessId, object: ObjectId) {
        let value = match self.random.one_in(5) {
            true => Err(Error::cancelled("it was cancelled")),
            false => Ok(Value::from(Payload::raw(vec![7; 100]))),
        };
        if let ProcessShell::Client(shell) = &mut self.processes[id.0].role {
            let mut effects = Vec::new();
            shell.machine.resolve(object, value, &mut effects);
            self.client_effects(id, effects);
        }
    }

    fn fetch(&mut self, id: ProcessId) {
        let Some(object) = self.some_objects(id, 1).first().copied() else { return };
        let shell = self.client_shell(id);
        let mut effects = Vec::new();
        shell.machine.fetch(object, &mut effects).expect("it is joined");
        shell.user.fetching.insert(object);
        self.client_effects(id, effects);
    }

    fn let_go_of_object(&mut self, id: ProcessId) {
        let count = self.client_shell(id).user.objects.len() as u64;
        if count > 0 {
            let index = self.random.below(count) as usize;
            let object = self.client_shell(id).user.objects.swap_remove(index);
            self.release(id, Referent::Object(object));
        }
    }

    fn let_go_of_actor(&mut self, id: ProcessId) {
        let count = self.client_shell(id).user.actors.len() as u64;
        if count > 0 {
            let index = self.random.below(count) as usize;
            let actor = self.client_shell(id).user.actors.swap_remove(index);
            self.release(id, Referent::Actor(actor));
        }
    }

    fn release(&mut self, id: ProcessId, thing: Referent) {
        let mut effects = Vec::new();
        self.client_shell(id).machine.release(thing, &mut effects);
        self.client_effects(id, effects);
    }

    fn cancel(&mut self, id: ProcessId) {
        let waits: Vec<TaskId> = self.client_shell(id).user.waits.keys().copied().collect();
        if waits.is_empty() {
            return;
        }
        let task = waits[self.random.below(waits.len() as u64) as usize];
        let mode = CancelMode::from_force(self.random.one_in(3));
        let mut effects = Vec::new();
        self.client_shell(id).machine.cancel(task, mode, &mut effects);
        self.client_effects(id, effects);
    }

    fn find_or_delete(&mut self, id: ProcessId) {
        let mut effects = Vec::new();
        if self.random.one_in(3) {
            let Some(actor) = self.some_actor(id) else { return };
            self.client_shell(id).machine.delete_actor(actor, &mut effects).expect("it is joined");
        } else {
            let name = format!("name-{}", self.random.below(3));
            let request = self.random.bits();
            let machine = &mut self.client_shell(id).machine;
            machine
                .find_actor(request, "default".into(), name.into(), &mut effects)
                .expect("it is joined");
        }
        self.client_effects(id, effects);
    }

    /// Handles the end of a task or a call. Panics if it had ended before.
    pub fn user_ended(&mut self, id: ProcessId, task: TaskId, outcome: Outcome) {
        let user = &mut self.client_shell(id).user;
        let Some(returns) = user.waits.remove(&task) else {
            // Work under an id that the fuzz client has used may end again.
            return assert!(self.oracle.fuzzed_ids.contains(&task), "{task} ended twice");
        };
        let is_call = user.calls.remove(&task);
        if let Some(progress) = user.streams.get_mut(&task) {
            progress.ended = true;
            let (came, closed) = (progress.arrived, progress.closed);
            // If it ended by itself, all its items must have arrived before its end.
            let whole = match &outcome {
                Ok(_) => true,
                Err(error) => {
                    let raised = error.failure().is_some_and(|it| it.class == RAISED_IN_STREAM);
                    raised && error.may_have_run()
                }
            };
            if whole && !closed && !self.oracle.fuzzed_ids.contains(&task) {
                let words =
                    format!("the items of {task} that arrived before it ended: {outcome:?}");
                assert_eq!(came, items_of_task(task), "{words}");
            }
        }
        match &outcome {
            Ok(values) => {
                self.report.finished += 1;
                let right =
                    values.len() == returns as usize || self.oracle.fuzzed_ids.contains(&task);
                assert!(right, "results of {task}");
                let made = values.iter().all(|value| made_by(value).0 == task);
                assert!(
                    made || self.oracle.fuzzed_ids.contains(&task),
                    "{task} got another's results"
                );
            }
            Err(error) => {
                self.report.failed += 1;
                assert_ne!(error.kind(), ErrorKind::Internal, "{task}: {error}");
                self.oracle.check_ran(task, error);
            }
        }
        if is_call {
            // The user gets a handle to each referent that the answer names.
            for thing in outcome.iter().flatten().flat_map(Value::referents_to_hold) {
                let user = &mut self.client_shell(id).user;
                match thing {
                    Referent::Object(object) => user.objects.push(object),
                    Referent::Actor(actor) => user.actors.push(actor),
                }
            }
        }
    }

    fn some_stream(&mut self) -> Option<u32> {
        self.random.one_in(4).then(|| 1 + self.random.below(6) as u32)
    }

    /// Handles an item that arrived. The user consumes it after a while.
    pub fn item_arrived(
        &mut self,
        id: ProcessId,
        task: TaskId,
        index: u32,
        value: Result<Value, Error>,
    ) {
        let progress = self.client_shell(id).user.streams.get_mut(&task).expect("it was asked for");
        assert!(!progress.ended && !progress.closed, "{task} yielded item {index} after its end");
        assert_eq!(progress.arrived, index, "the next item of {task}");
        progress.arrived += 1;
        if !self.oracle.fuzzed_ids.contains(&task) {
            match value {
                Ok(value) => assert_eq!(item_made_by(&value), (task, index), "an item of another"),
                // The data of the item was lost with its worker.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Gone, "{task} item {index}"),
            }
        }
        let most = if self.random.one_in(4) { 2_000 } else { 20 };
        self.soon(id, Duration::from_millis(most), Input::Take { task });
    }

    /// Lets a user consume an item that arrived, or close the stream.
    pub fn take(&mut self, id: ProcessId, task: TaskId) {
        let enough = self.random.one_in(30);
        let user = &mut self.client_shell(id).user;
        // The session may be over, and its streams with it.
        let Some(progress) = user.streams.get_mut(&task).filter(|progress| !progress.closed) else {
            return;
        };
        if progress.consumed == progress.arrived {
            // This turn was for a stream of an earlier session. The fuzz client has used that
            // stream's id again.
            return;
        }
        let mut effects = Vec::new();
        if enough {
            progress.closed = true;
            let left = progress.consumed..progress.arrived;
            let machine = &mut self.client_shell(id).machine;
            machine.close_stream(task, &mut effects);
            for index in left {
                machine.release(Referent::Object(ObjectId::item(task, index)), &mut effects);
            }
        } else {
            user.objects.push(ObjectId::item(task, progress.consumed));
            progress.consumed += 1;
            let is_due =
                progress.consumed - progress.reported >= consumed_report_step(progress.window);
            let took = progress.consumed;
            if is_due {
                progress.reported = took;
                self.client_shell(id).machine.report_consumed(task, took, &mut effects);
            }
            self.oracle.takes(task);
        }
        self.client_effects(id, effects);
    }

    pub fn value_arrived(&mut self, id: ProcessId, object: ObjectId, value: Result<Value, Error>) {
        let user = &mut self.client_shell(id).user;
        let waited = user.fetching.remove(&object);
        // A value under an id that the fuzz client has used may arrive again.
        assert!(waited || self.oracle.fuzzed_ids.contains(&object.origin), "{object} came twice");
        if let Err(error) = value {
            assert_ne!(error.kind(), ErrorKind::Internal, "{object}: {error}");
        }
    }

    pub fn user_created(
        &mut self,
        id: ProcessId,
        requested: ActorId,
        actor: Result<ActorId, Error>,
    ) {
        let user = &mut self.client_shell(id).user;
        assert!(user.creating.remove(&requested), "{requested} was created twice");
        if let Ok(actor) = actor {
            user.actors.push(actor);
        }
    }

    /// Lets every user release everything. Fuzz clients leave the cluster.
    pub fn release_everything(&mut self) {
        for id in self.living(|role| matches!(role, crate::process::ProcessShell::Client(_))) {
            if let Some(session) = self.client_shell(id).upstream.session
                && self.client_shell(id).is_fuzz_client
            {
                self.transmit_upstream(id, crate::net::Frame::Close { session });
                self.processes[id.0].alive = false;
                continue;
            }
            let user = std::mem::take(&mut self.client_shell(id).user);
            for object in user.objects {
                self.release(id, Referent::Object(object));
            }
            for (task, progress) in
                user.streams.into_iter().filter(|(_, progress)| !progress.closed)
            {
                for index in progress.consumed..progress.arrived {
                    self.release(id, Referent::Object(ObjectId::item(task, index)));
                }
            }
            for actor in user.actors {
                self.release(id, Referent::Actor(actor));
            }
        }
    }
}
