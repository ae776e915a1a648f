//! Pulls large values for callers without an object store, which ask this node's controller for
//! results.

use super::Node;
use crate::net::transfer::{self, TransferRequest};
use crate::object_store::PendingRead;
use bytes::Bytes;
use marline_core::error::Error;
use marline_core::id::ObjectId;
use marline_core::payload::{Payload, Value};

impl Node {
    /// Returns values with their data, if they fit into a message. Blocks.
    pub fn bring_all(&self, mut values: Vec<Value>) -> Result<Vec<Value>, Error> {
        let limit = self.with_controller(|controller| controller.config().max_payload_bytes)?;
        let bytes: u64 = values.iter().map(|value| value.payload.size()).sum();
        if bytes > limit as u64 {
            return Err(Error::too_large(format!(
                "the results are {bytes} bytes in object stores, the limit of an answer is {limit} (max_payload_bytes): \
                 have a task read them"
            )));
        }
        for value in &mut values {
            if let Some(object) = value.payload.stored_object() {
                value.payload = self.bring(object, &value.payload)?;
            }
        }
        Ok(values)
    }

    fn bring(&self, object: ObjectId, payload: &Payload) -> Result<Payload, Error> {
        let here = self.store().and_then(|store| store.read_here(object).ok());
        let whole = match here {
            Some(view) => view.into_bytes(),
            None => {
                let copies = self.with_controller(|controller| controller.copies(object))??;
                let wanted =
                    TransferRequest { object, token: &self.token(), should_continue: &|| true };
                let room = |bytes| Ok(vec![0; bytes]);
                Bytes::from(transfer::pull(&copies, &wanted, &mut None, room)?.0)
            }
        };
        PendingRead::of(object, payload, whole)
    }
}
