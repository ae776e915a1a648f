//! This program again, as another process: it says one line when it is ready (where it listens), and
//! ends with its input, so that nothing outlives the benchmark.

use crate::questions::{actor, decisions};
use crate::{marline_cluster, rivals};
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{self, Command, Stdio};

/// A process that dies with this value.
pub struct Child {
    process: process::Child,
    /// What it said when it was ready.
    pub ready_line: String,
}

impl Child {
    /// Starts this program as something else, and waits until it is ready.
    pub fn start(words: &[&str]) -> Child {
        let this = std::env::current_exe().expect("the path of this program");
        let mut command = Command::new(this);
        command.arg("--child").args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("this program starts again");
        let mut said = String::new();
        let output = process.stdout.take().expect("its output is ours");
        BufReader::new(output).read_line(&mut said).expect("it says when it is ready");
        let said = said.trim_end().to_owned();
        assert!(!said.is_empty(), "{words:?} ended before it was ready");
        Child { process, ready_line: said }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Ends it with SIGKILL.
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

/// Says the one line, and waits for the end of the input.
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
        ["many-actors", count] => actor::many_here(count.parse().map_err(|_| "how many?")?),
        ["pending", count] => decisions::pending_here(count.parse().map_err(|_| "how many?")?),
        _ => return Err(format!("no child is called {words:?}")),
    }
    Ok(())
}
