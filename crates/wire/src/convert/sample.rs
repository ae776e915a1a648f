//! Samples of every frame and message, for tests. Every field has a value that is not its default,
//! so that a test notices a field that conversion forgot.

use crate::frame::{Direction, Frame};
use crate::join::{Joined, ProcessIdentity};
use crate::message::Message;
use bytes::Bytes;
use marline_core::account::Grant;
use marline_core::controller::{Role, WorkerInfo};
use marline_core::error::{Error, Failure, Ran};
use marline_core::id::{
    ActorEpoch, ActorId, Attempt, ClusterId, ControllerEpoch, ObjectId, Referent, Session,
    SessionEpoch, SessionId, TaskId,
};
use marline_core::lease::{LeaseTerms, Ping, Pong};
use marline_core::link::{Incarnation, Packet};
use marline_core::message::{
    ActorExitReason, ActorPlace, AttemptEnd, AttemptId, CallReport, CancelMode, CopyLocation,
    FoundActor, FromClient, FromHost, FromWorker, Instance, Refusal, ShapeId, SystemLimit,
    ToClient, ToHost, ToWorker,
};
use marline_core::output::{AttributedOutput, Audience, OutputSource, PrintedLines, StdStream};
use marline_core::payload::{Encoding, Payload, Value};
use marline_core::resources::{Amount, Resources};
use marline_core::schedule::WorkerCapabilities;
use marline_core::spec::{
    ActorOptions, ActorSpec, Budget, CheckpointPolicy, Lifetime, RetryOn, Target, TaskOptions,
    TaskSpec,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Defines a function that names the variant of an enum, and a list of all names. A new variant
/// does not compile here until it has a name, and a test fails until it has a sample.
macro_rules! variants {
    ($name:ident, $all:ident, $enum:ident: $($variant:ident)+) => {
        pub fn $name(value: &$enum) -> &'static str {
            match value {
                $($enum::$variant { .. } => stringify!($variant),)+
            }
        }

        pub const $all: &[&str] = &[$(stringify!($variant)),+];
    };
}

variants! { from_client_name, FROM_CLIENT, FromClient:
    Submit Cancel Put Announce Resolve Fetch Locate Hold Enclose Accept Release Took CreateActor FindActor WatchActor DeleteActor KillActor Watch
    Sync ShowOutput
}
variants! { to_client_name, TO_CLIENT, ToClient:
    Credit TaskEnded Yielded ObjectReady Located ActorCreated ActorFound ActorChanged SessionEnded Synced Warning
    Printed
}
variants! { from_worker_name, FROM_WORKER, FromWorker:
    Joined Refused Unable Able Started Ended Yielded Blocked Resumed ActorReady ActorFailed ActorDied ActorDestroyed
    Watch ActorRefused Entrust Dropped Locate Copied CopyLost NotBrought CallsEnded Draining Emptied Leaving Checkpoint Printed
}
variants! { to_worker_name, TO_WORKER, ToWorker:
    Assign Execute TakeBack CancelAttempt Took Instantiate Destroy Kill Checkpointed Watched SessionEnded Entrusted Keep Forget Located
    Bring Erase Leave Drain WindUp
}
variants! { to_host_name, TO_HOST, ToHost: Call CancelCall Took }
variants! { from_host_name, FROM_HOST, FromHost: CallEnded CallRefused CallLost }
variants! { frame_name, FRAME, Frame: Attach Packet Ping Pong Over }
variants! { packet_name, PACKET, MessagePacket: Hello Data Seen }
variants! { end_name, END, AttemptEnd: Finished Failed Cancelled Lost }
variants! { place_name, PLACE, ActorPlace: Nowhere Ready Dead }
variants! { refusal_name, REFUSAL, Refusal: TakenBack Draining Full SystemLimit NotStarted NotHere }

/// A packet of a link between processes.
pub type MessagePacket = Packet<Message>;

pub fn task() -> TaskId {
    TaskId::from_u128(0x0192_0000_1111_7222_8333_4444_5555_6666)
}

pub fn actor() -> ActorId {
    ActorId::from_u128(0x0193_0000_aaaa_7bbb_8ccc_dddd_eeee_ffff)
}

pub fn session() -> Session {
    let id = SessionId::from_u128(0x0194_0000_1234_7567_89ab_cdef_0123_4567);
    Session { id, epoch: SessionEpoch(3 << 32 | 5) }
}

