//! All output: tables for people, JSON for scripts, and progress on standard error.
//!
//! Names and error messages come from user code and other processes. [Control
//! characters](marline_runtime::terminal) in them are escaped, so that they cannot command a
//! terminal.

use crate::exit::Failure;
use marline_runtime::terminal::{OutputFilter, escaped, escaped_lines};
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Progress is shown only after a command has taken this long.
const QUIET_FOR: Duration = Duration::from_secs(1);
/// Where standard error is no terminal, progress is printed at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Prints answers, notes, errors and progress: as text, or as JSON.
#[derive(Clone, Copy)]
pub struct Printer {
    pub json: bool,
}

impl Printer {
    pub fn new(json: bool) -> Printer {
        Printer { json }
    }

    /// Prints an answer: as JSON, or in words.
    pub fn answer(&self, json: &Value, words: impl FnOnce() -> String) -> Result<(), Failure> {
        let text = if self.json { json.to_string() } else { escaped_lines(&words()).into_owned() };
        let written = write(format!("{}\n", text.trim_end()).as_bytes());
        unless_unread(written).map_err(|error| Failure::unwritten("the answer", &error))
    }

    /// Prints a note on standard error. Prints nothing with `--json`.
    pub fn note(&self, words: &str) {
        if !self.json {
            let _ = writeln!(std::io::stderr(), "{}", escaped_lines(words));
        }
    }

    /// Prints why the command failed. This is the last output of the process.
    pub fn failure(&self, kind: &str, message: &str, styled: Option<&str>) {
        let mut stderr = std::io::stderr();
        let _ = match (self.json, styled) {
            (true, _) => {
                writeln!(stderr, "{}", json!({ "error": { "kind": kind, "message": message } }))
            }
            (false, Some(styled)) if has_colours() => writeln!(stderr, "{}", styled.trim_end()),
            (false, Some(_) | None) => {
                writeln!(stderr, "marline: {}", escaped_lines(message))
            }
        };
    }

    /// Returns a line of progress for a command that takes long.
    pub fn progress(&self) -> Progress {
        let tty = std::io::stderr().is_terminal() && !is_dumb();
        Progress {
            on: !self.json,
            tty,
            began: Instant::now(),
            last_printed_at: None,
            shown: String::new(),
        }
    }
}

/// Writes all bytes to standard output and flushes. An error of bytes left in a buffer would be
/// lost at exit.
pub fn write(bytes: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Forwards the output of user code. A terminal gets the text without harmful control sequences. A
/// file or a pipe gets the bytes unchanged.
pub struct OutputForwarder {
    out: Option<OutputFilter>,
    err: Option<OutputFilter>,
}

impl OutputForwarder {
    pub fn new() -> OutputForwarder {
        let out = std::io::stdout().is_terminal().then(OutputFilter::default);
        let err = std::io::stderr().is_terminal().then(OutputFilter::default);
        OutputForwarder { out, err }
    }

    /// Writes to standard output.
    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.out {
            Some(filter) => write(&filter.filter(bytes)),
            None => write(bytes),
        }
    }

    /// Writes to standard error. A failure is ignored: no answer is lost with it.
    pub fn write_error(&mut self, bytes: &[u8]) {
        let _ = match &mut self.err {
            Some(filter) => std::io::stderr().write_all(&filter.filter(bytes)),
            None => std::io::stderr().write_all(bytes),
        };
    }
}

/// Treats a closed pipe as success: a reader such as `head` has read as much as it wants. Every
/// other error stays an error, since output would be lost.
pub fn unless_unread(written: std::io::Result<()>) -> std::io::Result<()> {
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term == "dumb")
}

fn has_colours() -> bool {
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !is_dumb() && !no_colour
}

/// Returns a table whose columns are as wide as their widest cell.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let escape = |cell: &String| escaped(cell).into_owned();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(escape).collect()).collect();
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut head.iter().copied());
    for row in &rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

/// One line of progress on standard error.
pub struct Progress {
    on: bool,
    tty: bool,
    began: Instant,
    last_printed_at: Option<Instant>,
    shown: String,
}

impl Progress {
    /// Shows `words` only if standard error is a terminal.
    pub fn update_on_terminal(&mut self, words: &str) {
        if self.tty {
            self.update(words);
        }
    }

    /// Shows `words`, unless the command has just begun ([`QUIET_FOR`]). A terminal shows the
    /// latest words in one line. Elsewhere a line is printed at most once in [`PROGRESS_INTERVAL`].
    pub fn update(&mut self, words: &str) {
        let words = &*escaped(words);
        if !self.on || self.began.elapsed() < QUIET_FOR || words == self.shown {
            return;
        }
        if self.tty {
            let _ = write!(std::io::stderr(), "\r\x1b[K{words}");
        } else if self.last_printed_at.is_none_or(|last| last.elapsed() >= PROGRESS_INTERVAL) {
            let _ = writeln!(std::io::stderr(), "{words}");
            self.last_printed_at = Some(Instant::now());
        } else {
            return;
        }
        words.clone_into(&mut self.shown);
    }

    /// Removes the line from a terminal, so that other output can take its place.
    pub fn clear(&mut self) {
        if self.tty && !self.shown.is_empty() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
            self.shown.clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "much longer".into()], vec!["übermaß".into(), "b".into()]];
        let text = table(&["x", "y"], &rows);
        assert_eq!(text, "x        y\na        much longer\nübermaß  b\n");
    }

    #[test]
    fn control_characters_in_a_table_cell_are_escaped() {
        let rows = [vec!["evil\x1b]0;title\x07\nnext".to_owned(), "b".into()]];
        assert_eq!(
            table(&["x", "y"], &rows).lines().nth(1),
            Some(r"evil\x1b]0;title\x07\nnext  b")
        );
    }
}
