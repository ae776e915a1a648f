//! Where the Python executors of a worker come from: forks of a Python process that has imported
//! the package `marline`.

use marline_runtime::{ForkServerOptions, ForkVersion};
use serde_json::json;
use std::path::{Path, PathBuf};

/// The cluster that user code in an executor joins when it submits work of its own.
pub struct ExecutorCluster<'a> {
    pub address: &'a str,
    pub token: Option<&'a str>,
}

/// Returns how to start Python executors: with the Python at `named`, else with the Python that
/// this program was installed with. Returns nothing if there is neither.
pub fn fork_server(named: Option<&Path>, home: &ExecutorCluster<'_>) -> Option<ForkServerOptions> {
    let program = named.map(Path::to_owned).or_else(bundled_python)?;
    // The token goes over a socket that only the two processes have. The environment would pass it
    // on to every child process.
    let setup = json!({
        "address": home.address,
        "token": home.token,
        "driver": std::process::id(),
    });
    Some(ForkServerOptions {
        runtime: "python".into(),
        program,
        args: vec!["-m".into(), "marline._executor.forkserver".into()],
        setup: setup.to_string(),
        version: ForkVersion::Package(env!("CARGO_PKG_VERSION")),
    })
}

/// Returns the Python of the environment that this program is installed in, if that environment has
/// the package `marline`.
fn bundled_python() -> Option<PathBuf> {
    let programs = std::env::current_exe().ok()?.parent()?.to_owned();
    let python = programs.join("python3");
    let libraries = std::fs::read_dir(programs.parent()?.join("lib")).ok()?;
    let has_package = libraries.flatten().any(|library| {
        library.path().join("site-packages/marline/_executor/forkserver.py").is_file()
    });
    (python.is_file() && has_package).then_some(python)
}
