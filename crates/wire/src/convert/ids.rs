//! Ids, and the types that consist of ids: sessions, objects, referents, attempts and instances.

use super::field::{present, required};
use crate::v1;
use crate::v1::thing::Kind;
use bytes::Bytes;
use marline_core::Error;
use marline_core::id::{
    ActorEpoch, ActorId, Attempt, ClusterId, ObjectId, Referent, Session, SessionEpoch, SessionId,
    TaskId,
};
use marline_core::message::{AttemptId, Instance};

macro_rules! ids {
    ($($encode:ident, $decode:ident, $id:ident;)+) => { $(
        pub(crate) fn $encode(id: $id) -> Bytes {
            Bytes::copy_from_slice(&id.as_u128().to_be_bytes())
        }

        pub(crate) fn $decode(bytes: &[u8], field: &str) -> Result<$id, Error> {
            bits(bytes, field).map($id::from_u128)
        }
    )+ };
}

ids! {
    task_id_bytes, task_id, TaskId;
    actor_id_bytes, actor_id, ActorId;
    session_id_bytes, session_id, SessionId;
    cluster_id_bytes, cluster_id, ClusterId;
}

fn bits(bytes: &[u8], field: &str) -> Result<u128, Error> {
    let sixteen = bytes
        .try_into()
        .map_err(|_| Error::invalid(format!("{field} has {} bytes; an id has 16", bytes.len())))?;
    Ok(u128::from_be_bytes(sixteen))
}

impl From<Session> for v1::Session {
    fn from(session: Session) -> v1::Session {
        v1::Session { id: session_id_bytes(session.id), epoch: session.epoch.0 }
    }
}

impl TryFrom<v1::Session> for Session {
    type Error = Error;
    fn try_from(wire: v1::Session) -> Result<Session, Error> {
        let id = session_id(&wire.id, "Session.id")?;
        Ok(Session { id, epoch: SessionEpoch(wire.epoch) })
    }
}

impl From<ObjectId> for v1::ObjectId {
    fn from(object: ObjectId) -> v1::ObjectId {
        v1::ObjectId { origin: task_id_bytes(object.origin), index: object.index }
    }
}

impl TryFrom<v1::ObjectId> for ObjectId {
    type Error = Error;
    fn try_from(wire: v1::ObjectId) -> Result<ObjectId, Error> {
        Ok(ObjectId::of(task_id(&wire.origin, "ObjectId.origin")?, wire.index))
    }
}

impl From<Referent> for v1::Thing {
    fn from(thing: Referent) -> v1::Thing {
        let kind = match thing {
            Referent::Object(object) => Kind::Object(object.into()),
            Referent::Actor(actor) => Kind::Actor(actor_id_bytes(actor)),
        };
        v1::Thing { kind: Some(kind) }
    }
}

impl TryFrom<v1::Thing> for Referent {
    type Error = Error;
    fn try_from(wire: v1::Thing) -> Result<Referent, Error> {
        match present(wire.kind, "Thing.kind")? {
            Kind::Object(object) => required(Some(object), "Thing.object").map(Referent::Object),
            Kind::Actor(actor) => actor_id(&actor, "Thing.actor").map(Referent::Actor),
        }
    }
}

impl From<AttemptId> for v1::Try {
    fn from(attempt: AttemptId) -> v1::Try {
        v1::Try { task: task_id_bytes(attempt.task), attempt: attempt.attempt.0 }
    }
}

impl TryFrom<v1::Try> for AttemptId {
    type Error = Error;
    fn try_from(wire: v1::Try) -> Result<AttemptId, Error> {
        Ok(AttemptId { task: task_id(&wire.task, "Try.task")?, attempt: Attempt(wire.attempt) })
    }
}

impl From<Instance> for v1::Instance {
    fn from(instance: Instance) -> v1::Instance {
        v1::Instance { actor: actor_id_bytes(instance.actor), epoch: instance.epoch.0 }
    }
}

impl TryFrom<v1::Instance> for Instance {
    type Error = Error;
    fn try_from(wire: v1::Instance) -> Result<Instance, Error> {
        let actor = actor_id(&wire.actor, "Instance.actor")?;
        Ok(Instance { actor, epoch: ActorEpoch(wire.epoch) })
    }
}
