//! Printed output on its way out of this node.
//!
//! Output is for people to read, so no task waits for a reader that does not keep up. Output
//! without room is dropped and its lines are counted. The next message that gets through carries
//! the count. If none follows, a message of its own carries the count when there is room again.

use marline_channel::{Builder, ErrorKind, Receiver, Sender};
use marline_core::link::Link;
use marline_core::message::{FromWorker, ToClient};
use marline_core::output::{AttributedOutput, PrintedLines};
use marline_wire::message::Message;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The most bytes of output that may be unacknowledged on a link.
const MAX_LINK_BYTES: usize = 4 << 20;
/// The most pieces of output that may wait until a client takes them. Each piece has about 32 KiB
/// at most.
const MAX_WAITING: usize = 512;

/// The output that is on its way on one link.
#[derive(Default)]
pub(super) struct OutputInFlight {
    /// The numbers and sizes of the messages that are not acknowledged.
    messages: VecDeque<(u64, usize)>,
    bytes: usize,
    /// The last dropped message without its text, with the count of missed lines.
    missed: Option<Message>,
}

impl OutputInFlight {
    /// Returns whether a message of `bytes` bytes may be sent on a link now. Only output can be
    /// refused.
    pub fn admits(&mut self, message: &mut Message, bytes: usize, link: &Link<Message>) -> bool {
        let Some(output) = output_of(message) else { return true };
        self.look_at(link);
        if let Some(missed) = self.missed.take().as_mut().and_then(output_of) {
            output.missed += missed.missed;
        }
        if self.bytes + bytes > MAX_LINK_BYTES {
            *output = without_text(output);
            self.missed = Some(message.clone());
            return false;
        }
        self.messages.push_back((link.sent().0 + 1, bytes));
        self.bytes += bytes;
        true
    }

    /// Returns the message that reports how much was missed, once all earlier output has arrived.
    pub fn dropped_notice(&mut self, link: &Link<Message>) -> Option<Message> {
        self.missed.as_ref()?;
        self.look_at(link);
        if self.messages.is_empty() { self.missed.take() } else { None }
    }

    /// Forgets the messages that were acknowledged.
    fn look_at(&mut self, link: &Link<Message>) {
        let (sent, acknowledged) = link.sent();
        if self.messages.back().is_some_and(|(number, _)| *number > sent) {
            (self.messages, self.bytes) = Default::default(); // The link started a new numbering.
        }
        while let Some((number, bytes)) = self.messages.front()
            && *number <= acknowledged
        {
            self.bytes -= bytes;
            self.messages.pop_front();
        }
    }
}

/// Returns dropped output without its text: its lines count as missed.
fn without_text(output: &PrintedLines) -> PrintedLines {
    PrintedLines { text: None, dropped: 0, missed: output.lines(), ..output.clone() }
}

fn output_of(message: &mut Message) -> Option<&mut PrintedLines> {
    match message {
        Message::FromWorker(FromWorker::Printed { output, .. }) => Some(output),
        Message::ToClient(ToClient::Printed(shown)) => Some(&mut shown.output),
        Message::FromClient(_)
        | Message::ToClient(_)
        | Message::FromWorker(_)
        | Message::ToWorker(_)
        | Message::ToHost(_)
        | Message::FromHost(_) => None,
    }
}

/// The writing end of the queue of output that a client is shown.
pub(crate) struct OutputSender {
    shows: Sender<AttributedOutput>,
    missed: Missed,
}

/// The reading end of the queue of output that a client is shown.
pub struct OutputReceiver {
    shown: Receiver<AttributedOutput>,
    missed: Missed,
}

/// The last dropped piece without its text. The writer drops under this lock. The reader looks
/// under it after it has made room. So one of the two reports the missed lines.
#[derive(Clone, Default)]
struct Missed(Arc<Mutex<Option<AttributedOutput>>>);

impl Missed {
    fn lock(&self) -> MutexGuard<'_, Option<AttributedOutput>> {
        self.0.lock().expect("nothing panics under it")
    }
}

impl OutputSender {
    pub fn new() -> (OutputSender, OutputReceiver) {
        let (shows, shown) = Builder::bounded(MAX_WAITING).build().expect("the capacity is small");
        let missed = Missed::default();
        (OutputSender { shows, missed: missed.clone() }, OutputReceiver { shown, missed })
    }

    pub fn show(&mut self, mut shown: AttributedOutput) {
        let mut missed = self.missed.lock();
        shown.output.missed += missed.take().map_or(0, |missed| missed.output.missed);
        if let Err(error) = self.shows.try_send(shown) {
            let shown = error.into_inner();
            *missed = Some(AttributedOutput { output: without_text(&shown.output), ..shown });
        }
    }
}

