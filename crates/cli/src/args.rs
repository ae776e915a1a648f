//! The command line as typed: commands, flags, and the texts of `--help`. `config.rs` and the
//! commands say what they mean.

use crate::units::{Bytes, Count, NamedAmount, Time};
use clap::{Args as Arguments, Parser, Subcommand, ValueEnum};
use marline_runtime::control::check_address;
use marline_runtime::runtime_log::{LOG_FORMAT_VARIABLE, LOG_VARIABLE, LogFilter, LogFormat};
use marline_runtime::{DURABLE_VARIABLE, SPILL_VARIABLE, STORE_VARIABLE};
use std::path::PathBuf;

/// Tasks, actors and channels in one runtime.
///
/// Start with `marline up`. Then, in another terminal: `marline run -- echo hello` and `marline
/// status`.
#[derive(Parser, Debug)]
#[command(name = "marline", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Args {
    /// The cluster's controller, as HOST:PORT or unix:/path; without it, the cluster that runs on
    /// this machine.
    #[arg(long, global = true, env = "MARLINE_ADDRESS", value_name = "ADDRESS", help_heading = CLUSTER,
          value_parser = address)]
    pub address: Option<String>,

    /// The file with the cluster's token; only you may be able to read it.
    #[arg(long, global = true, env = "MARLINE_TOKEN_FILE", value_name = "FILE", help_heading = CLUSTER)]
    pub token_file: Option<PathBuf>,

    /// The settings file, instead of ~/.config/marline/config.toml.
    #[arg(long, global = true, env = "MARLINE_CONFIG", value_name = "FILE", help_heading = CLUSTER)]
    pub config: Option<PathBuf>,

    /// Log the work of this process on standard error. LEVEL is off, error, warn, info, debug or
    /// trace, or gives levels to parts, as in info,net=debug.
    #[arg(long, global = true, env = LOG_VARIABLE, value_name = "LEVEL", help_heading = CLUSTER)]
    pub log: Option<LogFilter>,

    /// Write the log as text or as JSON.
    #[arg(long, global = true, env = LOG_FORMAT_VARIABLE, default_value = "text", value_name = "FORMAT",
          help_heading = CLUSTER)]
    pub log_format: LogFormat,

    /// Print answers and errors as JSON, for scripts.
    #[arg(long, global = true, help_heading = CLUSTER)]
    pub json: bool,

    #[command(subcommand)]
    pub command: Command,
}

/// Checks that an address is well formed. An empty one, as from an empty variable, counts as not
/// given.
fn address(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    match check_address(text) {
        Ok(()) => Ok(text.into()),
        Err(error) => Err(error.message().into()),
    }
}

const CLUSTER: &str = "Cluster and output";

const AFTER_HELP: &str = "\
The first five minutes:
  marline up                               start a cluster in this terminal; then, in another one:
  marline run -- echo hello                run a command on it
  marline status                           see what the cluster has, and why work waits
  marline run --detach -- sleep 60         run a command without waiting for it
  marline tasks                            see the command run
  marline help run                         see every flag of `run`

A setting comes from its flag; else from its environment variable; else from the settings file
(~/.config/marline/config.toml); else from the cluster that runs on this machine.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no cluster could be reached, 4 no such task, actor
or worker, 5 not allowed, 130 interrupted. `run` exits with the status of its command (128 + N if
signal N ended it), with 124 if the command took longer than its --timeout, with 125 if the command
could not be run. `run` and `logs` exit with 141 if the reader of their output has gone.";

const UP_HELP: &str = "\
Examples:
  marline up                               on 127.0.0.1:7420, with every CPU of this machine
  marline up --listen 127.0.0.1:0          on any free port
  marline up --listen 0.0.0.0:7420         open to other machines, which need the token file
  marline up --cpus 4 --resource licence=2
  marline up --object-store-memory 8GiB --spill-dir /mnt/scratch     for large values

