//! Compiles the protocol of the gRPC rivals. Records the compiler's version and the commit in the
//! program: at run time the tree may be in a later state than the measured code.

use std::error::Error;
use std::process::Command;

/// All sources that the measured programs are built from. Only changes here mark the commit as
/// changed.
const SOURCES: [&str; 8] = [
    "../../crates/channel",
    "../../crates/core",
    "../../crates/marline",
    "../../crates/objects",
    "../../crates/runtime",
    "../../crates/wire",
    "../../proto",
    ".",
];

fn main() -> Result<(), Box<dyn Error>> {
    let descriptors = protox::compile(["echo.proto"], ["proto"])?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = output(&rustc, &["--version"]).unwrap_or("unknown".into());
    println!("cargo:rustc-env=BENCH_RUSTC={version}");
    println!("cargo:rustc-env=BENCH_COMMIT={}", commit());
    // `git rev-parse` finds the log: in a worktree it is not under `.git`.
    if let Some(log) = output("git", &["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
    }
    Ok(())
}

fn commit() -> String {
    let Some(commit) = output("git", &["rev-parse", "--short=12", "HEAD"]) else {
        return "no commit yet".into();
    };
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(SOURCES);
    let changed = output("git", &status).is_none_or(|changes| !changes.is_empty());
    format!("{commit}{}", if changed { " with changes" } else { "" })
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}
