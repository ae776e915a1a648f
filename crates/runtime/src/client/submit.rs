//! Submitting tasks: at once or when there is room, with a result, a callback or a stream of items.

use super::{Client, Pending, fits, session_over_error, wait_for_change};
use crate::client::Callback;
use crate::stream::{Feed, ItemStream};
use marline_channel::watch;
use marline_core::error::{Error, ErrorKind};
use marline_core::id::TaskId;
use marline_core::payload::Outcome;
use marline_core::spec::TaskSpec;
use std::sync::Arc;

impl Client {
    /// Submits a task. If there is no room, fails with `Exhausted`, which names the limit.
    pub fn try_submit(&self, spec: Arc<TaskSpec>) -> Result<Pending<Outcome>, Error> {
        let (callback, pending) = Pending::with_callback();
        self.try_submit_with_callback(spec, || callback)?;
        Ok(pending)
    }

    /// Like [`try_submit`](Client::try_submit), but calls the callback with the outcome. If this
    /// fails, no callback is requested.
    pub fn try_submit_with_callback(
        &self,
        spec: Arc<TaskSpec>,
        callback: impl FnOnce() -> Callback<Outcome>,
    ) -> Result<(), Error> {
        self.submit_now(spec, callback, None)
    }

    /// Submits a task whose items are taken while it runs. If there is no room, fails with
    /// `Exhausted`. The callback is called with the outcome. If this fails, no callback is
    /// requested.
    pub fn try_submit_stream(
        &self,
        spec: Arc<TaskSpec>,
        callback: impl FnOnce() -> Callback<Outcome>,
    ) -> Result<ItemStream, Error> {
        let (stream, feed) = ItemStream::new(self.clone(), &spec);
        self.submit_now(spec, callback, Some(feed))?;
        Ok(stream)
    }

    /// Submits a task if there is room. Its items go into `feed`.
    fn submit_now(
        &self,
        spec: Arc<TaskSpec>,
        callback: impl FnOnce() -> Callback<Outcome>,
        feed: Option<Feed>,
    ) -> Result<(), Error> {
        fits("the arguments", spec.args.len())?;
        self.shared.node.with_state(|state, _| {
            let mut effects = Vec::new();
            let shell = state.client(self.shared.index);
            let task = spec.id;
            shell.machine.submit(spec, &mut effects)?;
            shell.tasks.insert(task, callback());
            shell.streams.extend(feed.map(|feed| (task, feed)));
            state.client_effects(self.shared.index, effects);
            Ok(())
        })
    }

    /// Like [`try_submit_stream`](Client::try_submit_stream), but blocks this thread until there is
    /// room.
    pub fn submit_stream(
        &self,
        spec: Arc<TaskSpec>,
        callback: impl Fn() -> Callback<Outcome>,
    ) -> Result<ItemStream, Error> {
        self.with_room(|| self.try_submit_stream(spec.clone(), &callback))
    }

    /// Reports that `count` items of a stream were taken in all.
    pub(crate) fn took(&self, task: TaskId, count: u32) {
        self.with(|machine, effects| machine.report_consumed(task, count, effects));
    }

    /// Closes a stream: cancels its producer.
    pub(crate) fn close_stream(&self, task: TaskId) {
        self.shared.node.with_state(|state, _| {
            let mut effects = Vec::new();
            let shell = state.client(self.shared.index);
            shell.machine.close_stream(task, &mut effects);
            state.client_effects(self.shared.index, effects);
        });
    }

    /// Submits a task. Blocks this thread until there is room.
    pub fn submit(&self, spec: Arc<TaskSpec>) -> Result<Pending<Outcome>, Error> {
        self.with_room(|| self.try_submit(spec.clone()))
    }

    /// Like [`submit`](Client::submit), but calls the callback with the outcome.
    pub fn submit_with_callback(
        &self,
        spec: Arc<TaskSpec>,
        callback: impl Fn() -> Callback<Outcome>,
    ) -> Result<(), Error> {
        self.with_room(|| self.try_submit_with_callback(spec.clone(), &callback))
    }

    /// Retries until there is room. The tasks that make room may need the CPU of the task that
    /// waits here, so the waiting task lends its CPU.
    fn with_room<R>(&self, submit: impl Fn() -> Result<R, Error>) -> Result<R, Error> {
        let mut room = None;
        loop {
            match submit() {
                Err(error) if error.kind() == ErrorKind::Exhausted => match &mut room {
                    // The loop tries once more after this, so that it does not miss room that
                    // appeared meanwhile.
                    None => room = Some(self.room()),
                    Some(room) => wait_for_change(room)?,
                },
                result => return result,
            }
        }
    }

    /// Submits a task. Waits without blocking the thread until there is room.
    pub async fn submit_async(&self, spec: Arc<TaskSpec>) -> Result<Pending<Outcome>, Error> {
        let mut room = None;
        loop {
            match self.try_submit(spec.clone()) {
                Err(error) if error.kind() == ErrorKind::Exhausted => match &mut room {
                    None => room = Some(self.room()),
                    Some(room) => room.changed().await.map_err(|_| session_over_error())?,
                },
                result => return result,
            }
        }
    }

    fn room(&self) -> watch::Receiver<u64> {
        self.shared.node.with_state(|state, _| state.client(self.shared.index).room.subscribe())
    }
}