Next, in another terminal: `marline run -- echo hello`, or in Python marline.init(\"auto\").

Ctrl-C lets running work finish, for at most --grace, and then ends the cluster. A second Ctrl-C
ends the cluster at once.";

const CONTROLLER_HELP: &str = "\
Examples:
  marline controller --listen 0.0.0.0:7420 --token-file cluster.token
  marline worker --address HOST:7420 --token-file cluster.token      on each other machine

The controller creates the token file if it does not exist. Next: copy the file to each machine,
start a worker there, and see with `marline workers` that it has joined.

Ctrl-C and SIGTERM let the workers finish their work, for at most --grace. A second signal ends the
controller at once.";

const WORKER_HELP: &str = "\
Examples:
  marline worker                           join the cluster that runs on this machine
  marline worker --address 10.0.0.5:7420 --token-file cluster.token --listen 0.0.0.0:0

The worker runs commands, and tasks and actors in Python. It uses the Python that --python names,
else the Python that this program was installed with. Tasks and actors in Rust need a worker program
of your own: see marline::Worker.

With --listen 0.0.0.0:0, clients on other machines can read logs and call actors of this worker.
Next: `marline workers` shows what the worker offers and what is free.

Ctrl-C, SIGTERM and `marline drain` let the worker finish its work, for at most --grace, and leave.
A second signal ends it at once.";

const RUN_HELP: &str = "\
Examples:
  marline run -- make -j4                  print its output, exit with its status
  marline run --cpus 4 --memory 2GiB --timeout 10m -- ./train
  marline run --cwd \"$PWD\" --env MODE=fast -- ./here
  sort names.txt | marline run --stdin -- uniq -c
  marline run --detach -- ./long           print the task's id; next: marline logs -f ID

While a command waits for a worker, `run` says why; `marline status` and `marline tasks` say it too.

Ctrl-C asks the command to stop (SIGTERM). If it does not stop within five seconds, it is killed
with everything that it started. A second Ctrl-C kills it at once. If `marline run` itself dies, its
command is stopped too.";

const STATUS_HELP: &str = "\
Examples:
  marline status
  marline --json status                    the same for scripts, with more counters

`waiting` lines say how many tasks wait, and why. Next: `marline tasks --state pending` lists them,
`marline workers` shows what each worker has free.";

const TASKS_HELP: &str = "\
Examples:
  marline tasks
  marline tasks --state pending --state running
  marline --json tasks --limit 1000

WHY says why a task waits, or how it failed. A call that goes directly to an actor is listed only
after it has ended. Next: `marline logs ID` prints a task's output, `marline cancel ID` stops it.";

const ACTORS_HELP: &str = "\
Examples:
  marline actors
  marline --json actors --limit 1000       also each actor's namespace and worker

WHY says why an actor waits, or why it ended. Next: `marline logs ID` prints an actor's output,
`marline kill ID` ends the actor for good.";

const MEMORY_HELP: &str = "\
Examples:
  marline memory
  marline --json memory --limit 1000

The first table is the object store of each worker: memory used, its limit, and bytes on disk. The
second is the values that are held, the largest first. HELD BY says what keeps a value: it is freed
when its last holder has released it. If a store is full, start its worker with a larger
--object-store-memory.";

const WORKERS_HELP: &str = "\
Examples:
  marline workers
  marline --json workers                   also each worker's version, address and Python

FREE is what the worker can still give to tasks, TOTAL what it offers. Next: `marline worker` starts
one more worker, `marline drain ID` lets one finish its work and leave.";

const DRAIN_HELP: &str = "\
Examples:
  marline workers                          list the workers and their ids
  marline drain 01a1e0b7-2475-7430-bfcc-b95c3f68cfa3 --grace 5m

The worker takes no new work. After --grace, its unfinished tasks run elsewhere, from their
beginning; tasks with max_retries=0 fail. Its actors restart elsewhere, and calls that still run
fail unless max_task_retries lets Marline repeat them. Next: `marline workers` shows that the worker
is draining, or no longer lists it.";

const CANCEL_HELP: &str = "\
Examples:
  marline tasks --state running            list the running tasks and their ids
  marline cancel 01a1e0b7-2734-77fe-a04b-8f2aff3d2e76

A running task is asked to stop; --force ends it without asking. If one of several ids is wrong, no
task is cancelled. Next: `marline tasks` shows the new state. `marline kill` ends an actor.";

const KILL_HELP: &str = "\
Examples:
  marline actors                           list the actors and their ids
  marline kill 01a1e0b7-2734-77fe-a04b-8f2aff3d2e76
  marline kill --namespace billing ledger  by its name

Each actor ends at once and for good: it is not restarted, and calls that have not ended fail. If
one of several actors is not known, none is ended. Next: `marline actors` shows them as dead.";

const LOGS_HELP: &str = "\
Examples:
  marline logs -f 01a1e0b7-2734-77fe-a04b-8f2aff3d2e76 2>/dev/null
  marline logs 01a1e0b7-2734 01a1e0b7-2475                 several, by their first characters

Text that a task wrote to standard error goes to standard error here too. The worker that ran the
task keeps the latest MiB of each log, as long as the worker lives. Next: `marline tasks` says how
the task ended.";

const TOKEN_HELP: &str = "\
Examples:
  marline token
  grpcurl -plaintext -H \"authorization: Bearer $(marline token)\" 127.0.0.1:7420 \\
      marline.v1.Control/ClusterResources

The printed token is good for 60 s at this cluster's controller and workers, and ends earlier if the
controller restarts. gRPC does not prove the server: a program that listens at the controller's
address can use the token until then. The cluster's own token is never sent. Next: docs/protocol.md
describes the services.";

const COMPLETIONS_HELP: &str = "\
Examples:
  source <(marline completions bash)                                  in ~/.bashrc
  source <(marline completions zsh)                                   in ~/.zshrc
  marline completions fish > ~/.config/fish/completions/marline.fish  once

Next: open a new shell, type `marline ` and press Tab.";

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start a whole cluster in one process, a controller and a worker: the place to begin
    #[command(after_help = UP_HELP)]
    Up(Up),
    /// Start a controller alone, for workers on other machines to join
    #[command(after_help = CONTROLLER_HELP)]
    Controller(Controller),
    /// Start a worker that joins a controller and runs commands and Python
    #[command(after_help = WORKER_HELP)]
    Worker(Worker),
    /// Run a command on the cluster, print its output, and exit with its status
    #[command(after_help = RUN_HELP)]
    Run(Run),
    /// Show the cluster as a whole, and why work waits
    #[command(after_help = STATUS_HELP)]
    Status,
    /// List tasks: first those that have not ended, then those that have
    #[command(after_help = TASKS_HELP)]
    Tasks(Tasks),
    /// List actors, the latest first
    #[command(after_help = ACTORS_HELP)]
    Actors(Limit),
    /// Show how full the object stores are, and list values: the largest first, with their holders
    #[command(after_help = MEMORY_HELP)]
    Memory(Limit),
    /// List workers, and the resources that each has free
    #[command(after_help = WORKERS_HELP)]
    Workers(Limit),
    /// Let a worker finish its work and leave the cluster
    #[command(after_help = DRAIN_HELP)]
    Drain(Drain),
    /// Cancel tasks
    #[command(after_help = CANCEL_HELP)]
    Cancel(Cancel),
    /// End actors for good, also detached ones
    #[command(after_help = KILL_HELP)]
    Kill(Kill),
    /// Print the output of tasks and actors
    #[command(after_help = LOGS_HELP)]
    Logs(Logs),
    /// Print a token that is good for 60 s, for grpcurl and other gRPC clients
    #[command(after_help = TOKEN_HELP)]
    Token,
    /// Print completions for your shell, to be sourced by it
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Where a controller listens, and its limits.
#[derive(Arguments, Debug)]
pub struct Listen {
    /// The address to listen on: IP:PORT (port 0: any free port) or unix:/path
    #[arg(long, env = "MARLINE_LISTEN", default_value = "127.0.0.1:7420", value_name = "ADDRESS")]
    pub listen: String,

    /// A worker or client that is silent for this long is lost; it survives a silence of at most
    /// four fifths of this
    #[arg(long, env = "MARLINE_LEASE", default_value = "30s", value_name = "TIME")]
    pub lease: Time,

    /// How long to keep results that no session holds
    #[arg(long, env = "MARLINE_RESULT_TTL", default_value = "10m", value_name = "TIME")]
    pub result_ttl: Time,

    /// The most tasks that may be unfinished at a time
    #[arg(
        long,
        env = "MARLINE_MAX_PENDING_TASKS",
        default_value_t = 1_000_000,
        value_name = "COUNT"
    )]
    pub max_pending_tasks: usize,

    /// How long a task or actor waits if no worker can run it (none has its code, or its Python);
    /// then it fails
    #[arg(long, env = "MARLINE_UNKNOWN_TASK_WAIT", default_value = "60s", value_name = "TIME")]
    pub unknown_task_wait: Time,

    /// The most memory for the arguments of unfinished tasks and of actors, as in 1GiB; one client
    /// gets at most half
    #[arg(long, env = "MARLINE_MAX_PENDING_BYTES", default_value = "1GiB", value_name = "BYTES")]
    pub max_pending_bytes: Bytes,
}

