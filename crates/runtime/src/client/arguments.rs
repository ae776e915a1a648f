//! Arguments on their way: what is large goes to a store first, and what a call needs comes before it goes.

use super::{Callback, Client, ClientShared, WeakClient};
use marline_core::error::Error;
use marline_core::id::{ObjectId, Session};
use marline_core::payload::{Outcome, Payload, Value};
use marline_core::spec::TaskSpec;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

impl Client {
    /// Has arguments that are large go to the store of this node, if there is one. Says which object they are then:
    /// it is held until it is [released](Client::release), which is when the work that has them was submitted.
    pub fn store_arguments(&self, args: Payload) -> Result<(Payload, Option<ObjectId>), Error> {
        let object = crate::new_object_id();
        self.stored(object, args.len(), |objects| {
            let (args, at) = self.kept(object, args.clone(), objects)?;
            self.put_arguments(&args, at).map(|object| (args, object))
        })
    }

    /// The same of arguments whose data is in the store of the worker `at` already. What references in them name is
    /// held by the work itself.
    pub fn put_arguments(
        &self,
        args: &Payload,
        at: Option<Session>,
    ) -> Result<Option<ObjectId>, Error> {
        let Some(object) = args.stored_object() else { return Ok(None) };
        self.put_as(object, Value::from(args.clone()), at)?;
        Ok(Some(object))
    }

    /// Whether the controller is to [know](Client::sync) what a call names before the call is made with values that
    /// are there already: the actor may speak of it, or look for it, before the controller has heard of it.
    pub fn must_sync_before(&self, call: &TaskSpec) -> bool {
        let ClientShared { stored_puts: put, confirmed_puts: known, .. } = &*self.shared;
        let put_lately = || put.load(Ordering::Acquire) > known.load(Ordering::Acquire);
        !self.is_local() && (names(call) || !call.needs.is_empty() && put_lately())
    }

    /// Calls an actor; tells how that ended. The values that the call needs are got, and it goes when they have come:
    /// calls of the same actor that are made after it wait behind it.
    pub fn call_when_resolved(
        &self,
        spec: Arc<TaskSpec>,
        tell: Callback<Outcome>,
    ) -> Result<(), Error> {
        // What it needs comes from the controller, which knows that then.
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
            let got =
                self.get_with_callback(*object, Box::new(move |value| needed.came(index, value)));
            if let Err(error) = got {
                self.supply(&spec, Err(error));
            }
        }
        Ok(())
    }
}

/// Whether a call's arguments name anything, or are in a store themselves.
fn names(call: &TaskSpec) -> bool {
    !call.referents.is_empty() || call.args.stored.is_some()
}

/// What a call needs, as far as it has come.
struct Needed {
    /// Nobody waits for the call any more if this is gone.
    client: WeakClient,
    call: Arc<TaskSpec>,
    values: Mutex<Vec<Option<Value>>>,
}

impl Needed {
    fn came(&self, index: usize, value: Result<Value, Error>) {
        let all = value.map(|value| {
            let mut values = self.values.lock().expect("nothing panics under it");
            values[index] = Some(value);
            values.iter().cloned().collect::<Option<Vec<Value>>>()
        });
        // The first that fails fails the call: what comes after that finds none.
        if let Some(all) = all.transpose()
            && let Some(client) = self.client.upgrade()
        {
            client.supply(&self.call, all);
        }
    }
}
