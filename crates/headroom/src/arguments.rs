//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::helpers::output::Format;
use crate::helpers::size::{Amount, Size};
use crate::helpers::user::User;

/// Names the socket of the daemon that a process belongs to.
pub const BINDERD_SOCKET_VARIABLE: &str = "HEADROOM_BINDERD_SOCKET";
/// Names the socket of `headroom-oomd`.
const OOMD_SOCKET_VARIABLE: &str = "HEADROOM_OOMD_SOCKET";

/// The socket that a variable names; an empty one names none.
fn socket(variable: &str, default: &str) -> PathBuf {
    let named = std::env::var_os(variable).filter(|path| !path.is_empty());
    named.map_or_else(|| default.into(), PathBuf::from)
}

fn binderd_socket() -> PathBuf {
    socket(BINDERD_SOCKET_VARIABLE, control::BINDERD_SOCKET)
}

fn oomd_socket() -> PathBuf {
    socket(OOMD_SOCKET_VARIABLE, control::OOMD_SOCKET)
}

/// A binder driver and an OOM manager for a stock kernel.
#[derive(Debug, Parser)]
#[command(name = "headroom", version, about)]
pub struct Arguments {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub command: Command,
}

/// What holds for every command.
#[derive(Debug, Args)]
pub struct Globals {
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Control socket of headroom-binderd; otherwise that of HEADROOM_BINDERD_SOCKET, which `run`
    /// sets
    #[arg(long, global = true, value_name = "PATH", default_value_os_t = binderd_socket())]
    pub binderd_socket: PathBuf,
    /// Control socket of headroom-oomd; otherwise that of HEADROOM_OOMD_SOCKET
    #[arg(long, global = true, value_name = "PATH", default_value_os_t = oomd_socket())]
    pub oomd_socket: PathBuf,
}

impl Globals {
    /// How results are printed.
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { Format::Text }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run both daemons in the foreground until Ctrl-C
    Up(Up),
    /// Run a command on a private bus, without root; the bus is gone with it
    ///
    /// Inside, /dev/binderfs and /dev/binder, hwbinder, vndbinder are the bus; everything else of
    /// /dev is as outside. HEADROOM_BINDER names the folder. The exit code is that of CMD (128 + n
    /// if signal n killed it), 127 if there is no such program, 126 if it cannot be run, 125 if
    /// there is no bus. What CMD leaves running is ended.
    Run(Run),
    /// Set, show and clear users' memory limits
    #[command(subcommand)]
    Limit(LimitCommand),
    /// Check headroom-oomd's configuration, have it read anew, or translate another daemon's
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Look now, and kill where a limit is broken
    RunOomKiller {
        /// Only this user (name or uid), group (@NAME) or cgroup (/PATH); all with a limit
        /// otherwise
        user: Option<User>,
    },
    /// Say which daemons run and how (exit code 1 if none does)
    Status,
    /// Show kills and warnings on the desktop, by notify-send, until interrupted; as lines where
    /// there is none
    Notify,
    /// Print what both daemons count, for Prometheus (exit code 1 if none runs)
    Metrics,
    /// Show users, their limits and how fast they near them, as it happens; keys set limits (`?`
    /// says which)
    Top(Top),
    /// Explain the latest decisions, newest first
    Why {
        /// So many decisions
        #[arg(short = 'n', long, default_value_t = 10, conflicts_with = "id")]
        number: u32,
        /// Go on with what happens, until interrupted: each decision when its end is known, and who
        /// nears its limit
        #[arg(short = 'f', long, conflicts_with = "id")]
        follow: bool,
        /// Only the decision with this number
        id: Option<u64>,
    },
    /// Say who would die now, and why
    Explain {
        /// If the limit of this user, group (@NAME) or cgroup (/PATH) were broken; otherwise, if
        /// the machine ran short of memory
        user: Option<User>,
    },
    /// Kill processes and get their memory back at once (exit code 1 if one is still there)
    Kill(Kill),
    /// Look into the OOM management
    #[command(subcommand)]
    Oom(OomCommand),
    /// Run a command whose memory is granted before it is used: where the user's limit does not
    /// allow it, malloc returns NULL instead of a kill
    Reserve(Reserve),
    /// Look into the binder driver
    #[command(subcommand)]
    Binder(BinderCommand),
    /// Say what this machine offers, what is missing, and what is lost by it (exit code 1 if a
    /// daemon cannot work here)
    Doctor,
    /// Print a script that completes this command line
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

/// Options of `up`.
#[derive(Debug, Args)]
pub struct Up {
    /// Where to mount the bus
    #[arg(long, value_name = "DIR", default_value = "/dev/binderfs")]
    pub mount: PathBuf,
    /// Link /dev/binder, hwbinder and vndbinder to the bus, where there are no such files, until
    /// Ctrl-C
    #[arg(long, conflicts_with = "no_binder")]
    pub link_dev: bool,
    /// Show in DIR/binder_logs who talks to whom, to everybody, as binderfs does with stats=global
    #[arg(long, conflicts_with = "no_binder")]
    pub binder_logs: bool,
    /// Leave headroom-binderd out
    #[arg(long, conflicts_with = "no_oom")]
    pub no_binder: bool,
    /// Leave headroom-oomd out
    #[arg(long)]
    pub no_oom: bool,
    /// Configuration of headroom-oomd, in place of /etc/headroom/oomd.toml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Options of `top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Seconds from one look to the next
    #[arg(short = 'd', long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: f64,
    /// Text instead of a screen, also on a terminal
    #[arg(long)]
    pub plain: bool,
    /// So many looks, as text; without end otherwise
    #[arg(short = 'n', long, value_name = "NUMBER", conflicts_with = "once")]
    pub count: Option<u32>,
    /// One look, as text
    #[arg(long)]
    pub once: bool,
}

/// An interval that can be kept.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.1 to 3600".to_owned()),
    }
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Start this service manager first (a shell command), and wait until it serves: 'rsb_hub'
    #[arg(long, value_name = "SHELL COMMAND")]
    pub service_manager: Option<String>,
    /// Devices of the bus, separated by commas
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "binder,hwbinder,vndbinder"
    )]
    pub devices: Vec<String>,
    /// How file descriptors are installed in receivers
    #[arg(long, value_name = "METHOD", value_enum, default_value_t)]
    pub fd_passing: FdPassing,
    /// Old name of --fd-passing
    #[arg(long, hide = true, value_enum, conflicts_with = "fd_passing")]
    pub descriptors: Option<FdPassing>,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    pub command: Vec<OsString>,
}

