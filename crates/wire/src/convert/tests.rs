//! Converts frames and messages to bytes and back. Malformed messages, and those of another
//! direction, are rejected with the name of the field.

use super::sample::{self, MessagePacket};
use super::{decode, decode_attach, encode};
use crate::frame::{Direction, Frame};
use crate::message::Message;
use crate::v1::{self, message::Kind};
use bytes::Bytes;
use marline_core::link::Packet;
use marline_core::message::{ToClient, ToWorker};
use marline_core::{Error, ErrorKind};
use prost::Message as _;
use std::collections::BTreeSet;

const DIRECTIONS: [Direction; 6] = [
    Direction::ClientToController,
    Direction::ControllerToClient,
    Direction::WorkerToController,
    Direction::ControllerToWorker,
    Direction::CallerToHost,
    Direction::HostToCaller,
];

/// Encodes a frame to bytes and decodes them.
fn travels(frame: Frame, direction: Direction) -> Result<Frame, Error> {
    let bytes = Bytes::from(encode(frame).encode_to_vec());
    decode(v1::Frame::decode(bytes).expect("prost reads what it wrote"), direction)
}

/// Returns a frame that carries this message.
fn carried(kind: Option<Kind>) -> v1::Frame {
    let message = Some(v1::Message { kind });
    v1::Frame {
        kind: Some(v1::frame::Kind::Data(v1::Data {
            sequence: 1,
            seen: 0,
            message: message.map(Box::new),
        })),
    }
}

#[track_caller]
fn refused(frame: v1::Frame, direction: Direction, words: &str) {
    let error = decode(frame, direction).expect_err(words);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains(words), "{words:?} expected in {:?}", error.message());
}

#[test]
fn every_message_round_trips() {
    for message in sample::messages() {
        let frame = sample::data(message.clone());
        assert_eq!(travels(frame.clone(), sample::direction(&message)).unwrap(), frame);
    }
}

#[test]
fn every_frame_without_data_round_trips_in_every_direction() {
    for frame in sample::frames_without_data() {
        for direction in DIRECTIONS {
            assert_eq!(travels(frame.clone(), direction).unwrap(), frame);
        }
    }
}

#[test]
fn there_is_a_sample_of_every_variant() {
    #[track_caller]
    fn covered<T>(samples: &[T], name: impl Fn(&T) -> &'static str, all: &[&str]) {
        let names: BTreeSet<&str> = samples.iter().map(name).collect();
        assert_eq!(names, all.iter().copied().collect());
    }
    covered(&sample::from_client(), sample::from_client_name, sample::FROM_CLIENT);
    covered(&sample::to_client(), sample::to_client_name, sample::TO_CLIENT);
    covered(&sample::from_worker(), sample::from_worker_name, sample::FROM_WORKER);
    covered(&sample::to_worker(), sample::to_worker_name, sample::TO_WORKER);
    covered(&sample::to_host(), sample::to_host_name, sample::TO_HOST);
    covered(&sample::from_host(), sample::from_host_name, sample::FROM_HOST);
    covered(&sample::ends(), sample::end_name, sample::END);
    covered(&sample::places(), sample::place_name, sample::PLACE);
    covered(&sample::refusals(), sample::refusal_name, sample::REFUSAL);
    let mut frames = sample::frames_without_data();
    frames.extend(sample::messages().into_iter().map(sample::data));
    covered(&frames, sample::frame_name, sample::FRAME);
    let packets = frames.into_iter().filter_map(|frame| match frame {
        Frame::Packet(packet) => Some(packet),
        Frame::Attach { .. } | Frame::Ping(_) | Frame::Pong(_) | Frame::Over { .. } => None,
    });
    let packets: Vec<MessagePacket> = packets.collect();
    covered(&packets, sample::packet_name, sample::PACKET);
}

#[test]
fn every_message_of_the_protocol_has_a_sample() {
    let protocol = include_str!("../../../../proto/marline/v1/link.proto");
    let (_, message) = protocol.split_once("message Message {").unwrap();
    let (message, _) = message.split_once("\n}").unwrap();
    let fields = message.lines().filter_map(|line| line.trim().split_once(" = "));
    let names: BTreeSet<&str> =
        fields.map(|(field, _)| field.rsplit(' ').next().unwrap()).collect();
    let kinds = sample::messages().into_iter().map(|message| super::message::encode(message).kind);
    let encoded = kinds.map(|kind| super::message::name(&kind.unwrap()));
    assert_eq!(encoded.collect::<BTreeSet<&str>>(), names);
}

