//! Batches the output of an executor for the client that submitted its work: complete lines,
//! several at a time, and no more than a person could read. Left-out lines are counted. The
//! [log](super::log) has all output.
//!
//! The lines contain nothing that a terminal would obey, except colours: see
//! [`terminal`](crate::terminal). If a line is overwritten again and again, as by a progress bar,
//! only its latest state is shown.

use crate::terminal::OutputFilter;
use marline_core::output::{OutputSource, PrintedLines, StdStream};
use std::time::{Duration, Instant};

/// The longest line, in bytes. The rest of a longer line is cut.
const MAX_LINE_BYTES: usize = 16 << 10;
/// Lines leave together when they have about this many bytes, or after [`BATCH_TIME`].
const BATCH_BYTES: usize = 32 << 10;
/// How long a line waits at most for others to leave with it.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// How long a line may stay without an end. Then its beginning is shown.
const LINE_TIME: Duration = Duration::from_millis(200);
/// How many lines of an executor are shown per second, and how many at once. A long line counts as
/// several.
const LINES_PER_SECOND: f64 = 1_000.0;
const BURST_LINES: f64 = 10_000.0;
/// How many lines of the next task or actor are shown in any case, so that the flood of the one
/// before does not hide them.
const FIRST_LINES: f64 = 20.0;
/// How many bytes of a line count as one line.
const BYTES_OF_LINE: f64 = 1024.0;
/// How long after a line was left out this is reported, if no other line is shown before.
const NOTICE_TIME: Duration = Duration::from_secs(1);

/// See the [module](self).
pub(super) struct LineBatcher {
    pid: u32,
    source: Option<OutputSource>,
    begun: [PartialLine; 2],
    /// Removes what could harm a terminal, for each stream.
    filters: [OutputFilter; 2],
    /// The lines that wait to leave.
    batch: Vec<(OutputSource, Part)>,
    batch_bytes: usize,
    batch_since: Option<Instant>,
    /// How many lines were left out and not reported, since when, and the stream of the last of
    /// them.
    dropped: u64,
    dropped_since: Option<Instant>,
    dropped_from: StdStream,
    allowance: Allowance,
}

/// A line that has not ended.
#[derive(Default)]
struct PartialLine {
    bytes: Vec<u8>,
    /// How many of its bytes are beyond the limit.
    cut: usize,
    since: Option<Instant>,
    /// Whether the part before these bytes was already shown.
    shown: bool,
}

/// Lines of one stream.
struct Part {
    stream: StdStream,
    text: Option<String>,
    dropped: u64,
}

impl LineBatcher {
    pub fn new(pid: u32, now: Instant) -> LineBatcher {
        LineBatcher {
            pid,
            source: None,
            begun: Default::default(),
            filters: Default::default(),
            batch: Vec::new(),
            batch_bytes: 0,
            batch_since: None,
            dropped: 0,
            dropped_since: None,
            dropped_from: StdStream::Out,
            allowance: Allowance { lines: BURST_LINES, at: now, used_up: false },
        }
    }

