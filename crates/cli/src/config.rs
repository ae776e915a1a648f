//! What the settings are: flags, then the environment, then the configuration file, then the cluster
//! that runs on this machine.

use crate::args::Args;
use crate::exit::{Failure, UNREACHABLE};
use crate::record::{self, read_token};
use marline_runtime::control::Control;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The cluster to speak to.
#[derive(Clone, Debug)]
pub struct Settings {
    pub address: String,
    pub token: Option<Arc<str>>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields)]
struct File {
    address: Option<String>,
    token_file: Option<PathBuf>,
}

fn file(args: &Args) -> Result<File, Failure> {
    let (path, asked) = match &args.config {
        Some(path) => (path.clone(), true),
        None => match default_path() {
            Some(path) => (path, false),
            None => return Ok(File::default()),
        },
    };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !asked => {
            return Ok(File::default());
        }
        Err(error) => {
            return Err(Failure::usage(format!("cannot read {}: {error}", path.display())));
        }
    };
    toml::from_str(&text)
        .map_err(|error| Failure::usage(format!("{} makes no sense: {error}", path.display())))
}

fn default_path() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    let folder = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home)?;
    Some(folder.join("marline/config.toml"))
}

impl Settings {
    /// Which cluster is meant.
    pub fn of(args: &Args) -> Result<Settings, Failure> {
        let file = file(args)?;
        let token_file = args.token_file.clone().or(file.token_file);
        if let Some(address) = args.address.clone().or(file.address) {
            // A cluster that runs here is known with its token.
            let known = record::running().unwrap_or_default().into_iter();
            let known = known.filter(|cluster| cluster.address == address);
            let token_file = token_file.or(known.map(|cluster| cluster.token_file).next());
            let token = token_file.as_deref().map(read_token).transpose()?.map(Arc::from);
            return Ok(Settings { address, token });
        }
        let clusters = record::running()?;
        match clusters.as_slice() {
            [] => Err(Failure {
                code: UNREACHABLE,
                kind: "Unavailable".into(),
                message:
                    "no cluster runs here: start one with `marline up`, or name one with --address"
                        .into(),
            }),
            [only] => {
                let token = read_token(token_file.as_ref().unwrap_or(&only.token_file))?;
                Ok(Settings { address: only.address.clone(), token: Some(token.into()) })
            }
            several => {
                let addresses: Vec<&str> =
                    several.iter().map(|cluster| cluster.address.as_str()).collect();
                Err(Failure::usage(format!(
                    "several clusters run here: name one with --address: {}",
                    addresses.join(", ")
                )))
            }
        }
    }

    /// Speaks to its controller.
    pub fn control(&self) -> Result<Control, Failure> {
        Ok(Control::at(&self.address, self.token.clone())?)
    }

    /// Speaks to another node of the cluster.
    pub fn control_at(&self, address: &str) -> Result<Control, Failure> {
        Ok(Control::at(address, self.token.clone())?)
    }
}

/// The file that a token is to be in, for a process that may make it.
pub fn token_file(args: &Args) -> Result<Option<PathBuf>, Failure> {
    Ok(args.token_file.clone().or(file(args)?.token_file))
}
