//! How an executor that is a process comes to be: this program started again, or a fork of a
//! [server](super::forks).

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

/// An executor that was started, and is not waited for yet.
pub(super) struct LaunchedProcess {
    pub pid: Pid,
    /// Settled when it has ended.
    pub death: oneshot::Receiver<()>,
    process: Process,
}

enum Process {
    Child(Child),
    Fork(Fork),
}

/// What an executor has from its start.
pub(super) struct LaunchEnvironment {
    /// What [`VARIABLE`] says.
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
                // Nobody would see its end: it ends now.
                super::end(pid);
                process.reap().await;
                Err(error)
            }
        }
    }

    /// Waits for it: it is dead. Says how it ended, if that is known.
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
    // A process that was started deaf to its children (SIGCHLD ignored) hears them from now on, and does
    // not hand that down.
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

/// What runs here, to be started again: also when its file was taken away, or replaced by another version.
fn this_program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    Ok(if path.exists() { path } else { "/proc/self/exe".into() })
}
