//! Each message as its name and the ids that it is about, for [`recent_events`](crate::recent_events).

use super::{AttemptId, Instance};
use super::{FromClient, FromHost, FromWorker, ToClient, ToHost, ToWorker};
use crate::id::{Attempt, TaskId};
use crate::output::OutputSource;
use crate::recent_events::{EventSummary, Subject};

/// Implements `summary` for a message: `Variant pattern => subject`.
macro_rules! summaries {
    ($message:ident: $($variant:ident $({ $($field:ident),* })? $(($inner:ident))? => $subject:expr,)+) => {
        impl $message {
            /// Returns the name of the message, and the ids that it is about.
            pub fn summary(&self) -> EventSummary {
                match self {
                    $($message::$variant $({ $($field,)* .. })? $(($inner))? => {
                        EventSummary::of(stringify!($variant), $subject)
                    })+
                }
            }
        }
    };
}

summaries! { FromClient:
    Submit(spec) => Subject::Task(spec.id),
    Cancel { task } => Subject::Task(*task),
    Put { object } => Subject::Object(*object),
    Announce { object } => Subject::Object(*object),
    Resolve { object } => Subject::Object(*object),
    Fetch { object } => Subject::Object(*object),
    Locate { object } => Subject::Object(*object),
    Hold { thing } => (*thing).into(),
    Enclose { call } => Subject::Attempt(*call),
    Accept { call } => Subject::Attempt(*call),
    Release { thing } => (*thing).into(),
    Took { task } => Subject::Task(*task),
    CreateActor(spec) => Subject::Actor(spec.id),
    FindActor {} => Subject::Nothing,
    WatchActor { actor } => Subject::Actor(*actor),
    DeleteActor { actor } => Subject::Actor(*actor),
    KillActor { actor } => Subject::Actor(*actor),
    Watch { session } => Subject::Session(*session),
    Sync {} => Subject::Nothing,
    ShowOutput {} => Subject::Nothing,
}

summaries! { ToClient:
    Credit {} => Subject::Nothing,
    TaskEnded { task } => Subject::Task(*task),
    Yielded { task } => Subject::Task(*task),
    ObjectReady { object } => Subject::Object(*object),
    Located { object } => Subject::Object(*object),
    ActorCreated { requested } => Subject::Actor(*requested),
    ActorFound {} => Subject::Nothing,
    ActorChanged { actor } => Subject::Actor(*actor),
    SessionEnded { session } => Subject::Session(*session),
    Synced {} => Subject::Nothing,
    Warning {} => Subject::Nothing,
    Printed(shown) => shown.source.into(),
}

summaries! { ToWorker:
    Assign { spec, attempt } => attempt_of(spec.id, *attempt),
    Execute { spec, attempt } => attempt_of(spec.id, *attempt),
    TakeBack(attempt) => Subject::Attempt(*attempt),
    CancelAttempt { attempt } => Subject::Attempt(*attempt),
    Took { attempt } => Subject::Attempt(*attempt),
    Instantiate { spec, epoch } => Subject::Instance(Instance { actor: spec.id, epoch: *epoch }),
    Destroy(instance) => Subject::Instance(*instance),
    Kill(instance) => Subject::Instance(*instance),
    Checkpointed { instance } => Subject::Instance(*instance),
    Watched { session } => Subject::Session(*session),
    SessionEnded { session } => Subject::Session(*session),
    Entrusted { call } => Subject::Attempt(*call),
    Keep { object } => Subject::Object(*object),
    Forget { object } => Subject::Object(*object),
    Located { object } => Subject::Object(*object),
    Bring { object } => Subject::Object(*object),
    Erase { object } => Subject::Object(*object),
    Leave => Subject::Nothing,
    Drain {} => Subject::Nothing,
    WindUp {} => Subject::Nothing,
}

summaries! { FromWorker:
    Joined => Subject::Nothing,
    Refused { attempt } => Subject::Attempt(*attempt),
    Unable {} => Subject::Nothing,
    Able {} => Subject::Nothing,
    Started { attempt } => Subject::Attempt(*attempt),
    Ended { attempt } => Subject::Attempt(*attempt),
    Yielded { attempt } => Subject::Attempt(*attempt),
    Blocked { attempt } => Subject::Attempt(*attempt),
    Resumed { attempt } => Subject::Attempt(*attempt),
    ActorReady { instance } => Subject::Instance(*instance),
    ActorFailed { instance } => Subject::Instance(*instance),
    ActorDied { instance } => Subject::Instance(*instance),
    ActorDestroyed { instance } => Subject::Instance(*instance),
    Checkpoint { instance } => Subject::Instance(*instance),
    Watch { session } => Subject::Session(*session),
    ActorRefused { instance } => Subject::Instance(*instance),
    Entrust { call } => Subject::Attempt(*call),
    Dropped { instance } => Subject::Instance(*instance),
    Locate { object } => Subject::Object(*object),
    Copied { object } => Subject::Object(*object),
    CopyLost { object } => Subject::Object(*object),
    NotBrought { object } => Subject::Object(*object),
    CallsEnded(reports) => reports.first().map_or(Subject::Nothing, |one| Subject::Task(one.task)),
    Printed { source } => (*source).into(),
    Draining => Subject::Nothing,
    Emptied => Subject::Nothing,
    Leaving => Subject::Nothing,
}

summaries! { ToHost:
    Call { spec, attempt } => attempt_of(spec.id, *attempt),
    CancelCall { call } => Subject::Task(*call),
    Took { call } => Subject::Task(*call),
}

summaries! { FromHost:
    CallEnded { attempt } => Subject::Attempt(*attempt),
    CallRefused { attempt } => Subject::Attempt(*attempt),
    CallLost { attempt } => Subject::Attempt(*attempt),
}

impl From<OutputSource> for Subject {
    fn from(source: OutputSource) -> Subject {
        match source {
            OutputSource::Task(attempt) => Subject::Attempt(attempt),
            OutputSource::Actor(instance) => Subject::Instance(instance),
        }
    }
}

fn attempt_of(task: TaskId, attempt: Attempt) -> Subject {
    Subject::Attempt(AttemptId { task, attempt })
}
