//! What a client asks of its shell.

use crate::error::Error;
use crate::id::{ActorId, ObjectId, Session, TaskId};
use crate::lease::Pong;
use crate::message::{CopyLocation, FoundActor, FromClient, ToHost};
use crate::output::AttributedOutput;
use crate::payload::{Outcome, Value};
use std::sync::Arc;

/// What is to be done, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Effect {
    /// Answer a ping, ahead of everything else.
    Pong(Pong),
    /// Send this to the controller.
    ToController(FromClient),
    /// Send this to the worker that listens there, making a link if there is none.
    ToHost { host: Session, address: Arc<str>, message: ToHost },
    /// Close the link to this worker for good, and say with
    /// [`HostClosed`](super::Event::HostClosed) what was never sent.
    CloseHost { host: Session },
    /// More submissions are welcome.
    CreditGranted,
    /// A task or a call ended. What a call's values [name](crate::payload::Value::names) is held for the user, once
    /// for each time that it is named.
    Ended { task: TaskId, outcome: Outcome },
    /// A task or a call gave an item, which is held for the user.
    Yielded { task: TaskId, index: u32, value: Result<Value, Error> },
    /// An object has a value, or never will.
    ObjectReady { object: ObjectId, value: Result<Value, Error> },
    /// Who has the data of an object, or why nobody has.
    Located { object: ObjectId, copies: Result<Vec<CopyLocation>, Error> },
    /// The actor that was asked for, or why there is none.
    ActorCreated { requested: ActorId, actor: Result<ActorId, Error> },
    /// The actor that has the name, or why there is none.
    ActorFound { request: u64, actor: Result<FoundActor, Error> },
    /// The first instance of an actor is ready, or the actor is gone.
    FirstInstanceReady { actor: ActorId, outcome: Result<(), Error> },
    /// All that was said before this request is done.
    Synced { request: u64 },
    /// Tell the user.
    Warn(String),
    /// Show the user what their work printed.
    Show(AttributedOutput),
    /// The session is over; everything that was asked for has ended.
    Stopped(Session),
}
