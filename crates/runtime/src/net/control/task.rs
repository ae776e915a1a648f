//! Tasks: submit, describe, list, wait, cancel.

use super::{ControlService, MAX_WAIT_TASKS, cut, page, time};
use marline_core::error::{Error, Ran};
use marline_core::id::TaskId;
use marline_core::recent_events::{EventSummary, Subject};
use marline_wire::convert::control::{
    Detail, decode_filter, decode_task, encode_task, encode_task_here, id,
};
use marline_wire::v1;
use std::collections::HashSet;

impl ControlService {
    pub(super) fn submit_task(
        &self,
        request: v1::SubmitTaskRequest,
    ) -> Result<v1::SubmitTaskReply, Error> {
        let asked = decode_task(request, crate::new_task_id)?;
        let task_id = asked.spec.id.to_string();
        let submit = EventSummary::of("SubmitTask", Subject::Task(asked.spec.id));
        let submit = EventSummary { from: asked.session, ..submit };
        self.node()?.with_controller_mut(submit, |controller, now, effects| {
            controller.submit_for(now, asked.session, asked.spec, effects)
        })?;
        Ok(v1::SubmitTaskReply { task_id })
    }

    pub(super) fn get_task_status(
        &self,
        request: v1::GetTaskStatusRequest,
    ) -> Result<v1::TaskStatus, Error> {
        let id = id(&request.task_id, "GetTaskStatusRequest.task_id")?;
        let status = self.node()?.with_controller(|controller| controller.task_status(id))??;
        Ok(encode_task(status, Detail::Whole, self.wall))
    }

    pub(super) async fn get_task_result(
        &self,
        request: v1::GetTaskResultRequest,
    ) -> Result<v1::GetTaskResultReply, Error> {
        let id = id(&request.task_id, "GetTaskResultRequest.task_id")?;
        let node = self.node()?;
        let outcome = node.with_controller(|controller| controller.task_result(id))??;
        // A caller of this operation has no object store: pull large values to this process.
        let outcome = match outcome {
            Ok(values) if values.iter().any(|value| value.payload.stored.is_some()) => {
                let bring = move || node.bring_all(values);
                tokio::task::spawn_blocking(bring).await.map_err(|_| shut_down())?
            }
            outcome => outcome,
        };
        Ok(match outcome {
            Ok(values) => v1::GetTaskResultReply {
                values: values.into_iter().map(v1::Value::from).collect(),
                error: None,
            },
            Err(error) => v1::GetTaskResultReply { values: Vec::new(), error: Some(error.into()) },
        })
    }

    pub(super) fn cancel_task(
        &self,
        request: v1::CancelTaskRequest,
    ) -> Result<v1::CancelTaskReply, Error> {
        let id = id(&request.task_id, "CancelTaskRequest.task_id")?;
        let cancel = EventSummary::of("CancelTask", Subject::Task(id));
        let had_not_ended =
            self.node()?.with_controller_mut(cancel, |controller, now, effects| {
                controller.cancel_for(now, id, request.force, effects)
            })?;
        Ok(v1::CancelTaskReply { had_not_ended })
    }

    pub(super) async fn wait_tasks(
        &self,
        request: v1::WaitTasksRequest,
    ) -> Result<v1::WaitTasksReply, Error> {
        let v1::WaitTasksRequest { task_ids, count, timeout_ms } = request;
        let tasks = distinct(&task_ids)?;
        drop(task_ids); // Free it before waiting: text takes four times the memory of ids.
        let count = match count as usize {
            0 => tasks.len(),
            count if count <= tasks.len() => count,
            count => {
                return Err(Error::invalid(format!(
                    "count is {count}, but the request names {} tasks: lower count",
                    tasks.len()
                )));
            }
        };
        let time = time(timeout_ms)?;
        // A waiting request must not keep the node alive.
        let wait = self.node()?.wait(&tasks, count)?;
        if let Some(wait) = wait
            && !time.is_zero()
        {
            // A timeout is not an error: the answer names the tasks that are pending.
            let _ = tokio::time::timeout(time, wait.woken()).await;
        }
        let (pending, ended): (Vec<TaskId>, Vec<TaskId>) =
            self.node()?.with_controller(|controller| {
                tasks.into_iter().partition(|task| controller.is_pending(*task))
            })?;
        let text = |ids: Vec<TaskId>| ids.iter().map(TaskId::to_string).collect();
        Ok(v1::WaitTasksReply { ended: text(ended), pending: text(pending) })
    }

    pub(super) fn list_tasks(
        &self,
        request: v1::ListTasksRequest,
    ) -> Result<v1::ListTasksReply, Error> {
        let limit = page(request.limit)?;
        let filter = decode_filter(&request)?;
        let node = self.node()?;
        if node.has_controller() {
            let listed =
                node.with_controller(|controller| controller.list_tasks(limit + 1, &filter))?;
            let (listed, more) = cut(listed, limit);
            let tasks = listed.into_iter().map(|task| encode_task(task, Detail::Brief, self.wall));
            return Ok(v1::ListTasksReply { tasks: tasks.collect(), more });
        }
        let (listed, more) = cut(node.tasks_here(limit + 1, &filter), limit);
        let tasks = listed.iter().map(|(worker, task)| encode_task_here(*worker, task, self.wall));
        Ok(v1::ListTasksReply { tasks: tasks.collect(), more })
    }
}

fn shut_down() -> Error {
    Error::unavailable(Ran::Maybe, "the controller was shut down")
}

/// Returns the named tasks, each once.
fn distinct(texts: &[String]) -> Result<Vec<TaskId>, Error> {
    if texts.is_empty() {
        return Err(Error::invalid("WaitTasksRequest.task_ids is empty: name at least one task"));
    }
    if texts.len() > MAX_WAIT_TASKS {
        return Err(Error::too_large(format!(
            "the request names {} tasks, the limit is {MAX_WAIT_TASKS} (MAX_WAIT_TASKS)",
            texts.len()
        )));
    }
    let mut seen = HashSet::new();
    let tasks = texts.iter().map(|text| id(text, "WaitTasksRequest.task_ids"));
    let tasks = tasks.collect::<Result<Vec<TaskId>, Error>>()?;
    Ok(tasks.into_iter().filter(|task| seen.insert(*task)).collect())
}
