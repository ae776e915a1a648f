//! Actors: create, call, describe, list, delete.

use super::{ControlService, cut, page};
use crate::node::Node;
use marline_core::Error;
use marline_core::controller::ActorStatus;
use marline_core::recent_events::{EventSummary, Subject};
use marline_wire::convert::control::{
    Detail, add_worker_view, decode_actor, decode_call, encode_actor, encode_actor_here, id,
    namespace, prefix,
};
use marline_wire::v1;

impl ControlService {
    pub(super) fn create_actor(
        &self,
        request: v1::CreateActorRequest,
    ) -> Result<v1::CreateActorReply, Error> {
        let asked = decode_actor(request, crate::new_actor_id)?;
        let create = EventSummary::of("CreateActor", Subject::Actor(asked.spec.id));
        let create = EventSummary { from: asked.session, ..create };
        let (status, created) =
            self.node()?.with_controller_mut(create, |controller, now, effects| {
                let (actor, created) =
                    controller.create_for(now, asked.session, asked.spec, effects)?;
                Ok((controller.actor_status(actor)?, created))
            })?;
        let v1::ActorStatus { actor_id, state, worker_id, .. } =
            encode_actor(status, Detail::Brief, self.wall);
        Ok(v1::CreateActorReply { actor_id, created, state, worker_id })
    }

    pub(super) fn call_actor(
        &self,
        request: v1::CallActorRequest,
    ) -> Result<v1::CallActorReply, Error> {
        let asked = decode_call(request, crate::new_task_id)?;
        let task_id = asked.spec.id.to_string();
        let call = EventSummary::of("CallActor", Subject::Task(asked.spec.id));
        let call = EventSummary { from: asked.session, ..call };
        self.node()?.with_controller_mut(call, |controller, now, effects| {
            controller.submit_for(now, asked.session, asked.spec, effects)
        })?;
        Ok(v1::CallActorReply { task_id })
    }

    pub(super) fn get_actor_status(
        &self,
        request: v1::GetActorStatusRequest,
    ) -> Result<v1::ActorStatus, Error> {
        let node = self.node()?;
        if !node.has_controller()
            && let Ok(id) = request.actor_id.parse()
            && let Some((worker, actor)) = node.actor_here(id)
        {
            return Ok(encode_actor_here(worker, &actor, self.wall));
        }
        self.require_controller()?;
        if request.actor_id.is_empty() == request.name.is_empty() {
            return Err(Error::invalid("GetActorStatusRequest needs actor_id or name, not both"));
        }
        let status = if request.name.is_empty() {
            let id = id(&request.actor_id, "GetActorStatusRequest.actor_id")?;
            node.with_controller(|controller| controller.actor_status(id))??
        } else {
            let namespace = namespace(&request.namespace).into();
            node.with_controller(|controller| {
                let id = controller.find_actor(&namespace, &request.name.into())?;
                controller.actor_status(id)
            })??
        };
        Ok(self.encode_with_worker_view(&node, status, Detail::Whole))
    }

    /// Encodes what the controller knows of an actor, and what its worker knows if this node hosts
    /// it.
    fn encode_with_worker_view(
        &self,
        node: &Node,
        status: ActorStatus,
        detail: Detail,
    ) -> v1::ActorStatus {
        let id = status.spec.id;
        let mut shown = encode_actor(status, detail, self.wall);
        if let Some((worker, actor)) = node.actor_here(id) {
            add_worker_view(&mut shown, &encode_actor_here(worker, &actor, self.wall));
        }
        shown
    }

    pub(super) fn list_actors(
        &self,
        request: v1::ListActorsRequest,
    ) -> Result<v1::ListActorsReply, Error> {
        let limit = page(request.limit)?;
        let prefix = prefix(&request.id_prefix, "ListActorsRequest.id_prefix")?;
        let node = self.node()?;
        if node.has_controller() {
            let listed =
                node.with_controller(|controller| controller.list_actors(limit + 1, prefix))?;
            let (listed, more) = cut(listed, limit);
            let actors = listed
                .into_iter()
                .map(|actor| self.encode_with_worker_view(&node, actor, Detail::Brief));
            return Ok(v1::ListActorsReply { actors: actors.collect(), more });
        }
        let (listed, more) = cut(node.actors_here(limit + 1, prefix), limit);
        let actors =
            listed.iter().map(|(worker, actor)| encode_actor_here(*worker, actor, self.wall));
        Ok(v1::ListActorsReply { actors: actors.collect(), more })
    }

    pub(super) fn delete_actor(
        &self,
        request: v1::DeleteActorRequest,
    ) -> Result<v1::DeleteActorReply, Error> {
        let id = id(&request.actor_id, "DeleteActorRequest.actor_id")?;
        let delete = EventSummary::of("DeleteActor", Subject::Actor(id));
        self.node()?.with_controller_mut(delete, |controller, now, effects| {
            controller.delete_actor(now, id, effects)
        })?;
        Ok(v1::DeleteActorReply {})
    }
}
