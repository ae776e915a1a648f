//! Asks the controller about the cluster, and returns the answers as dicts and lists.

use crate::failure::to_python;
use marline_runtime::control::{
    ActorState, ActorStatus, Control, DeathCause, WireResources, WorkerState,
};
use marline_runtime::core::Error;
use marline_runtime::core::resources::Amount;
use marline_runtime::label_of;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::sync::Arc;

/// The most workers or actors in one answer.
const PAGE: u32 = 1_000;

/// A client for questions about the cluster.
#[pyclass(frozen, module = "marline._native")]
pub struct StatusClient {
    control: Control,
    token: Option<Arc<str>>,
}

#[pymethods]
impl StatusClient {
    #[new]
    fn new(py: Python<'_>, address: &str, token: Option<&str>) -> PyResult<StatusClient> {
        let token: Option<Arc<str>> = token.map(Arc::from);
        let control = Control::at(address, token.clone());
        Ok(StatusClient { control: control.map_err(|error| to_python(py, &error))?, token })
    }

    /// Returns the resources of all workers together, and the free part of them.
    fn resources<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        let cluster = py.detach(|| self.control.cluster());
        let cluster = cluster.map_err(|error| to_python(py, &error))?;
        Ok((amounts(py, cluster.total.as_ref())?, amounts(py, cluster.free.as_ref())?))
    }

    /// Returns how many objects the cluster keeps, and their size in bytes.
    fn kept(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let cluster = py.detach(|| self.control.cluster());
        let cluster = cluster.map_err(|error| to_python(py, &error))?;
        Ok((cluster.kept_objects, cluster.kept_bytes))
    }

    /// Returns the workers, with the keys that Ray uses.
    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let workers = py.detach(|| self.control.workers(PAGE));
        let (workers, _) = workers.map_err(|error| to_python(py, &error))?;
        let list = PyList::empty(py);
        for worker in workers {
            let node = PyDict::new(py);
            let state = WorkerState::try_from(worker.state).unwrap_or_default();
            let alive = matches!(state, WorkerState::Joining | WorkerState::Healthy);
            node.set_item("NodeID", worker.worker_id)?;
            node.set_item("Alive", alive)?;
            node.set_item("NodeManagerHostname", worker.hostname)?;
            node.set_item("NodeManagerAddress", worker.address)?;
            node.set_item("Pid", worker.pid)?;
            node.set_item("Resources", amounts(py, worker.total.as_ref())?)?;
            node.set_item("Available", amounts(py, worker.free.as_ref())?)?;
            list.append(node)?;
        }
        Ok(list)
    }

    /// Returns how full the object stores of the workers are. Leaves out workers that do not
    /// answer.
    fn stores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let workers = py.detach(|| self.control.workers(PAGE));
        let (workers, _) = workers.map_err(|error| to_python(py, &error))?;
        let list = PyList::empty(py);
        for worker in workers {
            let held = py.detach(|| self.control.objects_at(&worker, self.token.clone(), 1));
            let Some(store) = held.ok().and_then(|held| held.store) else { continue };
            let all = PyDict::new(py);
            all.set_item("worker_id", worker.worker_id)?;
            all.set_item("hostname", worker.hostname)?;
            all.set_item("pid", worker.pid)?;
            all.set_item("limit", store.limit)?;
            all.set_item("used", store.used)?;
            all.set_item("spilled", store.spilled)?;
            all.set_item("written", store.written)?;
            list.append(all)?;
        }
        Ok(list)
    }

    /// Returns the namespaces and names of the living actors that have a name.
    fn named_actors(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        let actors = py.detach(|| self.control.actors(PAGE));
        let (actors, _) = actors.map_err(|error| to_python(py, &error))?;
        let named = |actor: &ActorStatus| {
            !actor.name.is_empty() && actor.state != i32::from(ActorState::Dead)
        };
        let named = actors.into_iter().filter(named);
        Ok(named.map(|actor| (actor.namespace, actor.name)).collect())
    }

    /// Returns the status of the actor with this id.
    fn actor<'py>(&self, py: Python<'py>, id: &str) -> PyResult<Bound<'py, PyDict>> {
        self.one_actor(py, || self.control.actor(id.parse()?))
    }

    /// Returns the status of the living actor with this name.
    fn actor_named<'py>(
        &self,
        py: Python<'py>,
        namespace: &str,
        name: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.one_actor(py, || self.control.actor_named(namespace, name))
    }

    /// Returns the statuses of the living actors, newest first.
    fn actors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let actors = py.detach(|| {
            let (actors, _) = self.control.actors(PAGE)?;
            let living =
                actors.into_iter().filter(|actor| actor.state != i32::from(ActorState::Dead));
            Ok(living.map(|actor| self.with_worker_view(actor)).collect::<Vec<_>>())
        });
        let list = PyList::empty(py);
        for (actor, is_exact) in actors.map_err(|error: Error| to_python(py, &error))? {
            list.append(describe(py, actor, is_exact)?)?;
        }
        Ok(list)
    }
}

