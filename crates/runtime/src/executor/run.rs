//! Runs user code: one task after the other, or an actor and its calls. An executor that is a
//! thread and one that is a process use the same [`Runner`]. The function `report` takes its reports
//! to the worker.

use super::arguments;
use super::items::{ItemProducer, ItemWindow};
use super::thread::on_some_thread;
use super::urgent_message::UrgentMessage;
use super::waiting::CurrentWait;
use super::{Context, Instance, Invocation, Program, Reply, Reporter, with_context};
use crate::net::MAX_MESSAGE_BYTES;
use crate::node::{SESSIONS_LOST, SESSIONS_LOST_AT_JOIN};
use crate::object_store::ObjectStoreHandle;
use marline_channel::{CancelToken, oneshot};
use marline_core::error::{Error, ErrorKind, Failure, Ran};
use marline_core::id::{ActorEpoch, ActorId, Attempt, ObjectId, TaskId};
use marline_core::message;
use marline_core::message::AttemptId;
use marline_core::output::OutputSource;
use marline_core::payload::{Outcome, Payload, Value};
use marline_core::spec::{ActorSpec, Budget, MAX_CHECKPOINT_BYTES, SAVE_METHOD, TaskSpec};
use marline_core::worker::UserCodeResult;
use marline_wire::executor::{ExecutorCommand, ExecutorReport};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The most bytes of results: the message limit, less 1 MiB for the fields around them.
const MAX_RESULT_BYTES: usize = MAX_MESSAGE_BYTES - (1 << 20);

/// Returns the source of what an executor prints from this command on, if the command changes that.
pub(super) fn source(command: &ExecutorCommand) -> Option<OutputSource> {
    match command {
        ExecutorCommand::RunTask { spec, attempt, .. } => {
            Some(OutputSource::Task(AttemptId { task: spec.id, attempt: *attempt }))
        }
        ExecutorCommand::ConstructActor { spec, epoch, .. } => {
            Some(OutputSource::Actor(message::Instance { actor: spec.id, epoch: *epoch }))
        }
        ExecutorCommand::CallMethod { .. } => None, // The output belongs to the call's actor.
    }
}

/// Ends the executor: its user code failed with this error after its session was lost.
pub(crate) type SessionLossHandler = Arc<dyn Fn(&Error) + Send + Sync>;

/// Takes the reports of an executor to its worker.
pub(crate) type ReportFn = Arc<dyn Fn(ExecutorReport) + Send + Sync>;

/// The tasks and calls that run in an executor, to reach them while they run.
#[derive(Clone, Default)]
pub(crate) struct RunningTasks(Arc<Mutex<RunningState>>);

#[derive(Default)]
struct RunningState {
    controls: BTreeMap<TaskId, TaskControls>,
    /// Tasks that were cancelled while they did not run: they are about to run, or have ended.
    cancelled_early: VecDeque<TaskId>,
    /// Counts of consumed items that arrived while their task did not run.
    consumed_early: VecDeque<(TaskId, u32)>,
    /// Whether all tasks were cancelled. Then every later task is cancelled before it runs.
    all_cancelled: bool,
}

/// How the worker's urgent messages reach a running task.
#[derive(Clone, Default)]
struct TaskControls {
    cancel: CancelToken,
    /// Whether a cancellation also stops the work that the task has submitted.
    stops_all: Arc<AtomicBool>,
    /// The task's current wait for other work.
    waiting: CurrentWait,
    /// The count of the task's consumed items, which its producer waits for.
    window: Arc<ItemWindow>,
}

impl TaskControls {
    fn cancel(&self, alone: bool) {
        // Set first, so a thread that sees the cancellation also sees this.
        self.stops_all.fetch_or(!alone, Ordering::Relaxed);
        self.cancel.cancel();
        self.window.stop();
    }
}

/// The most entries in each list of early messages. Their tasks are about to run, or have ended.
/// When a list is full, the oldest entry is dropped: most likely, its task has ended.
const MAX_EARLY: usize = 64;

