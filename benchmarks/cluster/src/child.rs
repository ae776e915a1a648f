//! Child processes: this program, started again in another role. A child prints one line when it is
//! ready (usually its address). It ends when its standard input is closed, so that no child
//! outlives the benchmark.

use crate::questions::{actor, decisions};
use crate::{marline_cluster, rivals};
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{self, Command, Stdio};

/// A child process. It is killed when this value is dropped.
pub struct Child {
    process: process::Child,
    /// The line that it printed when it was ready.
    pub ready_line: String,
}

impl Child {
    /// Starts this program in the role that `words` name, and waits until it is ready.
    pub fn start(words: &[&str]) -> Child {
        let this = std::env::current_exe().expect("the path of this program");
        let mut command = Command::new(this);
        command.arg("--child").args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("this program starts again");
        let mut ready_line = String::new();
        let output = process.stdout.take().expect("its output is ours");
        BufReader::new(output).read_line(&mut ready_line).expect("it says when it is ready");
        let ready_line = ready_line.trim_end().to_owned();
        assert!(!ready_line.is_empty(), "{words:?} ended before it was ready");
        Child { process, ready_line }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        let _ = self.process.wait();
    }
}

/// Prints the line that says that this child is ready, and waits until its standard input is
/// closed.
pub fn ready(line: &str) {
    println!("{line}");
    stdout().flush().expect("the parent listens");
    let _ = stdin().read_line(&mut String::new());
}

pub fn run(words: &[String]) -> Result<(), String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["controller", at] => marline_cluster::controller(at),
        ["worker", controller, listen, executors] => {
            marline_cluster::worker(controller, listen, executors)
        }
        ["grpc", at] => rivals::grpc::serve(at),
        ["socket", at] => rivals::socket::serve(at),
        ["many-actors", count] => actor::many_here(count.parse().map_err(|_| "not a count")?),
        ["pending", count] => decisions::pending_here(count.parse().map_err(|_| "not a count")?),
        _ => return Err(format!("there is no child role {words:?}")),
    }
    Ok(())
}
