//! How an executor that is a process ends: by force, and in words.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Ends an executor that was not waited for yet, and its group, which it may have left.
pub(super) fn end(executor: Pid) {
    let _ = kill_process_group(executor, Signal::KILL);
    let _ = kill_process(executor, Signal::KILL);
}

/// Whether it was killed, by somebody or the kernel.
pub(super) fn was_killed(status: Option<ExitStatus>) -> bool {
    status.and_then(|status| status.signal()) == Some(Signal::KILL.as_raw())
}

/// How a process ended, in words.
pub(super) fn how(status: Option<ExitStatus>) -> String {
    let Some(status) = status else { return "the executor is gone".into() };
    match (status.signal(), status.code()) {
        (Some(9), _) => "the executor was killed by signal 9 (SIGKILL): by somebody, or by the \
                         kernel for want of memory"
            .into(),
        (Some(signal), _) => {
            let name = signal_name(signal);
            format!("the executor was killed by signal {signal} ({name})")
        }
        (None, Some(code)) => format!("the executor exited with status {code}"),
        (None, None) => "the executor is gone".into(),
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