#[test]
fn messages_of_another_direction_are_rejected_by_name() {
    for message in sample::messages() {
        for direction in DIRECTIONS {
            let travelled = travels(sample::data(message.clone()), direction);
            if direction == sample::direction(&message) {
                assert!(travelled.is_ok());
                continue;
            }
            match &message {
                // Clients and workers get the same message.
                Message::ToClient(ToClient::SessionEnded { .. })
                | Message::ToWorker(ToWorker::SessionEnded { .. })
                    if matches!(
                        direction,
                        Direction::ControllerToClient | Direction::ControllerToWorker
                    ) => {}
                message => {
                    let error = travelled.expect_err("another direction must be rejected");
                    let kind = super::message::encode(message.clone()).kind.unwrap();
                    let name = super::message::name(&kind);
                    let words = format!("Data.message: {name}: this is not sent {direction}");
                    assert_eq!((error.kind(), error.message()), (ErrorKind::Invalid, &words[..]));
                }
            }
        }
    }
}

#[test]
fn the_end_of_a_session_is_decoded_for_clients_and_workers() {
    let session = sample::session();
    let to_client = Message::ToClient(ToClient::SessionEnded { session });
    let to_worker = Message::ToWorker(ToWorker::SessionEnded { session });
    for sent in [&to_client, &to_worker] {
        for received in [&to_client, &to_worker] {
            let frame = travels(sample::data(sent.clone()), sample::direction(received)).unwrap();
            assert_eq!(frame, sample::data(received.clone()));
        }
    }
}

#[test]
fn malformed_frames_are_rejected_by_name() {
    use v1::frame::Kind;
    let short = Some(v1::Session { id: Bytes::from_static(b"id"), epoch: 1 });
    let session = Some(v1::Session::from(sample::session()));
    let attach = v1::Attach { session: session.clone(), connection: 1, host: None };
    for (kind, words) in [
        (None, "Frame.kind is missing"),
        (Some(Kind::Attach(v1::Attach::default())), "Attach.session is missing"),
        (
            Some(Kind::Attach(v1::Attach { session: short.clone(), ..attach.clone() })),
            "Attach.session: Session.id has 2 bytes; an id has 16",
        ),
        (Some(Kind::Attach(v1::Attach { host: short, ..attach })), "Attach.host: Session.id has 2"),
        (Some(Kind::Data(v1::Data::default())), "Data.message is missing"),
        (Some(Kind::Over(v1::Over::default())), "Over.session is missing"),
        (
            Some(Kind::Over(v1::Over { session, error: Some(v1::Error::default()) })),
            "Over.error: Error.kind is missing",
        ),
    ] {
        refused(v1::Frame { kind }, Direction::ClientToController, words);
    }
    refused(carried(None), Direction::ClientToController, "Data.message: Message.kind is missing");
}

#[test]
fn a_connection_begins_with_attach() {
    for frame in sample::frames_without_data() {
        let attached = decode_attach(encode(frame.clone()));
        match frame {
            Frame::Attach { .. } => assert_eq!(attached.unwrap(), frame),
            Frame::Packet(_) | Frame::Ping(_) | Frame::Pong(_) | Frame::Over { .. } => {
                assert!(attached.unwrap_err().message().contains("must be attach"));
            }
        }
    }
}