impl RunningTasks {
    fn with<R>(&self, what: impl FnOnce(&mut RunningState) -> R) -> R {
        what(&mut self.0.lock().expect("no user code runs under it"))
    }

    /// Registers a task that runs from now on. Its token is cancelled already if the cancellation
    /// arrived before.
    fn begin(&self, task: TaskId) -> TaskControls {
        let controls = TaskControls::default();
        let stop = self.with(|running| {
            running.controls.insert(task, controls.clone());
            let early = running.cancelled_early.len();
            running.cancelled_early.retain(|id| *id != task);
            running.consumed_early.retain(|(id, count)| {
                if *id == task {
                    controls.window.note_consumed(*count); // No thread waits for room yet.
                }
                *id != task
            });
            running.all_cancelled || running.cancelled_early.len() < early
        });
        if stop {
            controls.cancel(false); // It has not submitted any work.
        }
        controls
    }

    fn end(&self, task: TaskId) {
        self.with(|running| running.controls.remove(&task));
    }

    /// Handles an urgent message of the worker.
    pub fn handle_urgent(&self, ask: UrgentMessage) {
        match ask {
            UrgentMessage::Cancel(task) => self.interrupt(task, false),
            UrgentMessage::CancelAlone(task) => self.interrupt(task, true),
            UrgentMessage::ItemsTaken { task, count } => self.note_consumed(task, count),
            UrgentMessage::DenyWait { task, limit } => {
                let controls = self.with(|running| running.controls.get(&task).cloned());
                if let Some(controls) = controls {
                    controls.waiting.refuse(limit);
                }
            }
        }
    }

    /// Notes how many items were consumed of a task that runs or is about to.
    fn note_consumed(&self, task: TaskId, count: u32) {
        let controls = self.with(|running| {
            let controls = running.controls.get(&task).cloned();
            if controls.is_none() {
                running.consumed_early.push_back((task, count));
                if running.consumed_early.len() > MAX_EARLY {
                    running.consumed_early.pop_front();
                }
            }
            controls
        });
        if let Some(controls) = controls {
            controls.window.note_consumed(count);
        }
    }

    /// Cancels a task or call that runs or is about to.
    fn interrupt(&self, task: TaskId, alone: bool) {
        let controls = self.with(|running| {
            let controls = running.controls.get(&task).cloned();
            if controls.is_none() {
                running.cancelled_early.push_back(task);
                if running.cancelled_early.len() > MAX_EARLY {
                    running.cancelled_early.pop_front();
                }
            }
            controls
        });
        if let Some(controls) = controls {
            controls.cancel(alone);
        }
    }

    /// Cancels everything, also what arrives later.
    pub fn interrupt_all(&self) {
        let all: Vec<TaskControls> = self.with(|running| {
            running.all_cancelled = true;
            running.controls.values().cloned().collect()
        });
        for controls in all {
            controls.cancel(false);
        }
    }
}

/// See the [module](self).
#[derive(Clone)]
pub(crate) struct Runner {
    program: Arc<dyn Program>,
    report: ReportFn,
    running: RunningTasks,
    /// The object store for large values.
    objects: Option<ObjectStoreHandle>,
    actor: Option<Actor>,
    /// Whether the actor has ended itself.
    exited: Arc<AtomicBool>,
    /// Ends the executor if user code fails after its session was lost. `None` if the executor
    /// cannot end by itself.
    cut_off: Option<SessionLossHandler>,
    /// When the current command arrived. The timeout of user code counts from then.
    arrived: Instant,
}

#[derive(Clone)]
struct Actor {
    instance: Arc<dyn Instance>,
    id: ActorId,
    epoch: ActorEpoch,
    gpus: Arc<[u32]>,
    concurrent: bool,
    /// Whether its state is saved in checkpoints.
    saved: bool,
    /// Whether it may restart in another executor.
    restarts: bool,
}

impl Runner {
    pub fn new(
        program: Arc<dyn Program>,
        running: RunningTasks,
        objects: Option<ObjectStoreHandle>,
        report: ReportFn,
    ) -> Runner {
        let (exited, arrived) = (Arc::default(), Instant::now());
        Runner { program, report, running, objects, actor: None, exited, cut_off: None, arrived }
    }

