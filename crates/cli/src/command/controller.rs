//! `marline controller`: a controller alone, and what it has in common with `marline up`.

use super::Done;
use crate::args::{Args, Controller as Asked, Listen};
use crate::config::token_file;
use crate::exit::Failure;
use crate::printer::Printer;
use crate::record::{Record, Token};
use marline_runtime::Controller;
use marline_runtime::core::controller::Config;
use marline_runtime::core::lease::Terms;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

pub fn run(args: &Args, asked: &Asked, printer: &Printer) -> Done {
    let started = Started::new(args, &asked.listen.listen, config(&asked.listen))?;
    started.announce(printer, "a controller that waits for workers");
    started.run(Duration::ZERO)?;
    Ok(ExitCode::SUCCESS)
}

/// How the controller is to behave.
pub fn config(listen: &Listen) -> Config {
    let lease = listen.lease.0;
    Config {
        terms: Terms { lease, ping_interval: lease / 3 },
        result_ttl: listen.result_ttl.0,
        max_pending_tasks: listen.max_pending_tasks,
        ..Config::default()
    }
}

/// A controller that listens, and that others on this machine can find.
pub struct Started {
    pub controller: Controller,
    token: Token,
    socket: Option<String>,
    _record: Record,
}

impl Started {
    pub fn new(args: &Args, at: &str, config: Config) -> Result<Started, Failure> {
        let token = Token::of(token_file(args)?.as_deref())?;
        let controller = Controller::start(at, Some(token.secret.as_str().into()), config);
        let mut controller = controller.map_err(|error| {
            let mut failure = Failure::from(error);
            if failure.message.contains("in use") {
                failure.message +=
                    "; is another cluster running there? `--listen 127.0.0.1:0` finds a free port";
            }
            failure
        })?;
        // Children and neighbours of the same user join here, without a port.
        let socket =
            marline_runtime::runtime_folder()?.join(format!("{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let socket = controller.also_listen(&format!("unix:{}", socket.display())).ok();
        let record = Record::write(controller.address(), &token)?;
        Ok(Started { controller, token, socket, _record: record })
    }

    /// Says what runs, and what to type next.
    pub fn announce(&self, printer: &Printer, what: &str) {
        let (address, token) = (self.controller.address(), self.token.file.display());
        let json = json!({
            "address": address,
            "token_file": self.token.file,
            "socket": self.socket,
            "pid": std::process::id(),
        });
        printer.answer(&json, || {
            format!(
                "marline is up: {what}\n\
                 \n\
                 \x20 address  {address}\n\
                 \x20 token    {token} (only you can read it)\n\
                 \n\
                 type next, in another terminal:\n\
                 \x20 marline run -- echo hello      run a command here\n\
                 \x20 marline status                 see what happens\n\
                 \x20 marline worker                 one more worker\n\
                 on another machine, with a copy of the token file (and --listen 0.0.0.0:7420 here):\n\
                 \x20 marline worker --address HOST:PORT --token-file FILE\n\
                 \n\
                 Ctrl-C ends it."
            )
        });
    }

    /// Goes on until it is asked to end.
    pub fn run(self, grace: Duration) -> Result<(), Failure> {
        let Started { controller, token: _, socket, _record } = self;
        let result = controller.run(grace);
        if let Some(path) = socket.as_deref().and_then(|socket| socket.strip_prefix("unix:")) {
            let _ = std::fs::remove_file(path);
        }
        Ok(result?)
    }
}