#[test]
fn malformed_messages_of_clients_are_rejected_by_name() {
    let object = || Some(v1::ObjectId::from(sample::object()));
    let short = Bytes::from_static(b"id");
    let bare = v1::Value { payload: None, contains: Vec::new() };
    let odd = v1::Payload { encoding: 4, ..Default::default() };
    let odd = v1::Value { payload: Some(odd), contains: Vec::new() };
    for (kind, words) in [
        (Kind::Submit(v1::TaskSpec::default()), "submit: TaskSpec.id has 0 bytes"),
        (Kind::CancelTask(v1::CancelTask::default()), "cancel_task: CancelTask.task has 0 bytes"),
        (Kind::Put(v1::Put::default()), "put: Put.object is missing"),
        (
            Kind::Put(v1::Put { object: object(), ..Default::default() }),
            "put: Put.value is missing",
        ),
        (
            Kind::Put(v1::Put { object: object(), value: Some(bare), at: None }),
            "put: Put.value: Value.payload is missing",
        ),
        (
            Kind::Put(v1::Put { object: object(), value: Some(odd), at: None }),
            "put: Put.value: Value.payload: Payload.encoding has the unknown value 4",
        ),
        (Kind::Fetch(v1::ObjectId::default()), "fetch: ObjectId.origin has 0 bytes"),
        (Kind::Hold(v1::Thing::default()), "hold: Thing.kind is missing"),
        (
            Kind::Release(v1::Thing { kind: Some(v1::thing::Kind::Actor(short.clone())) }),
            "release: Thing.actor has 2 bytes",
        ),
        (Kind::Accept(v1::Try::default()), "accept: Try.task has 0 bytes"),
        (Kind::Enclose(v1::Enclose::default()), "Enclose.call is missing"),
        (Kind::Took(v1::Took::default()), "took: Took.task has 0 bytes"),
        (Kind::CreateActor(v1::ActorSpec::default()), "create_actor: ActorSpec.id has 0 bytes"),
        (Kind::WatchActor(short.clone()), "Message.watch_actor has 2 bytes"),
        (Kind::DeleteActor(short), "Message.delete_actor has 2 bytes"),
        (Kind::WatchSession(v1::Session::default()), "watch_session: Session.id has 0 bytes"),
    ] {
        refused(carried(Some(kind)), Direction::ClientToController, words);
    }
}

#[test]
fn malformed_messages_to_clients_are_rejected_by_name() {
    let id = || Bytes::from(vec![1; 16]);
    let object = || Some(v1::ObjectId::from(sample::object()));
    let ready = |ready| v1::ActorChanged {
        actor: id(),
        place: Some(v1::actor_changed::Place::Ready(ready)),
    };
    let dead = v1::actor_changed::Place::Dead(v1::Error::default());
    let wrong = v1::actor_or_error::Kind::Actor(Bytes::new());
    for (kind, words) in [
        (Kind::TaskEnded(v1::TaskEnded::default()), "task_ended: TaskEnded.task has 0 bytes"),
        (
            Kind::TaskEnded(v1::TaskEnded { task: id(), outcome: None }),
            "TaskEnded.outcome is missing",
        ),
        (
            Kind::TaskEnded(v1::TaskEnded { task: id(), outcome: Some(v1::Outcome::default()) }),
            "TaskEnded.outcome: Outcome.kind is missing",
        ),
        (Kind::Yielded(v1::Yielded::default()), "yielded: Yielded.task has 0 bytes"),
        (
            Kind::Yielded(v1::Yielded { task: id(), ..Default::default() }),
            "Yielded.value is missing",
        ),
        (Kind::ObjectReady(v1::ObjectReady::default()), "ObjectReady.object is missing"),
        (
            Kind::ObjectReady(v1::ObjectReady { object: object(), value: None }),
            "ObjectReady.value is missing",
        ),
        (
            Kind::ObjectReady(v1::ObjectReady {
                object: object(),
                value: Some(v1::ValueOrError::default()),
            }),
            "ObjectReady.value: ValueOrError.kind is missing",
        ),
        (Kind::ActorCreated(v1::ActorCreated::default()), "ActorCreated.requested has 0 bytes"),
        (
            Kind::ActorCreated(v1::ActorCreated { requested: id(), actor: None }),
            "ActorCreated.actor is missing",
        ),
        (Kind::ActorFound(v1::ActorFound::default()), "ActorFound.actor is missing"),
        (
            Kind::ActorFound(v1::ActorFound {
                request: 1,
                actor: Some(v1::ActorOrError { kind: Some(wrong) }),
                ..v1::ActorFound::default()
            }),
            "ActorFound.actor: ActorOrError.actor has 0 bytes",
        ),
        (
            Kind::ActorFound(v1::ActorFound {
                request: 1,
                actor: Some(v1::ActorOrError { kind: None }),
                ..v1::ActorFound::default()
            }),
            "ActorFound.actor: ActorOrError.kind is missing",
        ),
        (Kind::ActorChanged(v1::ActorChanged::default()), "ActorChanged.actor has 0 bytes"),
        (
            Kind::ActorChanged(v1::ActorChanged { actor: id(), place: None }),
            "ActorChanged.place is missing",
        ),
        (Kind::ActorChanged(ready(v1::ReadyAt::default())), "ReadyAt.host is missing"),
        (
            Kind::ActorChanged(v1::ActorChanged { actor: id(), place: Some(dead) }),
            "ActorChanged.dead: Error.kind is missing",
        ),
        (Kind::SessionEnded(v1::Session::default()), "session_ended: Session.id has 0 bytes"),
    ] {
        refused(carried(Some(kind)), Direction::ControllerToClient, words);
    }
}