    /// Adds printed bytes.
    pub fn push(&mut self, now: Instant, source: OutputSource, stream: StdStream, bytes: &[u8]) {
        if self.source != Some(source) {
            self.end_all(now);
            self.begun = Default::default();
            self.filters = Default::default();
            self.source = Some(source);
            self.allowance.begin();
        }
        let bytes = self.filters[stream as usize].filter(bytes);
        let mut pieces = bytes.split(|byte| *byte == b'\n');
        let last = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            let begun = &mut self.begun[stream as usize];
            if piece.is_empty() && begun.bytes.is_empty() && std::mem::take(&mut begun.shown) {
                continue; // The end of a line that was shown before its end arrived.
            }
            begun.push(now, piece);
            self.end_line(now, stream);
        }
        if !last.is_empty() {
            self.begun[stream as usize].push(now, last);
        }
    }

    /// Returns whether nothing waits to be shown or reported.
    pub fn is_empty(&self) -> bool {
        self.next_due().is_none()
    }

    /// Returns when [`take`](LineBatcher::take) has output to return.
    pub fn next_due(&self) -> Option<Instant> {
        let begun = self.begun.iter().filter_map(|begun| Some(begun.since? + LINE_TIME));
        let batch = self.batch_since.map(|since| since + BATCH_TIME);
        let notice = self.dropped_since.map(|since| since + NOTICE_TIME);
        begun.chain(batch).chain(notice).min()
    }

    /// Takes the output that must leave now. At the `end`, takes everything.
    pub fn take(&mut self, now: Instant, end: bool) -> Vec<(OutputSource, PrintedLines)> {
        if end {
            self.end_all(now);
        } else {
            for stream in [StdStream::Out, StdStream::Err] {
                let begun = &self.begun[stream as usize];
                if begun.since.is_some_and(|since| now >= since + LINE_TIME) {
                    self.show_begun(now, stream);
                }
            }
            if self.dropped_since.is_some_and(|since| now >= since + NOTICE_TIME) {
                self.give_notice(now);
            }
        }
        let due = self.batch_since.is_some_and(|since| now >= since + BATCH_TIME);
        if !end && !due && self.batch_bytes < BATCH_BYTES {
            return Vec::new();
        }
        (self.batch_bytes, self.batch_since) = (0, None);
        let pid = self.pid;
        let batch = self.batch.drain(..).map(|(source, part)| {
            let Part { stream, text, dropped } = part;
            (source, PrintedLines { pid, stream, text: text.map(Into::into), dropped, missed: 0 })
        });
        batch.collect()
    }

    /// Ends the lines of the current task or actor: it prints nothing more.
    fn end_all(&mut self, now: Instant) {
        for stream in [StdStream::Out, StdStream::Err] {
            let begun = &self.begun[stream as usize];
            if !begun.bytes.is_empty() {
                self.end_line(now, stream);
            }
        }
        if self.dropped > 0 {
            self.give_notice(now);
        }
    }

    fn end_line(&mut self, now: Instant, stream: StdStream) {
        let PartialLine { bytes, cut, .. } = std::mem::take(&mut self.begun[stream as usize]);
        let bytes = if cut > 0 { without_torn_end(&bytes) } else { &bytes };
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let mut line = String::from_utf8_lossy(latest(bytes)).into_owned();
        if cut > 0 {
            line += &format!(" … {cut} bytes cut");
        }
        self.add(now, stream, &line);
    }

    /// Shows the beginning of a line, without the bytes of an incomplete character.
    fn show_begun(&mut self, now: Instant, stream: StdStream) {
        let begun = &self.begun[stream as usize];
        let whole = match std::str::from_utf8(&begun.bytes) {
            Err(error) if error.error_len().is_none() && begun.cut == 0 => error.valid_up_to(),
            Ok(_) | Err(_) => begun.bytes.len(),
        };
        let rest = begun.bytes[whole..].to_vec();
        self.begun[stream as usize].bytes.truncate(whole);
        self.end_line(now, stream);
        self.begun[stream as usize].shown = true;
        if !rest.is_empty() {
            self.begun[stream as usize].push(now, &rest);
        }
    }

    fn add(&mut self, now: Instant, stream: StdStream, line: &str) {
        let Some(source) = self.source else { return };
        if !self.allowance.allows(now, line.len()) {
            self.dropped += 1;
            self.dropped_since.get_or_insert(now);
            self.dropped_from = stream;
            return;
        }
        self.dropped_since = None;
        let dropped = std::mem::take(&mut self.dropped);
        self.batch_since.get_or_insert(now);
        self.batch_bytes += line.len() + 1;
        match self.batch.last_mut() {
            Some((whose, Part { stream: to, text: Some(text), .. }))
                if (*whose, *to) == (source, stream)
                    && dropped == 0
                    && text.len() + line.len() < BATCH_BYTES =>
            {
                text.push('\n');
                text.push_str(line);
            }
            Some(_) | None => {
                let part = Part { stream, text: Some(line.to_owned()), dropped };
                self.batch.push((source, part));
            }
        }
    }

    /// Reports that lines were left out.
    fn give_notice(&mut self, now: Instant) {
        let Some(source) = self.source else { return };
        self.dropped_since = None;
        let dropped = std::mem::take(&mut self.dropped);
        let part = Part { stream: self.dropped_from, text: None, dropped };
        self.batch.push((source, part));
        self.batch_since.get_or_insert(now);
    }
}

impl PartialLine {
    fn push(&mut self, now: Instant, piece: &[u8]) {
        let room = MAX_LINE_BYTES - self.bytes.len();
        let fits = &piece[..piece.len().min(room)];
        self.bytes.extend(fits);
        self.cut += piece.len() - fits.len();
        self.since.get_or_insert(now);
    }
}

/// Returns a line that was cut, without a colour sequence that was cut with it.
fn without_torn_end(line: &[u8]) -> &[u8] {
    match line.iter().rposition(|byte| *byte == b'\x1b') {
        Some(at) if !line[at..].contains(&b'm') => &line[..at],
        Some(_) | None => line,
    }
}

