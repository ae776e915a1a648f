//! Compares docs/cli.md with the commands and flags that exist.

use crate::args::Args;
use clap::{Command, CommandFactory};

const PAGE: &str = include_str!("../../../docs/cli.md");

/// Returns what the page must name and does not.
fn missing(command: &Command) -> Vec<String> {
    let of_this = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let flags = of_this.filter_map(|arg| arg.get_long()).filter(|flag| *flag != "help");
    let flags = flags.map(|flag| format!("--{flag}"));
    let commands = command.get_subcommands().filter(|command| command.get_name() != "help");
    let names = commands.clone().map(|command| format!("marline {}", command.get_name()));
    let here = flags.chain(names).filter(|wanted| !PAGE.contains(wanted.as_str()));
    here.chain(commands.flat_map(missing)).collect()
}

#[test]
fn the_page_about_the_command_line_names_every_command_and_flag() {
    assert_eq!(missing(&Args::command()), Vec::<String>::new());
}
