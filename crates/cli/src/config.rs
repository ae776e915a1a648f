//! What the settings are: flags, then the environment, then the configuration file, then the cluster
//! that runs on this machine.
//!
//! The first three are one: what the file says becomes what `clap` takes where neither a flag nor the
//! environment says otherwise. So the file can set whatever a flag can, and is checked in the same way.

use crate::args::Args;
use crate::exit::Failure;
use crate::printer::unless_unread;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches, Id};
use marline_runtime::control::Control;
use marline_runtime::core::error::ErrorKind;
use marline_runtime::record::{self, ClusterRecord, read_token};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::{Table, Value};

/// What names a cluster, at the top of the file. Everything else is in a table named after its command.
const OF_CLUSTER: [&str; 2] = ["address", "token-file"];
/// Commands whose flags the file can set.
const TABLES: [&str; 4] = ["up", "controller", "worker", "run"];

/// A file with settings.
#[derive(Default)]
struct File {
    path: PathBuf,
    table: Table,
}

impl File {
    /// The one that is named, or the one in its usual place, if it is there.
    fn read(typed: &[OsString]) -> Result<File, Failure> {
        let named = config_flag_path(typed).or_else(|| std::env::var_os("MARLINE_CONFIG"));
        let named = named.filter(|path| !path.is_empty()).map(PathBuf::from);
        let asked = named.is_some();
        let Some(path) = named.or_else(usual_path) else { return Ok(File::default()) };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !asked => {
                return Ok(File::default());
            }
            Err(error) => {
                return Err(Failure::usage(format!("cannot read {}: {error}", path.display())));
            }
        };
        let table = text.parse::<Table>().map_err(|error| {
            Failure::usage(format!("{} makes no sense: {error}", path.display()))
        })?;
        Ok(File { path, table })
    }

    /// Has the command line take what the file says where nothing else is said.
    fn apply(&self, mut command: Command) -> Result<Command, Failure> {
        for (name, value) in &self.table {
            command = match value {
                Value::Table(table) if TABLES.contains(&name.as_str()) => {
                    let mut of_command =
                        command.find_subcommand(name).expect("each table is a command's").clone();
                    for (key, value) in table {
                        of_command = self.set(of_command, key, value, Some(name))?;
                    }
                    command.mut_subcommand(name, |_| of_command)
                }
                value => self.set(command, name, value, None)?,
            };
        }
        Ok(command)
    }

    fn set(
        &self,
        command: Command,
        key: &str,
        value: &Value,
        table: Option<&str>,
    ) -> Result<Command, Failure> {
        let long = key.replace('_', "-");
        let settable = |arg: &&Arg| {
            let name = arg.get_long().unwrap_or_default();
            match table {
                None => OF_CLUSTER.contains(&name),
                Some(_) => !matches!(name, "" | "help" | "version" | "detach" | "stdin"),
            }
        };
        let known = command.get_arguments().filter(settable);
        let names =
            known.filter_map(|arg| Some((arg.get_long()?.to_owned(), arg.get_id().clone())));
        let known: Vec<(String, Id)> = names.collect();
        let found = known.iter().find(|(name, _)| *name == long).map(|(_, id)| id.clone());
        let Some(id) = found else {
            let known: Vec<String> = known.iter().map(|(name, _)| name.replace('-', "_")).collect();
            let (at, tables) = match table {
                Some(table) => (format!(" in [{table}]"), String::new()),
                None => (String::new(), format!(", and tables: {}", TABLES.join(", "))),
            };
            return Err(Failure::usage(format!(
                "{}: {key:?}{at} is no setting: there are {}{tables}",
                self.path.display(),
                known.join(", ")
            )));
        };
        let values = match value {
            Value::Array(several) => several.iter().map(|value| self.text(key, value)).collect(),
            one => self.text(key, one).map(|text| vec![text]),
        };
        let values: Vec<String> = values?;
        Ok(command.mut_arg(id, |arg| arg.default_values(values)))
    }

    fn text(&self, key: &str, value: &Value) -> Result<String, Failure> {
        match value {
            // Where a path begins that does not say.
            Value::String(text) if key == "token_file" => {
                let folder = self.path.parent().unwrap_or(Path::new(""));
                Ok(folder.join(text).to_string_lossy().into_owned())
            }
            Value::String(text) => Ok(text.clone()),
            Value::Integer(number) => Ok(number.to_string()),
            Value::Float(number) => Ok(number.to_string()),
            Value::Boolean(yes) => Ok(yes.to_string()),
            Value::Datetime(_) | Value::Array(_) | Value::Table(_) => Err(Failure::usage(format!(
                "{}: {key} is neither text nor a number",
                self.path.display()
            ))),
        }
    }
}

/// The file that `--config` names, before the rest of the line is looked at.
fn config_flag_path(typed: &[OsString]) -> Option<OsString> {
    let mut words = typed.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        if word == "--config" {
            return words.next().cloned();
        }
        if let Some(path) = word.to_str().and_then(|word| word.strip_prefix("--config=")) {
            return Some(path.into());
        }
    }
    None
}

fn usual_path() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|folder| !folder.is_empty());
    let home = || folder("HOME").map(|home| Path::new(&home).join(".config"));
    let folder = folder("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home)?;
    Some(folder.join("marline/config.toml"))
}