/// The resources that a worker offers, and how it runs work.
#[derive(Arguments, Debug)]
pub struct WorkerOffer {
    /// Logical CPUs to offer; without it, as many as this process may use
    #[arg(long, env = "MARLINE_CPUS", value_name = "COUNT")]
    pub cpus: Option<Count>,

    /// GPUs to offer
    #[arg(long, env = "MARLINE_GPUS", default_value_t = Count(0.0), value_name = "COUNT")]
    pub gpus: Count,

    /// Memory to offer to tasks that reserve some, as in 4GiB; without it, none
    #[arg(long, env = "MARLINE_MEMORY", value_name = "BYTES")]
    pub memory: Option<Bytes>,

    /// Another resource to offer, as NAME=AMOUNT; may be repeated
    #[arg(long = "resource", value_name = "NAME=AMOUNT")]
    pub custom: Vec<NamedAmount>,

    /// This machine may be taken away at any time: place no work here that asks for a machine that
    /// stays
    #[arg(long)]
    pub preemptible: bool,

    /// The most address space of one executor process, as in 2GiB; without it, no limit
    #[arg(long, env = "MARLINE_EXECUTOR_MEMORY", value_name = "BYTES")]
    pub executor_memory: Option<Bytes>,

    /// The most shared memory for large values, as in 4GiB; without it, 30 % of all memory
    #[arg(long, env = STORE_VARIABLE, value_name = "BYTES")]
    pub object_store_memory: Option<Bytes>,