    /// Makes this executor end if user code fails after the session of its process was lost. The
    /// references and handles that it held are gone then, so the failure says nothing about the
    /// task. The worker notices the executor's death, and the work is retried if it may be.
    pub fn on_session_loss(self, end: SessionLossHandler) -> Runner {
        Runner { cut_off: Some(end), ..self }
    }

    /// Calls the handler for lost sessions, if the failure of user code may come from one.
    ///
    /// `lost_before` is read when user code begins. It is the number of sessions that this process
    /// had lost when it last joined. If the process has lost more by now, requests of user code to
    /// the cluster may have failed for that reason, even if the session was lost before user code
    /// began.
    fn check_cut_off(&self, lost_before: u64, outcome: &Outcome) {
        // An actor that cannot restart keeps its state, whatever it lost.
        let can_begin_anew = self.actor.as_ref().is_none_or(|actor| actor.restarts);
        if let (Err(error), Some(end)) = (outcome, &self.cut_off)
            && can_begin_anew
            && SESSIONS_LOST.load(Ordering::Relaxed) > lost_before
        {
            end(error);
        }
    }

    /// Carries out a command, and reports how it ended. Concurrent calls of an actor run on threads
    /// of their own.
    pub fn handle(&mut self, command: ExecutorCommand, arrived: Instant) {
        self.arrived = arrived;
        match command {
            ExecutorCommand::RunTask { spec, attempt, values, gpus } => {
                let program = self.program.clone();
                let place = ActorAndGpus { actor: None, gpus: gpus.into() };
                let began = Cell::new(false);
                let end = self.run_user_code(&spec, attempt, place, values, |call| {
                    began.set(true);
                    program.run(call)
                });
                let task = spec.id;
                (self.report)(match end.outcome {
                    Err(error) if !began.get() && error.kind() == ErrorKind::Unavailable => {
                        ExecutorReport::InputsUnavailable { task, error }
                    }
                    _ => ExecutorReport::TaskEnded { task, end },
                });
            }
            ExecutorCommand::ConstructActor { spec, epoch, values, gpus, checkpoints } => {
                self.construct(&spec, epoch, values, gpus.into(), &checkpoints);
            }
            ExecutorCommand::CallMethod { spec, attempt, values } => {
                self.call(spec, attempt, values);
            }
        }
    }

    fn construct(
        &mut self,
        spec: &ActorSpec,
        epoch: ActorEpoch,
        values: Vec<Value>,
        gpus: Arc<[u32]>,
        checkpoints: &[Payload],
    ) {
        let (name, args) = (spec.class.clone(), spec.args.clone());
        let mut invocation =
            Invocation { name, args, values, returns: 0, items: None, gpus: gpus.clone() };
        let made = arguments::open(self.objects.as_ref(), &mut invocation)
            .and_then(|()| self.make(&invocation, checkpoints));
        let result = made.map(|instance| {
            let concurrent = spec.options.max_concurrency > 1;
            let saved = spec.options.checkpoints.is_some();
            let id = spec.id;
            let restarts = spec.options.max_restarts != Budget::Times(0);
            self.actor = Some(Actor { instance, id, epoch, gpus, concurrent, saved, restarts });
        });
        (self.report)(ExecutorReport::Constructed { result });
    }

    /// Constructs an instance, and loads the newest checkpoint that can be loaded. Without any
    /// checkpoint, the instance begins anew. Fails if there are checkpoints and none can be loaded.
    fn make(
        &self,
        invocation: &Invocation,
        checkpoints: &[Payload],
    ) -> Result<Arc<dyn Instance>, Error> {
        let mut unread = None;
        for checkpoint in checkpoints {
            let instance = caught(|| self.program.construct(invocation))?;
            match caught(|| instance.load_checkpoint(checkpoint)) {
                Ok(()) => return Ok(instance),
                Err(error) => {
                    eprintln!("marline: a checkpoint cannot be loaded: {error}");
                    unread.get_or_insert(error);
                }
            }
        }
        match unread {
            Some(error) => Err(error),
            None => caught(|| self.program.construct(invocation)),
        }
    }

