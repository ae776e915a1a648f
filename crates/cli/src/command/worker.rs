//! `marline worker`: runs commands for a controller elsewhere. Functions and actors of your own are
//! provided by a program of your own: see `marline::Worker`.

use super::Done;
use crate::args::{Offer, Worker as Asked};
use crate::config::Settings;
use crate::exit::Failure;
use crate::printer::Printer;
use crate::units::Named;
use marline_runtime::core::Error;
use marline_runtime::core::resources::{Amount, Resources};
use marline_runtime::{
    ExecutorOptions, Instance, Invocation, Program, Reply, Worker, WorkerOptions,
};
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::available_parallelism;

/// Nothing but commands, which executors know by themselves.
struct Nothing;

impl Program for Nothing {
    fn provides(&self) -> Vec<String> {
        Vec::new()
    }

    fn run(&self, invocation: &Invocation) -> Result<Reply, Error> {
        Err(not_here(invocation))
    }

    fn construct(&self, invocation: &Invocation) -> Result<Arc<dyn Instance>, Error> {
        Err(not_here(invocation))
    }
}

fn not_here(invocation: &Invocation) -> Error {
    Error::not_found(format!("{:?} is not provided here", &*invocation.name))
}

/// If this process was started as an executor, is one until it ends.
pub fn serve_if_executor() {
    let program: Arc<dyn Program> = Arc::new(Nothing);
    marline_runtime::serve_if_executor(&program);
}

/// What a worker of this program is to be; whom it joins and where it listens is left open.
pub fn options(offer: &Offer) -> Result<WorkerOptions, Failure> {
    let cpus =
        offer.cpus.unwrap_or_else(|| available_parallelism().map_or(1.0, |cpus| cpus.get() as f64));
    let memory = offer.memory.map_or(0, |memory| memory.0);
    Ok(WorkerOptions {
        controller: String::new(),
        token: None,
        listen: None,
        resources: resources(cpus, offer.gpus, memory, &offer.custom)?,
        preemptible: offer.preemptible,
        program: Arc::new(Nothing),
        executors: ExecutorOptions::Processes {
            commands: true,
            memory: offer.executor_memory.map(|memory| memory.0),
            pass_on: !offer.quiet,
        },
        config: Default::default(),
    })
}

/// Amounts of every kind.
pub fn resources(
    cpus: f64,
    gpus: f64,
    memory: u64,
    custom: &[Named],
) -> Result<Resources, Failure> {
    let mut resources = Resources { cpu: Amount::from_f64(cpus)?, memory, ..Resources::default() };
    resources = resources.with_gpus(Amount::from_f64(gpus)?);
    for Named { name, amount } in custom {
        resources = resources.with_custom(name, Amount::from_f64(*amount)?);
    }
    resources.validate()?;
    Ok(resources)
}

pub fn run(settings: &Settings, asked: &Asked, printer: &Printer) -> Done {
    let options = WorkerOptions {
        controller: settings.address.clone(),
        token: settings.token.clone(),
        listen: Some(asked.listen.clone()),
        ..options(&asked.offer)?
    };
    let offers = options.resources.to_string();
    let worker = Worker::join(options)?;
    let json = json!({ "controller": settings.address, "pid": std::process::id() });
    printer.answer(&json, || {
        format!(
            "a worker of the cluster at {}; it offers {offers}. Ctrl-C has it finish and leave.",
            settings.address
        )
    });
    worker.run(asked.offer.grace.0)?;
    printer.note("the worker has left");
    Ok(ExitCode::SUCCESS)
}
