//! The answer to a call of an actor. It goes directly from the actor to the caller, and no other
//! process knows it. When the caller passes it on as an argument, the answer is published: it
//! becomes an object that the controller knows.

use crate::client::Client;
use crate::handle::without_value;
use crate::reference::ObjectRef;
use marline_runtime::core::error::Error;
use marline_runtime::core::id::{ObjectId, Referent, TaskId};
use marline_runtime::core::payload::{Outcome, Value};
use marline_runtime::{Callback, WeakClient, new_object_id};
use std::sync::{Arc, Mutex, MutexGuard};

/// The answer to a call: see the [module](self). Until it is dropped, it holds the referents that
/// its value names, and the object that it was published as.
pub(crate) struct Answer {
    id: ObjectId,
    state: Mutex<State>,
    /// The object that it was published as. `publish` locks this; `set_outcome` never does, so that
    /// an answer that arrives does not wait for a publication.
    public: Mutex<Option<Hold>>,
}

enum State {
    /// The answer has not arrived. `announced`: the controller expects it already.
    Awaited {
        announced: bool,
    },
    Arrived {
        value: Result<Value, Error>,
        _names: Vec<Hold>,
    },
}

/// A hold on a referent, released on drop. It does not keep the client's session alive: if the
/// client is gone, so is the hold.
struct Hold {
    client: WeakClient,
    referent: Referent,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(client) = self.client.upgrade() {
            client.release(self.referent);
        }
    }
}

impl Answer {
    /// Returns the answer to a call, and the callback for the call's outcome. The callback stores
    /// the outcome in the answer, then passes the outcome on to `tell`. If the caller has dropped
    /// every handle to the call before that, the callback also releases the answer's holds.
    pub fn of_call(
        client: &Client,
        call: TaskId,
        tell: Callback<Outcome>,
    ) -> (Arc<Answer>, Callback<Outcome>) {
        let id = ObjectId::of(call, 0);
        let state = Mutex::new(State::Awaited { announced: false });
        let answer = Arc::new(Answer { id, state, public: Mutex::default() });
        let (came, client) = (answer.clone(), client.inner.downgrade());
        let tell = move |outcome: Outcome| {
            came.set_outcome(&client, &outcome);
            tell(outcome);
        };
        (answer, Box::new(tell))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under it")
    }

    fn set_outcome(&self, client: &WeakClient, outcome: &Outcome) {
        let named = outcome.iter().flatten().flat_map(Value::referents_to_hold);
        let names = named.map(|thing| Hold { client: client.clone(), referent: thing }).collect();
        let value =
            outcome.clone().and_then(|values| values.into_iter().next().ok_or_else(without_value));
        let state = State::Arrived { value: value.clone(), _names: names };
        let before = std::mem::replace(&mut *self.state(), state);
        if let State::Awaited { announced: true } = before
            && let Some(client) = client.upgrade()
        {
            client.resolve(self.id, value);
        }
    }

    /// Returns a reference to the answer for other work, whether the answer has arrived or not. If
    /// the session is over, the reference names an object that the controller does not know.
    pub fn publish<T>(&self, client: &Client) -> ObjectRef<T> {
        let mut public = self.public.lock().expect("nothing panics under it");
        let hold = match public.take() {
            Some(hold) => hold,
            None => {
                let object = self.make_public(&client.inner).unwrap_or(self.id);
                Hold { client: client.inner.downgrade(), referent: Referent::Object(object) }
            }
        };
        let Referent::Object(object) = hold.referent else { panic!("an answer is no actor") };
        client.inner.hold(hold.referent);
        *public = Some(hold);
        ObjectRef::new(client.clone(), object)
    }

    /// Puts the answer's value as an object, or announces an object whose value comes later. Returns
    /// the object's id, with a hold that the caller must release.
    fn make_public(&self, client: &marline_runtime::Client) -> Result<ObjectId, Error> {
        let came = match &*self.state() {
            State::Arrived { value: Ok(value), .. } => Some(value.clone()),
            State::Arrived { value: Err(_), .. } | State::Awaited { .. } => None,
        };
        match came {
            Some(value) => match value.payload.stored_object() {
                // The value is in an object store, so it is an object already.
                Some(object) => {
                    client.hold(Referent::Object(object));
                    Ok(object)
                }
                None => {
                    let object = new_object_id();
                    client.put_as(object, value, None).map(|()| object)
                }
            },
            None => {
                // Announced under the answer's own id: if the data turns out to be in a store, the
                // controller knows the data by that id.
                client.announce_as(self.id)?;
                let came = match &mut *self.state() {
                    State::Awaited { announced } => {
                        *announced = true;
                        None
                    }
                    State::Arrived { value, .. } => Some(value.clone()),
                };
                if let Some(value) = came {
                    client.resolve(self.id, value);
                }
                Ok(self.id)
            }
        }
    }
}
