//! Where a setting comes from: its flag, else its environment variable, else the settings file. An
//! address or a token that none of these names comes from the cluster that runs on this machine.
//!
//! The values of the file become the defaults of `clap`'s arguments. So the file can set whatever a
//! flag can, and `clap` checks its values in the same way.

use crate::args::Args;
use crate::exit::Failure;
use crate::printer::unless_unread;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches, Id};
use marline_runtime::cluster_record::{self, ClusterRecord, read_token};
use marline_runtime::control::Control;
use marline_runtime::core::error::ErrorKind;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::{Table, Value};

/// The keys at the top of the file: they name a cluster, and set the log. Every other key is in a
/// table named after its command.
const OF_CLUSTER: [&str; 4] = ["address", "token-file", "log", "log-format"];
/// The commands whose flags the file can set.
const TABLES: [&str; 4] = ["up", "controller", "worker", "run"];

/// The settings file.
#[derive(Default)]
struct File {
    path: PathBuf,
    table: Table,
}

impl File {
    /// Reads the file that `--config` or `MARLINE_CONFIG` names, else the one in the usual place,
    /// if it exists.
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
            Failure::usage(format!("{} is not valid TOML: {error}", path.display()))
        })?;
        Ok(File { path, table })
    }

    /// Makes the file's values the defaults of the command line.
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

    /// Makes one value of the file the default of its argument. Fails if the file cannot set such
    /// an argument.
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
                "{}: {key:?}{at} is not a setting: the settings are {}{tables}",
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
            // A relative path starts at the file's own folder.
            Value::String(text) if key == "token_file" => {
                let folder = self.path.parent().unwrap_or(Path::new(""));
                Ok(folder.join(text).to_string_lossy().into_owned())
            }
            Value::String(text) => Ok(text.clone()),
            Value::Integer(number) => Ok(number.to_string()),
            Value::Float(number) => Ok(number.to_string()),
            Value::Boolean(yes) => Ok(yes.to_string()),
            Value::Datetime(_) | Value::Array(_) | Value::Table(_) => Err(Failure::usage(format!(
                "{}: {key} must be text, a number, true, false or a list of these",
                self.path.display()
            ))),
        }
    }
}

/// Returns the file that `--config` names. `clap` needs the values of the file before it can parse
/// the line.
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

/// Returns `marline/config.toml` in `XDG_CONFIG_HOME`, else in `~/.config`.
fn usual_path() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|folder| !folder.is_empty());
    let home = || folder("HOME").map(|home| Path::new(&home).join(".config"));
    let folder = folder("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home)?;
    Some(folder.join("marline/config.toml"))
}

/// Reads the command line, the environment and the file. Returns nothing if the user asked for help
/// or the version, which this prints.
pub fn read(typed: &[OsString]) -> Result<Option<Args>, Failure> {
    let mut file = Ok(File::default());
    // Completions and help do not need the file, and must work if it is wrong.
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
                    "--address names a cluster that runs already: use --listen to say where this one listens",
                ));
            }
            // The file's token belongs to the file's address. Another cluster must not learn it.
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
                let also =
                    format!("\nThe value may come from the settings file {}.", file.path.display());
                failure.message += &also;
                styled += &also;
            }
            failure.styled = Some(styled);
            Err(failure)
        }
    }
}

/// Lets every flag take a value such as `-1`: its own parser rejects the value with a better
/// message than `clap`'s.
fn with_negative_numbers(command: Command) -> Command {
    let takes = |arg: Arg| {
        let is_flag = arg.get_long().is_some() && arg.get_action().takes_values();
        if is_flag { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(takes).mut_subcommands(|of_command| of_command.mut_args(takes))
}

/// Returns the line that the user probably meant, if a command for `run` was typed without `--`
/// before it.
fn missing_dashes_tip(
    error: &clap::Error,
    typed: &[OsString],
    command: &Command,
) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != clap::error::ErrorKind::UnknownArgument || word.starts_with('-') {
        return None;
    }
    // The word may also be the value of a flag. Only with `--` in the right place does the line
    // parse.
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

/// Quotes a word for a shell, if it needs quotes.
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

/// Whether `--json` was typed. Errors of the rest of the line must be JSON then, too.
pub fn wants_json(typed: &[OsString]) -> bool {
    typed.iter().take_while(|word| *word != "--").any(|word| word == OsStr::new("--json"))
}

/// The cluster that a command speaks to.
#[derive(Clone, Debug)]
pub struct ClusterEndpoint {
    pub address: String,
    pub token: Option<Arc<str>>,
}

impl ClusterEndpoint {
    /// Returns the cluster that the arguments name, else the one that runs on this machine.
    pub fn of(args: &Args) -> Result<ClusterEndpoint, Failure> {
        ClusterEndpoint::find(args.address.as_deref(), args.token_file.as_deref())
    }

    /// Returns the cluster at this address, with the token in this file. What is not given is
    /// looked up among the clusters that run on this machine.
    pub fn find(
        address: Option<&str>,
        token_file: Option<&Path>,
    ) -> Result<ClusterEndpoint, Failure> {
        if let Some(address) = address.filter(|address| !address.is_empty()) {
            if let Some(file) = token_file {
                let token = Some(read_token(file)?.into());
                return Ok(ClusterEndpoint { address: address.into(), token });
            }
            return match cluster_record::list_clusters().unwrap_or_default().at(address) {
                // Another program may have the same port on another address of this machine, and
                // must not get this cluster's token. So the command speaks to the address in the
                // cluster's own record.
                Some(ClusterRecord { address, token_file, .. }) => {
                    Ok(ClusterEndpoint { address, token: Some(read_token(&token_file)?.into()) })
                }
                None => Ok(ClusterEndpoint { address: address.into(), token: None }),
            };
        }
        let only = cluster_record::only_cluster().map_err(|error| {
            // Only for these two kinds does an address help.
            let helps = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unavailable);
            let mut failure = Failure::from(error);
            failure.message += if helps { " (--address)" } else { "" };
            failure
        })?;
        let token = read_token(token_file.unwrap_or(&only.token_file))?;
        Ok(ClusterEndpoint { address: only.address, token: Some(token.into()) })
    }

    /// Returns a client of the control service of the cluster's controller.
    pub fn control(&self) -> Result<Control, Failure> {
        Ok(Control::at(&self.address, self.token.clone())?)
    }

    /// Returns a client of the control service of another node of the cluster.
    pub fn control_at(&self, address: &str) -> Result<Control, Failure> {
        Ok(Control::at(address, self.token.clone())?)
    }
}