impl StatusClient {
    fn one_actor<'py>(
        &self,
        py: Python<'py>,
        ask: impl FnOnce() -> Result<ActorStatus, Error> + Send,
    ) -> PyResult<Bound<'py, PyDict>> {
        let found = py.detach(|| ask().map(|actor| self.with_worker_view(actor)));
        let (actor, is_exact) = found.map_err(|error| to_python(py, &error))?;
        describe(py, actor, is_exact)
    }

    /// Adds the calls that the actor's worker knows of. Returns also whether that worker answered.
    fn with_worker_view(&self, mut actor: ActorStatus) -> (ActorStatus, bool) {
        let is_exact = self.control.ask_worker_of(&mut actor, self.token.clone());
        (actor, is_exact)
    }
}

fn describe(py: Python<'_>, actor: ActorStatus, is_exact: bool) -> PyResult<Bound<'_, PyDict>> {
    let known = |text: String| (!text.is_empty()).then_some(text);
    let state = match actor.state() {
        ActorState::Creating => "creating",
        ActorState::Ready => "ready",
        ActorState::Restarting => "restarting",
        ActorState::Dead => "dead",
        ActorState::Unspecified => "unknown",
    };
    let cause = match actor.cause() {
        DeathCause::Deleted => Some("deleted"),
        DeathCause::ConstructorFailed => Some("constructor failed"),
        DeathCause::RestartsUsedUp => Some("restarts used up"),
        DeathCause::OwnerGone => Some("owner gone"),
        DeathCause::Idle => Some("idle"),
        DeathCause::Exited => Some("ended itself"),
        DeathCause::Unspecified => None,
    };
    let seconds = |at: Option<i64>| at.map(|millis| millis as f64 / 1000.0);
    let all = PyDict::new(py);
    all.set_item("class_name", label_of(&actor.class))?;
    all.set_item("actor_id", actor.actor_id)?;
    all.set_item("name", known(actor.name))?;
    all.set_item("namespace", actor.namespace)?;
    all.set_item("state", state)?;
    all.set_item("cause", cause)?;
    all.set_item("error", actor.error.map(|error| error.message))?;
    all.set_item("worker", known(actor.worker_id))?;
    all.set_item("epoch", actor.epoch)?;
    all.set_item("restarts", actor.restarts)?;
    all.set_item("queue_length", is_exact.then_some(actor.pending_calls))?;
    all.set_item("created_at", seconds(actor.created_at))?;
    all.set_item("last_used_at", seconds(actor.last_used_at))?;
    Ok(all)
}

fn amounts<'py>(py: Python<'py>, of: Option<&WireResources>) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    let Some(of) = of else { return Ok(all) };
    let set = |name: &str, value: f64| match value {
        0.0 => Ok(()),
        _ => all.set_item(name, value),
    };
    set("CPU", Amount(of.cpu).as_f64())?;
    set("GPU", Amount(of.gpu).as_f64())?;
    set("memory", of.memory_bytes as f64)?;
    for (name, amount) in &of.custom {
        set(name, Amount(*amount).as_f64())?;
    }
    Ok(all)
}