pub fn object() -> ObjectId {
    ObjectId::of(task(), 2)
}

pub fn things() -> Vec<Referent> {
    vec![Referent::Object(object()), Referent::Actor(actor())]
}

pub fn attempt() -> AttemptId {
    AttemptId { task: task(), attempt: Attempt(4) }
}

pub fn instance() -> Instance {
    Instance { actor: actor(), epoch: ActorEpoch(6) }
}

pub fn payload() -> Payload {
    Payload {
        encoding: Encoding::Pickle5,
        code_version: 13,
        inline: Bytes::from_static(b"inline"),
        buffers: vec![Bytes::from_static(b"first"), Bytes::new(), Bytes::from_static(b"last")],
        stored: None,
    }
}

pub fn values() -> Vec<Value> {
    vec![
        Value { payload: payload(), referents: things() },
        Value::from(Payload::raw("plain")),
        Value::from(Payload::raw("large").stored_as(object())),
    ]
}

fn value() -> Value {
    values().remove(0)
}

pub fn failure() -> Failure {
    Failure {
        class: "ValueError".into(),
        traceback: "line 1\nline 2".into(),
        payload: Some(payload()),
        bases: vec!["Exception".into()],
    }
}

pub fn error() -> Error {
    let cause = Error::unavailable(Ran::Maybe, "the worker went away");
    Error::failed("no such thing", failure()).caused_by(cause)
}

pub fn resources() -> Resources {
    let resources = Resources::cpus(3).with_gpus(Amount(5_000)).with_memory(1 << 40);
    resources.with_custom("disk", Amount::ONE).with_custom("tape", Amount::ZERO)
}

fn grant() -> Grant {
    Grant { resources: resources(), gpus: vec![0, 7] }
}

pub fn task_options() -> TaskOptions {
    TaskOptions {
        resources: resources(),
        max_retries: Budget::Unlimited,
        retry_on: RetryOn::Classes(vec!["IOError".into(), "TimeoutError".into()]),
        retry_delay: Duration::from_millis(250),
        timeout: Some(Duration::from_millis(1_500)),
        preemptible: false,
        durable: true,
    }
}

pub fn actor_options() -> ActorOptions {
    ActorOptions {
        placement: resources(),
        resources: Resources::cpus(1),
        max_restarts: Budget::Times(2),
        max_task_retries: Budget::Unlimited,
        max_concurrency: 8,
        max_pending_calls: 9,
        lifetime: Lifetime::Detached,
        get_if_exists: true,
        preemptible: false,
        idle_ttl: Some(Duration::from_secs(60)),
        checkpoints: Some(CheckpointPolicy {
            every_calls: Some(5),
            interval: Some(Duration::from_secs(3)),
        }),
    }
}

pub fn task_spec() -> TaskSpec {
    TaskSpec {
        id: task(),
        target: Target::Function("resize".into()),
        args: payload(),
        needs: vec![object()],
        referents: things(),
        returns: 2,
        stream_window: Some(9),
        options: Arc::new(task_options()),
    }
}

fn method_spec() -> Arc<TaskSpec> {
    let target = Target::Method { actor: actor(), method: "add".into() };
    let options = TaskOptions { retry_on: RetryOn::Any, ..TaskOptions::default() };
    Arc::new(TaskSpec { target, options: Arc::new(options), ..task_spec() })
}

pub fn actor_spec() -> ActorSpec {
    ActorSpec {
        id: actor(),
        class: "Counter".into(),
        args: payload(),
        needs: vec![object()],
        referents: things(),
        name: Some("counter".into()),
        namespace: "tests".into(),
        options: Arc::new(actor_options()),
        interface: "methods".into(),
    }
}

pub fn worker_role() -> Role {
    let names = BTreeSet::from(["resize".into(), "actor:Counter".into(), "command:*".into()]);
    Role::Worker(WorkerInfo {
        address: Some("10.0.0.1:7000".into()),
        hostname: "one".into(),
        pid: 42,
        version: "0.9.9".into(),
        resources: resources(),
        provides: Arc::new(WorkerCapabilities {
            names,
            preemptible: true,
            code_version: 13,
            ..WorkerCapabilities::default()
        }),
        store: Some("/run/one.store".into()),
        durable: true,
    })
}

