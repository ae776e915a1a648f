//! What was typed. What it means is for `config.rs` and the commands to say.

use crate::units::{Bytes, Count, NamedAmount, Time};
use clap::{Args as Arguments, Parser, Subcommand, ValueEnum};
use marline_runtime::control::check_address;
use marline_runtime::{DURABLE_VARIABLE, SPILL_VARIABLE, STORE_VARIABLE};
use std::path::PathBuf;

/// Tasks, actors, channels and durable jobs in one runtime.
///
/// Start with `marline up`; then, in another terminal: `marline run -- echo hello`, `marline status`.
#[derive(Parser, Debug)]
#[command(name = "marline", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Args {
    /// The controller to speak to: HOST:PORT or unix:/path. Without it, the cluster that runs here.
    #[arg(long, global = true, env = "MARLINE_ADDRESS", value_name = "ADDRESS", help_heading = CLUSTER,
          value_parser = address)]
    pub address: Option<String>,

    /// The file with the cluster's token, readable by you alone.
    #[arg(long, global = true, env = "MARLINE_TOKEN_FILE", value_name = "FILE", help_heading = CLUSTER)]
    pub token_file: Option<PathBuf>,

    /// A file with settings, instead of ~/.config/marline/config.toml.
    #[arg(long, global = true, env = "MARLINE_CONFIG", value_name = "FILE", help_heading = CLUSTER)]
    pub config: Option<PathBuf>,

    /// Answers as JSON, for programs.
    #[arg(long, global = true, help_heading = CLUSTER)]
    pub json: bool,

    #[command(subcommand)]
    pub command: Command,
}

/// An address that makes sense, or none: a variable that is empty says nothing.
fn address(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    match check_address(text) {
        Ok(()) => Ok(text.into()),
        Err(error) => Err(error.message().into()),
    }
}

const CLUSTER: &str = "Which cluster, and how it answers";

const AFTER_HELP: &str = "\
The first five minutes:
  marline up                               a cluster in this terminal; in another one:
  marline run -- echo hello                run a command on it
  marline status                           what there is, and why anything waits
  marline run --detach -- sleep 60         run something that nobody waits for
  marline tasks                            see it run
  marline help run                         what else a command can be given

Settings come from flags, then from the environment, then from the configuration file
(~/.config/marline/config.toml), then from the cluster that runs on this machine.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no cluster could be reached, 4 no such thing,
5 not allowed, 130 interrupted. `run` ends as its command does (128 + N if signal N ended it), with
124 if it took longer than its --timeout, with 125 if it could not be run.";

const UP_HELP: &str = "\
Examples:
  marline up                               on 127.0.0.1:7420, with every CPU there is
  marline up --listen 127.0.0.1:0          on any free port
  marline up --listen 0.0.0.0:7420         also for other machines; they need the token file
  marline up --cpus 4 --resource licence=2
  marline up --object-store-memory 8GiB --spill-dir /mnt/scratch     for large values

Ctrl-C has it finish what runs, for as long as --grace says, and end; a second one ends it at once.";

const CONTROLLER_HELP: &str = "\
Examples:
  marline controller --listen 0.0.0.0:7420 --token-file cluster.token
  marline worker --address HOST:7420 --token-file cluster.token      on each other machine

The token file is made if it is not there.";

const WORKER_HELP: &str = "\
Examples:
  marline worker                           joins the cluster that runs on this machine
  marline worker --address 10.0.0.5:7420 --token-file cluster.token --listen 0.0.0.0:0

It runs commands; and tasks and actors in Python, with the Python that this program was installed
with or that --python names. Those in Rust need a worker of your own: see marline::Worker.

With --listen 0.0.0.0:0 clients on other machines can read logs and call actors here. Ctrl-C,
SIGTERM or `marline drain` have it finish what runs and leave; a second signal ends it at once.";

const RUN_HELP: &str = "\
Examples:
  marline run -- make -j4                  prints what it prints, ends as it does
  marline run --cpus 4 --memory 2GiB --timeout 10m -- ./train
  marline run --cwd \"$PWD\" --env MODE=fast -- ./here
  sort names.txt | marline run --stdin -- uniq -c
  marline run --detach -- ./long           says an id, for `marline logs` and `marline cancel`

Ctrl-C asks the command to stop (SIGTERM), and kills it and all that it started if it does not within
five seconds; a second Ctrl-C kills it at once. If this process dies, the command is stopped too.";

const DRAIN_HELP: &str = "\
Examples:
  marline workers                          says which there are
  marline drain 01a1e0b7-2475-7430-bfcc-b95c3f68cfa3 --grace 5m";

const CANCEL_HELP: &str = "\
Examples:
  marline tasks --state running            says which there are
  marline cancel 01a1e0b7-2734-77fe-a04b-8f2aff3d2e76";

const KILL_HELP: &str = "\
Examples:
  marline actors                           says which there are
  marline kill 01a1e0b7-2734-77fe-a04b-8f2aff3d2e76
  marline kill --namespace billing ledger  by its name

