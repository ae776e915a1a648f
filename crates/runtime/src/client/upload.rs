//! Uploads large values of a client that has no worker on its machine. No message can carry them,
//! so they go to the object store of a worker elsewhere.

use super::Client;
use super::objects::MAX_NEAR;
use crate::control::{WorkerState, WorkerStatus};
use crate::net::upload::Upload;
use crate::object_store::layout_of;
use marline_core::controller::Config;
use marline_core::error::{Error, ErrorKind, Ran};
use marline_core::id::{ObjectId, Session};

/// The most workers that an upload is offered to.
const MAX_TRIED: usize = 16;

impl Client {
    /// Returns whether a value of this size must be [uploaded](Client::upload) if this machine has
    /// no object [store](Client::objects).
    pub fn must_upload(&self, bytes: usize) -> bool {
        self.shared.is_elsewhere && bytes > Config::default().max_payload_bytes
    }

    /// Sends the parts of a value to the object store of a worker, as the data of `object`. Returns
    /// the worker. Blocks, and calls `go_on` now and then to see whether to continue.
    ///
    /// [Put](Client::put_as) the object next. Otherwise the store drops the data after a while.
    pub fn upload(
        &self,
        object: ObjectId,
        parts: &[&[u8]],
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Session, Error> {
        let nobody = || Error::unavailable(Ran::No, NOBODY);
        let control = self.shared.control()?.ok_or_else(nobody)?;
        let (workers, _) = control.workers(MAX_NEAR)?;
        let mut workers: Vec<WorkerStatus> = workers.into_iter().filter(takes_data).collect();
        if !workers.is_empty() {
            // Do not start with the same worker each time.
            let first = object.origin.as_u128() as usize % workers.len();
            workers.rotate_left(first);
        }
        let token = self.shared.node.token();
        let upload = Upload { object, layout: layout_of(parts)?, parts, token: &token };
        let mut last = nobody();
        for worker in workers.iter().take(MAX_TRIED) {
            match upload.send_to(&worker.address, &mut go_on) {
                Ok(session) => return Ok(session),
                Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

const NOBODY: &str = "the value is too large for a message, and no worker can take it: start one that has a store, and \
                      listens where this process can reach it (marline worker --listen 0.0.0.0:0)";

fn takes_data(worker: &WorkerStatus) -> bool {
    worker.state() == WorkerState::Healthy && !worker.store.is_empty() && !worker.address.is_empty()
}
