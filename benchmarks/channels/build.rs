//! Compiles the C code of the C ABI shapes, unless the build is without metrics. Records the
//! compiler's version and the commit in the program: at run time the tree may be in a later
//! state than the measured code.

use std::process::Command;

/// The measured sources. Only changes here mark the commit as changed.
const SOURCES: [&str; 3] = ["../../crates/channel", "../../crates/channel-c", "."];

fn main() {
    if std::env::var_os("CARGO_FEATURE_METRICS").is_some() {
        cc::Build::new().file("src/c_abi.c").opt_level(2).compile("marline_bench_c");
    }
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = output(&rustc, &["--version"]).unwrap_or("unknown".into());
    println!("cargo:rustc-env=BENCH_RUSTC={version}");
    println!("cargo:rustc-env=BENCH_COMMIT={}", commit());
    println!("cargo:rerun-if-changed=../../.git/logs/HEAD");
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
    }
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
