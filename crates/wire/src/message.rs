//! The messages of links, for every pair of roles.

use marline_core::Error;
use marline_core::message::{
    ActorPlace, AttemptEnd, FromClient, FromHost, FromWorker, ToClient, ToHost, ToWorker,
};
use marline_core::output::PrintedLines;
use marline_core::payload::Value;

/// Roughly how many bytes an encoded message has besides payloads.
const BYTES_BESIDES_PAYLOAD: usize = 64;

/// A message over a link.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// From a client to the controller.
    FromClient(FromClient),
    /// From the controller to a client.
    ToClient(ToClient),
    /// From a worker to the controller.
    FromWorker(FromWorker),
    /// From the controller to a worker.
    ToWorker(ToWorker),
    /// From a caller to the worker that hosts an actor.
    ToHost(ToHost),
    /// From the worker that hosts an actor to a caller.
    FromHost(FromHost),
}

impl Message {
    /// Returns about how many bytes the encoded message takes: exact for payloads and for the texts
    /// of errors (tracebacks can be long), a guess for the rest.
    pub fn encoded_len_hint(&self) -> usize {
        let payloads = match self {
            Message::FromClient(message) => from_client(message),
            Message::ToClient(message) => to_client(message),
            Message::FromWorker(message) => from_worker(message),
            Message::ToWorker(message) => to_worker(message),
            Message::ToHost(message) => to_host(message),
            Message::FromHost(message) => from_host(message),
        };
        payloads + BYTES_BESIDES_PAYLOAD
    }
}

fn from_client(message: &FromClient) -> usize {
    match message {
        FromClient::Submit(spec) => spec.args.len(),
        FromClient::CreateActor(spec) => spec.args.len(),
        FromClient::Put { object: _, value, at: _ } => value.payload.len(),
        FromClient::Resolve { object: _, value } => ended(value, |value| value.payload.len()),
        FromClient::Cancel { .. }
        | FromClient::Announce { .. }
        | FromClient::Fetch { .. }
        | FromClient::Locate { .. }
        | FromClient::Hold { .. }
        | FromClient::Enclose { .. }
        | FromClient::Accept { .. }
        | FromClient::Release { .. }
        | FromClient::Took { .. }
        | FromClient::FindActor { .. }
        | FromClient::WatchActor { .. }
        | FromClient::DeleteActor { .. }
        | FromClient::KillActor { .. }
        | FromClient::Watch { .. }
        | FromClient::ShowOutput { .. }
        | FromClient::Sync { .. } => 0,
    }
}

fn to_client(message: &ToClient) -> usize {
    match message {
        ToClient::TaskEnded { task: _, outcome } => ended(outcome, |results| values(results)),
        ToClient::Yielded { value, .. } => ended(value, |value| value.payload.len()),
        ToClient::ObjectReady { object: _, value } => ended(value, |value| value.payload.len()),
        ToClient::Located { object: _, copies } => ended(copies, |_| 0),
        ToClient::ActorCreated { requested: _, actor } => ended(actor, |_| 0),
        ToClient::ActorFound { request: _, actor } => ended(actor, |found| found.interface.len()),
        ToClient::ActorChanged { actor: _, place: ActorPlace::Dead(why) } => why.bytes(),
        ToClient::ActorChanged {
            actor: _,
            place: ActorPlace::Nowhere | ActorPlace::Ready { .. },
        }
        | ToClient::Credit { .. }
        | ToClient::Synced { .. }
        | ToClient::SessionEnded { .. } => 0,
        ToClient::Warning { words } => words.len(),
        ToClient::Printed(shown) => text(&shown.output),
    }
}

fn from_worker(message: &FromWorker) -> usize {
    match message {
        FromWorker::Ended { end: AttemptEnd::Finished(results), .. } => values(results),
        FromWorker::Ended { end: AttemptEnd::Failed(why) | AttemptEnd::Lost(why), .. } => {
            why.bytes()
        }
        FromWorker::ActorFailed { instance: _, error: why }
        | FromWorker::ActorDied { instance: _, error: why }
        | FromWorker::CopyLost { object: _, error: why }
        | FromWorker::Unable { runtime: _, error: why }
        | FromWorker::NotBrought { object: _, error: why } => why.bytes(),
        FromWorker::Checkpoint { payload, .. } => payload.len(),
        FromWorker::Yielded { value, .. } => value.payload.len(),
        FromWorker::Printed { source: _, output } => text(output),
        FromWorker::CallsEnded(reports) => reports
            .iter()
            .map(|report| report.error.as_ref().map_or(0, Error::bytes) + BYTES_BESIDES_PAYLOAD)
            .sum(),
        FromWorker::Ended { end: AttemptEnd::Cancelled, .. }
        | FromWorker::Joined
        | FromWorker::Refused { .. }
        | FromWorker::Able { .. }
        | FromWorker::Started { .. }
        | FromWorker::Blocked { .. }
        | FromWorker::Resumed { .. }
        | FromWorker::ActorReady { .. }
        | FromWorker::ActorDestroyed { .. }
        | FromWorker::Watch { .. }
        | FromWorker::ActorRefused { .. }
        | FromWorker::Entrust { .. }
        | FromWorker::Dropped { .. }
        | FromWorker::Locate { .. }
        | FromWorker::Copied { .. }
        | FromWorker::Draining
        | FromWorker::Emptied
        | FromWorker::Leaving => 0,
    }
}