    fn call(&self, spec: Arc<TaskSpec>, attempt: Attempt, values: Vec<Value>) {
        let Some(actor) = self.actor.clone() else { return };
        if self.exited.load(Ordering::Acquire) {
            return;
        }
        if actor.instance.is_async() {
            return self.begin(&actor, &spec, attempt, values);
        }
        if !actor.concurrent {
            return self.call_now(&actor, &spec, attempt, values);
        }
        let runner = self.clone();
        let id = spec.id;
        let call = move || runner.call_now(&actor, &spec, attempt, values);
        if let Err(error) = on_some_thread(Box::new(call)) {
            let error = Error::exhausted(format!(
                "no thread could be started for a call, so it did not run: {error}; is the actor's \
                 max_concurrency too large for its memory?"
            ));
            let end = UserCodeResult { outcome: Err(error), still_held: Vec::new() };
            (self.report)(ExecutorReport::CallEnded { call: id, end });
        }
    }

    fn call_now(&self, actor: &Actor, spec: &TaskSpec, attempt: Attempt, values: Vec<Value>) {
        let place = actor.place();
        let mut exits = false;
        let end = self.run_user_code(spec, attempt, place, values, |call| {
            let reply = actor.checked(&call.name, caught(|| actor.instance.call(call)));
            exits = reply.as_ref().is_ok_and(|reply| reply.exits);
            reply
        });
        (self.report)(ExecutorReport::CallEnded { call: spec.id, end });
        if exits {
            self.exit(actor);
        }
    }

    /// Ends the actor, which asked for it. Calls that it received besides do not start.
    fn exit(&self, actor: &Actor) {
        self.exited.store(true, Ordering::Release);
        actor.instance.exit();
        (self.report)(ExecutorReport::ActorExited);
    }

    /// Starts a call that ends later.
    fn begin(&self, actor: &Actor, spec: &TaskSpec, attempt: Attempt, values: Vec<Value>) {
        let (task, report, running) = (spec.id, self.report.clone(), self.running.clone());
        let lost_before = SESSIONS_LOST_AT_JOIN.load(Ordering::Relaxed);
        let (context, mut invocation) = self.prepare(spec, attempt, actor.place(), values);
        let items = invocation.items.clone();
        // If one call runs at a time, the next may be here already and must wait.
        let (ended, has_ended) = (!actor.concurrent).then(oneshot).unzip();
        let (runner, actor_of, method) = (self.clone(), actor.clone(), spec.target.name().clone());
        let durable = spec.options.durable;
        let end = move |reply: Result<Reply, Error>| {
            running.end(task);
            let exits = reply.as_ref().is_ok_and(|reply| reply.exits);
            let kept = actor_of
                .checked(&method, reply)
                .and_then(|reply| runner.store_large_results(task, &method, durable, reply));
            let end = call_end(kept.and_then(bounded), items.as_ref());
            runner.check_cut_off(lost_before, &end.outcome);
            report(ExecutorReport::CallEnded { call: task, end });
            if exits {
                runner.exit(&actor_of);
            }
            if let Some(ended) = ended {
                let _ = ended.send(()); // Wakes the wait below, if it still waits.
            }
        };
        if context.cancel.is_cancelled() {
            return end(Err(not_begun()));
        }
        let ready = self
            .check_streams(&invocation)
            .and_then(|()| arguments::open(self.objects.as_ref(), &mut invocation));
        if let Err(error) = ready {
            return end(Err(error));
        }
        with_context(context, || actor.instance.start_async(&invocation, Box::new(end)));
        if let Some(mut has_ended) = has_ended {
            let _ = has_ended.recv().wait();
        }
    }

