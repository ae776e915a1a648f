//! Starts executor processes: this program again, or a fork of a [fork server](super::fork_server).

use super::fork_server::Fork;
use super::process_watcher::death;
use super::{LaunchContext, VARIABLE};
use marline_channel::oneshot;
use rustix::process::Pid;
use std::io::{self, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use tokio::signal::unix::{SignalKind, signal};

/// An executor process that was started and is not reaped.
pub(super) struct LaunchedProcess {
    pub pid: Pid,
    /// Settles when the process has ended.
    pub death: oneshot::Receiver<()>,
    process: Process,
}

enum Process {
    Child(Child),
    Fork(Fork),
}

/// The variable and the descriptors that an executor process has from its start.
pub(super) struct LaunchEnvironment {
    /// The value of [`VARIABLE`].
    pub variable: String,
    pub stdin: UnixStream,
    pub stdout: PipeWriter,
    pub stderr: PipeWriter,
}

impl LaunchedProcess {
    /// Starts an executor of this runtime.
    pub async fn spawn(
        launch: &LaunchContext,
        runtime: &str,
        launch_environment: LaunchEnvironment,
    ) -> io::Result<LaunchedProcess> {
        let process = match &launch.forks {
            Some(forks) if forks.serves(runtime) => {
                let LaunchEnvironment { variable, stdin, stdout, stderr } = &launch_environment;
                let descriptors = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
                Process::Fork(forks.fork(variable, descriptors).await?)
            }
            _ => Process::Child(start_again(launch, launch_environment)?),
        };
        let pid = match &process {
            Process::Child(child) => Pid::from_child(child),
            Process::Fork(fork) => fork.pid,
        };
        match death(pid) {
            Ok(death) => Ok(LaunchedProcess { pid, death, process }),
            Err(error) => {
                // Its death would go unnoticed, so kill it now.
                super::end(pid);
                process.reap().await;
                Err(error)
            }
        }
    }

    /// Reaps the process, which is dead. Returns its exit status, if it is known.
    pub async fn reap(self) -> Option<ExitStatus> {
        self.process.reap().await
    }
}

impl Process {
    async fn reap(self) -> Option<ExitStatus> {
        match self {
            Process::Child(mut child) => child.wait().ok(),
            Process::Fork(fork) => fork.reap().await,
        }
    }
}

/// Starts this program again.
fn start_again(launch: &LaunchContext, launch_environment: LaunchEnvironment) -> io::Result<Child> {
    // This process may have been started with SIGCHLD ignored. From now on it handles the signal,
    // and its children do not inherit that it is ignored.
    drop(signal(SignalKind::child())?);
    let mut command = Command::new(this_program()?);
    let mut args = std::env::args_os();
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    match &launch.arguments {
        Some(arguments) => command.args(arguments),
        None => command.args(args),
    };
    command.env(VARIABLE, launch_environment.variable).process_group(0);
    command.stdin(Stdio::from(OwnedFd::from(launch_environment.stdin)));
    command.stdout(launch_environment.stdout).stderr(launch_environment.stderr).spawn()
}

/// Returns the program of this process, to start it again. Works even if the file was removed, or
/// replaced by another version.
fn this_program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    Ok(if path.exists() { path } else { "/proc/self/exe".into() })
}
