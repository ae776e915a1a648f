//! Callers that wait for tasks of the controller to end. A wait counts down the ends that it still
//! needs, and wakes its caller once.

use super::{DeferredAction, Node, NodeState};
use marline_core::Error;
use marline_core::id::TaskId;
use marline_core::map::Map;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// The most waits at a time. Without a limit, forgotten clients could fill the memory.
pub(crate) const MAX_WAITS: usize = 10_000;
/// The most tasks that all waits name together, for the same reason.
const MAX_WAITED_TASKS: usize = 1_000_000;

#[derive(Default)]
pub(super) struct TaskWaits {
    next: u64,
    open: Map<u64, Open>,
    by_task: BTreeSet<(TaskId, u64)>,
}

struct Open {
    left: usize,
    waiter: Arc<Notify>,
}

/// A wait for tasks. Dropping it ends the wait.
pub(crate) struct TaskWait {
    node: Weak<Node>,
    number: u64,
    tasks: Vec<TaskId>,
    waiter: Arc<Notify>,
}

impl TaskWait {
    /// Returns when enough tasks have ended, or the node closes.
    pub async fn woken(&self) {
        self.waiter.notified().await;
    }
}

impl Drop for TaskWait {
    fn drop(&mut self) {
        if let Some(node) = self.node.upgrade() {
            node.with_state(|state, _| state.waits.forget(self.number, &self.tasks));
        }
    }
}

impl TaskWaits {
    fn add(&mut self, tasks: &[TaskId], left: usize) -> (u64, Arc<Notify>) {
        self.next += 1;
        let waiter = Arc::new(Notify::new());
        self.open.insert(self.next, Open { left, waiter: waiter.clone() });
        self.by_task.extend(tasks.iter().map(|task| (*task, self.next)));
        (self.next, waiter)
    }

    fn forget(&mut self, number: u64, tasks: &[TaskId]) {
        self.open.remove(&number);
        for task in tasks {
            self.by_task.remove(&(*task, number));
        }
    }

    /// Notes that a task ended. Returns the callers that have nothing left to wait for.
    fn ended(&mut self, task: TaskId) -> Vec<Arc<Notify>> {
        let here = self.by_task.range((task, 0)..=(task, u64::MAX));
        let numbers: Vec<u64> = here.map(|(_, number)| *number).collect();
        let mut woken = Vec::new();
        for number in numbers {
            self.by_task.remove(&(task, number));
            let open = self.open.get_mut(&number).expect("a wait is forgotten as a whole");
            open.left = open.left.saturating_sub(1);
            if open.left == 0 {
                woken.push(open.waiter.clone());
            }
        }
        woken
    }
}

impl NodeState {
    pub(super) fn task_ended(&mut self, task: TaskId) {
        self.outside.extend(self.waits.ended(task).into_iter().map(DeferredAction::Wake));
    }

    /// Wakes all callers: the node closes.
    pub(super) fn end_waits(&mut self) {
        let waiting =
            self.waits.open.values().map(|open| DeferredAction::Wake(open.waiter.clone()));
        self.outside.extend(waiting);
    }
}

impl Node {
    /// Returns how many waits are open.
    #[cfg(test)]
    pub fn waits_open(&self) -> usize {
        self.with_state(|state, _| state.waits.open.len())
    }