/// How file descriptors are installed in receivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum FdPassing {
    /// The method with the lowest total cost: ptrace
    #[default]
    Auto,
    /// Stop the receiver: only calls that carry descriptors are slower
    Ptrace,
    /// Trap ioctls by a seccomp filter: descriptors cost less, every call costs more
    Seccomp,
}

/// Options of `reserve`.
#[derive(Debug, Args)]
pub struct Reserve {
    /// The library to preload; otherwise the one installed with this program
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Subcommand)]
pub enum LimitCommand {
    /// Set a user's limit until it is cleared or the daemon restarts
    Set {
        /// Name or uid, or @NAME for a group that shares a limit
        user: User,
        /// Memory that may not be exceeded: 268435456 bytes, 256M, 1.5G, or 25% of the machine's
        size: Amount,
        /// Memory at which the daemon gets ready: as SIZE, or a percentage of it; otherwise 90%
        #[arg(long, value_name = "SIZE")]
        soft: Option<Amount>,
    },
    /// Show a user's limit and use
    Get {
        /// Name or uid, or @NAME for a group that shares a limit
        user: User,
    },
    /// Show all limits
    List,
    /// Remove a user's limit
    Clear {
        /// Name or uid, or @NAME for a group that shares a limit
        user: User,
    },
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say what the files say together, or what is wrong with them (exit code 1)
    Check {
        /// The file, with its drop-ins; /etc/headroom/oomd.toml otherwise
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Have the running headroom-oomd read its files anew, as SIGHUP does; if they make no sense,
    /// what was in force stays in force (exit code 1)
    Reload,
    /// Print the configuration that is equivalent to another OOM daemon's
    #[command(subcommand)]
    Import(ImportCommand),
}

#[derive(Debug, Subcommand)]
pub enum ImportCommand {
    /// Translate the options of earlyoom 1.7 or 1.8 into TOML, with a comment for each
    ///
    /// An option without an equivalent is named with the reason. The exit code is 2 if earlyoom
    /// would refuse the options.
    Earlyoom(EarlyoomOptions),
}

/// Options of `config import earlyoom`.
#[derive(Debug, Args)]
pub struct EarlyoomOptions {
    /// Take the options from EARLYOOM_ARGS in this file: /etc/default/earlyoom
    #[arg(long, value_name = "PATH", conflicts_with = "options")]
    pub file: Option<PathBuf>,
    /// The options, as one quoted string or as words: '-m 10,5 --avoid "^sshd$"'
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    #[arg(required_unless_present = "file")]
    pub options: Vec<String>,
}

/// Options of `kill`.
#[derive(Debug, Args)]
pub struct Kill {
    /// The processes
    #[arg(value_name = "PID", required = true)]
    pub pids: Vec<u32>,
    /// And all their descendants
    #[arg(long, conflicts_with = "group")]
    pub family: bool,
    /// And all of their process groups
    #[arg(long)]
    pub group: bool,
    /// Say what was done for each process, and what of its memory does not come back; what it
    /// shares is measured first, which takes 10 ms a GiB
    #[arg(long)]
    pub report: bool,
    /// So long those that handle SIGTERM may take to end by themselves, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub grace_ms: u64,
    /// So long is waited for all to be gone, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub deadline_ms: u64,
}

#[derive(Debug, Subcommand)]
pub enum OomCommand {
    /// Measure how much memory must be left free for a kill to come in time
    Margin(Margin),
    /// End the limits that a daemon left in force in the kernel which is no more
    Detach {
        /// Folder of the pinned BPF objects
        #[arg(long, value_name = "DIR", default_value = control::PINS_FOLDER)]
        bpf_pin_dir: PathBuf,
        /// Old name of --bpf-pin-dir
        #[arg(long, hide = true, value_name = "DIR", conflicts_with = "bpf_pin_dir")]
        pins: Option<PathBuf>,
    },
    /// A process that a measurement kills
    #[command(hide = true)]
    MarginPeer(MarginPeer),
}

/// Options of `oom margin`.
#[derive(Debug, Args)]
pub struct Margin {
    /// Memory of the processes that are killed for it
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub size: Size,
    /// Times that everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// The largest process to reckon with; a quarter of the machine's memory otherwise
    #[arg(long, value_name = "SIZE")]
    pub victim: Option<Size>,
    /// Keep the result where headroom-oomd finds it at its next start: soft limits that nobody sets
    /// then follow from it
    #[arg(long)]
    pub save: bool,
    /// Where to keep it
    #[arg(long, value_name = "FILE", default_value = control::MARGIN_FILE)]
    pub file: PathBuf,
}

/// What a measurement's own processes are told.
#[derive(Debug, Args)]
pub struct MarginPeer {
    /// The CPU
    pub cpu: usize,
    /// Bytes to hold as SCHED_IDLE; a busy loop otherwise
    pub bytes: Option<usize>,
}

#[derive(Debug, Subcommand)]
pub enum BinderCommand {
    /// Show devices, processes, threads, nodes, handles and buffers
    Ls,
    /// Give the memory of idle buffers back
    Reclaim {
        /// At most so much; all of it otherwise
        size: Option<Size>,
    },
    /// Show calls as they end: who called whom, code, size, time, outcome
    ///
    /// '->' is a call, '~>' a one-way call. The times are the daemon's: from when it had the call
    /// until it had the answer; 'waited' is the part until a thread of the receiver took it. With
    /// --json, one object a line. The daemon traces only while somebody looks.
    Trace(Trace),
    /// Count commands and returns since the daemon's start, or calls a second
    Stat {
        /// Print a line every so many seconds
        seconds: Option<f64>,
        /// So many lines; without end otherwise
        #[arg(requires = "seconds")]
        count: Option<u32>,
    },
}

/// Options of `binder trace`.
#[derive(Debug, Default, Args)]
pub struct Trace {
    /// Only calls on this device
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Only calls from or to this process
    #[arg(long, value_name = "PID|NAME")]
    pub process: Option<String>,
    /// Only calls with this code
    #[arg(long, value_name = "NUMBER")]
    pub code: Option<u32>,
    /// Only calls that were not answered, and one-way calls that were not taken
    #[arg(long)]
    pub failed: bool,
    /// End after so many calls
    #[arg(short = 'n', long, value_name = "NUMBER")]
    pub count: Option<u64>,
    /// End after so many seconds
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Write a file that ui.perfetto.dev and chrome://tracing read, and print nothing
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