/// Reads what was typed, the environment and the file. Nothing if help was asked for, and given.
pub fn read(typed: &[OsString]) -> Result<Option<Args>, Failure> {
    let mut file = Ok(File::default());
    // Completions and help do not depend on it.
    if !typed.iter().any(|word| word == "completions" || word == "help") {
        file = File::read(typed);
    }
    let file = file?;
    let mut command = with_negative_numbers(file.apply(Args::command())?);
    let parsed = command.try_get_matches_from_mut(typed);
    let parsed = parsed.and_then(|matches| {
        let args = Args::from_arg_matches(&matches)?;
        Ok((args, matches))
    });
    match parsed {
        Ok((mut args, matches)) => {
            if matches!(
                args.command,
                crate::args::Command::Up(_) | crate::args::Command::Controller(_)
            ) && source(&matches, "address") == Some(ValueSource::CommandLine)
            {
                return Err(Failure::usage(
                    "--address names a cluster that runs; where this one is to be is said with --listen",
                ));
            }
            // The file's token is for the file's cluster, and told to no other.
            if file.table.contains_key("address")
                && source(&matches, "address") != Some(ValueSource::DefaultValue)
                && source(&matches, "token_file") == Some(ValueSource::DefaultValue)
            {
                args.token_file = None;
            }
            Ok(Some(args))
        }
        Err(error) if !error.use_stderr() => {
            let printed = unless_unread(error.print().and_then(|()| std::io::stdout().flush()));
            printed.map_err(|error| Failure::unwritten("the help", &error))?;
            Ok(None)
        }
        Err(mut error) => {
            if let Some(tip) = missing_dashes_tip(&error, typed, &command) {
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
            }
            let text = error.render().to_string();
            let mut failure = Failure::usage(text.trim_start_matches("error: ").trim_end());
            let mut styled = error.render().ansi().to_string();
            if !file.table.is_empty() && error.kind() == clap::error::ErrorKind::ValueValidation {
                let also = format!("\nSettings are also in {}.", file.path.display());
                failure.message += &also;
                styled += &also;
            }
            failure.styled = Some(styled);
            Err(failure)
        }
    }
}

/// Has every flag take what begins like a negative number: it says itself what is wrong with it.
fn with_negative_numbers(command: Command) -> Command {
    let takes = |arg: Arg| {
        let is_flag = arg.get_long().is_some() && arg.get_action().takes_values();
        if is_flag { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(takes).mut_subcommands(|of_command| of_command.mut_args(takes))
}

/// What to type where a command for `run` was typed without the `--` before it.
fn missing_dashes_tip(
    error: &clap::Error,
    typed: &[OsString],
    command: &Command,
) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != clap::error::ErrorKind::UnknownArgument || word.starts_with('-') {
        return None;
    }
    // The word may also be the value of a flag: with `--` in the right place the line makes sense.
    let meant = (1..typed.len()).filter(|at| typed[*at] == OsStr::new(word)).find_map(|at| {
        let mut meant = typed.to_vec();
        meant.insert(at, "--".into());
        let matches = command.clone().try_get_matches_from(&meant).ok()?;
        (matches.subcommand_name() == Some("run")).then_some(meant)
    })?;
    let words: Vec<String> =
        meant[1..].iter().map(|word| quoted(&word.to_string_lossy())).collect();
    Some(format!("put -- before the command: marline {}", words.join(" ")))
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn source(matches: &ArgMatches, id: &str) -> Option<ValueSource> {
    matches.value_source(id)
}

/// Whether answers are to be JSON, said before the rest of the line is looked at.
pub fn wants_json(typed: &[OsString]) -> bool {
    typed.iter().take_while(|word| *word != "--").any(|word| word == OsStr::new("--json"))
}

/// The cluster to speak to.
#[derive(Clone, Debug)]
pub struct ClusterEndpoint {
    pub address: String,
    pub token: Option<Arc<str>>,
}

impl ClusterEndpoint {
    /// Which cluster is meant.
    pub fn of(args: &Args) -> Result<ClusterEndpoint, Failure> {
        ClusterEndpoint::find(args.address.as_deref(), args.token_file.as_deref())
    }

    /// The cluster at this address, with the token in this file; what is not said is looked up among
    /// those that run here.
    pub fn find(
        address: Option<&str>,
        token_file: Option<&Path>,
    ) -> Result<ClusterEndpoint, Failure> {
        if let Some(address) = address.filter(|address| !address.is_empty()) {
            if let Some(file) = token_file {
                let token = Some(read_token(file)?.into());
                return Ok(ClusterEndpoint { address: address.into(), token });
            }
            return match record::list_clusters().unwrap_or_default().at(address) {
                // Its token is for it alone: somebody else may have the port on another of this
                // machine's addresses, so it is spoken to where it said that it is.
                Some(ClusterRecord { address, token_file, .. }) => {
                    Ok(ClusterEndpoint { address, token: Some(read_token(&token_file)?.into()) })
                }
                None => Ok(ClusterEndpoint { address: address.into(), token: None }),
            };
        }
        let only = record::only_cluster().map_err(|error| {
            // These two ask for an address; it does not help against others.
            let helps = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unavailable);
            let mut failure = Failure::from(error);
            failure.message += if helps { " (--address)" } else { "" };
            failure
        })?;
        let token = read_token(token_file.unwrap_or(&only.token_file))?;
        Ok(ClusterEndpoint { address: only.address, token: Some(token.into()) })
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