They end for good, at once: they are not restarted, and calls that have not ended fail.";

const LOGS_HELP: &str = "\
Examples:
  marline logs -f 01a1e0b7-2734-77fe-a04b-8f2aff3d2e76 2>/dev/null
  marline logs 01a1e0b7-2734 01a1e0b7-2475                                      several, by how they begin

What was printed to standard error goes to standard error. A worker keeps the latest MiB of each log.";

const TOKEN_HELP: &str = "\
Examples:
  grpcurl -plaintext -H \"authorization: Bearer $(marline token)\" 127.0.0.1:7420 marline.v1.Control/ClusterResources

It is good at this cluster's controller and workers, until the controller is restarted. gRPC does not prove the
server: a program that listens at the controller's address can use the token for 60 s. The cluster's own token is
never sent.";

const COMPLETIONS_HELP: &str = "\
Examples:
  source <(marline completions bash)                                            in ~/.bashrc
  source <(marline completions zsh)                                             in ~/.zshrc
  marline completions fish > ~/.config/fish/completions/marline.fish            once";

#[derive(Subcommand, Debug)]
pub enum Command {
    /// A whole cluster in one process: a controller and a worker. The place to start
    #[command(after_help = UP_HELP)]
    Up(Up),
    /// A controller alone, for workers elsewhere to join
    #[command(after_help = CONTROLLER_HELP)]
    Controller(Controller),
    /// A worker that joins a controller, and runs commands and Python
    #[command(after_help = WORKER_HELP)]
    Worker(Worker),
    /// Runs a command on the cluster, and ends as it does
    #[command(after_help = RUN_HELP)]
    Run(Run),
    /// The cluster as a whole, and why anything waits
    Status,
    /// Tasks: those that have not ended, then those that have
    Tasks(Tasks),
    /// Actors, the latest first
    Actors(Limit),
    /// How full the workers' stores are; values, the largest first: how large, where, and who holds them
    Memory(Limit),
    /// Workers, and what is free there
    Workers(Limit),
    /// Has a worker finish what it has, and leave
    #[command(after_help = DRAIN_HELP)]
    Drain(Drain),
    /// Stops tasks
    #[command(after_help = CANCEL_HELP)]
    Cancel(Cancel),
    /// Ends actors, also detached ones
    #[command(after_help = KILL_HELP)]
    Kill(Kill),
    /// What tasks and actors printed
    #[command(after_help = LOGS_HELP)]
    Logs(Logs),
    /// Prints a token that is good for 60 s, for grpcurl and other gRPC clients
    #[command(after_help = TOKEN_HELP)]
    Token,
    /// Completions for your shell: source what it prints
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// Where a process listens, and how it behaves.
#[derive(Arguments, Debug)]
pub struct Listen {
    /// Where to listen: IP:PORT (0: any free port) or unix:/path
    #[arg(long, env = "MARLINE_LISTEN", default_value = "127.0.0.1:7420", value_name = "ADDRESS")]
    pub listen: String,

    /// A process that is silent for this long is lost; it survives a silence of at most four fifths of it
    #[arg(long, env = "MARLINE_LEASE", default_value = "30s", value_name = "TIME")]
    pub lease: Time,

    /// How long results are kept that no session holds
    #[arg(long, env = "MARLINE_RESULT_TTL", default_value = "10m", value_name = "TIME")]
    pub result_ttl: Time,

    /// The most tasks that have not ended
    #[arg(
        long,
        env = "MARLINE_MAX_PENDING_TASKS",
        default_value_t = 1_000_000,
        value_name = "COUNT"
    )]
    pub max_pending_tasks: usize,

    /// How long work waits that no worker here can run (none provides it, or has its Python) before it fails
    #[arg(long, env = "MARLINE_UNKNOWN_TASK_WAIT", default_value = "60s", value_name = "TIME")]
    pub unknown_task_wait: Time,

    /// The most memory for arguments of tasks that have not ended and of actors, as in 1GiB; half of it for one client
    #[arg(long, env = "MARLINE_MAX_PENDING_BYTES", default_value = "1GiB", value_name = "BYTES")]
    pub max_pending_bytes: Bytes,
}

/// What a worker offers.
#[derive(Arguments, Debug)]
pub struct WorkerOffer {
    /// Logical CPUs; as many as this process may use, unless said otherwise
    #[arg(long, env = "MARLINE_CPUS", value_name = "COUNT")]
    pub cpus: Option<Count>,

    /// GPUs
    #[arg(long, env = "MARLINE_GPUS", default_value_t = Count(0.0), value_name = "COUNT")]
    pub gpus: Count,

    /// Memory, as in 4GiB
    #[arg(long, env = "MARLINE_MEMORY", value_name = "BYTES")]
    pub memory: Option<Bytes>,

    /// Anything else: NAME=AMOUNT; may be repeated
    #[arg(long = "resource", value_name = "NAME=AMOUNT")]
    pub custom: Vec<NamedAmount>,

