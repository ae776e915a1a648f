//! Makes text from elsewhere safe for a terminal. A terminal obeys control sequences: a name, an
//! error or a line of output could set its title, fill the clipboard, or overwrite other lines.
//!
//! - Names and errors are [escaped]: every control character is spelled out.
//! - The output of user code goes through an [`OutputFilter`], which keeps lines, progress bars and
//!   colours.
//! - Logs and JSON keep the bytes as they were printed.

use std::borrow::Cow;
use std::fmt::Write;

/// The longest sequence that sets colours, in bytes. Longer ones are dropped.
const MAX_SEQUENCE_BYTES: usize = 64;

/// Returns text of one line, such as a name, with every control character spelled out: `\n`,
/// `\x1b`, `\u{202e}`.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escape(text, is_control)
}

/// Like [`escaped`] for text of several lines: newlines and tabs stay.
pub fn escaped_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_control(c) && !matches!(c, '\n' | '\t'))
}

/// Returns whether a terminal would do something else with this character than show it at the
/// cursor.
fn is_control(c: char) -> bool {
    // The listed characters change the direction in which text is shown.
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escape(text: &str, is_meant: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_meant) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            c if !is_meant(c) => escaped.push(c),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            c if u32::from(c) < 0x100 => {
                let _ = write!(escaped, "\\x{:02x}", u32::from(c));
            }
            c => {
                let _ = write!(escaped, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    escaped.into()
}

/// Makes a stream of output harmless for a terminal. Text, newlines, tabs, carriage returns and
/// colours (`ESC [ … m`) stay. Other control characters and sequences are dropped. Bytes that are
/// not UTF-8 become `�`.
///
/// A sequence may arrive in several pieces. The filter returns nothing of it before it is complete,
/// so the output of several filters can be mixed. A newline ends every sequence: a sequence without
/// an end hides one line at most.
#[derive(Default, Debug)]
pub struct OutputFilter {
    state: State,
    /// The bytes so far of a character, or of a sequence that may set colours.
    begun: Vec<u8>,
}

/// The text or sequence that the next byte belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum State {
    #[default]
    Text,
    /// A character of which this many bytes are missing.
    Character(usize),
    /// After ESC.
    Escape,
    /// After ESC and an intermediate byte, such as the one that selects a character set.
    Designation,
    /// After `ESC [`. If not `kept`, the sequence is dropped whatever its last byte is.
    Control { kept: bool },
    /// In a string such as a title, which ends with BEL or ST.
    String,
    /// After ESC in a string, where ST may begin.
    StringEscape,
}

impl OutputFilter {
    /// Returns the bytes to show for the next bytes of the stream.
    pub fn filter(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut shown = Vec::with_capacity(bytes.len());
        for byte in bytes {
            self.push(*byte, &mut shown);
        }
        shown
    }

    fn push(&mut self, byte: u8, shown: &mut Vec<u8>) {
        match (self.state, byte) {
            (State::Character(left), 0x80..=0xbf) => {
                self.begun.push(byte);
                if left > 1 {
                    self.state = State::Character(left - 1);
                } else {
                    self.state = State::Text;
                    let character = std::mem::take(&mut self.begun);
                    self.character(&character, shown);
                }
            }
            (State::Character(_), _) => {
                shown.extend(REPLACEMENT);
                self.text(byte, shown);
            }
            (State::Text, _) | (_, b'\n' | CANCEL | SUBSTITUTE) => self.text(byte, shown),
            (State::StringEscape, b'\\') => self.state = State::Text,
            (State::Escape | State::StringEscape, _) => self.after_escape(byte, shown),
            (State::String, ESCAPE) => self.state = State::StringEscape,
            (State::String, BELL) => self.state = State::Text,
            // ST as one byte. The byte may also be a part of a character inside the string. Then
            // the filter shows the rest of the string as text, which is harmless.
            (State::String, STRING_END) => self.state = State::Text,
            (State::String, _) => {}
            (State::Control { .. } | State::Designation, 0..0x20) => self.text(byte, shown),
            (State::Designation, 0x20..=0x2f) => {}
            (State::Designation, _) => self.state = State::Text,
            (State::Control { kept }, _) => self.control(byte, kept, shown),
        }
    }

    /// Handles a byte that is not inside a sequence.
    fn text(&mut self, byte: u8, shown: &mut Vec<u8>) {
        self.state = State::Text;
        self.begun.clear();
        match byte {
            b'\n' | b'\r' | b'\t' | 0x20..=0x7e => shown.push(byte),
            ESCAPE => self.state = State::Escape,
            0..0x20 | 0x7f => {}
            // A control character of one byte, as terminals had it before UTF-8.
            0x80..=0x9f => self.c1(byte),
            0xc2..=0xdf => self.begin(byte, 1),
            0xe0..=0xef => self.begin(byte, 2),
            0xf0..=0xf4 => self.begin(byte, 3),
            0xa0..=0xc1 | 0xf5..=0xff => shown.extend(REPLACEMENT),
        }
    }

    fn begin(&mut self, byte: u8, left: usize) {
        self.begun.push(byte);
        self.state = State::Character(left);
    }

    /// Handles a complete character of several bytes.
    fn character(&mut self, bytes: &[u8], shown: &mut Vec<u8>) {
        match std::str::from_utf8(bytes).map(|text| text.chars().next()) {
            Ok(Some(c)) if c.is_control() => self.c1(c as u8),
            Ok(_) => shown.extend(bytes),
            Err(_) => shown.extend(REPLACEMENT),
        }
    }

    /// Handles a control character between 0x80 and 0x9f, which stands for ESC and another byte.
    fn c1(&mut self, byte: u8) {
        self.state = match byte {
            0x9b => State::Control { kept: false },
            0x90 | 0x98 | 0x9d..=0x9f => State::String,
            _ => State::Text,
        };
    }

    fn after_escape(&mut self, byte: u8, shown: &mut Vec<u8>) {
        self.begun.clear();
        self.state = match byte {
            b'[' => {
                self.begun.extend([ESCAPE, b'[']);
                State::Control { kept: true }
            }
            b'P' | b'X' | b']' | b'^' | b'_' => State::String,
            0x20..=0x2f => State::Designation,
            0x30..=0x7e => State::Text, // A sequence of two bytes.
            _ => return self.text(byte, shown),
        };
    }

    /// Handles a byte of a sequence that began with `ESC [`.
    fn control(&mut self, byte: u8, kept: bool, shown: &mut Vec<u8>) {
        match byte {
            b'0'..=b'9' | b';' | b':' if kept && self.begun.len() < MAX_SEQUENCE_BYTES => {
                self.begun.push(byte);
            }
            b'm' if kept => {
                self.begun.push(byte);
                shown.append(&mut self.begun);
                self.state = State::Text;
            }
            0x20..=0x3f => self.state = State::Control { kept: false },
            0x40..=0x7e => self.state = State::Text,
            _ => self.text(byte, shown),
        }
    }
}

const ESCAPE: u8 = 0x1b;
const BELL: u8 = 0x07;
const CANCEL: u8 = 0x18;
const SUBSTITUTE: u8 = 0x1a;
const STRING_END: u8 = 0x9c;
const REPLACEMENT: [u8; 3] = [0xef, 0xbf, 0xbd];

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text that a filter shows for `bytes`. Checks that the text does not depend on
    /// how the bytes are split.
    fn shown(bytes: impl AsRef<[u8]>) -> String {
        let bytes = bytes.as_ref();
        let whole = OutputFilter::default().filter(bytes);
        for at in 0..=bytes.len() {
            let mut filter = OutputFilter::default();
            let mut split = filter.filter(&bytes[..at]);
            split.extend(filter.filter(&bytes[at..]));
            assert_eq!(split, whole, "split at {at}");
        }
        let mut filter = OutputFilter::default();
        let single: Vec<u8> = bytes.iter().flat_map(|byte| filter.filter(&[*byte])).collect();
        assert_eq!(single, whole, "byte by byte");
        String::from_utf8(whole).unwrap()
    }

    #[test]
    fn text_lines_tabs_and_colours_stay() {
        for text in [
            "plain\n",
            "a\tb\r\n",
            "größer 日本 🦀",
            "\x1b[31mred\x1b[0m",
            "\x1b[m",
            "\x1b[38;2;1;2;3m",
            "\x1b[4:3m",
        ] {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn a_progress_bar_still_moves() {
        let bar = "\r 10%|█         | 1/10 [00:00<00:01]\r 20%|██        | 2/10 [00:00<00:01]\n";
        assert_eq!(shown(bar), bar);
        // If a progress bar clears its line, the line stays.
        assert_eq!(shown("\r\x1b[2K\x1b[32m1/2\x1b[0m\x1b[K\x1b[A"), "\r\x1b[32m1/2\x1b[0m");
    }

    #[test]
    fn sequences_that_do_more_than_colours_are_dropped() {
        let cases: [&[u8]; 17] = [
            b"\x1b]0;title\x07",              // The title,
            b"\x1b]0;title\x1b\\",            // with the other end.
            b"\x1b]52;c;cm0gLXJm\x07",        // The clipboard.
            b"\x1b]8;;http://bad/\x1b\\",     // A link.
            b"\x1b[2J\x1b[H\x1b[3;4f\x1b[5A", // The cursor.
            b"\x1b[?1049h\x1b[?25l",          // Modes.
            b"\x1b[>4;2m",                    // A mode that ends as a colour does.
            b"\x1b[31 m",                     // One with an intermediate byte.
            b"\x1b[6n\x1b[c", // Questions, which the terminal would answer as if typed.
            b"\x1bP$q\"p\x1b\\", // A device control string.
            b"\x1b_app\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\",
            b"\x1bc\x1b7\x1b(0\x1b#8", // A reset, and character sets.
            b"\x07\x08\x0b\x0c\x0e\x0f\x7f\x00",
            b"\x9b31m\x9d0;title\x9c\x90q\x9c\x85", // As single bytes.
            "\u{9b}2J\u{9d}0;title\u{7}\u{85}".as_bytes(), // As characters.
            b"\x1b[31\x1b[2J",                      // One that another interrupts.
            b"\x1b]0;\x1b]52;c;aaaa\x07",
        ];
        for case in cases {
            let all = [b"<", case, b">"].concat();
            assert_eq!(shown(&all), "<>", "{:?}", String::from_utf8_lossy(case));
        }
    }

    #[test]
    fn a_sequence_that_does_not_end_hides_no_other_line() {
        for begun in
            ["\x1b", "\x1b[", "\x1b[31", "\x1b]0;title", "\x1bPq", "\x1b]0;title\x1b", "\x1b("]
        {
            assert_eq!(shown(format!("a{begun}\nb")), "a\nb", "{begun:?}");
            assert_eq!(shown(format!("a{begun}")), "a", "{begun:?}");
        }
        let long = format!("\x1b[{}m.", "1;".repeat(100));
        assert_eq!(shown(long), ".");
    }

    #[test]
    fn bytes_that_are_no_text_are_marked() {
        assert_eq!(shown(b"\xe9t\xe9"), "�t"); // The last may be the beginning of a character.
        assert_eq!(shown(b"\xe0\x82\x9b2J."), "�2J."); // CSI, written longer than it may be.
        assert_eq!(shown(b"\xed\xa0\x80."), "�.");
        assert_eq!(shown(b"\xe2\x82\x1b[2J."), "�.");
    }

    #[test]
    fn names_and_errors_show_every_control_character() {
        assert_eq!(escaped("plain größer"), "plain größer");
        assert_eq!(escaped("a\x1b]0;t\x07\u{9b}\x7f\r\n\tb"), r"a\x1b]0;t\x07\x9b\x7f\r\n\tb");
        assert_eq!(escaped("exe\u{202e}gpj\u{2066}\u{200f}"), r"exe\u{202e}gpj\u{2066}\u{200f}");
        assert_eq!(escaped_lines("a\n\tb\x1b[2J\r"), "a\n\tb\\x1b[2J\\r");
    }
}
