//! What was printed, on its way out of this node. It is for people to see, so nobody waits for whoever does
//! not take it: what there is no room for is dropped and counted, and the next that gets through says so.

use crate::wire::message::Message;
use marline_channel::{Builder, Receiver, Sender};
use marline_core::link::Link;
use marline_core::message::{FromWorker, ToClient};
use marline_core::output::{Output, Shown};
use std::collections::VecDeque;

/// So many bytes may be on their way on a link.
const MAX_LINK_BYTES: usize = 4 << 20;
/// So many pieces may wait for a client to take them; each has 32 KiB or so at most.
const MAX_WAITING: usize = 512;

/// What is on its way on one link.
#[derive(Default)]
pub(super) struct OnTheWay {
    /// The numbers of messages that are not acknowledged, and what they take.
    messages: VecDeque<(u64, usize)>,
    bytes: usize,
    missed: u64,
}

impl OnTheWay {
    /// Says whether a message that is `bytes` long may be sent on a link now: anything but output may.
    pub fn admits(&mut self, message: &mut Message, bytes: usize, link: &Link<Message>) -> bool {
        let Some(output) = output_of(message) else { return true };
        let (sent, acknowledged) = link.sent();
        if self.messages.back().is_some_and(|(number, _)| *number > sent) {
            (self.messages, self.bytes) = Default::default(); // Numbers began anew.
        }
        while let Some((number, bytes)) = self.messages.front()
            && *number <= acknowledged
        {
            self.bytes -= bytes;
            self.messages.pop_front();
        }
        if self.bytes + bytes > MAX_LINK_BYTES {
            self.missed += output.lines();
            return false;
        }
        output.missed += std::mem::take(&mut self.missed);
        self.messages.push_back((sent + 1, bytes));
        self.bytes += bytes;
        true
    }
}

fn output_of(message: &mut Message) -> Option<&mut Output> {
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

/// Whom a client has that looks at what its work prints.
pub(crate) struct Onlooker {
    shows: Sender<Shown>,
    missed: u64,
}

impl Onlooker {
    pub fn new() -> (Onlooker, Receiver<Shown>) {
        let (shows, shown) = Builder::bounded(MAX_WAITING).build().expect("the capacity is small");
        (Onlooker { shows, missed: 0 }, shown)
    }

    pub fn show(&mut self, mut shown: Shown) {
        shown.output.missed += std::mem::take(&mut self.missed);
        if let Err(error) = self.shows.try_send(shown) {
            self.missed = error.into_inner().output.lines();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::convert::sample;
    use marline_core::link::{Incarnation, Packet};
    use marline_core::output::Source;

    fn message(text: &str) -> Message {
        let output = Output { text: Some(text.into()), dropped: 0, missed: 0, ..sample::output() };
        Message::FromWorker(FromWorker::Printed { source: Source::Task(sample::attempt()), output })
    }

    #[test]
    fn what_a_link_has_no_room_for_is_dropped_and_counted() {
        let mut link: Link<Message> = Link::new(Incarnation(1));
        let mut out = Vec::new();
        link.connected(1, &mut out);
        link.received(1, Packet::Hello { from: Incarnation(2), knows: None, seen: 0 }, &mut out);
        let mut on_the_way = OnTheWay::default();
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
        link.received(1, Packet::Seen(1), &mut out);
        assert_eq!(send(&mut link, "f", 1), Some(3));
        assert_eq!(send(&mut link, "g", 1), Some(0));
    }

    #[test]
    fn a_client_that_does_not_look_is_told_how_much_it_missed() {
        let (mut onlooker, shown) = Onlooker::new();
        let show = |text: &str| {
            let output =
                Output { text: Some(text.into()), dropped: 0, missed: 0, ..sample::output() };
            Shown { output, ..sample::shown() }
        };
        for _ in 0..MAX_WAITING {
            onlooker.show(show("seen"));
        }
        onlooker.show(show("two\nlines"));
        onlooker.show(show("one more"));
        assert_eq!(shown.try_recv().unwrap().output.missed, 0);
        onlooker.show(show("back"));
        let last = shown.try_iter().last().unwrap().output;
        assert_eq!((last.text.as_deref(), last.missed), (Some("back"), 3));
    }
}