#[test]
fn malformed_messages_of_workers_are_rejected_by_name() {
    let attempt = || Some(v1::Try::from(sample::attempt()));
    let instance = || Some(v1::Instance::from(sample::instance()));
    let session = || Some(v1::Session::from(sample::session()));
    let ended = || v1::AttemptEnded {
        attempt: attempt(),
        end: Some(v1::attempt_ended::End::Cancelled(v1::Nothing {})),
        ..Default::default()
    };
    let failed = Some(v1::attempt_ended::End::Failed(v1::Error::default()));
    let entrust = || v1::Entrust {
        call: attempt(),
        to: session(),
        instance: instance(),
        ..Default::default()
    };
    let report = |task: Bytes, instance| v1::CallsEnded {
        reports: vec![v1::CallReport { task, instance, ..Default::default() }],
    };
    let nothing = || vec![v1::Thing::default()];
    for (kind, words) in [
        (Kind::Refused(v1::Refused::default()), "Refused.attempt is missing"),
        (
            Kind::Refused(v1::Refused { attempt: attempt(), reason: 0, lack: 0 }),
            "Refused.reason is missing",
        ),
        (
            Kind::Refused(v1::Refused { attempt: attempt(), reason: 6, lack: 0 }),
            "Refused.reason has the unknown value 6",
        ),
        (Kind::TaskStarted(v1::Try::default()), "task_started: Try.task has 0 bytes"),
        (
            Kind::AttemptEnded(v1::AttemptEnded { attempt: None, ..ended() }),
            "AttemptEnded.attempt is missing",
        ),
        (
            Kind::AttemptEnded(v1::AttemptEnded { end: None, ..ended() }),
            "AttemptEnded.end is missing",
        ),
        (
            Kind::AttemptEnded(v1::AttemptEnded { end: failed, ..ended() }),
            "AttemptEnded.end: Error.kind is missing",
        ),
        (
            Kind::AttemptEnded(v1::AttemptEnded { kept: nothing(), ..ended() }),
            "AttemptEnded.kept: Thing.kind is missing",
        ),
        (
            Kind::AttemptEnded(v1::AttemptEnded { next: Some(v1::Try::default()), ..ended() }),
            "AttemptEnded.next: Try.task has 0 bytes",
        ),
        (Kind::Blocked(v1::Try::default()), "blocked: Try.task has 0 bytes"),
        (Kind::Resumed(v1::Try::default()), "resumed: Try.task has 0 bytes"),
        (Kind::ActorReady(v1::Instance::default()), "actor_ready: Instance.actor has 0 bytes"),
        (
            Kind::ActorFailed(v1::ActorLost::default()),
            "actor_failed: ActorLost.instance is missing",
        ),
        (
            Kind::ActorDied(v1::ActorLost { instance: instance(), error: None }),
            "actor_died: ActorLost.error is missing",
        ),
        (Kind::ActorDestroyed(v1::ActorDestroyed::default()), "ActorDestroyed.instance is missing"),
        (Kind::Checkpoint(v1::Checkpoint::default()), "Checkpoint.instance is missing"),
        (
            Kind::Checkpoint(v1::Checkpoint { instance: instance(), ..Default::default() }),
            "Checkpoint.payload is missing",
        ),
        (Kind::Watch(v1::Session::default()), "watch: Session.id has 0 bytes"),
        (Kind::ActorRefused(v1::ActorRefused::default()), "ActorRefused.instance is missing"),
        (Kind::Entrust(v1::Entrust { call: None, ..entrust() }), "Entrust.call is missing"),
        (Kind::Entrust(v1::Entrust { to: None, ..entrust() }), "Entrust.to is missing"),
        (Kind::Entrust(v1::Entrust { instance: None, ..entrust() }), "Entrust.instance is missing"),
        (
            Kind::Entrust(v1::Entrust { contains: nothing(), ..entrust() }),
            "Entrust.contains: Thing.kind is missing",
        ),
        (
            Kind::Entrust(v1::Entrust { kept: nothing(), ..entrust() }),
            "Entrust.kept: Thing.kind is missing",
        ),
        (
            Kind::Entrust(v1::Entrust { stored: vec![v1::Value::default()], ..entrust() }),
            "Entrust.stored: Value.payload is missing",
        ),
        (Kind::AttemptYielded(v1::AttemptYielded::default()), "AttemptYielded.attempt is missing"),
        (
            Kind::AttemptYielded(v1::AttemptYielded { attempt: attempt(), ..Default::default() }),
            "AttemptYielded.value is missing",
        ),
        (Kind::Locate(v1::ObjectId::default()), "locate: ObjectId.origin has 0 bytes"),
        (Kind::Copied(v1::ObjectId::default()), "copied: ObjectId.origin has 0 bytes"),
        (Kind::CopyLost(v1::CopyLost::default()), "CopyLost.object is missing"),
        (Kind::Dropped(v1::Dropped::default()), "Dropped.instance is missing"),
        (
            Kind::Dropped(v1::Dropped { instance: instance(), things: nothing() }),
            "Dropped.things: Thing.kind is missing",
        ),
        (
            Kind::CallsEnded(report(Bytes::new(), instance())),
            "CallsEnded.reports: CallReport.task has 0 bytes",
        ),
        (
            Kind::CallsEnded(report(vec![1; 16].into(), None)),
            "CallsEnded.reports: CallReport.instance is missing",
        ),
    ] {
        refused(carried(Some(kind)), Direction::WorkerToController, words);
    }
}