pub fn process() -> ProcessIdentity {
    let (kernel, lifeline) = ("boot/pid:[1]".into(), Some("/run/marline/a.life".into()));
    ProcessIdentity { kernel, pid: 1234, started: 5678, lifeline }
}

pub fn joined(terms: LeaseTerms) -> Joined {
    let (cluster, controller_epoch) = (ClusterId::from_u128(77), ControllerEpoch(3));
    Joined { session: session(), terms, cluster, controller_epoch, process: Some(process()) }
}

pub fn from_client() -> Vec<FromClient> {
    let (task, actor, object) = (task(), actor(), object());
    let nameless = ActorSpec { name: None, ..actor_spec() };
    vec![
        FromClient::Submit(Arc::new(task_spec())),
        FromClient::Submit(method_spec()),
        FromClient::Cancel { task, mode: CancelMode::Force },
        FromClient::Cancel { task, mode: CancelMode::GracefulAlone },
        FromClient::Put { object, value: value(), at: None },
        FromClient::Put { object, value: value(), at: Some(session()) },
        FromClient::Fetch { object },
        FromClient::Locate { object },
        FromClient::Hold { thing: Referent::Object(object) },
        FromClient::Enclose { call: attempt(), item: None, things: vec![Referent::Object(object)] },
        FromClient::Enclose { call: attempt(), item: Some(0), things: things() },
        FromClient::Took { task, count: 17 },
        FromClient::Accept { call: attempt() },
        FromClient::Release { thing: Referent::Actor(actor) },
        FromClient::CreateActor(Arc::new(actor_spec())),
        FromClient::CreateActor(Arc::new(nameless)),
        FromClient::Sync { request: 4 },
        FromClient::FindActor { request: 9, namespace: "tests".into(), name: "counter".into() },
        FromClient::WatchActor { actor },
        FromClient::DeleteActor { actor },
        FromClient::KillActor { actor },
        FromClient::Announce { object },
        FromClient::Resolve { object, value: Ok(value()) },
        FromClient::Resolve { object, value: Err(Error::cancelled("cancelled by a test")) },
        FromClient::Watch { session: session() },
        FromClient::ShowOutput { to: Audience::Nobody },
        FromClient::ShowOutput { to: Audience::Me },
        FromClient::ShowOutput { to: Audience::OfSource(OutputSource::Task(attempt())) },
    ]
}

pub fn output() -> PrintedLines {
    let text = Some("one\ntwo".into());
    PrintedLines { pid: 1234, stream: StdStream::Err, text, dropped: 5, missed: 6 }
}

fn outputs() -> Vec<PrintedLines> {
    vec![output(), PrintedLines { text: None, stream: StdStream::Out, ..output() }]
}

pub fn shown() -> AttributedOutput {
    let (source, output) = (OutputSource::Task(attempt()), output());
    AttributedOutput { source, name: "add".into(), hostname: "node-1".into(), output }
}

pub fn places() -> Vec<ActorPlace> {
    let ready = |address| ActorPlace::Ready {
        epoch: instance().epoch,
        host: session(),
        address,
        options: Arc::new(actor_options()),
    };
    vec![
        ActorPlace::Nowhere,
        ready(Some("10.0.0.1:7000".into())),
        ready(None),
        ActorPlace::Dead(error()),
    ]
}

pub fn to_client() -> Vec<ToClient> {
    let (task, actor, object) = (task(), actor(), object());
    let mut messages = vec![
        ToClient::Credit { tasks: 1000, bytes: 1 << 40 },
        ToClient::Credit { tasks: 0, bytes: 0 },
        ToClient::TaskEnded { task, outcome: Ok(values()) },
        ToClient::TaskEnded { task, outcome: Ok(Vec::new()) },
        ToClient::TaskEnded { task, outcome: Err(error()) },
        ToClient::Yielded { task, index: 5, value: Ok(value()) },
        ToClient::Yielded { task, index: 5, value: Err(error()) },
        ToClient::ObjectReady { object, value: Ok(value()) },
        ToClient::ObjectReady { object, value: Err(error()) },
        ToClient::Located { object, copies: Ok(copies()) },
        ToClient::Located { object, copies: Err(error()) },
        ToClient::ActorCreated { requested: actor, actor: Ok(actor) },
        ToClient::ActorCreated { requested: actor, actor: Err(error()) },
        ToClient::ActorFound {
            request: 9,
            actor: Ok(FoundActor { id: actor, interface: "methods".into() }),
        },
        ToClient::ActorFound { request: 9, actor: Err(error()) },
        ToClient::SessionEnded { session: session() },
        ToClient::Synced { request: 4 },
        ToClient::Warning { words: "no worker is here".into() },
    ];
    let shown = outputs().into_iter().map(|output| AttributedOutput { output, ..shown() });
    messages.extend(shown.map(ToClient::Printed));
    messages.extend(places().into_iter().map(|place| ToClient::ActorChanged { actor, place }));
    messages
}

