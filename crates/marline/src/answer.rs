//! The answer to a call. It goes from the actor to its caller and nobody else has it; once others are to have it, they
//! are told of it: it is an object then.

use crate::client::Client;
use crate::handle::without_value;
use crate::reference::ObjectRef;
use marline_runtime::core::error::Error;
use marline_runtime::core::id::{ObjectId, Referent, TaskId};
use marline_runtime::core::payload::{Outcome, Value};
use marline_runtime::{Callback, WeakClient, new_object_id};
use std::sync::{Arc, Mutex, MutexGuard};

/// See the [module](self). What it names, and what others know it by, is held until it goes.
pub(crate) struct Answer {
    id: ObjectId,
    state: Mutex<State>,
    /// What others know it by. Locked by whoever publishes it, never by whoever says that it has come.
    public: Mutex<Option<Hold>>,
}

enum State {
    /// It has not come. It may be that others were told that it comes.
    Awaited {
        announced: bool,
    },
    Arrived {
        value: Result<Value, Error>,
        _names: Vec<Hold>,
    },
}

/// A handle to a thing, for as long as there is the client: its session does not wait for this.
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
    /// The answer to a call, and who is to be told of it, who tells the caller. If the caller has gone meanwhile, all
    /// that was held for it goes.
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

    /// A reference by which others know it, whether it has come or not. If the session is over, so is what it names.
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

    /// Has others know its value, or that it comes; it is held.
    fn make_public(&self, client: &marline_runtime::Client) -> Result<ObjectId, Error> {
        let came = match &*self.state() {
            State::Arrived { value: Ok(value), .. } => Some(value.clone()),
            State::Arrived { value: Err(_), .. } | State::Awaited { .. } => None,
        };
        match came {
            Some(value) => match value.payload.stored_object() {
                // It is an object already.
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
                // As what it is: if its data is in a store, the controller knows it by that name.
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
