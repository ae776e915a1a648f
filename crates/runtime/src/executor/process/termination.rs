//! How executor processes end: killing them, and describing their ends.

use marline_core::label::label_of;
use marline_wire::executor::ExecutorCommand;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

/// Kills an executor that is not reaped yet, and its group. The executor may have left the group.
pub(super) fn end(executor: Pid) {
    let _ = kill_process_group(executor, Signal::KILL);
    let _ = kill_process(executor, Signal::KILL);
}

/// Returns whether the process was killed by SIGKILL, from the kernel or another process.
pub(super) fn was_killed(status: Option<ExitStatus>) -> bool {
    status.and_then(|status| status.signal()) == Some(Signal::KILL.as_raw())
}

/// The readable name of the work that an executor runs, for messages about the executor's end.
pub(super) enum WorkLabel {
    Function(Arc<str>),
    Actor { class: Arc<str>, name: Option<Arc<str>> },
}

impl WorkLabel {
    /// Returns the work that this command starts, if it starts any.
    pub fn of(command: &ExecutorCommand) -> Option<WorkLabel> {
        match command {
            ExecutorCommand::RunTask { spec, .. } => {
                Some(WorkLabel::Function(spec.target.name().clone()))
            }
            ExecutorCommand::ConstructActor { spec, .. } => {
                Some(WorkLabel::Actor { class: spec.class.clone(), name: spec.name.clone() })
            }
            ExecutorCommand::CallMethod { .. } => None,
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

/// Describes how an executor ended.
pub(super) fn describe_end(executor: &str, status: Option<ExitStatus>) -> String {
    let signal_and_code = status.map(|status| (status.signal(), status.code()));
    match signal_and_code {
        Some((Some(9), _)) => format!(
            "{executor} was killed by signal 9 (SIGKILL), by another process or by the kernel for lack of memory"
        ),
        Some((Some(signal), _)) => {
            format!("{executor} was killed by signal {signal} ({})", signal_name(signal))
        }
        Some((None, Some(code))) => format!("{executor} exited with status {code}"),
        Some((None, None)) | None => format!("{executor} is gone"),
    }
}

/// Returns the name of a signal that often ends processes, or "a signal" for any other.
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