pub fn ends() -> Vec<AttemptEnd> {
    vec![
        AttemptEnd::Finished(values()),
        AttemptEnd::Failed(error()),
        AttemptEnd::Cancelled,
        AttemptEnd::Lost(error()),
    ]
}

pub fn refusals() -> Vec<Refusal> {
    let lacks = [SystemLimit::Descriptors, SystemLimit::Processes, SystemLimit::Memory]
        .map(Refusal::SystemLimit);
    let others = [
        Refusal::TakenBack,
        Refusal::Draining,
        Refusal::Full,
        Refusal::NotStarted,
        Refusal::NotHere,
    ];
    others.into_iter().chain(lacks).collect()
}

fn reports() -> Vec<CallReport> {
    let report = CallReport {
        task: task(),
        method: "add".into(),
        instance: instance(),
        ran_for: Duration::from_nanos(1_234_567_891),
        error: None,
    };
    vec![report.clone(), CallReport { error: Some(error()), ..report }]
}

pub fn from_worker() -> Vec<FromWorker> {
    let (attempt, instance, session) = (attempt(), instance(), session());
    let ran_for = Duration::from_nanos(987_654_321);
    let mut messages = vec![
        FromWorker::Joined,
        FromWorker::Unable { runtime: "python".into(), error: error() },
        FromWorker::Able { runtime: "python/1f0a".into() },
        FromWorker::Started { attempt },
        FromWorker::Yielded { attempt, to: None, index: 5, value: value() },
        FromWorker::Yielded { attempt, to: Some(session), index: 5, value: value() },
        FromWorker::Blocked { attempt },
        FromWorker::Resumed { attempt },
        FromWorker::ActorReady { instance },
        FromWorker::ActorFailed { instance, error: error() },
        FromWorker::ActorDied { instance, error: error() },
        FromWorker::ActorDestroyed { instance, exit: ActorExitReason::Idle },
        FromWorker::ActorDestroyed { instance, exit: ActorExitReason::Exited },
        FromWorker::Checkpoint { instance, sequence: 3, payload: payload() },
        FromWorker::Watch { session },
        FromWorker::ActorRefused { instance, reason: Refusal::Full },
        FromWorker::ActorRefused { instance, reason: Refusal::SystemLimit(SystemLimit::Processes) },
        FromWorker::Entrust {
            call: attempt,
            to: session,
            contains: things(),
            stored: values(),
            instance,
            kept: vec![Referent::Actor(actor())],
        },
        FromWorker::Dropped { instance, things: things() },
        FromWorker::Locate { object: object() },
        FromWorker::Copied { object: object() },
        FromWorker::CopyLost { object: object(), error: error() },
        FromWorker::NotBrought { object: object(), error: error() },
        FromWorker::CallsEnded(reports()),
        FromWorker::CallsEnded(Vec::new()),
        FromWorker::Draining,
        FromWorker::Emptied,
        FromWorker::Leaving,
    ];
    let source = OutputSource::Actor(instance);
    messages.extend(outputs().into_iter().map(|output| FromWorker::Printed { source, output }));
    messages.extend(refusals().into_iter().map(|reason| FromWorker::Refused { attempt, reason }));
    for (end, next) in ends().into_iter().zip([Some(attempt), None].into_iter().cycle()) {
        messages.push(FromWorker::Ended { attempt, end, kept: things(), ran_for, next });
    }
    messages
}

fn copies() -> Vec<CopyLocation> {
    let address = Some("10.0.0.1:7000".into());
    vec![
        CopyLocation { worker: session(), address },
        CopyLocation { worker: session(), address: None },
    ]
}

