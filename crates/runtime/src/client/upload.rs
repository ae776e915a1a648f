//! Large values of a client that has no worker on its machine, and that no message carries: they are sent to the store of
//! a worker elsewhere.

use super::Client;
use super::objects::MAX_NEAR;
use crate::control::{WorkerState, WorkerStatus};
use crate::net::upload::Upload;
use crate::object_store::layout_of;
use marline_core::controller::Config;
use marline_core::error::{Error, ErrorKind, Ran};
use marline_core::id::{ObjectId, Session};

/// Of so many workers it is tried whether one takes it.
const MAX_TRIED: usize = 16;

impl Client {
    /// Whether a value of so many bytes is to be [uploaded](Client::upload), if there is no [store](Client::objects) on
    /// this machine.
    pub fn must_upload(&self, bytes: usize) -> bool {
        self.shared.is_elsewhere && bytes > Config::default().max_payload_bytes
    }

    /// Sends the parts of a value to the store of a worker, as the data of an object, which is to be [put](Client::put_as)
    /// next: if it is not, it is dropped after a while. Says at which worker it is. Blocks, and looks now and then
    /// whether it is to `go_on`.
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
            // Not always to the same one.
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

const NOBODY: &str = "there is no worker that could take a value which no message carries: one that has a store, and \
                      listens where this process can reach it (marline worker --listen 0.0.0.0:0)";

fn takes_data(worker: &WorkerStatus) -> bool {
    worker.state() == WorkerState::Healthy && !worker.store.is_empty() && !worker.address.is_empty()
}
