//! `marline controller`: a controller alone. [`ListeningController`] is shared with `marline up`.

use super::CommandResult;
use super::worker::{ShutdownProgress, is_local, workers};
use crate::args::{Args, Controller as Asked, Listen};
use crate::config::ClusterEndpoint;
use crate::exit::Failure;
use crate::printer::Printer;
use marline_runtime::Controller;
use marline_runtime::cluster_record::{ClusterFiles, TokenFile};
use marline_runtime::core::controller::Config;
use marline_runtime::core::error::Error;
use marline_runtime::core::lease::LeaseTerms;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The default port of `--listen`.
const USUAL_PORT: u16 = 7420;

pub fn run(args: &Args, asked: &Asked, printer: Printer) -> CommandResult {
    let started = ListeningController::new(args, &asked.listen.listen, config(&asked.listen))?;
    started.run(asked.grace.0, "a controller that waits for workers", printer)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the controller's configuration that the flags ask for.
pub fn config(listen: &Listen) -> Config {
    let lease = listen.lease.0;
    Config {
        terms: LeaseTerms::of(lease),
        result_ttl: listen.result_ttl.0,
        unknown_task_wait: listen.unknown_task_wait.0,
        max_pending_tasks: listen.max_pending_tasks,
        max_pending_bytes: listen.max_pending_bytes.0,
        max_session_bytes: listen.max_pending_bytes.0 / 2,
        ..Config::default()
    }
}

/// Returns the port to suggest for other machines: the port of `address`, else the usual port.
fn port(address: &str) -> u16 {
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    port.unwrap_or(USUAL_PORT)
}

/// Says why a controller cannot listen, and what to do if its address is taken.
fn cannot_listen(error: Error) -> Failure {
    let mut failure = Failure::from(error);
    if failure.message.contains("in use") {
        failure.message +=
            "; is another cluster running there? `--listen 127.0.0.1:0` finds a free port";
    }
    failure
}

/// A controller that listens, with the files by which other processes on this machine find it.
pub struct ListeningController {
    pub controller: Controller,
    pub token: TokenFile,
    socket: Option<String>,
    /// Dropped last, which deletes the cluster's files.
    _record: ClusterFiles,
}

impl ListeningController {
    /// Starts a controller that listens at `at`, and publishes its record and its token.
    pub fn new(args: &Args, at: &str, config: Config) -> Result<ListeningController, Failure> {
        let mut record = ClusterFiles::begin()?;
        let token = record.token(args.token_file.as_deref())?;
        let controller = Controller::bind(at, Some(token.secret.as_str().into()), config);
        let mut controller = controller.map_err(cannot_listen)?;
        // The user's other processes on this machine join at this socket, without a port.
        let socket = controller.also_listen(&format!("unix:{}", record.socket().display())).ok();
        // The record is published before the controller listens: a process that can connect must
        // find the record, and with it the token.
        record.publish(controller.address(), socket.as_deref(), &token)?;
        controller.listen().map_err(cannot_listen)?;
        Ok(ListeningController { controller, token, socket, _record: record })
    }

    /// Returns the announcement of what runs and what to type next: as JSON and in words.
    fn announcement(&self, what: &str) -> (Value, String) {
        let (address, token) = (self.controller.address(), self.token.file.display());
        let elsewhere = if is_local(address) {
            format!("from other machines it can be reached with --listen 0.0.0.0:{}", port(address))
        } else {
            format!(
                "on another machine, with a copy of the token file:\n\
                 \x20 marline worker --address {address} --token-file FILE --listen 0.0.0.0:0"
            )
        };
        let json = json!({
            "address": address,
            "token_file": self.token.file,
            "socket": self.socket,
            "pid": std::process::id(),
        });
        let words = format!(
            "marline is up: {what}\n\
                 \n\
                 \x20 address  {address}\n\
                 \x20 token    {token} (only you can read it)\n\
                 \n\
                 type next, in another terminal:\n\
                 \x20 marline run -- echo hello      run a command here\n\
                 \x20 marline status                 see what happens\n\
                 \x20 marline worker                 one more worker\n\
                 in Python: marline.init(\"auto\")\n\
                 {elsewhere}\n\
                 \n\
                 Ctrl-C ends it."
        );
        (json, words)
    }

    /// Announces what runs, and runs until the process is asked to end.
    pub fn run(self, grace: Duration, what: &str, printer: Printer) -> Result<(), Failure> {
        let token: Arc<str> = self.token.secret.as_str().into();
        let settings =
            ClusterEndpoint { address: self.controller.address().into(), token: Some(token) };
        let (json, words) = self.announcement(what);
        let ListeningController { controller, token: _, socket: _, _record } = self;
        let (mut announced, farewell) = (Ok(()), ShutdownProgress::new(printer));
        let ready = || {
            announced = printer.answer(&json, || words);
            announced.is_ok()
        };
        let asked = || farewell.begin(move || settings.control(), workers, grace);
        let result = controller.run_with(grace, ready, asked);
        drop(farewell);
        announced?;
        Ok(result?)
    }
}