    /// The folder for large values that do not fit in memory; without it, the folder for temporary
    /// files; "" keeps values off the disk
    #[arg(long, env = SPILL_VARIABLE, value_name = "FOLDER")]
    pub spill_dir: Option<String>,

    /// The folder for values that outlive their node (durable=True): the same for every worker, on
    /// a disk that all nodes see; without it, no value can be durable
    #[arg(long, env = DURABLE_VARIABLE, value_name = "FOLDER")]
    pub durable_dir: Option<String>,

    /// How long running work may go on after this process was asked to end
    #[arg(long, env = "MARLINE_GRACE", default_value = "30s", value_name = "TIME")]
    pub grace: Time,

    /// Do not show here what tasks print; it goes to their logs only
    #[arg(long)]
    pub quiet: bool,

    /// The Python that runs tasks and actors in Python; it must have the package marline; without
    /// --python, the Python that `marline` was installed with by pip, if any
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

    /// How long running work may go on after this process was asked to end
    #[arg(long, env = "MARLINE_GRACE", default_value = "30s", value_name = "TIME")]
    pub grace: Time,
}

#[derive(Arguments, Debug)]
pub struct Worker {
    /// The address to listen on for direct calls: IP:PORT (port 0: any free port) or unix:/path
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
    /// The task's name in `marline tasks`; without it, the program's name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Logical CPUs to reserve
    #[arg(long, default_value_t = Count(1.0), value_name = "COUNT")]
    pub cpus: Count,

