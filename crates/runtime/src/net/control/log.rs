//! Logs: the output of user code that the workers of this node have.

use super::{ControlService, time};
use crate::executor::log::{Chunk, LogSlice, Logs, StdStream};
use marline_core::Error;
use marline_core::id::{ActorId, Attempt, TaskId};
use marline_wire::convert::control::id;
use marline_wire::v1;

/// The task or actor whose log a request asks for.
enum LogOwner {
    Task(TaskId, Option<Attempt>),
    Actor(ActorId),
}

impl ControlService {
    pub(super) async fn read_log(
        &self,
        request: v1::ReadLogRequest,
    ) -> Result<v1::ReadLogReply, Error> {
        let whose = whose(&request)?;
        let time = time(request.timeout_ms)?;
        let node = self.node()?;
        node.health()?; // Only workers have logs.
        let logs = node.logs();
        drop(node); // A waiting request must not keep the node alive.
        let read = || part(&logs, &whose, request.offset);
        let something = async {
            loop {
                let grown = logs.grown();
                let part = read();
                if !part.chunks.is_empty() {
                    return part;
                }
                grown.await;
            }
        };
        let part = tokio::time::timeout(time, something).await.unwrap_or_else(|_| read());
        Ok(encode(part))
    }
}

fn whose(request: &v1::ReadLogRequest) -> Result<LogOwner, Error> {
    match (request.task_id.as_str(), request.actor_id.as_str()) {
        ("", "") => Err(Error::invalid("ReadLogRequest names no task and no actor: name one")),
        (task, "") => {
            let attempt = Some(Attempt(request.attempt)).filter(|attempt| attempt.0 > 0);
            Ok(LogOwner::Task(id(task, "ReadLogRequest.task_id")?, attempt))
        }
        ("", actor) => Ok(LogOwner::Actor(id(actor, "ReadLogRequest.actor_id")?)),
        (_, _) => Err(Error::invalid("ReadLogRequest names a task and an actor: name one")),
    }
}

fn part(logs: &Logs, whose: &LogOwner, offset: u64) -> LogSlice {
    let part = match whose {
        LogOwner::Task(task, attempt) => logs.of_task(*task, *attempt, offset),
        LogOwner::Actor(actor) => logs.of_actor(*actor, offset),
    };
    part.unwrap_or_default()
}

fn encode(part: LogSlice) -> v1::ReadLogReply {
    let (offset, next_offset, number) = (part.offset, part.next(), part.number);
    let chunks = part.chunks.into_iter().map(|Chunk { stream, bytes }| v1::LogChunk {
        text: bytes.into(),
        is_error: stream == StdStream::Err,
    });
    v1::ReadLogReply { chunks: chunks.collect(), offset, next_offset, number }
}
