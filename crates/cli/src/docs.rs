//! Compares the pages about the command line with the commands and flags that exist.

use crate::args::Args;
use clap::{Command, CommandFactory};

/// The commands with their flags, and the flags that are settings.
const PAGES: &str = concat!(
    include_str!("../../../docs/cli.md"),
    include_str!("../../../docs/reference/settings.md")
);

/// Returns the commands and flags that no page names.
fn missing(command: &Command) -> Vec<String> {
    let of_this = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let flags = of_this.filter_map(|arg| arg.get_long()).filter(|flag| *flag != "help");
    let flags = flags.map(|flag| format!("--{flag}"));
    let commands = || command.get_subcommands().filter(|command| command.get_name() != "help");
    let names = commands().map(|command| format!("marline {}", command.get_name()));
    let here = flags.chain(names).filter(|wanted| !PAGES.contains(wanted.as_str()));
    here.chain(commands().flat_map(missing)).collect()
}

#[test]
fn the_docs_name_every_command_and_flag() {
    assert_eq!(missing(&Args::command()), Vec::<String>::new());
}
