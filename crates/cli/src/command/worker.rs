//! `marline worker`: a worker that runs commands, and tasks and actors in Python, for a controller
//! in another process. Tasks and actors in Rust need a worker program of the user's own: see
//! `marline::Worker`.
//!
//! [`options`] and [`ShutdownProgress`] are shared with `marline up` and `marline controller`.

use super::{CommandResult, MAX_LISTED_ITEMS};
use crate::args::{Args, Worker as Asked, WorkerOffer};
use crate::config::ClusterEndpoint;
use crate::exit::Failure;
use crate::printer::{Printer, Progress};
use crate::python::{ExecutorCluster, fork_server};
use crate::units::{Count, NamedAmount, plural};
use marline_runtime::control::{Control, WorkerStatus};
use marline_runtime::core::id::SessionId;
use marline_runtime::core::resources::{Amount, Resources};
use marline_runtime::core::worker;
use marline_runtime::{
    ExecutorOptions, NoProgram, Program, Setting, StderrForwarding, StoreOptions, Worker,
    WorkerOptions,
};
use serde_json::json;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread::available_parallelism;
use std::time::Duration;

/// How often a process that is about to end asks what its workers still have to finish.
const SHUTDOWN_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The most Python executors that are started before work needs them. Below this limit, one is
/// started for each CPU.
const MAX_PRESTARTED: usize = 64;

/// If this process was started as an executor, runs as one until the process ends.
pub fn serve_if_executor() {
    let program: Arc<dyn Program> = Arc::new(NoProgram);
    marline_runtime::serve_if_executor(&program);
}

/// Returns the options of a worker of this program, except which controller it joins and where it
/// listens. User code in its executors submits work to `home`.
pub fn options(offer: &WorkerOffer, home: &ExecutorCluster<'_>) -> Result<WorkerOptions, Failure> {
    let cpus = offer
        .cpus
        .unwrap_or_else(|| Count(available_parallelism().map_or(1.0, |cpus| cpus.get() as f64)));
    let memory = offer.memory.map_or(0, |memory| memory.0);
    let forks = fork_server(offer.python.as_deref(), home);
    let ready = (cpus.0.ceil() as usize).clamp(1, MAX_PRESTARTED);
    let config = worker::Config {
        prestarted: forks.as_ref().map(|forks| (forks.runtime.as_str().into(), ready)),
        max_idle_executors: ready.max(8),
        ..worker::Config::default()
    };
    Ok(WorkerOptions {
        controller: String::new(),
        token: None,
        listen: None,
        resources: resources(cpus, offer.gpus, memory, &offer.custom)?,
        preemptible: offer.preemptible,
        program: Arc::new(NoProgram),
        executors: ExecutorOptions::Processes {
            commands: true,
            memory: offer.executor_memory.map(|memory| memory.0),
            pass_on: if offer.quiet { StderrForwarding::Nothing } else { StderrForwarding::All },
            forks,
            arguments: None,
        },
        store: Some(store(offer)?),
        config,
    })
}

/// Returns the limits and folders of the object store.
fn store(offer: &WorkerOffer) -> Result<StoreOptions, Failure> {
    let limit = offer.object_store_memory.map(|bytes| bytes.0);
    let limit = limit.map(|value| Setting { name: "--object-store-memory", value });
    let folder = offer.spill_dir.clone().map(|value| Setting { name: "--spill-dir", value });
    let durable = offer.durable_dir.clone().map(|value| Setting { name: "--durable-dir", value });
    Ok(StoreOptions::new(limit, folder, durable)?)
}

/// Returns the resources that these amounts make up. Fails if an amount is not valid.
pub fn resources(
    cpus: Count,
    gpus: Count,
    memory: u64,
    custom: &[NamedAmount],
) -> Result<Resources, Failure> {
    let mut resources =
        Resources { cpu: Amount::from_f64(cpus.0)?, memory, ..Resources::default() };
    resources = resources.with_gpus(Amount::from_f64(gpus.0)?);
    for NamedAmount { name, amount } in custom {
        resources = resources.with_custom(name, Amount::from_f64(*amount)?);
    }
    resources.validate()?;
    Ok(resources)
}