    /// It may be taken away at any time: work that must not be is not placed here
    #[arg(long)]
    pub preemptible: bool,

    /// The most memory that one executor may take, as in 2GiB
    #[arg(long, env = "MARLINE_EXECUTOR_MEMORY", value_name = "BYTES")]
    pub executor_memory: Option<Bytes>,

    /// The most memory that large values may take (shared by all who read them), as in 4GiB; 30 % of what there is,
    /// unless said otherwise
    #[arg(long, env = STORE_VARIABLE, value_name = "BYTES")]
    pub object_store_memory: Option<Bytes>,

    /// The folder for large values that have no room there; "": nothing goes to the disk. The usual one for temporary
    /// files, unless said otherwise
    #[arg(long, env = SPILL_VARIABLE, value_name = "FOLDER")]
    pub spill_dir: Option<String>,

    /// The folder for values that are to outlive their node (durable=True): on a disk that all nodes see, the same for
    /// all. Without one, nothing can be durable
    #[arg(long, env = DURABLE_VARIABLE, value_name = "FOLDER")]
    pub durable_dir: Option<String>,

    /// How long work may run on when the process is asked to end
    #[arg(long, env = "MARLINE_GRACE", default_value = "30s", value_name = "TIME")]
    pub grace: Time,

    /// What tasks print goes to their logs only
    #[arg(long)]
    pub quiet: bool,

    /// The Python that runs tasks and actors in Python, which has the package marline; the one that this
    /// program was installed with by pip, if it was, unless said otherwise
    #[arg(long, env = "MARLINE_PYTHON", value_name = "PROGRAM")]
    pub python: Option<PathBuf>,
}

#[derive(Arguments, Debug)]
pub struct Up {
    #[command(flatten)]
    pub listen: Listen,
    #[command(flatten)]
    pub offer: WorkerOffer,
}

#[derive(Arguments, Debug)]
pub struct Controller {
    #[command(flatten)]
    pub listen: Listen,

    /// How long work may run on when the process is asked to end
    #[arg(long, env = "MARLINE_GRACE", default_value = "30s", value_name = "TIME")]
    pub grace: Time,
}

#[derive(Arguments, Debug)]
pub struct Worker {
    /// Where to listen for direct calls: IP:PORT (0: any free port) or unix:/path
    #[arg(
        long,
        env = "MARLINE_WORKER_LISTEN",
        default_value = "127.0.0.1:0",
        value_name = "ADDRESS"
    )]
    pub listen: String,
    #[command(flatten)]
    pub offer: WorkerOffer,
}

#[derive(Arguments, Debug)]
pub struct Run {
    /// What it is called in `marline tasks`; the program's name, unless said otherwise
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Logical CPUs that it takes
    #[arg(long, default_value_t = Count(1.0), value_name = "COUNT")]
    pub cpus: Count,

    /// GPUs that it takes
    #[arg(long, default_value_t = Count(0.0), value_name = "COUNT")]
    pub gpus: Count,

    /// Memory that it takes, as in 512MiB
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<Bytes>,

    /// Anything else that it takes: NAME=AMOUNT; may be repeated
    #[arg(long = "resource", value_name = "NAME=AMOUNT")]
    pub custom: Vec<NamedAmount>,

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
pub enum TaskStateArg {
    Pending,
    Assigned,
    Running,
    Finished,
    Failed,
    Cancelled,
}

/// The most that one answer of the cluster lists.
const MAX_LIMIT: i64 = 1_000;

#[derive(Arguments, Debug)]
pub struct Limit {
    /// How many, 1,000 at most
    #[arg(long, short = 'n', default_value_t = 50, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..=MAX_LIMIT))]
    pub limit: u32,
}

#[derive(Arguments, Debug)]
pub struct Tasks {
    #[command(flatten)]
    pub limit: Limit,

    /// Only those in this state; may be repeated
    #[arg(long = "state", value_name = "STATE")]
    pub states: Vec<TaskStateArg>,
}

#[derive(Arguments, Debug)]
pub struct Drain {
    /// The worker, as `marline workers` names it, or how its id begins
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
    /// The tasks, as `marline tasks` names them, or how their ids begin
    #[arg(required = true)]
    pub tasks: Vec<String>,

    /// At once, instead of asking them to stop
    #[arg(long)]
    pub force: bool,
}

#[derive(Arguments, Debug)]
pub struct Kill {
    /// The actors, as `marline actors` names them: by their names, or by their ids or how these begin
    #[arg(required = true, value_name = "ACTOR")]
    pub actors: Vec<String>,

    /// The namespace that names count in
    #[arg(long, default_value = "default", value_name = "NAMESPACE")]
    pub namespace: String,
}

#[derive(Arguments, Debug)]
pub struct Logs {
    /// The tasks and actors, as `marline tasks` and `marline actors` name them, or how their ids begin
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,

    /// Goes on until it has ended; of several, until each has, one after the other
    #[arg(long, short)]
    pub follow: bool,
}
