//! Messages between clients and the controller: `core`'s types to the generated types and back.

use super::worker::{copies, located};
use super::{cancel_task, decode_cancel_mode, misplaced};
use crate::convert::field::{each, optional, or_default, present, required};
use crate::convert::ids::{actor_id, actor_id_bytes, task_id, task_id_bytes};
use crate::frame::Direction;
use crate::v1::{self, actor_changed::Place, message::Kind};
use bytes::Bytes;
use marline_core::Error;
use marline_core::id::{ActorEpoch, ActorId};
use marline_core::message::{ActorPlace, FoundActor, FromClient, ToClient};
use std::sync::Arc;

impl From<FromClient> for Kind {
    fn from(message: FromClient) -> Kind {
        match message {
            FromClient::Submit(spec) => Kind::Submit(spec.into()),
            FromClient::Cancel { task, mode } => Kind::CancelTask(cancel_task(task, mode)),
            FromClient::Put { object, value, at } => Kind::Put(v1::Put {
                object: Some(object.into()),
                value: Some(value.into()),
                at: at.map(v1::Session::from),
            }),
            FromClient::Announce { object } => Kind::Announce(object.into()),
            FromClient::Resolve { object, value } => Kind::Resolve(v1::ObjectReady {
                object: Some(object.into()),
                value: Some(value.into()),
            }),
            FromClient::Fetch { object } => Kind::Fetch(object.into()),
            FromClient::Locate { object } => Kind::LocateForClient(object.into()),
            FromClient::Hold { thing } => Kind::Hold(thing.into()),
            FromClient::Enclose { call, item, things } => Kind::Enclose(v1::Enclose {
                call: Some(call.into()),
                item,
                things: things.into_iter().map(Into::into).collect(),
            }),
            FromClient::Accept { call } => Kind::Accept(call.into()),
            FromClient::Release { thing } => Kind::Release(thing.into()),
            FromClient::Took { task, count } => {
                Kind::Took(v1::Took { task: task_id_bytes(task), count })
            }
            FromClient::CreateActor(spec) => Kind::CreateActor(spec.into()),
            FromClient::Sync { request } => Kind::Sync(request),
            FromClient::FindActor { request, namespace, name } => Kind::FindActor(v1::FindActor {
                request,
                namespace: namespace.to_string(),
                name: name.to_string(),
            }),
            FromClient::WatchActor { actor } => Kind::WatchActor(actor_id_bytes(actor)),
            FromClient::DeleteActor { actor } => Kind::DeleteActor(actor_id_bytes(actor)),
            FromClient::KillActor { actor } => Kind::KillActor(actor_id_bytes(actor)),
            FromClient::Watch { session } => Kind::WatchSession(session.into()),
            FromClient::ShowOutput { to } => Kind::ShowOutput(to.into()),
        }
    }
}

impl TryFrom<Kind> for FromClient {
    type Error = Error;
    fn try_from(kind: Kind) -> Result<FromClient, Error> {
        Ok(match kind {
            Kind::Submit(spec) => FromClient::Submit(spec.try_into()?),
            Kind::CancelTask(wire) => FromClient::Cancel {
                task: task_id(&wire.task, "CancelTask.task")?,
                mode: decode_cancel_mode(wire.force, wire.alone),
            },
            Kind::Put(wire) => FromClient::Put {
                object: required(wire.object, "Put.object")?,
                value: required(wire.value, "Put.value")?,
                at: optional(wire.at, "Put.at")?,
            },
            Kind::Announce(object) => FromClient::Announce { object: object.try_into()? },
            Kind::Resolve(wire) => FromClient::Resolve {
                object: required(wire.object, "ObjectReady.object")?,
                value: required(wire.value, "ObjectReady.value")?,
            },
            Kind::Fetch(object) => FromClient::Fetch { object: object.try_into()? },
            Kind::LocateForClient(object) => FromClient::Locate { object: object.try_into()? },
            Kind::Hold(thing) => FromClient::Hold { thing: thing.try_into()? },
            Kind::Enclose(wire) => FromClient::Enclose {
                call: required(wire.call, "Enclose.call")?,
                item: wire.item,
                things: each(wire.things, "Enclose.things")?,
            },
            Kind::Accept(call) => FromClient::Accept { call: call.try_into()? },
            Kind::Release(thing) => FromClient::Release { thing: thing.try_into()? },
            Kind::Took(wire) => {
                FromClient::Took { task: task_id(&wire.task, "Took.task")?, count: wire.count }
            }
            Kind::CreateActor(spec) => FromClient::CreateActor(spec.try_into()?),
            Kind::Sync(request) => FromClient::Sync { request },
            Kind::FindActor(wire) => FromClient::FindActor {
                request: wire.request,
                namespace: wire.namespace.into(),
                name: wire.name.into(),
            },
            Kind::WatchActor(id) => {
                FromClient::WatchActor { actor: actor_id(&id, "Message.watch_actor")? }
            }
            Kind::DeleteActor(id) => {
                FromClient::DeleteActor { actor: actor_id(&id, "Message.delete_actor")? }
            }
            Kind::KillActor(id) => {
                FromClient::KillActor { actor: actor_id(&id, "Message.kill_actor")? }
            }
            Kind::WatchSession(session) => FromClient::Watch { session: session.try_into()? },
            Kind::ShowOutput(to) => FromClient::ShowOutput { to: to.try_into()? },
            _elsewhere => return Err(misplaced(Direction::ClientToController)),
        })
    }
}