/// Returns what a terminal would show of a line in the end.
fn latest(line: &[u8]) -> &[u8] {
    line.rsplit(|byte| *byte == b'\r').find(|part| !part.is_empty()).unwrap_or_default()
}

/// How many lines may be shown. After it is used up, no line is shown until a second's worth is
/// there again, so that the shown lines are consecutive.
struct Allowance {
    lines: f64,
    at: Instant,
    used_up: bool,
}

impl Allowance {
    /// Starts the output of another task or actor.
    fn begin(&mut self) {
        self.lines = self.lines.max(FIRST_LINES);
        self.used_up = false;
    }

    fn allows(&mut self, now: Instant, bytes: usize) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.lines = (self.lines + passed * LINES_PER_SECOND).min(BURST_LINES);
        self.at = now;
        let cost = 1.0 + (bytes as f64 / BYTES_OF_LINE).floor();
        let needed = if self.used_up { LINES_PER_SECOND } else { cost };
        self.used_up = self.lines < needed;
        if !self.used_up {
            self.lines -= cost;
        }
        !self.used_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::id::{Attempt, TaskId};
    use marline_core::message::AttemptId;

    fn task(number: u128) -> OutputSource {
        OutputSource::Task(AttemptId { task: TaskId::from_u128(number), attempt: Attempt(1) })
    }

    struct Rig {
        lines: LineBatcher,
        now: Instant,
    }

    impl Rig {
        fn new() -> Rig {
            let now = Instant::now();
            Rig { lines: LineBatcher::new(7, now), now }
        }

        fn prints(&mut self, text: &str) {
            self.lines.push(self.now, task(1), StdStream::Out, text.as_bytes());
        }

        fn pass(&mut self, time: Duration) -> Vec<String> {
            self.now += time;
            self.take(false)
        }

        /// Takes what leaves: the count of dropped lines, and text.
        fn take(&mut self, end: bool) -> Vec<String> {
            let taken = self.lines.take(self.now, end).into_iter();
            let seen = taken.map(|(_, output)| {
                assert_eq!((output.pid, output.missed), (7, 0));
                let mark = if output.stream == StdStream::Err { "!" } else { "" };
                let dropped = match output.dropped {
                    0 => String::new(),
                    dropped => format!("[{dropped}]"),
                };
                format!("{mark}{dropped}{}", output.text.as_deref().unwrap_or("-"))
            });
            seen.collect()
        }
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn lines_are_sent_whole_and_in_batches() {
        let mut rig = Rig::new();
        assert!(rig.lines.is_empty());
        rig.prints("one\ntw");
        assert_eq!(rig.lines.next_due(), Some(rig.now + BATCH_TIME));
        assert_eq!(rig.pass(BATCH_TIME / 2), NONE);
        rig.prints("o\n\nthree\r\n");
        assert_eq!(rig.pass(BATCH_TIME / 2), ["one\ntwo\n\nthree"]);
        assert!(rig.lines.is_empty());
    }

    #[test]
    fn an_unfinished_line_is_shown_after_a_while_or_at_the_end() {
        let mut rig = Rig::new();
        rig.prints("are you sure? ");
        assert_eq!(rig.pass(LINE_TIME / 2), NONE);
        assert_eq!(rig.pass(LINE_TIME / 2), NONE, "it is in a batch now");
        assert_eq!(rig.pass(BATCH_TIME), ["are you sure? "]);
        rig.prints("yes");
        assert_eq!(rig.take(true), ["yes"]);
        assert!(rig.lines.is_empty());
    }

    #[test]
    fn an_escape_sequence_that_arrives_in_parts_is_filtered() {
        let mut rig = Rig::new();
        rig.prints("one \x1b]0;ti");
        assert_eq!(rig.pass(LINE_TIME), NONE);
        assert_eq!(rig.pass(BATCH_TIME), ["one "], "as far as it has come");
        rig.prints("tle\x07two \x1b");
        rig.prints("[31mred\x1b[0m\x1b[2J\n");
        assert_eq!(rig.take(true), ["two \x1b[31mred\x1b[0m"]);
    }

    #[test]
    fn a_line_is_not_cut_within_a_colour() {
        let mut rig = Rig::new();
        let start = "x".repeat(MAX_LINE_BYTES - 2);
        rig.prints(&format!("{start}\x1b[31mred\n"));
        let cut = "\x1b[31mred".len() - 2;
        assert_eq!(rig.take(true), [format!("{start} … {cut} bytes cut")]);
    }