    /// GPUs to reserve
    #[arg(long, default_value_t = Count(0.0), value_name = "COUNT")]
    pub gpus: Count,

    /// Memory to reserve, as in 512MiB; it is counted, not enforced
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<Bytes>,

    /// Another resource to reserve, as NAME=AMOUNT; may be repeated
    #[arg(long = "resource", value_name = "NAME=AMOUNT")]
    pub custom: Vec<NamedAmount>,

    /// How often to run the command again after its executor or worker was lost
    #[arg(long, default_value_t = 3, value_name = "COUNT")]
    pub retries: u32,

    /// The longest that one attempt may take
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Time>,

    /// The folder to run in, on the worker's machine; without it, the worker's own folder
    #[arg(long, value_name = "FOLDER")]
    pub cwd: Option<String>,

    /// A variable for the command, as NAME=VALUE; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE")]
    pub variables: Vec<String>,

    /// Read all of standard input first, at most 32 MiB, and give it to the command
    #[arg(long)]
    pub stdin: bool,

    /// Do not use a worker that may be taken away at any time
    #[arg(long)]
    pub not_preemptible: bool,

    /// Print the task's id and do not wait; next: `marline logs ID`, `marline tasks`
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

/// The most items that one answer of the cluster lists.
const MAX_LIMIT: i64 = 1_000;

#[derive(Arguments, Debug)]
pub struct Limit {
    /// How many to list, at most 1,000
    #[arg(long, short = 'n', default_value_t = 50, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..=MAX_LIMIT))]
    pub limit: u32,
}

#[derive(Arguments, Debug)]
pub struct Tasks {
    #[command(flatten)]
    pub limit: Limit,

    /// List only tasks in this state; may be repeated
    #[arg(long = "state", value_name = "STATE")]
    pub states: Vec<TaskStateArg>,
}

#[derive(Arguments, Debug)]
pub struct Drain {
    /// The worker's id from `marline workers`, or its first characters (at least 8)
    pub worker: String,

    /// How long the worker's tasks and calls may still run
    #[arg(long, default_value = "30s", value_name = "TIME")]
    pub grace: Time,

    /// Do not wait until the worker has left
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Arguments, Debug)]
pub struct Cancel {
    /// Ids from `marline tasks`, or their first characters (at least 8)
    #[arg(required = true)]
    pub tasks: Vec<String>,

    /// End running tasks at once, without asking them to stop
    #[arg(long)]
    pub force: bool,
}

#[derive(Arguments, Debug)]
pub struct Kill {
    /// Names or ids from `marline actors`; the first characters of an id are enough (at least 8)
    #[arg(required = true, value_name = "ACTOR")]
    pub actors: Vec<String>,

    /// The namespace of actors that are given by name
    #[arg(long, default_value = "default", value_name = "NAMESPACE")]
    pub namespace: String,
}

#[derive(Arguments, Debug)]
pub struct Logs {
    /// Ids from `marline tasks` or `marline actors`, or their first characters (at least 8)
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,

    /// Print until the task or actor has ended; several are followed one after the other
    #[arg(long, short)]
    pub follow: bool,
}