    /// Prepares the arguments and the context of user code. From now on it can be cancelled.
    fn prepare(
        &self,
        spec: &TaskSpec,
        attempt: Attempt,
        place: ActorAndGpus,
        values: Vec<Value>,
    ) -> (Context, Invocation) {
        let TaskControls { cancel, stops_all, waiting, window } = self.running.begin(spec.id);
        let tried = AttemptId { task: spec.id, attempt };
        let items = spec.stream_window.map(|most| {
            let (objects, report) = (self.objects.clone(), self.report.clone());
            ItemProducer::new(tried, most, window, objects, spec.options.durable, report)
        });
        let ActorAndGpus { actor, gpus } = place;
        let (actor, actor_epoch) = actor.unzip();
        let report = Reporter(self.report.clone());
        let (name, task) = (spec.target.name().clone(), spec.id);
        let deadline = spec.options.timeout.and_then(|timeout| self.arrived.checked_add(timeout));
        let context = Context {
            name: name.clone(),
            task,
            attempt,
            actor,
            actor_epoch,
            gpus: gpus.clone(),
            deadline,
            cancel,
            stops_all,
            waiting,
            report,
        };
        let (args, returns) = (spec.args.clone(), spec.returns);
        (context, Invocation { name, args, values, returns, items, gpus })
    }

    fn check_streams(&self, invocation: &Invocation) -> Result<(), Error> {
        if invocation.items.is_none() || self.program.streams() {
            return Ok(());
        }
        let name = &*invocation.name;
        let words = format!(
            "the program of {name:?} cannot yield items while a task runs: submit the task without a stream"
        );
        Err(Error::unsupported(words))
    }

    /// Prepares, runs and ends user code: opens the arguments, calls `code`, and stores large
    /// results. Does not call `code` if the task was cancelled before.
    fn run_user_code(
        &self,
        spec: &TaskSpec,
        attempt: Attempt,
        place: ActorAndGpus,
        values: Vec<Value>,
        code: impl FnOnce(&Invocation) -> Result<Reply, Error>,
    ) -> UserCodeResult {
        let lost_before = SESSIONS_LOST_AT_JOIN.load(Ordering::Relaxed);
        let (context, mut invocation) = self.prepare(spec, attempt, place, values);
        let reply = if context.cancel.is_cancelled() {
            Err(not_begun())
        } else if let Err(error) = self.check_streams(&invocation) {
            Err(error)
        } else {
            with_context(context, || {
                arguments::open(self.objects.as_ref(), &mut invocation)?;
                caught(|| code(&invocation))
            })
        };
        let reply = reply.and_then(|reply| {
            self.store_large_results(spec.id, spec.target.name(), spec.options.durable, reply)
        });
        self.running.end(spec.id);
        let end = call_end(reply.and_then(bounded), invocation.items.as_ref());
        self.check_cut_off(lost_before, &end.outcome);
        end
    }

    /// Puts large results into the node's object store. The checkpoint of an actor stays in the
    /// message, since the controller keeps it. Errors say that user code may have run.
    fn store_large_results(
        &self,
        task: TaskId,
        method: &str,
        durable: bool,
        mut reply: Reply,
    ) -> Result<Reply, Error> {
        let Some(objects) = self.objects.as_ref().filter(|_| method != SAVE_METHOD) else {
            return Ok(reply);
        };
        for (value, index) in reply.values.iter_mut().zip(0..) {
            let payload = std::mem::take(&mut value.payload);
            let kept = objects.write_if_large(ObjectId::of(task, index), payload).and_then(
                |(payload, _)| {
                    value.payload = payload;
                    if durable { objects.make_durable(&mut value.payload) } else { Ok(()) }
                },
            );
            match kept {
                Ok(()) => {}
                Err(error) => {
                    let made = reply.values.iter().filter_map(|one| one.payload.stored_object());
                    made.for_each(|object| objects.discard(object));
                    return Err(error.ran(Ran::Maybe));
                }
            }
        }
        Ok(reply)
    }
}

fn not_begun() -> Error {
    Error::cancelled("the work was cancelled before it ran")
}

fn call_end(reply: Result<Reply, Error>, items: Option<&ItemProducer>) -> UserCodeResult {
    items.inspect(|items| items.pause()); // User code may still have the producer, but yields no more.
    match reply {
        Ok(reply) => {
            let values = items.map_or(reply.values, |items| vec![items.count()]);
            UserCodeResult { outcome: Ok(values), still_held: reply.kept }
        }
        Err(error) => UserCodeResult { outcome: Err(error), still_held: Vec::new() },
    }
}