pub fn to_worker() -> Vec<ToWorker> {
    let (attempt, epoch, session) = (attempt(), instance().epoch, session());
    let assign = |grant| ToWorker::Assign {
        spec: Arc::new(task_spec()),
        attempt: attempt.attempt,
        values: values(),
        shape: ShapeId(11),
        grant,
    };
    vec![
        assign(Some(grant())),
        assign(None),
        ToWorker::Execute {
            spec: method_spec(),
            attempt: attempt.attempt,
            epoch,
            values: values(),
        },
        ToWorker::TakeBack(attempt),
        ToWorker::CancelAttempt { attempt, mode: CancelMode::Force },
        ToWorker::CancelAttempt { attempt, mode: CancelMode::GracefulAlone },
        ToWorker::Took { attempt, count: 17 },
        ToWorker::Instantiate {
            spec: Arc::new(actor_spec()),
            epoch,
            values: values(),
            grant: grant(),
            checkpoints: vec![payload(), Payload::default()],
        },
        ToWorker::Destroy(instance()),
        ToWorker::Kill(instance()),
        ToWorker::Checkpointed { instance: instance(), sequence: 7 },
        ToWorker::Watched { session, alive: true },
        ToWorker::SessionEnded { session },
        ToWorker::Entrusted { call: attempt },
        ToWorker::Keep { object: object() },
        ToWorker::Forget { object: object() },
        ToWorker::Located { object: object(), copies: Ok(copies()) },
        ToWorker::Located { object: object(), copies: Err(error()) },
        ToWorker::Bring { object: object(), from: copies() },
        ToWorker::Erase { object: object() },
        ToWorker::Leave,
        ToWorker::Drain { grace: Duration::from_secs(30) },
        ToWorker::WindUp { grace: Duration::from_secs(30) },
    ]
}

pub fn to_host() -> Vec<ToHost> {
    vec![
        ToHost::Call {
            spec: method_spec(),
            attempt: attempt().attempt,
            epoch: instance().epoch,
            number: 12,
            values: values(),
            took: 17,
        },
        ToHost::CancelCall { call: task(), mode: CancelMode::GracefulAlone },
        ToHost::Took { call: task(), count: 17 },
    ]
}

pub fn from_host() -> Vec<FromHost> {
    let attempt = attempt();
    let mut messages = vec![
        FromHost::CallEnded { attempt, outcome: Ok(values()), items: 0 },
        FromHost::CallEnded { attempt, outcome: Err(error()), items: 17 },
        FromHost::CallLost { attempt, error: error() },
    ];
    messages.extend(refusals().into_iter().map(|reason| FromHost::CallRefused { attempt, reason }));
    messages
}

/// Returns every message, each at least once.
pub fn messages() -> Vec<Message> {
    let mut messages = Vec::new();
    messages.extend(from_client().into_iter().map(Message::FromClient));
    messages.extend(to_client().into_iter().map(Message::ToClient));
    messages.extend(from_worker().into_iter().map(Message::FromWorker));
    messages.extend(to_worker().into_iter().map(Message::ToWorker));
    messages.extend(to_host().into_iter().map(Message::ToHost));
    messages.extend(from_host().into_iter().map(Message::FromHost));
    messages
}

/// Returns the direction in which a message is sent.
pub fn direction(message: &Message) -> Direction {
    match message {
        Message::FromClient(_) => Direction::ClientToController,
        Message::ToClient(_) => Direction::ControllerToClient,
        Message::FromWorker(_) => Direction::WorkerToController,
        Message::ToWorker(_) => Direction::ControllerToWorker,
        Message::ToHost(_) => Direction::CallerToHost,
        Message::FromHost(_) => Direction::HostToCaller,
    }
}

/// Returns a frame that carries this message.
pub fn data(message: Message) -> Frame {
    Frame::Packet(Packet::Data { sequence: 21, seen: 20, message })
}

/// Returns every frame that carries no message.
pub fn frames_without_data() -> Vec<Frame> {
    let (session, from) = (session(), Incarnation(5));
    vec![
        Frame::Attach { session, connection: 3, host: None },
        Frame::Attach { session, connection: 3, host: Some(session) },
        Frame::Packet(Packet::Hello { from, knows: None, seen: 0 }),
        Frame::Packet(Packet::Hello { from, knows: Some(Incarnation(0)), seen: 8 }),
        Frame::Packet(Packet::Seen(8)),
        Frame::Ping(Ping { number: 2, last_pong: 1 }),
        Frame::Pong(Pong { number: 2 }),
        Frame::Over { session, error: None },
        Frame::Over { session, error: Some(error()) },
    ]
}
