//! `marline up`: starts a controller and a worker in one process.

use super::CommandResult;
use super::controller::{ListeningController, config};
use super::worker::options;
use crate::args::{Args, Up};
use crate::printer::Printer;
use crate::python::ExecutorCluster;
use std::process::ExitCode;

pub fn run(args: &Args, up: &Up, printer: Printer) -> CommandResult {
    let mut started = ListeningController::new(args, &up.listen.listen, config(&up.listen))?;
    let address = started.controller.address().to_owned();
    let home = ExecutorCluster { address: &address, token: Some(&started.token.secret) };
    let options = options(&up.offer, &home)?;
    started.controller.host_worker(options)?;
    let offers = &started.controller.workers()[0].info.resources;
    let what = format!("a cluster with one worker that offers {offers}");
    started.run(up.offer.grace.0, &what, printer)?;
    Ok(ExitCode::SUCCESS)
}
