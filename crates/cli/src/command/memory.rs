//! `marline memory`: shows how full the object stores are, and lists values: their size, place,
//! readers and holders.

use super::CommandResult;
use super::workers::{more_text, non_empty};
use crate::args::Limit;
use crate::config::ClusterEndpoint;
use crate::printer::{Printer, table};
use crate::units::size;
use marline_runtime::control::{ObjectHere, ObjectStatus, StoreStatus, WorkerStatus};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// The most workers that are asked for the contents of their object stores: as many as one answer
/// lists.
const MAX_WORKERS: u32 = 1_000;

/// A worker, and how full its object store is.
type WorkerObjectStore<'a> = (&'a WorkerStatus, StoreStatus);

pub fn run(settings: &ClusterEndpoint, limit: &Limit, printer: Printer) -> CommandResult {
    let control = settings.control()?;
    let reply = control.objects(limit.limit)?;
    let (workers, _) = control.workers(MAX_WORKERS)?;
    let mut here: BTreeMap<String, Vec<(String, ObjectHere)>> = BTreeMap::new();
    let mut stores: Vec<WorkerObjectStore<'_>> = Vec::new();
    for worker in workers.iter().filter(|worker| !worker.store.is_empty()) {
        // A worker that does not answer is left out.
        let Ok(held) = control.objects_at(worker, settings.token.clone(), limit.limit) else {
            continue;
        };
        stores.extend(held.store.map(|store| (worker, store)));
        for copy in held.here {
            here.entry(copy.object_id.clone()).or_default().push((worker.hostname.clone(), copy));
        }
    }
    let at = |object: &ObjectStatus| here.get(&object.object_id).map_or(&[][..], Vec::as_slice);
    let objects: Vec<Value> =
        reply.objects.iter().map(|object| as_json(object, at(object))).collect();
    let json = json!({
        "objects": objects,
        "more": reply.more,
        "stores": stores.iter().map(store_as_json).collect::<Vec<_>>(),
    });
    printer.answer(&json, || {
        let stores = stores_table(&stores);
        if reply.objects.is_empty() {
            return format!("{stores}no values are held");
        }
        let rows: Vec<Vec<String>> =
            reply.objects.iter().map(|object| row(object, at(object))).collect();
        let head = ["VALUE", "SIZE", "STATE", "WHERE", "READ BY", "MADE BY", "HELD BY"];
        stores + &table(&head, &rows) + more_text(reply.more)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a table of how full the object stores are, and an empty line; nothing if there are none.
fn stores_table(stores: &[WorkerObjectStore<'_>]) -> String {
    if stores.is_empty() {
        return String::new();
    }
    let row = |(worker, store): &WorkerObjectStore<'_>| {
        vec![
            worker.worker_id.clone(),
            worker.hostname.clone(),
            worker.pid.to_string(),
            size(store.used),
            size(store.limit),
            size(store.spilled),
        ]
    };
    let rows: Vec<Vec<String>> = stores.iter().map(row).collect();
    table(&["STORE OF WORKER", "HOST", "PID", "USED", "LIMIT", "ON DISK"], &rows) + "\n"
}

fn store_as_json((worker, store): &WorkerObjectStore<'_>) -> Value {
    json!({
        "worker_id": worker.worker_id,
        "hostname": worker.hostname,
        "pid": worker.pid,
        "limit": store.limit,
        "used": store.used,
        "spilled": store.spilled,
        "written": store.written,
    })
}

/// Returns where the data of an object is: the hosts of its copies. If no worker told of a copy,
/// returns how many workers the controller knows to have one.
fn places(object: &ObjectStatus, here: &[(String, ObjectHere)]) -> String {
    let place = |(host, one): &(String, ObjectHere)| {
        if one.on_disk { format!("{host} (disk)") } else { host.clone() }
    };
    match here {
        [] if object.workers.is_empty() => "-".into(),
        [] => format!("{} workers", object.workers.len()),
        here => here.iter().map(place).collect::<Vec<_>>().join(", "),
    }
}

fn row(object: &ObjectStatus, here: &[(String, ObjectHere)]) -> Vec<String> {
    let readers: u32 = here.iter().map(|(_, one)| one.readers).sum();
    vec![
        object.object_id.clone(),
        size(object.bytes),
        object.state.clone(),
        places(object, here),
        readers.to_string(),
        non_empty(&object.made_by).unwrap_or("put").into(),
        object.holders.join(", "),
    ]
}

fn as_json(object: &ObjectStatus, here: &[(String, ObjectHere)]) -> Value {
    let copies = here.iter().map(|(host, one)| {
        json!({ "hostname": host, "readers": one.readers, "on_disk": one.on_disk, "bytes": one.bytes })
    });
    json!({
        "id": object.object_id,
        "bytes": object.bytes,
        "state": object.state,
        "workers": object.workers,
        "copies": copies.collect::<Vec<_>>(),
        "made_by": non_empty(&object.made_by),
        "holders": object.holders,
    })
}
