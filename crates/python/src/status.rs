//! Questions about the cluster, answered as plain Python data.

use crate::failure::to_python;
use marline_runtime::control::{ActorState, ActorStatus, Control, WireResources, WorkerState};
use marline_runtime::core::resources::Amount;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::sync::Arc;

/// The most workers or actors that are told at a time.
const PAGE: u32 = 1_000;

/// Whom to ask.
#[pyclass(frozen, module = "marline._native")]
pub struct Status {
    control: Control,
    token: Option<Arc<str>>,
}

#[pymethods]
impl Status {
    #[new]
    fn new(py: Python<'_>, address: &str, token: Option<&str>) -> PyResult<Status> {
        let token: Option<Arc<str>> = token.map(Arc::from);
        let control = Control::at(address, token.clone());
        Ok(Status { control: control.map_err(|error| to_python(py, &error))?, token })
    }

    /// What there is in all, and what is free.
    fn resources<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        let cluster = py.detach(|| self.control.cluster());
        let cluster = cluster.map_err(|error| to_python(py, &error))?;
        Ok((amounts(py, cluster.total.as_ref())?, amounts(py, cluster.free.as_ref())?))
    }

    /// How many results and values are kept, and the bytes they take.
    fn kept(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let cluster = py.detach(|| self.control.cluster());
        let cluster = cluster.map_err(|error| to_python(py, &error))?;
        Ok((cluster.kept_objects, cluster.kept_bytes))
    }

    /// The workers.
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

    /// How full the stores of the workers are, of those that can be asked.
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

    /// The names of actors that live, with their namespaces.
    fn named_actors(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        let actors = py.detach(|| self.control.actors(PAGE));
        let (actors, _) = actors.map_err(|error| to_python(py, &error))?;
        let named = |actor: &ActorStatus| {
            !actor.name.is_empty() && actor.state != i32::from(ActorState::Dead)
        };
        let named = actors.into_iter().filter(named);
        Ok(named.map(|actor| (actor.namespace, actor.name)).collect())
    }
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
