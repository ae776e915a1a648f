//! `marline logs`: what a task or an actor printed. Logs are where it ran: the worker is asked.

use super::Done;
use crate::args::Logs;
use crate::config::Settings;
use crate::exit::{Failure, NOT_FOUND};
use crate::printer::Printer;
use marline_runtime::control::{ActorState, Control, LogOf, LogPart, TaskState};
use marline_runtime::core::error::ErrorKind;
use marline_runtime::core::id::{ActorId, TaskId};
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// How long one question waits for more to be printed.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most workers that one answer lists.
const PAGE: u32 = 1_000;

pub fn run(settings: &Settings, asked: &Logs, printer: &Printer) -> Done {
    let control = settings.control()?;
    let whose = Whose::find(&control, &asked.id)?;
    let mut reader = Reader::new(settings.clone(), whose.log());
    let mut texts = Vec::new();
    loop {
        let (worker, over) = whose.state(&control)?;
        let patience = if asked.follow && !over { PATIENCE } else { Duration::ZERO };
        let more = reader.read(&control, &worker, patience, &mut |part| {
            if printer.json {
                texts.extend(part.chunks.iter().flat_map(|chunk| chunk.text.to_vec()));
            } else {
                print(part);
            }
        })?;
        if !more && (over || !asked.follow) {
            break;
        }
    }
    if printer.json {
        let json = json!({ "id": asked.id, "text": String::from_utf8_lossy(&texts) });
        printer.answer(&json, String::new);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what was printed, each to where it was.
pub fn print(part: &LogPart) {
    for chunk in &part.chunks {
        let _ = match chunk.is_error {
            true => std::io::stderr().write_all(&chunk.text),
            false => std::io::stdout().write_all(&chunk.text),
        };
    }
    let _ = std::io::stdout().flush();
}

enum Whose {
    Task(TaskId, Option<ActorId>),
    Actor(ActorId),
}

impl Whose {
    /// The task or the actor of this id.
    fn find(control: &Control, id: &str) -> Result<Whose, Failure> {
        let task: TaskId = id.parse()?;
        match control.task(task) {
            // A call prints into its actor's log.
            Ok(status) => Ok(Whose::Task(task, status.actor_id.parse().ok())),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let actor: ActorId = id.parse()?;
                control.actor(actor).map(|_| Whose::Actor(actor)).map_err(|error| Failure {
                    code: NOT_FOUND,
                    kind: format!("{:?}", error.kind()),
                    message: format!("no task and no actor {id} is known"),
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn log(&self) -> LogOf {
        match self {
            Whose::Task(_, Some(actor)) | Whose::Actor(actor) => LogOf::Actor(*actor),
            Whose::Task(task, None) => LogOf::Task(*task),
        }
    }

    /// Where it is, or was last, and whether it has ended.
    fn state(&self, control: &Control) -> Result<(String, bool), Failure> {
        match self {
            Whose::Task(task, _) => {
                let status = control.task(*task)?;
                let over = matches!(
                    status.state(),
                    TaskState::Finished | TaskState::Failed | TaskState::Cancelled
                );
                Ok((status.worker_id, over))
            }
            Whose::Actor(actor) => {
                let status = control.actor(*actor)?;
                let over = status.state() == ActorState::Dead;
                Ok((status.worker_id, over))
            }
        }
    }
}

/// Reads a log from where it was, wherever that is now.
pub struct Reader {
    settings: Settings,
    of: LogOf,
    worker: String,
    node: Option<Control>,
    offset: u64,
    number: u64,
}

impl Reader {
    pub fn new(settings: Settings, of: LogOf) -> Reader {
        Reader { settings, of, worker: String::new(), node: None, offset: 0, number: 0 }
    }

    /// Reads what there is at this worker, waiting for it up to `patience`. Says whether there was
    /// something.
    pub fn read(
        &mut self,
        control: &Control,
        worker: &str,
        patience: Duration,
        show: &mut dyn FnMut(&LogPart),
    ) -> Result<bool, Failure> {
        if worker.is_empty() {
            std::thread::sleep(patience.min(Duration::from_millis(50)));
            return Ok(false);
        }
        if self.worker != worker {
            let workers = control.workers(PAGE)?.0;
            let found = workers.into_iter().find(|known| known.worker_id == worker);
            // What was printed by a worker that is gone is gone with it.
            let Some(found) = found.filter(|found| !found.address.is_empty()) else {
                return Ok(false);
            };
            self.node = Some(self.settings.control_at(&found.address)?);
            worker.clone_into(&mut self.worker);
            self.offset = 0;
        }
        let node = self.node.as_ref().expect("it was found");
        let part = match node.read_log(self.of, self.offset, patience) {
            Ok(part) => part,
            // Its worker went meanwhile.
            Err(error) if error.kind() == ErrorKind::Unavailable => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let part = if part.number == self.number || self.offset == 0 {
            part
        } else {
            // Another attempt: from its beginning.
            node.read_log(self.of, 0, Duration::ZERO)?
        };
        self.number = part.number;
        self.offset = part.next_offset;
        show(&part);
        Ok(!part.chunks.is_empty())
    }
}
