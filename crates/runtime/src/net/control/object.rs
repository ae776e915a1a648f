//! Objects: which objects there are, which workers have their data, and what holds them.

use super::{ControlService, cut, page};
use marline_core::Error;
use marline_core::controller::{ObjectState, ObjectStatus};
use marline_core::hold::Holder;
use marline_core::object_store::StoreUsage;
use marline_wire::v1;

impl ControlService {
    pub(super) fn list_objects(
        &self,
        request: v1::ListObjectsRequest,
    ) -> Result<v1::ListObjectsReply, Error> {
        let limit = page(request.limit)?;
        let node = self.node()?;
        let (objects, more) = match node.has_controller() {
            true => {
                cut(node.with_controller(|controller| controller.list_objects(limit + 1))?, limit)
            }
            false => (Vec::new(), false),
        };
        let store = node.store();
        let here = store.as_ref().map(|store| store.list(limit)).unwrap_or_default();
        let store = store.map(|store| {
            let StoreUsage { limit, used, spilled, written } = store.usage();
            v1::StoreStatus { limit, used, spilled, written }
        });
        let here = here.into_iter().map(|held| v1::ObjectHere {
            object_id: held.object.to_string(),
            bytes: held.bytes,
            readers: held.readers,
            on_disk: held.on_disk,
        });
        let objects = objects.into_iter().map(encode).collect();
        Ok(v1::ListObjectsReply { objects, more, here: here.collect(), store })
    }
}

fn encode(status: ObjectStatus) -> v1::ObjectStatus {
    let (state, workers) = match status.state {
        ObjectState::Pending => ("pending", Vec::new()),
        ObjectState::Inline => ("inline", Vec::new()),
        ObjectState::Stored(workers) => ("stored", workers),
        ObjectState::Lost => ("lost", Vec::new()),
        ObjectState::Failed(_) => ("failed", Vec::new()),
    };
    v1::ObjectStatus {
        object_id: status.id.to_string(),
        bytes: status.bytes,
        state: state.into(),
        workers: workers.into_iter().map(|worker| worker.id.to_string()).collect(),
        holders: status.holders.into_iter().map(in_words).collect(),
        made_by: status.made_by.map(|name| name.to_string()).unwrap_or_default(),
    }
}

fn in_words(holder: Holder) -> String {
    match holder {
        Holder::Session(session) => format!("process {session}"),
        Holder::Cluster => "the cluster, for a while".into(),
        Holder::Task(task) => format!("task {task}"),
        Holder::Actor(actor) => format!("actor {actor}, as an argument of its constructor"),
        Holder::Instance(instance) => format!("actor {}", instance.actor),
        Holder::Object(object) => format!("value {object}"),
        Holder::Lineage(task) => format!("task {task}, in case it runs again"),
        Holder::Enclosed { call, item: _, by: _ } => format!("the answer of {}", call.task),
        Holder::Message { call, to } => format!("the answer of {} to process {to}", call.task),
    }
}