pub fn run(args: &Args, asked: &Asked, printer: Printer) -> CommandResult {
    let settings = ClusterEndpoint::of(args)?;
    let home = ExecutorCluster { address: &settings.address, token: settings.token.as_deref() };
    let options = WorkerOptions {
        controller: settings.address.clone(),
        // Without --token-file the worker looks the token up each time that it joins: the next
        // controller has another.
        token: settings.token.clone().filter(|_| args.token_file.is_some()),
        listen: Some(asked.listen.clone()),
        ..options(&asked.offer, &home)?
    };
    let offers = options.resources.to_string();
    let worker = match args.address {
        Some(_) => Worker::join(options)?,
        // The cluster that runs on this machine, and after its end the next one.
        None => Worker::join_here(options, args.token_file.as_deref())?,
    };
    worker.on_note(move |words| printer.note(&format!("marline: {words}")));
    let settings = ClusterEndpoint::of(args)?; // The cluster's record may have been written meanwhile.
    let identity = worker.identity();
    // The controller may have lost this worker meanwhile. The worker joins again by itself.
    let myself = own_status(&settings.control()?, identity()).unwrap_or_default();
    let json = json!({
        "id": myself.worker_id,
        "controller": settings.address,
        "address": myself.address,
        "pid": std::process::id(),
    });
    let grace = asked.offer.grace.0;
    let (address, token_file) = (args.address.clone(), args.token_file.clone());
    // The worker may be in another cluster when it is asked to end, so the cluster is looked up
    // then.
    let control =
        move || ClusterEndpoint::find(address.as_deref(), token_file.as_deref())?.control();
    let only_myself =
        move |control: &Control| self::own_status(control, identity()).into_iter().collect();
    let words = || {
        format!(
            "worker {} of the cluster at {}; it offers {offers}\nCtrl-C lets it finish its work and leave.",
            myself.worker_id, settings.address
        )
    };
    let (mut announced, farewell) = (Ok(()), ShutdownProgress::new(printer));
    let ready = || {
        announced = printer.answer(&json, words);
        if is_local(&myself.address) && !is_local(&settings.address) {
            printer.note(
            "only processes on this machine can read logs and call actors of this worker: start it \
             with --listen 0.0.0.0:0 to let other machines do so",
        );
        }
        announced.is_ok()
    };
    let asked = || farewell.begin(control, only_myself, grace);
    let result = worker.run_with(grace, ready, asked);
    drop(farewell);
    announced?;
    result?;
    printer.note("the worker has left");
    Ok(ExitCode::SUCCESS)
}

/// Returns the status of the worker with this id, if the controller knows the worker.
fn own_status(control: &Control, id: Option<SessionId>) -> Option<WorkerStatus> {
    control.worker(&id?.to_string()).ok().flatten()
}

/// Returns the workers of a cluster; none if the controller does not answer.
pub fn workers(control: &Control) -> Vec<WorkerStatus> {
    control.workers(MAX_LISTED_ITEMS).unwrap_or_default().0
}

/// Whether an address can be reached from this machine only.
pub fn is_local(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_matches(['[', ']']);
    address.starts_with("unix:")
        || host == "localhost"
        || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Shows what a process that was asked to end still waits for.
pub struct ShutdownProgress(Arc<Mutex<Option<Progress>>>);

impl ShutdownProgress {
    pub fn new(printer: Printer) -> ShutdownProgress {
        ShutdownProgress(Arc::new(Mutex::new(Some(printer.progress()))))
    }

    /// Starts to show what `these` workers still have to finish. Called when the process was asked
    /// to end.
    pub fn begin(
        &self,
        control: impl FnOnce() -> Result<Control, Failure> + Send + 'static,
        these: impl Fn(&Control) -> Vec<WorkerStatus> + Send + 'static,
        grace: Duration,
    ) {
        let shown = self.0.clone();
        std::thread::spawn(move || {
            let Ok(control) = control() else { return };
            loop {
                let workers = these(&control);
                if workers.is_empty() {
                    return;
                }
                let words = format!(
                    "finishing {} and {}, for {grace:?} at most; Ctrl-C again ends it at once",
                    plural(workers.iter().map(|worker| worker.tasks).sum(), "task"),
                    plural(workers.iter().map(|worker| worker.actors).sum(), "actor")
                );
                let mut shown = shown.lock().expect("nothing panics under it");
                let Some(progress) = shown.as_mut() else { return };
                progress.update(&words);
                drop(shown);
                std::thread::sleep(SHUTDOWN_POLL_INTERVAL);
            }
        });
    }
}

impl Drop for ShutdownProgress {
    /// Removes the progress line. The thread of `begin` prints nothing more.
    fn drop(&mut self) {
        drop(self.0.lock().expect("nothing panics under it").take());
    }
}
