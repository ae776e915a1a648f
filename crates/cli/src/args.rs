//! What was typed. What it means is for `config.rs` and the commands to say.

use crate::units::{Bytes, Named, Time};
use clap::{Args as Arguments, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Tasks, actors, channels and durable jobs in one runtime.
///
/// Start with `marline up`; then, in another terminal: `marline run -- echo hello`, `marline status`.
#[derive(Parser, Debug)]
#[command(name = "marline", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Args {
    /// The controller to speak to: HOST:PORT or unix:/path. Without it, the cluster that runs here.
    #[arg(long, global = true, env = "MARLINE_ADDRESS", value_name = "ADDRESS")]
    pub address: Option<String>,

    /// The file with the cluster's token, readable by you alone.
    #[arg(long, global = true, env = "MARLINE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// A file with settings (address, token_file): TOML.
    #[arg(long, global = true, env = "MARLINE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Answers as JSON, for programs.
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Settings come from flags, then from the environment, then from the configuration file
(~/.config/marline/config.toml), then from the cluster that runs on this machine.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no cluster could be reached, 4 no such thing,
5 not allowed. `run` ends as its command does (128 + N if signal N ended it), and with 125 if the
command could not be run. 130: interrupted.";

#[derive(Subcommand, Debug)]
pub enum Command {
    /// A whole cluster in one process: a controller and a worker. The place to start
    Up(Up),
    /// A controller alone, for workers elsewhere to join
    Controller(Controller),
    /// A worker that joins a controller and runs commands
    Worker(Worker),
    /// Runs a command on the cluster, and ends as it does
    Run(Run),
    /// The cluster as a whole, and why anything waits
    Status,
    /// Tasks: those that have not ended, then those that have
    Tasks(Tasks),
    /// Actors, the latest first
    Actors(Limit),
    /// Workers, and what is free there
    Workers(Limit),
    /// Has a worker finish what it has, and leave
    Drain(Drain),
    /// Stops tasks
    Cancel(Cancel),
    /// What a task or an actor printed
    Logs(Logs),
    /// Completions for your shell: source what it prints
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// Where a process listens, and how it behaves.
#[derive(Arguments, Debug)]
pub struct Listen {
    /// Where to listen: IP:PORT (0: any free port) or unix:/path
    #[arg(long, default_value = "127.0.0.1:7420", value_name = "ADDRESS")]
    pub listen: String,

    /// A process that is not heard for this long is lost
    #[arg(long, default_value = "30s", value_name = "TIME")]
    pub lease: Time,

    /// How long results are kept that no session holds
    #[arg(long, default_value = "10m", value_name = "TIME")]
    pub result_ttl: Time,

    /// The most tasks that have not ended
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    pub max_pending_tasks: usize,
}

/// What a worker offers.
#[derive(Arguments, Debug)]
pub struct Offer {
    /// Logical CPUs; as many as this process may use, unless said otherwise
    #[arg(long, value_name = "COUNT")]
    pub cpus: Option<f64>,

    /// GPUs
    #[arg(long, default_value_t = 0.0, value_name = "COUNT")]
    pub gpus: f64,

    /// Memory, as in 4GiB
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<Bytes>,

    /// Anything else: NAME=AMOUNT; may be repeated
    #[arg(long = "resource", value_name = "NAME=AMOUNT")]
    pub custom: Vec<Named>,

    /// It may be taken away at any time: work that must not be is not placed here
    #[arg(long)]
    pub preemptible: bool,

    /// The most memory that one executor may take, as in 2GiB
    #[arg(long, value_name = "BYTES")]
    pub executor_memory: Option<Bytes>,

    /// How long work may run on when the process is asked to end
    #[arg(long, default_value = "30s", value_name = "TIME")]
    pub grace: Time,

    /// What tasks print goes to their logs only
    #[arg(long)]
    pub quiet: bool,
}

#[derive(Arguments, Debug)]
pub struct Up {
    #[command(flatten)]
    pub listen: Listen,
    #[command(flatten)]
    pub offer: Offer,
}

#[derive(Arguments, Debug)]
pub struct Controller {
    #[command(flatten)]
    pub listen: Listen,
}

#[derive(Arguments, Debug)]
pub struct Worker {
    /// Where to listen for direct calls: IP:PORT (0: any free port) or unix:/path
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    pub listen: String,
    #[command(flatten)]
    pub offer: Offer,
}

#[derive(Arguments, Debug)]
pub struct Run {
    /// Logical CPUs that it takes
    #[arg(long, default_value_t = 1.0, value_name = "COUNT")]
    pub cpus: f64,

    /// GPUs that it takes
    #[arg(long, default_value_t = 0.0, value_name = "COUNT")]
    pub gpus: f64,

    /// Memory that it takes, as in 512MiB
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<Bytes>,

    /// Anything else that it takes: NAME=AMOUNT; may be repeated
    #[arg(long = "resource", value_name = "NAME=AMOUNT")]
    pub custom: Vec<Named>,

    /// How often it may run again after its executor or worker was lost
    #[arg(long, default_value_t = 3, value_name = "COUNT")]
    pub retries: u32,

    /// How long one attempt may take
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Time>,

    /// The folder it runs in, on the worker's machine; the worker's own, unless said otherwise
    #[arg(long, value_name = "FOLDER")]
    pub cwd: Option<String>,

    /// A variable for it: NAME=VALUE; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE")]
    pub variables: Vec<String>,

    /// It reads what this process reads, up to its end
    #[arg(long)]
    pub stdin: bool,

    /// Never on a worker that may be taken away at any time
    #[arg(long)]
    pub not_preemptible: bool,

    /// Says the task's id and does not wait: `marline logs ID` and `marline tasks` say more
    #[arg(long)]
    pub detach: bool,

    /// The command, after `--`
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum State {
    Pending,
    Assigned,
    Running,
    Finished,
    Failed,
    Cancelled,
}

#[derive(Arguments, Debug)]
pub struct Limit {
    /// How many at most
    #[arg(long, short = 'n', default_value_t = 50, value_name = "COUNT")]
    pub limit: u32,
}

#[derive(Arguments, Debug)]
pub struct Tasks {
    #[command(flatten)]
    pub limit: Limit,

    /// Only those in this state; may be repeated
    #[arg(long = "state", value_name = "STATE")]
    pub states: Vec<State>,
}

#[derive(Arguments, Debug)]
pub struct Drain {
    /// The worker, as `marline workers` names it
    pub worker: String,

    /// How long its work may run on
    #[arg(long, default_value = "30s", value_name = "TIME")]
    pub grace: Time,

    /// Does not wait until it has left
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Arguments, Debug)]
pub struct Cancel {
    /// The tasks, as `marline tasks` names them
    #[arg(required = true)]
    pub tasks: Vec<String>,

    /// At once, instead of asking them to stop
    #[arg(long)]
    pub force: bool,
}

#[derive(Arguments, Debug)]
pub struct Logs {
    /// The task or the actor
    pub id: String,

    /// Goes on until it has ended
    #[arg(long, short)]
    pub follow: bool,
}
