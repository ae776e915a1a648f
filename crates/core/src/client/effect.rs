//! The effects of a client.

use crate::error::Error;
use crate::id::{ActorId, ObjectId, Session, TaskId};
use crate::lease::Pong;
use crate::message::{CopyLocation, FoundActor, FromClient, ToHost};
use crate::output::AttributedOutput;
use crate::payload::{Outcome, Value};
use std::sync::Arc;

/// An action for the shell. The shell does them in order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Effect {
    /// Answer a ping, ahead of all other messages.
    Pong(Pong),
    /// Send a message to the controller.
    ToController(FromClient),
    /// Send a message to the worker that listens at this address. Make a link if there is none.
    ToHost { host: Session, address: Arc<str>, message: ToHost },
    /// Close the link to this worker for good. [`HostClosed`](super::Event::HostClosed) then names
    /// the calls that were never sent.
    CloseHost { host: Session },
    /// The controller has granted more submissions.
    CreditGranted,
    /// A task or a call ended. The client has added one handle for each
    /// [referent](crate::payload::Value::referents_to_hold) of a call's values, as often as they
    /// name it. The user releases these handles.
    Ended { task: TaskId, outcome: Outcome },
    /// A task or a call yielded an item. The client has added a handle to it, which the user
    /// releases.
    Yielded { task: TaskId, index: u32, value: Result<Value, Error> },
    /// An object has a value, or never will.
    ObjectReady { object: ObjectId, value: Result<Value, Error> },
    /// The copies of an object, or the error why there are none.
    Located { object: ObjectId, copies: Result<Vec<CopyLocation>, Error> },
    /// The actor that was created, or the error.
    ActorCreated { requested: ActorId, actor: Result<ActorId, Error> },
    /// The actor with this name, or the error.
    ActorFound { request: u64, actor: Result<FoundActor, Error> },
    /// The first instance of an actor is ready, or the actor is gone.
    FirstInstanceReady { actor: ActorId, outcome: Result<(), Error> },
    /// The answer to a `sync` request: everything sent before it is processed.
    Synced { request: u64 },
    /// Print a warning for the user.
    Warn(String),
    /// Show the user a line of output of the client's work.
    Show(AttributedOutput),
    /// The session is over. Everything that was requested has ended.
    Stopped(Session),
}