    #[test]
    fn the_newline_of_an_already_shown_line_is_no_empty_line() {
        let mut rig = Rig::new();
        rig.prints("slow");
        assert_eq!(rig.pass(LINE_TIME), Vec::<String>::new());
        assert_eq!(rig.pass(BATCH_TIME), ["slow"]);
        rig.prints("\n\nmore\n");
        assert_eq!(rig.take(true), ["\nmore"], "an empty line is one");
    }

    #[test]
    fn a_character_is_not_cut_in_two() {
        let mut rig = Rig::new();
        let bytes = "naïv".as_bytes();
        rig.lines.push(rig.now, task(1), StdStream::Out, &bytes[..3]);
        rig.pass(LINE_TIME);
        assert_eq!(rig.pass(BATCH_TIME), ["na"]);
        rig.lines.push(rig.now, task(1), StdStream::Out, &bytes[3..]);
        assert_eq!(rig.take(true), ["ïv"]);
    }

    #[test]
    fn a_long_line_is_cut_and_says_so() {
        let mut rig = Rig::new();
        rig.prints(&"a".repeat(MAX_LINE_BYTES));
        rig.prints("bcd\nnext\n");
        let whole = rig.take(true).concat();
        assert!(whole.starts_with("aaa") && whole.ends_with("a … 3 bytes cut\nnext"));
    }

    #[test]
    fn only_the_latest_state_of_a_progress_bar_is_shown() {
        let mut rig = Rig::new();
        rig.prints("\r 10%\r 20%\r 30%");
        rig.pass(LINE_TIME);
        assert_eq!(rig.pass(BATCH_TIME), [" 30%"]);
        rig.prints("\r 100%\n");
        assert_eq!(rig.take(true), [" 100%"]);
    }

    #[test]
    fn streams_and_sources_are_not_mixed() {
        let mut rig = Rig::new();
        rig.prints("out\n");
        rig.lines.push(rig.now, task(1), StdStream::Err, b"error\n");
        rig.prints("out again\nhalf a");
        rig.lines.push(rig.now, task(2), StdStream::Out, b"another task's\n");
        let sources: Vec<OutputSource> =
            rig.lines.take(rig.now + BATCH_TIME, false).into_iter().map(|(from, _)| from).collect();
        assert_eq!(sources, [task(1), task(1), task(1), task(2)]);
    }

    #[test]
    fn excess_lines_are_dropped_and_counted_and_later_lines_are_shown() {
        let mut rig = Rig::new();
        let burst = BURST_LINES as usize;
        rig.prints(&"x\n".repeat(burst + 500));
        let shown: usize = rig.pass(BATCH_TIME).iter().map(|text| text.lines().count()).sum();
        assert_eq!(shown, burst);
        rig.now += Duration::from_millis(450);
        rig.prints("too early\n");
        rig.now += Duration::from_millis(500);
        rig.prints("again\n");
        assert_eq!(rig.pass(BATCH_TIME), ["[501]again"]);
        rig.prints(&"x\n".repeat(2 * burst));
        let all = rig.take(true);
        let shown: usize = all[..all.len() - 1].iter().map(|text| text.lines().count()).sum();
        assert_eq!(all.last().unwrap(), &format!("[{}]-", 2 * burst - shown));
    }

    #[test]
    fn a_flood_does_not_hide_the_first_lines_of_the_next_task() {
        let mut rig = Rig::new();
        rig.prints(&"again\n".repeat(20_000));
        rig.take(true);
        let lines = (0..30).map(|number| format!("{number}\n")).collect::<String>();
        rig.lines.push(rig.now, task(2), StdStream::Out, lines.as_bytes());
        let seen = rig.take(true).join("|");
        let shown = (0..20).map(|number| number.to_string()).collect::<Vec<_>>().join("\n");
        assert!(seen.starts_with(&shown) && seen.contains("10"), "{seen}");
    }

    #[test]
    fn dropped_lines_are_reported_even_if_no_line_follows() {
        let mut rig = Rig::new();
        rig.prints(&"x\n".repeat(BURST_LINES as usize + 5));
        let notice = rig.now + NOTICE_TIME;
        rig.pass(BATCH_TIME);
        assert_eq!(rig.lines.next_due(), Some(notice));
        rig.pass(NOTICE_TIME);
        assert_eq!(rig.pass(BATCH_TIME), ["[5]-"]);
        assert!(rig.lines.is_empty());
    }
}
