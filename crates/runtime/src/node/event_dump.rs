//! Writes the last events of a node's state machines to a file, when one of them panics or when the
//! process receives SIGUSR1. The events have names and ids, and no values of users.

use super::{NodeState, StateGuard};
use crate::clock::Clock;
use crate::runtime_log::PREFIX;
use marline_core::recent_events::{EventSummary, RECENT_EVENTS};
use marline_core::time::Time;
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;
use tracing::error;

/// The number in the name of the latest file.
static WRITTEN: AtomicU32 = AtomicU32::new(0);
/// The number up to which the search for an unused name goes on.
const MOST_FILES: u32 = 1_000;

impl NodeState {
    /// Returns the last events of all machines as text.
    pub(super) fn recent_events(&self) -> String {
        let mut text = String::new();
        self.write_events(&mut text, Clock::new().now()).expect("text takes all that is written");
        text
    }

    fn write_events(&self, to: &mut String, now: Time) -> fmt::Result {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        writeln!(
            to,
            "marline {}, process {}, {:.3} s after 1970. Each state machine has at most \
             {RECENT_EVENTS} events, oldest first. Times are seconds before this file was written.",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            since_1970.unwrap_or_default().as_secs_f64()
        )?;
        if let Some(controller) = &self.controller {
            write_machine(to, "controller", now, controller.recent_events())?;
        }
        for (index, shell) in self.workers.iter().enumerate() {
            write_machine(to, &format!("worker {index}"), now, shell.machine.recent_events())?;
        }
        for (index, shell) in self.clients.iter().enumerate() {
            let Some(shell) = shell else { continue };
            write_machine(to, &format!("client {index}"), now, shell.machine.recent_events())?;
        }
        Ok(())
    }
}

/// Writes a text to a new file in the folder for temporary files. Only this user can read the file.
/// Returns its path.
pub(super) fn save(text: &str) -> io::Result<PathBuf> {
    let (path, mut file) = new_file()?;
    file.write_all(text.as_bytes())?;
    Ok(path)
}

fn new_file() -> io::Result<(PathBuf, File)> {
    loop {
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("marline-events-{}-{number}.txt", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        match file {
            // An earlier process had this id. At most MOST_FILES of its files are passed over.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < MOST_FILES => {}
            file => return Ok((path, file?)),
        }
    }
}

fn write_machine(
    to: &mut String,
    name: &str,
    now: Time,
    events: impl Iterator<Item = (Time, EventSummary)>,
) -> fmt::Result {
    writeln!(to, "\n{name}")?;
    for (time, event) in events {
        writeln!(to, "{:14.6}  {event}", -now.since(time).as_secs_f64())?;
    }
    Ok(())
}

/// Prints a line on standard error. Ignores a failure: standard error may be closed, and a second
/// panic would abort the process.
pub(super) fn print(words: &str) {
    let _ = io::stderr().write_all(format!("marline: {words}\n").as_bytes());
}

impl Drop for StateGuard<'_> {
    /// Writes the last events if a panic began under the lock: a state machine broke a rule.
    fn drop(&mut self) {
        if !std::thread::panicking() || self.panicking_before {
            return;
        }
        let words = "a bug in Marline: please report it, with the message above";
        let words = match save(&self.recent_events()) {
            Ok(path) => format!("{words} and the events in {}", path.display()),
            Err(error) => format!("{words}; the last events could not be written: {error}"),
        };
        error!(target: PREFIX, "{words}");
        print(&words);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Node;
    use super::save;
    use marline_core::controller::Config;
    use std::path::Path;
    use std::sync::Arc;

    fn node() -> Arc<Node> {
        let node = Node::new();
        node.host_controller(Config::default());
        node.host_client();
        node
    }

    fn dump(node: &Node) -> String {
        take(&save(&node.with_state(|state, _| state.recent_events())).unwrap()).unwrap()
    }

    fn take(path: &Path) -> std::io::Result<String> {
        let text = std::fs::read_to_string(path)?;
        std::fs::remove_file(path)?;
        Ok(text)
    }

    /// Returns the line with the client's session, which no other node has.
    fn joined(text: &str) -> String {
        let line = text.lines().find(|line| line.contains("Joined session="));
        line.unwrap_or_default().split_whitespace().skip(1).collect()
    }

    #[test]
    fn an_event_dump_has_the_last_events_of_each_state_machine() {
        let node = node();
        let text = dump(&node);
        let machines: Vec<&str> =
            text.split("\n\n").filter_map(|section| section.lines().next()).collect();
        assert_eq!(machines[1..], ["controller", "client 0"]);
        assert!(text.contains("JoinRequested process="), "{text}");
        assert!(text.contains("Joined session="), "{text}");
        node.close();
    }

    #[test]
    fn a_panic_under_the_lock_writes_the_events_once() {
        let node = node();
        let ours = joined(&dump(&node));
        let panics = || node.with_state(|_, _| panic!("a rule is broken"));
        for _ in 0..2 {
            // The second call finds the lock poisoned.
            std::thread::scope(|scope| scope.spawn(panics).join().unwrap_err());
        }
        let prefix = format!("marline-events-{}-", std::process::id());
        let files = std::fs::read_dir(std::env::temp_dir()).unwrap().map(|file| file.unwrap());
        let files = files.filter(|file| file.file_name().to_string_lossy().starts_with(&prefix));
        // Other tests of this process may read and remove their files meanwhile.
        let is_ours =
            |path: &Path| std::fs::read_to_string(path).is_ok_and(|text| joined(&text) == ours);
        let written: Vec<_> = files.map(|file| file.path()).filter(|path| is_ours(path)).collect();
        assert_eq!(written.len(), 1, "{written:?}");
        take(&written[0]).unwrap();
    }
}
