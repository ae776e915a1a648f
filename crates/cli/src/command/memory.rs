//! `marline memory`: which values there are, how large, where, and who holds them.

use super::Done;
use super::workers::{known, more_text};
use crate::args::Limit;
use crate::config::Settings;
use crate::printer::{Printer, table};
use crate::units::size;
use marline_runtime::control::{Control, ObjectHere, ObjectStatus, WorkerStatus};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Of so many workers it is asked what they have.
const MAX_WORKERS: u32 = 1_000;

pub fn run(settings: &Settings, limit: &Limit, printer: Printer) -> Done {
    let control = settings.control()?;
    let reply = control.objects(limit.limit)?;
    let (workers, _) = control.workers(MAX_WORKERS)?;
    let mut here: BTreeMap<String, Vec<(String, ObjectHere)>> = BTreeMap::new();
    for worker in workers.iter().filter(|worker| !worker.store.is_empty()) {
        for one in held_at(settings, &control, worker, limit) {
            here.entry(one.object_id.clone()).or_default().push((worker.hostname.clone(), one));
        }
    }
    let at = |object: &ObjectStatus| here.get(&object.object_id).map_or(&[][..], Vec::as_slice);
    let objects: Vec<Value> =
        reply.objects.iter().map(|object| as_json(object, at(object))).collect();
    printer.answer(&json!({ "objects": objects, "more": reply.more }), || {
        if reply.objects.is_empty() {
            return "no values are held".into();
        }
        let rows: Vec<Vec<String>> =
            reply.objects.iter().map(|object| row(object, at(object))).collect();
        let head = ["VALUE", "SIZE", "STATE", "WHERE", "READ BY", "MADE BY", "HELD BY"];
        table(&head, &rows) + more_text(reply.more)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What a worker's store has, if it can be asked.
fn held_at(
    settings: &Settings,
    control: &Control,
    worker: &WorkerStatus,
    limit: &Limit,
) -> Vec<ObjectHere> {
    let asked = match worker.address == control.address() {
        true => control.objects(limit.limit),
        false => Control::at(&worker.address, settings.token.clone())
            .and_then(|control| control.objects(limit.limit)),
    };
    asked.map(|reply| reply.here).unwrap_or_default()
}

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
        known(&object.made_by).unwrap_or("put").into(),
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
        "made_by": known(&object.made_by),
        "holders": object.holders,
    })
}