impl Actor {
    /// Checks the reply of a call that saves the actor's state. Also prints an error, since no
    /// caller may receive it.
    fn checked(&self, method: &str, reply: Result<Reply, Error>) -> Result<Reply, Error> {
        if !self.saved || method != SAVE_METHOD {
            return reply;
        }
        let reply = reply.and_then(fit_to_keep);
        if let Err(error) = &reply {
            eprintln!("marline: the state of actor {} was not saved: {error}", self.id);
        }
        reply
    }

    fn place(&self) -> ActorAndGpus {
        ActorAndGpus { actor: Some((self.id, self.epoch)), gpus: self.gpus.clone() }
    }
}

/// The actor and the GPUs that user code runs with.
struct ActorAndGpus {
    actor: Option<(ActorId, ActorEpoch)>,
    gpus: Arc<[u32]>,
}

/// Checks that a saved state can be kept as a checkpoint.
fn fit_to_keep(reply: Reply) -> Result<Reply, Error> {
    let bytes: usize = reply.values.iter().map(|value| value.payload.len()).sum();
    if reply.values.iter().any(|value| !value.referents.is_empty()) {
        let message = "a checkpoint cannot contain references or handles";
        return Err(Error::invalid(message).ran(Ran::Maybe));
    }
    if bytes <= MAX_CHECKPOINT_BYTES {
        return Ok(reply);
    }
    let message = format!(
        "the checkpoint is {bytes} bytes, the limit is {MAX_CHECKPOINT_BYTES} (MAX_CHECKPOINT_BYTES)"
    );
    Err(Error::too_large(message).ran(Ran::Maybe))
}

/// Checks that results fit into a message. If they do not, this is an error of user code; sending
/// them would break the connection.
fn bounded(reply: Reply) -> Result<Reply, Error> {
    let bytes: usize = reply.values.iter().map(|value| value.payload.len()).sum();
    if bytes <= MAX_RESULT_BYTES {
        return Ok(reply);
    }
    let message = format!(
        "the results are {bytes} bytes, the limit is {MAX_RESULT_BYTES} (MAX_RESULT_BYTES)"
    );
    Err(Error::too_large(message).ran(Ran::Maybe))
}

/// Like [`bounded`], for an item.
pub(super) fn bounded_value(value: Value) -> Result<Value, Error> {
    let reply = bounded(Reply { values: vec![value], ..Reply::default() })?;
    Ok(reply.values.into_iter().next().expect("there is one"))
}

