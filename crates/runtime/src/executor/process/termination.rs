//! How an executor that is a process ends: by force, and in words.

use crate::executor::run::Command;
use marline_core::label::label_of;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

/// Ends an executor that was not waited for yet, and its group, which it may have left.
pub(super) fn end(executor: Pid) {
    let _ = kill_process_group(executor, Signal::KILL);
    let _ = kill_process(executor, Signal::KILL);
}

/// Whether it was killed, by somebody or the kernel.
pub(super) fn was_killed(status: Option<ExitStatus>) -> bool {
    status.and_then(|status| status.signal()) == Some(Signal::KILL.as_raw())
}

/// What an executor runs, as people call it.
pub(super) enum WorkLabel {
    Function(Arc<str>),
    Actor { class: Arc<str>, name: Option<Arc<str>> },
}

impl WorkLabel {
    /// What it runs from now on that is told this, if that changes.
    pub fn of(command: &Command) -> Option<WorkLabel> {
        match command {
            Command::Run { spec, .. } => Some(WorkLabel::Function(spec.target.name().clone())),
            Command::Construct { spec, .. } => {
                Some(WorkLabel::Actor { class: spec.class.clone(), name: spec.name.clone() })
            }
            Command::Call { .. } => None,
        }
    }
}

impl fmt::Display for WorkLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkLabel::Function(name) => write!(f, "that ran `{}`", label_of(name)),
            WorkLabel::Actor { class, name: None } => {
                write!(f, "of the actor `{}`", label_of(class))
            }
            WorkLabel::Actor { class, name: Some(name) } => {
                write!(f, "of the actor `{name}` ({})", label_of(class))
            }
        }
    }
}

/// How an executor ended, in words.
pub(super) fn how(who: &str, status: Option<ExitStatus>) -> String {
    let signal_and_code = status.map(|status| (status.signal(), status.code()));
    match signal_and_code {
        Some((Some(9), _)) => format!(
            "{who} was killed by signal 9 (SIGKILL): by somebody, or by the kernel for want of memory"
        ),
        Some((Some(signal), _)) => {
            format!("{who} was killed by signal {signal} ({})", signal_name(signal))
        }
        Some((None, Some(code))) => format!("{who} exited with status {code}"),
        Some((None, None)) | None => format!("{who} is gone"),
    }
}

/// What a signal is called, where it ends processes often enough to be known by name.
pub(crate) fn signal_name(signal: i32) -> &'static str {
    let names = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::SYS, "SIGSYS"),
    ];
    let known = names.iter().find(|(known, _)| known.as_raw() == signal);
    known.map_or("a signal", |(_, name)| name)
}
