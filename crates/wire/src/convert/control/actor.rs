//! Actors: requests to create one, and their statuses.

use super::super::field::or_default;
use super::{
    Detail, SessionRequest, args, check_version, error, id_or_new, namespace, objects,
    optional_session,
};
use crate::v1;
use crate::wall_clock::WallClock;
use marline_core::Error;
use marline_core::controller::{ActorState, ActorStatus, DeathCause};
use marline_core::id::{ActorId, Session};
use marline_core::spec::ActorSpec;
use marline_core::worker::WorkerActorStatus;
use std::sync::Arc;

/// Decodes a request to create an actor. `new_id` gives it an id if the request names none.
pub fn decode_actor(
    wire: v1::CreateActorRequest,
    new_id: impl FnOnce() -> ActorId,
) -> Result<SessionRequest<Arc<ActorSpec>>, Error> {
    check_version(&wire.protocol)?;
    let spec = ActorSpec {
        id: id_or_new(&wire.actor_id, "CreateActorRequest.actor_id", new_id)?,
        class: wire.class.into(),
        args: args(wire.args, "CreateActorRequest.args")?,
        needs: objects(&wire.needs, "CreateActorRequest.needs")?,
        referents: Vec::new(),
        name: (!wire.name.is_empty()).then(|| wire.name.into()),
        namespace: namespace(&wire.namespace).into(),
        options: Arc::new(or_default(wire.options, "CreateActorRequest.options")?),
        interface: Default::default(),
    };
    let session = optional_session(wire.session, "CreateActorRequest.session")?;
    Ok(SessionRequest { session, spec: Arc::new(spec) })
}

fn encode_state(state: ActorState) -> (v1::ActorState, v1::DeathCause) {
    let lives = v1::DeathCause::Unspecified;
    match state {
        ActorState::Creating => (v1::ActorState::Creating, lives),
        ActorState::Ready => (v1::ActorState::Ready, lives),
        ActorState::Restarting => (v1::ActorState::Restarting, lives),
        ActorState::Dead(cause) => (v1::ActorState::Dead, encode_cause(cause)),
    }
}

fn encode_cause(cause: DeathCause) -> v1::DeathCause {
    match cause {
        DeathCause::Deleted => v1::DeathCause::Deleted,
        DeathCause::ConstructorFailed => v1::DeathCause::ConstructorFailed,
        DeathCause::RestartsUsedUp => v1::DeathCause::RestartsUsedUp,
        DeathCause::OwnerGone => v1::DeathCause::OwnerGone,
        DeathCause::Idle => v1::DeathCause::Idle,
        DeathCause::Exited => v1::DeathCause::Exited,
    }
}

/// Encodes the controller's status of an actor.
pub fn encode_actor(status: ActorStatus, detail: Detail, wall: WallClock) -> v1::ActorStatus {
    let (state, cause) = encode_state(status.state);
    v1::ActorStatus {
        state: state.into(),
        cause: cause.into(),
        error: error(status.error, detail),
        worker_id: status.worker.map(|worker| worker.to_string()).unwrap_or_default(),
        worker_address: status.worker_address.as_deref().unwrap_or_default().to_owned(),
        epoch: status.epoch.0,
        restarts: status.restarts,
        created_at: Some(wall.unix_millis(status.created)),
        last_used_at: Some(wall.unix_millis(status.last_used)),
        pending_calls: status.pending_calls as u64,
        waits_for: status.waits_for.unwrap_or_default(),
        ..described(&status.spec)
    }
}

/// Encodes what a worker knows of an actor that it hosts.
pub fn encode_actor_here(
    worker: Option<Session>,
    actor: &WorkerActorStatus,
    wall: WallClock,
) -> v1::ActorStatus {
    let state = if actor.ready { v1::ActorState::Ready } else { v1::ActorState::Creating };
    v1::ActorStatus {
        state: state.into(),
        worker_id: worker.map(|worker| worker.id.to_string()).unwrap_or_default(),
        epoch: actor.epoch.0,
        last_used_at: Some(wall.unix_millis(actor.last_used)),
        pending_calls: actor.pending_calls as u64,
        ..described(&actor.spec)
    }
}

/// Adds what the worker knows of an actor to what the controller knows: the worker also sees direct
/// calls.
pub fn add_worker_view(status: &mut v1::ActorStatus, hosted: &v1::ActorStatus) {
    if (&status.actor_id, status.epoch) == (&hosted.actor_id, hosted.epoch) {
        // A call through the controller may be in both counts, so they are not added up. The larger
        // count may lack direct calls, or calls that are on their way to the worker.
        status.pending_calls = status.pending_calls.max(hosted.pending_calls);
        status.last_used_at = status.last_used_at.max(hosted.last_used_at);
    }
}

fn described(spec: &ActorSpec) -> v1::ActorStatus {
    v1::ActorStatus {
        actor_id: spec.id.to_string(),
        name: spec.name.as_deref().unwrap_or_default().to_owned(),
        namespace: spec.namespace.to_string(),
        class: spec.class.to_string(),
        ..v1::ActorStatus::default()
    }
}