#[test]
fn malformed_messages_to_workers_are_rejected_by_name() {
    let spec = || Some(v1::TaskSpec::from(std::sync::Arc::new(sample::task_spec())));
    let actor = || Some(v1::ActorSpec::from(std::sync::Arc::new(sample::actor_spec())));
    let assign = || v1::AssignTask { spec: spec(), ..Default::default() };
    let nothing = || vec![v1::Value::default()];
    for (kind, words) in [
        (Kind::AssignTask(v1::AssignTask::default()), "AssignTask.spec is missing"),
        (
            Kind::AssignTask(v1::AssignTask { values: nothing(), ..assign() }),
            "AssignTask.values: Value.payload is missing",
        ),
        (
            Kind::AssignTask(v1::AssignTask { grant: Some(v1::Grant::default()), ..assign() }),
            "AssignTask.grant: Grant.resources is missing",
        ),
        (
            Kind::ExecuteActorMethod(v1::ExecuteActorMethod::default()),
            "ExecuteActorMethod.spec is missing",
        ),
        (
            Kind::ExecuteActorMethod(v1::ExecuteActorMethod {
                spec: spec(),
                values: nothing(),
                ..Default::default()
            }),
            "ExecuteActorMethod.values: Value.payload is missing",
        ),
        (Kind::TakeBack(v1::Try::default()), "take_back: Try.task has 0 bytes"),
        (Kind::CancelAttempt(v1::CancelAttempt::default()), "CancelAttempt.attempt is missing"),
        (
            Kind::InstantiateActor(v1::InstantiateActor::default()),
            "InstantiateActor.spec is missing",
        ),
        (
            Kind::InstantiateActor(v1::InstantiateActor { spec: actor(), ..Default::default() }),
            "InstantiateActor.grant is missing",
        ),
        (
            Kind::InstantiateActor(v1::InstantiateActor {
                spec: actor(),
                values: nothing(),
                ..Default::default()
            }),
            "InstantiateActor.values: Value.payload is missing",
        ),
        (Kind::DestroyActor(v1::Instance::default()), "destroy_actor: Instance.actor has 0 bytes"),
        (Kind::KillActorInstance(v1::Instance::default()), "Instance.actor has 0 bytes"),
        (Kind::Checkpointed(v1::Checkpoint::default()), "Checkpoint.instance is missing"),
        (Kind::AttemptTook(v1::AttemptTook::default()), "AttemptTook.attempt is missing"),
        (Kind::Watched(v1::Watched::default()), "Watched.session is missing"),
        (Kind::SessionEnded(v1::Session::default()), "session_ended: Session.id has 0 bytes"),
        (Kind::Entrusted(v1::Try::default()), "entrusted: Try.task has 0 bytes"),
    ] {
        refused(carried(Some(kind)), Direction::ControllerToWorker, words);
    }
}

