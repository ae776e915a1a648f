//! Arguments before they are sent: large arguments go to an object store first, and a call waits
//! for the values of the objects that it needs.

use super::{Callback, Client, ClientShared, WeakClient};
use marline_core::error::Error;
use marline_core::id::{ObjectId, Session};
use marline_core::payload::{Outcome, Payload, Value};
use marline_core::spec::TaskSpec;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

impl Client {
    /// Puts large arguments into the object store of this node, if there is one. Returns the
    /// arguments as they travel, and the object that has them. The client holds that object until
    /// it is [released](Client::release). Release it when the work that uses it was submitted.
    pub fn store_arguments(&self, args: Payload) -> Result<(Payload, Option<ObjectId>), Error> {
        let object = crate::new_object_id();
        self.store_or_discard(object, args.len(), |objects| {
            let (args, at) = self.store_if_large(object, args.clone(), objects)?;
            self.put_arguments(&args, at).map(|object| (args, object))
        })
    }

    /// Puts arguments whose data is already in the object store of the worker `at`. The work itself
    /// holds the referents in the arguments, so this does not.
    pub fn put_arguments(
        &self,
        args: &Payload,
        at: Option<Session>,
    ) -> Result<Option<ObjectId>, Error> {
        let Some(object) = args.stored_object() else { return Ok(None) };
        self.put_as(object, Value::from(args.clone()), at)?;
        Ok(Some(object))
    }

    /// Returns whether the client must [sync](Client::sync) before it makes a call whose values are
    /// there already. The controller must know the referents of the call first: the actor may pass
    /// them on or locate them at once.
    pub fn must_sync_before(&self, call: &TaskSpec) -> bool {
        let ClientShared { stored_puts: put, confirmed_puts: known, .. } = &*self.shared;
        let put_lately = || put.load(Ordering::Acquire) > known.load(Ordering::Acquire);
        !self.is_local() && (names(call) || !call.needs.is_empty() && put_lately())
    }

    /// Calls an actor, and calls the callback with the outcome. Gets the values that the call
    /// needs, and sends the call when they have arrived. Later calls of the same actor wait behind
    /// it.
    pub fn call_when_resolved(
        &self,
        spec: Arc<TaskSpec>,
        tell: Callback<Outcome>,
    ) -> Result<(), Error> {
        // After this, the controller knows the referents of the call, and can serve the values that
        // it needs.
        if names(&spec) && !self.is_local() {
            self.sync()?;
        }
        if spec.needs.is_empty() {
            return self.call_with_callback(spec, Some(Vec::new()), None, tell);
        }
        self.call_with_callback(spec.clone(), None, None, tell)?;
        let values = Mutex::new(vec![None; spec.needs.len()]);
        let needed = Arc::new(Needed { client: self.downgrade(), call: spec.clone(), values });
        for (index, object) in spec.needs.iter().enumerate() {
            let needed = needed.clone();
            let got = self.get_with_callback(
                *object,
                Box::new(move |value| needed.argument_resolved(index, value)),
            );
            if let Err(error) = got {
                self.supply(&spec, Err(error));
            }
        }
        Ok(())
    }
}

/// Returns whether a call's arguments contain references, or are in an object store themselves.
fn names(call: &TaskSpec) -> bool {
    !call.referents.is_empty() || call.args.stored.is_some()
}

/// The values that a call needs, as far as they have arrived.
struct Needed {
    /// If the client is gone, no caller waits for the call any more.
    client: WeakClient,
    call: Arc<TaskSpec>,
    values: Mutex<Vec<Option<Value>>>,
}

impl Needed {
    fn argument_resolved(&self, index: usize, value: Result<Value, Error>) {
        let all = value.map(|value| {
            let mut values = self.values.lock().expect("nothing panics under it");
            values[index] = Some(value);
            values.iter().cloned().collect::<Option<Vec<Value>>>()
        });
        // The first error fails the call. `supply` ignores the values that arrive after that.
        if let Some(all) = all.transpose()
            && let Some(client) = self.client.upgrade()
        {
            client.supply(&self.call, all);
        }
    }
}