/// Runs user code. Turns a panic into an error.
fn caught<R>(code: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    catch_unwind(AssertUnwindSafe(code)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
        let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
        let words = words.unwrap_or_else(|| "a panic without a message".into());
        let failure = Failure { class: "panic".into(), ..Failure::default() };
        Err(Error::failed(format!("user code panicked: {words}"), failure))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_store::ObjectStoreClient;
    use marline_core::spec::Target;
    use std::os::unix::net::UnixStream;

    /// A program whose code fails because something else cannot be reached.
    struct Calls;

    impl Program for Calls {
        fn provides(&self) -> Vec<String> {
            Vec::new()
        }

        fn run(&self, _: &Invocation) -> Result<Reply, Error> {
            Err(Error::unavailable(Ran::No, "nobody answers"))
        }

        fn construct(&self, _: &Invocation) -> Result<Arc<dyn Instance>, Error> {
            Err(Error::unavailable(Ran::No, "nobody answers"))
        }
    }

    #[test]
    fn a_task_whose_argument_cannot_be_read_reports_unavailable_inputs() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let objects = ObjectStoreHandle::elsewhere(ObjectStoreClient::new(ours));
        let (reports, received) = std::sync::mpsc::channel();
        let report = Arc::new(move |report| reports.send(report).unwrap());
        let mut runner =
            Runner::new(Arc::new(Calls), RunningTasks::default(), Some(objects), report);
        let spec = Arc::new(TaskSpec {
            id: TaskId::from_u128(1),
            target: Target::Function("f".into()),
            args: Payload::default(),
            needs: Vec::new(),
            referents: Vec::new(),
            returns: 1,
            stream_window: None,
            options: Arc::default(),
        });
        let mut run = |payload: Payload| {
            let (spec, gpus) = (spec.clone(), Vec::new());
            let (attempt, values) = (Attempt(1), vec![payload.into()]);
            runner.handle(ExecutorCommand::RunTask { spec, attempt, values, gpus }, Instant::now());
            received.recv().unwrap()
        };
        let stored = Payload::default().stored_as(ObjectId::of(TaskId::from_u128(2), 0));
        let said = run(stored);
        assert!(matches!(said, ExecutorReport::InputsUnavailable { .. }), "{said:?}");
        // An error of user code is the task's own.
        let said = run(Payload::default());
        let ExecutorReport::TaskEnded { end: UserCodeResult { outcome: Err(error), .. }, .. } =
            said
        else {
            panic!("{said:?}")
        };
        assert_eq!(error.message(), "nobody answers");
    }

    /// A program whose code fails if its argument begins with "fails". Its process loses a session
    /// first if the argument ends with "lost".
    struct CutOffs;

    impl Program for CutOffs {
        fn provides(&self) -> Vec<String> {
            Vec::new()
        }

        fn run(&self, invocation: &Invocation) -> Result<Reply, Error> {
            if invocation.args.inline.ends_with(b"lost") {
                SESSIONS_LOST.fetch_add(1, Ordering::Relaxed);
            }
            match invocation.args.inline.starts_with(b"fails") {
                true => Err(Error::unavailable(Ran::No, "this client is not connected")),
                false => Ok(Reply { values: vec![Value::default()], ..Reply::default() }),
            }
        }

        fn construct(&self, _: &Invocation) -> Result<Arc<dyn Instance>, Error> {
            unreachable!("there are no actors here")
        }
    }

    #[test]
    fn an_executor_ends_if_its_code_fails_after_its_session_was_lost() {
        let ended = Arc::new(AtomicBool::new(false));
        let ends = ended.clone();
        let runner =
            Runner::new(Arc::new(CutOffs), RunningTasks::default(), None, Arc::new(|_| ()));
        let mut runner =
            runner.on_session_loss(Arc::new(move |_| ends.store(true, Ordering::Relaxed)));
        let cases = [
            ("works", false),
            ("fails", false),
            ("works lost", false),
            ("fails", true), // The session was lost before user code began.
            ("joins", false),
            ("fails", false),
            ("fails lost", true),
        ];
        for (args, expected) in cases {
            if args == "joins" {
                let lost = SESSIONS_LOST.load(Ordering::Relaxed);
                SESSIONS_LOST_AT_JOIN.store(lost, Ordering::Relaxed);
                ended.store(false, Ordering::Relaxed);
            }
            let spec = Arc::new(TaskSpec {
                id: TaskId::from_u128(1),
                target: Target::Function("f".into()),
                args: Payload::raw(args),
                needs: Vec::new(),
                referents: Vec::new(),
                returns: 1,
                stream_window: None,
                options: Arc::default(),
            });
            let (attempt, values, gpus) = (Attempt(1), Vec::new(), Vec::new());
            runner.handle(ExecutorCommand::RunTask { spec, attempt, values, gpus }, Instant::now());
            assert_eq!(ended.load(Ordering::Relaxed), expected, "{args}");
        }
    }

    #[test]
    fn a_task_that_is_cancelled_before_it_starts_starts_as_cancelled() {
        let running = RunningTasks::default();
        let (early, other) = (TaskId::from_u128(1), TaskId::from_u128(2));
        running.handle_urgent(UrgentMessage::Cancel(early));
        assert!(!running.begin(other).cancel.is_cancelled());
        assert!(running.begin(early).cancel.is_cancelled());
        running.end(early);
        assert!(!running.begin(early).cancel.is_cancelled(), "it was asked once");
        running.interrupt_all();
        assert!(running.begin(other).cancel.is_cancelled(), "no caller would get its result");
    }
}