fn to_worker(message: &ToWorker) -> usize {
    match message {
        ToWorker::Assign { spec, values: needed, .. } => spec.args.len() + values(needed),
        ToWorker::Execute { spec, values: needed, .. } => spec.args.len() + values(needed),
        ToWorker::Instantiate { spec, values: needed, checkpoints, .. } => {
            let saved = checkpoints.iter().map(|checkpoint| checkpoint.len()).sum::<usize>();
            spec.args.len() + values(needed) + saved
        }
        ToWorker::Located { object: _, copies: Err(why) } => why.bytes(),
        ToWorker::TakeBack(_)
        | ToWorker::CancelAttempt { .. }
        | ToWorker::Took { .. }
        | ToWorker::Destroy(_)
        | ToWorker::Kill(_)
        | ToWorker::Checkpointed { .. }
        | ToWorker::Watched { .. }
        | ToWorker::SessionEnded { .. }
        | ToWorker::Entrusted { .. }
        | ToWorker::Keep { .. }
        | ToWorker::Forget { .. }
        | ToWorker::Located { object: _, copies: Ok(_) }
        | ToWorker::Bring { .. }
        | ToWorker::Erase { .. }
        | ToWorker::Leave
        | ToWorker::Drain { .. }
        | ToWorker::WindUp { .. } => 0,
    }
}

fn to_host(message: &ToHost) -> usize {
    match message {
        ToHost::Call { spec, values: needed, .. } => spec.args.len() + values(needed),
        ToHost::CancelCall { .. } | ToHost::Took { .. } => 0,
    }
}

fn from_host(message: &FromHost) -> usize {
    match message {
        FromHost::CallEnded { outcome, .. } => ended(outcome, |results| values(results)),
        FromHost::CallRefused { .. } => 0,
        FromHost::CallLost { attempt: _, error: why } => why.bytes(),
    }
}

fn ended<T>(outcome: &Result<T, Error>, bytes: impl Fn(&T) -> usize) -> usize {
    outcome.as_ref().map_or_else(Error::bytes, bytes)
}

fn text(output: &PrintedLines) -> usize {
    output.text.as_ref().map_or(0, |text| text.len())
}

fn values(values: &[Value]) -> usize {
    values.iter().map(|value| value.payload.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::sample;
    use marline_core::error::Failure;
    use marline_core::payload::Payload;
    use prost::Message as _;
    use std::sync::Arc;

    #[test]
    fn the_length_hint_counts_payloads_exactly() {
        let spec = Arc::new(sample::task_spec());
        let args = spec.args.len();
        let value = Value::from(Payload::raw(vec![0; 1000]));
        let values = vec![value.clone(), value.clone()];
        let attempt = sample::attempt();
        let call = ToHost::Call {
            spec,
            attempt: attempt.attempt,
            epoch: sample::instance().epoch,
            number: 0,
            values: values.clone(),
            took: 0,
        };
        assert_eq!(Message::ToHost(call).encoded_len_hint(), args + 2000 + 64);
        let ended = FromHost::CallEnded { attempt, outcome: Ok(values), items: 0 };
        assert_eq!(Message::FromHost(ended).encoded_len_hint(), 2064);
        let put = FromClient::Put { object: sample::object(), value, at: None };
        assert_eq!(Message::FromClient(put).encoded_len_hint(), 1064);
        let failure = Failure { traceback: "x".repeat(500), ..Failure::default() };
        let lost = FromHost::CallLost { attempt, error: Error::failed("no", failure) };
        assert_eq!(Message::FromHost(lost).encoded_len_hint(), 566);
    }

    #[test]
    fn the_length_hint_is_near_the_encoded_length() {
        for message in sample::messages() {
            let hint = message.encoded_len_hint();
            let encoded = crate::convert::message::encode(message.clone()).encoded_len();
            assert!(hint.abs_diff(encoded) < 400, "{hint} for {encoded} bytes of {message:?}");
        }
    }
}
