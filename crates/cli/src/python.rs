//! Python executors of a worker that this program is: forks of a Python that has the package `marline`.

use marline_runtime::{ForkServerOptions, ForkVersion};
use serde_json::json;
use std::path::{Path, PathBuf};

/// What the executors of a worker join when user code submits work of its own.
pub struct ExecutorCluster<'a> {
    pub address: &'a str,
    pub token: Option<&'a str>,
}

/// How Python executors are started: by the Python that was named, or by the one this program was installed
/// with.
pub fn fork_server(named: Option<&Path>, home: &ExecutorCluster<'_>) -> Option<ForkServerOptions> {
    let program = named.map(Path::to_owned).or_else(bundled_python)?;
    // The token goes over a socket that nobody else has: not by the environment, which is inherited.
    let setup = json!({
        "address": home.address,
        "token": home.token,
        "driver": std::process::id(),
    });
    Some(ForkServerOptions {
        runtime: "python".into(),
        program,
        args: vec!["-m".into(), "marline._forkserver".into()],
        setup: setup.to_string(),
        version: ForkVersion::Package(env!("CARGO_PKG_VERSION")),
    })
}

/// The Python in whose environment this program was installed with the package.
fn bundled_python() -> Option<PathBuf> {
    let programs = std::env::current_exe().ok()?.parent()?.to_owned();
    let python = programs.join("python3");
    let libraries = std::fs::read_dir(programs.parent()?.join("lib")).ok()?;
    let has_package = libraries
        .flatten()
        .any(|library| library.path().join("site-packages/marline/_forkserver.py").is_file());
    (python.is_file() && has_package).then_some(python)
}