impl From<ToClient> for Kind {
    fn from(message: ToClient) -> Kind {
        match message {
            ToClient::Credit { tasks, bytes } => Kind::Credit(v1::Credit { tasks, bytes }),
            ToClient::TaskEnded { task, outcome } => Kind::TaskEnded(v1::TaskEnded {
                task: task_id_bytes(task),
                outcome: Some(outcome.into()),
            }),
            ToClient::Yielded { task, index, value } => Kind::Yielded(v1::Yielded {
                task: task_id_bytes(task),
                index,
                value: Some(value.into()),
            }),
            ToClient::ObjectReady { object, value } => Kind::ObjectReady(v1::ObjectReady {
                object: Some(object.into()),
                value: Some(value.into()),
            }),
            ToClient::Located { object, copies } => Kind::LocatedForClient(located(object, copies)),
            ToClient::ActorCreated { requested, actor } => Kind::ActorCreated(v1::ActorCreated {
                requested: actor_id_bytes(requested),
                actor: Some(actor.into()),
            }),
            ToClient::ActorFound { request, actor } => {
                let (actor, interface) = match actor {
                    Ok(FoundActor { id, interface }) => (Ok(id), interface),
                    Err(error) => (Err(error), Bytes::new()),
                };
                let actor = Some(actor.into());
                Kind::ActorFound(v1::ActorFound { request, actor, interface })
            }
            ToClient::ActorChanged { actor, place } => Kind::ActorChanged(v1::ActorChanged {
                actor: actor_id_bytes(actor),
                place: Some(place.into()),
            }),
            ToClient::SessionEnded { session } => Kind::SessionEnded(session.into()),
            ToClient::Synced { request } => Kind::Synced(request),
            ToClient::Warning { words } => Kind::Warning(words),
            ToClient::Printed(shown) => Kind::Shown(shown.into()),
        }
    }
}

impl TryFrom<Kind> for ToClient {
    type Error = Error;
    fn try_from(kind: Kind) -> Result<ToClient, Error> {
        Ok(match kind {
            Kind::Credit(v1::Credit { tasks, bytes }) => ToClient::Credit { tasks, bytes },
            Kind::TaskEnded(wire) => ToClient::TaskEnded {
                task: task_id(&wire.task, "TaskEnded.task")?,
                outcome: required(wire.outcome, "TaskEnded.outcome")?,
            },
            Kind::Yielded(wire) => ToClient::Yielded {
                task: task_id(&wire.task, "Yielded.task")?,
                index: wire.index,
                value: required(wire.value, "Yielded.value")?,
            },
            Kind::ObjectReady(wire) => ToClient::ObjectReady {
                object: required(wire.object, "ObjectReady.object")?,
                value: required(wire.value, "ObjectReady.value")?,
            },
            Kind::LocatedForClient(wire) => {
                let (object, copies) = copies(wire)?;
                ToClient::Located { object, copies }
            }
            Kind::ActorCreated(wire) => ToClient::ActorCreated {
                requested: actor_id(&wire.requested, "ActorCreated.requested")?,
                actor: required(wire.actor, "ActorCreated.actor")?,
            },
            Kind::ActorFound(wire) => {
                let actor: Result<ActorId, Error> = required(wire.actor, "ActorFound.actor")?;
                let interface = wire.interface;
                let actor = actor.map(|id| FoundActor { id, interface });
                ToClient::ActorFound { request: wire.request, actor }
            }
            Kind::ActorChanged(wire) => ToClient::ActorChanged {
                actor: actor_id(&wire.actor, "ActorChanged.actor")?,
                place: place(wire.place)?,
            },
            Kind::SessionEnded(session) => ToClient::SessionEnded { session: session.try_into()? },
            Kind::Synced(request) => ToClient::Synced { request },
            Kind::Warning(words) => ToClient::Warning { words },
            Kind::Shown(shown) => ToClient::Printed(shown.try_into()?),
            _elsewhere => return Err(misplaced(Direction::ControllerToClient)),
        })
    }
}

impl From<ActorPlace> for Place {
    fn from(place: ActorPlace) -> Place {
        match place {
            ActorPlace::Nowhere => Place::Nowhere(v1::Nothing {}),
            ActorPlace::Ready { epoch, host, address, options } => Place::Ready(v1::ReadyAt {
                epoch: epoch.0,
                host: Some(host.into()),
                address: address.map(|address| address.to_string()),
                options: Some(Arc::unwrap_or_clone(options).into()),
            }),
            ActorPlace::Dead(error) => Place::Dead(error.into()),
        }
    }
}

fn place(wire: Option<Place>) -> Result<ActorPlace, Error> {
    Ok(match present(wire, "ActorChanged.place")? {
        Place::Nowhere(v1::Nothing {}) => ActorPlace::Nowhere,
        Place::Ready(wire) => ActorPlace::Ready {
            epoch: ActorEpoch(wire.epoch),
            host: required(wire.host, "ReadyAt.host")?,
            address: wire.address.map(Arc::from),
            options: Arc::new(or_default(wire.options, "ReadyAt.options")?),
        },
        Place::Dead(error) => ActorPlace::Dead(required(Some(error), "ActorChanged.dead")?),
    })
}