impl OutputReceiver {
    /// Takes the output since the last call, about `max` pieces, as soon as there is some. Returns
    /// an empty list after `timeout`, and `None` if no more will come.
    pub fn take(&self, timeout: Option<Duration>, max: usize) -> Option<Vec<AttributedOutput>> {
        let receiving = self.shown.recv();
        let first = match timeout {
            Some(timeout) => receiving.timeout(timeout).wait(),
            None => receiving.wait(),
        };
        match first {
            Ok(first) => {
                let mut pieces = vec![first];
                pieces.extend(self.shown.try_iter().take(max.saturating_sub(1)));
                let mut missed = self.missed.lock();
                if self.shown.is_empty() {
                    pieces.extend(missed.take());
                }
                Some(pieces)
            }
            Err(error) if error.kind() == ErrorKind::Closed => None,
            Err(_) => Some(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::id::{Attempt, TaskId};
    use marline_core::link::{Incarnation, Packet};
    use marline_core::message::AttemptId;
    use marline_core::output::{OutputSource, StdStream};

    const TASK: OutputSource =
        OutputSource::Task(AttemptId { task: TaskId::from_u128(1), attempt: Attempt(1) });

    fn printed(text: &str) -> PrintedLines {
        let text = Some(text.into());
        PrintedLines { pid: 1234, stream: StdStream::Err, text, dropped: 0, missed: 0 }
    }

    fn message(text: &str) -> Message {
        Message::FromWorker(FromWorker::Printed { source: TASK, output: printed(text) })
    }

    fn connected() -> Link<Message> {
        let (mut link, mut out) = (Link::new(Incarnation(1)), Vec::new());
        link.connected(1, &mut out);
        link.received(1, Packet::Hello { from: Incarnation(2), knows: None, seen: 0 }, &mut out);
        link
    }

    #[test]
    fn output_that_a_full_link_cannot_take_is_dropped_and_counted() {
        let mut link = connected();
        let mut on_the_way = OutputInFlight::default();
        let mut send = |link: &mut Link<Message>, text: &str, bytes: usize| {
            let mut message = message(text);
            let admitted = on_the_way.admits(&mut message, bytes, link);
            let missed = output_of(&mut message).map(|output| output.missed);
            if admitted {
                link.send(message, bytes, &mut Vec::new());
            }
            admitted.then_some(missed.unwrap())
        };
        assert_eq!(send(&mut link, "a", MAX_LINK_BYTES / 2), Some(0));
        assert_eq!(send(&mut link, "b", MAX_LINK_BYTES / 2), Some(0));
        assert_eq!(send(&mut link, "c\nd", 1), None);
        assert_eq!(send(&mut link, "e", 1), None);
        link.received(1, Packet::Seen(1), &mut Vec::new());
        assert_eq!(send(&mut link, "f", 1), Some(3));
        assert_eq!(send(&mut link, "g", 1), Some(0));
    }

    #[test]
    fn dropped_output_is_reported_when_the_link_is_empty_again() {
        let (mut link, mut on_the_way) = (connected(), OutputInFlight::default());
        for _ in 0..2 {
            let mut message = message("sent");
            assert!(on_the_way.admits(&mut message, MAX_LINK_BYTES / 2, &link));
            link.send(message, MAX_LINK_BYTES / 2, &mut Vec::new());
        }
        assert_eq!(on_the_way.dropped_notice(&link), None, "nothing was missed");
        for text in ["a", "b\nc"] {
            assert!(!on_the_way.admits(&mut message(text), 1, &link));
        }
        link.received(1, Packet::Seen(1), &mut Vec::new());
        assert_eq!(on_the_way.dropped_notice(&link), None, "the next piece may still say it");
        link.received(1, Packet::Seen(2), &mut Vec::new());
        let mut said = on_the_way.dropped_notice(&link).unwrap();
        let output = output_of(&mut said).unwrap();
        assert_eq!((output.text.as_deref(), output.missed), (None, 3));
        assert_eq!(on_the_way.dropped_notice(&link), None, "once");
    }

    fn show(text: &str) -> AttributedOutput {
        let (name, hostname) = ("add".into(), "node-1".into());
        AttributedOutput { source: TASK, name, hostname, output: printed(text) }
    }

    #[test]
    fn a_client_that_reads_late_gets_the_count_of_missed_lines() {
        let (mut output_sender, output_receiver) = OutputSender::new();
        for _ in 0..MAX_WAITING {
            output_sender.show(show("seen"));
        }
        output_sender.show(show("two\nlines"));
        output_sender.show(show("one more"));
        let first = output_receiver.take(None, 1).unwrap();
        assert_eq!((first.len(), first[0].output.missed), (1, 0));
        output_sender.show(show("back"));
        let rest = output_receiver.take(None, MAX_WAITING).unwrap();
        let last = &rest.last().unwrap().output;
        assert_eq!((last.text.as_deref(), last.missed), (Some("back"), 3));
    }

    #[test]
    fn a_client_gets_the_count_of_missed_lines_at_the_end_of_the_output() {
        let (mut output_sender, output_receiver) = OutputSender::new();
        for _ in 0..MAX_WAITING + 2 {
            output_sender.show(show("a\nb"));
        }
        drop(output_sender);
        let most = output_receiver.take(None, MAX_WAITING - 1).unwrap();
        assert_eq!((most.len(), most.iter().map(|one| one.output.missed).sum()), (511, 0));
        let rest = output_receiver.take(None, MAX_WAITING).unwrap();
        let rest: Vec<_> =
            rest.iter().map(|one| (one.output.text.is_some(), one.output.missed)).collect();
        assert_eq!(rest, [(true, 0), (false, 4)]);
        assert!(output_receiver.take(None, 1).is_none());
    }
}