    /// Registers a wait for `count` of these tasks, each named once, to end. Returns `None` if so
    /// many have ended already.
    pub fn wait(&self, tasks: &[TaskId], count: usize) -> Result<Option<TaskWait>, Error> {
        self.with_state(|state, _| {
            let controller = state.controller_mut()?;
            let mut pending = Vec::new();
            for task in tasks {
                if controller.await_task(*task)? {
                    pending.push(*task);
                }
            }
            let ended = tasks.len() - pending.len();
            if ended >= count {
                return Ok(None);
            }
            if state.waits.open.len() >= MAX_WAITS {
                return Err(Error::exhausted(format!(
                    "{MAX_WAITS} callers wait for tasks already, which is the limit (MAX_WAITS): ask again later"
                )));
            }
            let (waited, more) = (state.waits.by_task.len(), pending.len());
            if waited + more > MAX_WAITED_TASKS {
                return Err(Error::exhausted(format!(
                    "callers wait for {waited} tasks already and this caller asks for {more}, the limit is \
                     {MAX_WAITED_TASKS} (MAX_WAITED_TASKS): ask for fewer at a time, or again later"
                )));
            }
            let (number, waiter) = state.waits.add(&pending, count - ended);
            Ok(Some(TaskWait { node: self.me.clone(), number, tasks: pending, waiter }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::controller::Config;
    use marline_core::payload::Payload;
    use marline_core::recent_events::{EventSummary, Subject};
    use marline_core::spec::{Target, TaskSpec};
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn node_with_tasks(count: usize) -> (Arc<Node>, Vec<TaskId>) {
        let node = Node::new();
        node.host_controller(Config::default());
        let ids = (0..count).map(|_| {
            let spec = Arc::new(TaskSpec {
                id: crate::new_task_id(),
                target: Target::Function("never".into()),
                args: Payload::default(),
                needs: Vec::new(),
                referents: Vec::new(),
                returns: 1,
                stream_window: None,
                options: Arc::default(),
            });
            let id = spec.id;
            let submit = EventSummary::of("SubmitTask", Subject::Task(id));
            node.with_controller_mut(submit, |controller, now, effects| {
                controller.submit_for(now, None, spec, effects)
            })
            .unwrap();
            id
        });
        let ids = ids.collect();
        (node, ids)
    }

    fn cancel(node: &Node, id: TaskId) {
        let cancel = EventSummary::of("CancelTask", Subject::Task(id));
        node.with_controller_mut(cancel, |controller, now, effects| {
            controller.cancel_for(now, id, false, effects)
        })
        .unwrap();
    }

    fn is_woken(wait: &TaskWait) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        pin!(wait.woken()).poll(&mut cx).is_ready()
    }

    fn kept(node: &Node) -> (usize, usize) {
        node.with_state(|state, _| (state.waits.open.len(), state.waits.by_task.len()))
    }

    #[test]
    fn a_wait_is_woken_when_enough_tasks_have_ended_and_leaves_nothing_behind() {
        let (node, ids) = node_with_tasks(3);
        let wait = node.wait(&ids, 2).unwrap().expect("nothing has ended");
        let one = node.wait(&ids[..1], 1).unwrap().expect("nothing has ended");
        assert_eq!(kept(&node), (2, 4));
        cancel(&node, ids[0]);
        assert!(is_woken(&one));
        assert!(!is_woken(&wait));
        cancel(&node, ids[2]);
        assert!(is_woken(&wait));
        drop((wait, one));
        assert_eq!(kept(&node), (0, 0));
        assert!(node.wait(&ids, 2).unwrap().is_none(), "two have ended already");
        node.close();
    }

    #[test]
    fn a_dropped_wait_is_forgotten_and_a_closing_node_wakes_all_waits() {
        let (node, ids) = node_with_tasks(2);
        drop(node.wait(&ids, 1).unwrap());
        assert_eq!(kept(&node), (0, 0));
        cancel(&node, ids[0]); // No wait is left to wake.
        let wait = node.wait(&ids, 2).unwrap().expect("one has not ended");
        node.close();
        assert!(is_woken(&wait));
        assert_eq!(node.wait(&ids, 1).err().unwrap().kind(), marline_core::ErrorKind::Unavailable);
    }

    #[test]
    fn a_wait_beyond_the_limit_fails_as_exhausted_and_names_the_limit() {
        let (node, ids) = node_with_tasks(1);
        let waits: Vec<_> = (0..MAX_WAITS).map(|_| node.wait(&ids, 1).unwrap()).collect();
        let error = node.wait(&ids, 1).err().expect("there is no room");
        assert_eq!(error.kind(), marline_core::ErrorKind::Exhausted);
        assert!(error.message().contains("MAX_WAITS"), "{error}");
        drop(waits);
        assert!(node.wait(&ids, 1).is_ok());
        node.close();
    }

    #[test]
    fn a_wait_for_too_many_tasks_fails_as_exhausted_and_names_the_limit() {
        let (node, ids) = node_with_tasks(1_000);
        let waits: Vec<_> =
            (0..MAX_WAITED_TASKS / 1_000).map(|_| node.wait(&ids, 1).unwrap()).collect();
        let error = node.wait(&ids[..1], 1).err().expect("there is no room");
        assert_eq!(error.kind(), marline_core::ErrorKind::Exhausted);
        assert!(error.message().contains("(MAX_WAITED_TASKS)"), "{error}");
        drop(waits);
        assert!(node.wait(&ids, 1).is_ok());
        node.close();
    }
}