#[test]
fn malformed_messages_between_callers_and_hosts_are_rejected_by_name() {
    let spec = || Some(v1::TaskSpec::from(std::sync::Arc::new(sample::task_spec())));
    let attempt = || Some(v1::Try::from(sample::attempt()));
    let values = vec![v1::Value::default()];
    for (kind, words) in [
        (Kind::Call(v1::Call::default()), "call: Call.spec is missing"),
        (
            Kind::Call(v1::Call { spec: spec(), values, ..Default::default() }),
            "call: Call.values: Value.payload is missing",
        ),
        (Kind::CancelCall(v1::CancelTask::default()), "cancel_call: CancelTask.task has 0 bytes"),
        (Kind::CallTook(v1::Took::default()), "call_took: Took.task has 0 bytes"),
    ] {
        refused(carried(Some(kind)), Direction::CallerToHost, words);
    }
    for (kind, words) in [
        (Kind::CallEnded(v1::CallEnded::default()), "CallEnded.attempt is missing"),
        (
            Kind::CallEnded(v1::CallEnded { attempt: attempt(), ..Default::default() }),
            "CallEnded.outcome is missing",
        ),
        (Kind::CallRefused(v1::Refused::default()), "call_refused: Refused.attempt is missing"),
        (
            Kind::CallRefused(v1::Refused { attempt: attempt(), reason: 9, lack: 0 }),
            "call_refused: Refused.reason has the unknown value 9",
        ),
        (Kind::CallLost(v1::CallLost::default()), "CallLost.attempt is missing"),
        (
            Kind::CallLost(v1::CallLost { attempt: attempt(), error: None }),
            "CallLost.error is missing",
        ),
    ] {
        refused(carried(Some(kind)), Direction::HostToCaller, words);
    }
}

/// Cuts every sample short at every byte, and changes every byte. If prost can still read the
/// bytes, decoding succeeds or fails with `Invalid`.
#[test]
fn damaged_bytes_never_panic() {
    let messages = sample::messages().into_iter();
    let messages = messages.map(|message| (sample::direction(&message), sample::data(message)));
    let frames = sample::frames_without_data().into_iter();
    let frames = frames.map(|frame| (Direction::ClientToController, frame));
    for (direction, frame) in messages.chain(frames) {
        let bytes = encode(frame).encode_to_vec();
        let mut damaged = Vec::new();
        for at in 0..bytes.len() {
            damaged.push(bytes[..at].to_vec());
            for change in [0x01, 0x08, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                damaged.push(changed);
            }
        }
        for bytes in damaged {
            let Ok(wire) = v1::Frame::decode(&bytes[..]) else { continue };
            if let Err(error) = decode(wire, direction) {
                assert_eq!(error.kind(), ErrorKind::Invalid);
            }
        }
    }
}

#[test]
fn a_payload_is_not_copied_on_its_way_out() {
    let at = |frame: &v1::Frame| match &frame.kind {
        Some(v1::frame::Kind::Data(v1::Data { message: Some(message), .. })) => {
            match &message.kind {
                Some(Kind::Submit(spec)) => spec.args.as_ref().unwrap().inline.as_ptr(),
                kind => panic!("{kind:?}"),
            }
        }
        kind => panic!("{kind:?}"),
    };
    let spec = std::sync::Arc::new(sample::task_spec());
    let kept = spec.clone();
    let message = Message::FromClient(marline_core::message::FromClient::Submit(spec));
    let frame = encode(Frame::Packet(Packet::Data { sequence: 1, seen: 0, message }));
    assert_eq!(at(&frame), kept.args.inline.as_ptr(), "a second owner of the spec needs no copy");
}
