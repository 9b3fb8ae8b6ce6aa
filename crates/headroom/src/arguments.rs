//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};
use service_manager::aidl::ApiLevel;

use crate::commands::container::parse_name;
use crate::commands::doctor::Use;
use crate::commands::run::BUS;
use crate::helpers::output::Format;
use crate::helpers::quantity::{Amount, Size};
use crate::helpers::user::User;

/// Labels of users' metrics.
#[derive(Clone, Copy, Debug)]
pub enum UserLabels {
    /// `uid`.
    Uid,
    /// `uid` and `user`.
    UidAndName,
}

/// Names the socket of the daemon that a process belongs to.
pub const BINDERD_SOCKET_VARIABLE: &str = "HEADROOM_BINDERD_SOCKET";
/// Names the folder of the bus that a process belongs to.
pub const BUS_VARIABLE: &str = "HEADROOM_BINDER";
/// Names the socket of `headroom-oomd`.
const OOMD_SOCKET_VARIABLE: &str = "HEADROOM_OOMD_SOCKET";

/// The path from a variable, unless it is empty.
fn path(variable: &str, default: &str) -> PathBuf {
    let named = std::env::var_os(variable).filter(|path| !path.is_empty());
    named.map_or_else(|| default.into(), PathBuf::from)
}

fn binderd_socket() -> PathBuf {
    path(BINDERD_SOCKET_VARIABLE, control::BINDERD_SOCKET)
}

fn oomd_socket() -> PathBuf {
    path(OOMD_SOCKET_VARIABLE, control::OOMD_SOCKET)
}

fn bus_folder() -> PathBuf {
    path(BUS_VARIABLE, BUS)
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

/// Options of all commands.
#[derive(Debug, Args)]
pub struct Globals {
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Control socket of headroom-binderd [env: HEADROOM_BINDERD_SOCKET, which `run` sets]
    #[arg(long, global = true, value_name = "PATH", default_value_os_t = binderd_socket())]
    pub binderd_socket: PathBuf,
    /// Control socket of headroom-oomd [env: HEADROOM_OOMD_SOCKET]
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
    /// Run a command on a private bus, without root
    ///
    /// The bus ends with CMD, and so do processes that CMD left running. Inside, /dev/binderfs and
    /// /dev/binder, hwbinder, vndbinder belong to the bus; the rest of /dev is as outside.
    /// HEADROOM_BINDER names the folder. The exit code is that of CMD (128 + n if signal n killed
    /// it), 127 if it does not exist, 126 if it cannot be executed, 125 if there is no bus.
    Run(Run),
    /// Set, show and clear users' memory limits
    #[command(subcommand)]
    Limit(LimitCommand),
    /// Check or reload the configuration of headroom-oomd, or import another daemon's
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check the limits now, and kill where one is exceeded
    RunOomKiller {
        /// Only this user (name or uid), group (@NAME) or cgroup (/PATH)
        #[arg(value_hint = ValueHint::Username)]
        user: Option<User>,
    },
    /// Show which daemons run, and what is degraded (exit code 1 if none runs)
    Status {
        /// Show the bounds on what owners share, and the part of each, instead
        #[arg(long)]
        bounds: bool,
    },
    /// Show kills and warnings as desktop notifications (notify-send) or lines, until interrupted
    Notify,
    /// Print the counters of both daemons for Prometheus (exit code 1 if none runs)
    Metrics {
        /// Add the label `user` with the name of the user
        #[arg(long)]
        user_names: bool,
    },
    /// Show usage, limits, growth and time to the limit, continuously; keys set limits (`?`: help)
    Top(Top),
    /// Explain the latest decisions, newest first
    Why {
        /// Number of decisions
        #[arg(short = 'n', long, default_value_t = 10, conflicts_with = "id", value_parser = whole)]
        number: u32,
        /// Follow decisions, when their outcome is known, and warnings, until interrupted
        #[arg(short = 'f', long, conflicts_with = "id")]
        follow: bool,
        /// Only decisions about this user, group (@NAME) or cgroup (/PATH): its limit, or processes
        /// of the user
        #[arg(short = 'u', long, value_name = "USER", conflicts_with = "id")]
        user: Option<User>,
        /// Only the decision with this number
        id: Option<u64>,
    },
    /// Show which process would be killed now, and why
    Explain {
        /// If this user, group (@NAME) or cgroup (/PATH) exceeded its limit [default: if memory
        /// ran short]
        #[arg(value_hint = ValueHint::Username)]
        user: Option<User>,
    },
    /// Kill processes and reclaim their memory at once (exit code 1 if one is still alive)
    Kill(Kill),
    /// Measure the reaction time of the OOM manager; remove its limits from the kernel
    #[command(subcommand)]
    Oom(OomCommand),
    /// Run a command whose memory is reserved first: at the limit malloc returns NULL
    Reserve(Preloaded),
    /// Inspect the binder driver
    #[command(subcommand)]
    Binder(BinderCommand),
    /// Create buses for containers
    #[command(subcommand)]
    Container(ContainerCommand),
    /// Show what works on this machine, and what is missing
    ///
    /// The exit code is 1 if something is missing that a use needs. A daemon that is not installed
    /// or not started is not counted, nor is what only root can find out.
    Doctor {
        /// Only this use, and what decides it; the exit code is 1 if it does not work
        #[arg(long = "for", value_name = "USE")]
        wanted: Option<Use>,
    },
    /// Print a completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Options of `up`.
#[derive(Debug, Args)]
pub struct Up {
    /// Mount point of the bus
    #[arg(long, value_name = "DIR", default_value = BUS)]
    pub mount: PathBuf,
    /// Link /dev/binder, hwbinder and vndbinder to the bus until Ctrl-C; existing files are kept
    #[arg(long, conflicts_with = "no_binder")]
    pub link_dev: bool,
    /// Show all traffic to every user in DIR/binder_logs, as binderfs does with stats=global
    #[arg(long, conflicts_with = "no_binder")]
    pub binder_logs: bool,
    /// Mode of the devices, octal; 0666 by default, and 0600 for devices that are added later
    #[arg(long, value_name = "OCTAL", value_parser = octal_mode, conflicts_with = "no_binder")]
    pub mode: Option<String>,
    /// Owner of the devices, by name or number; root by default
    #[arg(long, value_name = "USER[:GROUP]", conflicts_with = "no_binder")]
    pub owner: Option<String>,
    /// Real-time priority of the bus, 1 to 99; above that of programs that must not delay calls
    #[arg(long, value_name = "PRIORITY", conflicts_with = "no_binder",
        value_parser = clap::value_parser!(u32).range(1..=99))]
    pub priority: Option<u32>,
    /// Accept calls that clients submit by shared memory (`headroom binder attach`)
    #[arg(long, conflicts_with = "no_binder")]
    pub rings: bool,
    /// Do not start headroom-binderd
    #[arg(long, conflicts_with = "no_oom")]
    pub no_binder: bool,
    /// Do not start headroom-oomd
    #[arg(long)]
    pub no_oom: bool,
    /// Configuration of headroom-oomd [default: /etc/headroom/oomd.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Options of `top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Seconds between updates
    #[arg(short = 'd', long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: f64,
    /// Print text on a terminal too
    #[arg(long)]
    pub plain: bool,
    /// Print this number of updates as text, then exit
    #[arg(short = 'n', long, value_name = "NUMBER", conflicts_with = "once", value_parser = whole)]
    pub count: Option<u32>,
    /// Print one update as text, then exit
    #[arg(long)]
    pub once: bool,
}

fn whole(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("not a whole number up to {}", u32::MAX))
}

fn pid(text: &str) -> Result<u32, String> {
    let pid = text.parse().ok().filter(|pid| *pid <= i32::MAX as u32);
    pid.ok_or_else(|| "not a process id; `pgrep NAME` prints those of a program".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number of seconds from 0.1 to 3600".to_owned()),
    }
}

fn api_level(text: &str) -> Result<ApiLevel, String> {
    let level = text.parse().ok().and_then(ApiLevel::new);
    level.ok_or_else(|| "not an API level from 30 to 36".to_owned())
}

/// Options of `binder service-manager`.
#[derive(Debug, Args)]
pub struct ServiceManager {
    /// Folder of the bus [env: HEADROOM_BINDER, which `run` sets]
    #[arg(long, value_name = "DIR", default_value_os_t = bus_folder())]
    pub bus: PathBuf,
    /// API level of clients since Android 11, 30 to 36
    #[arg(long, value_name = "LEVEL", default_value = "36", value_parser = api_level)]
    pub api_level: ApiLevel,
    /// Who may register which names: lines of a name, or its begin and `*`, and users; the first
    /// that matches holds, and without one nobody may [default: everyone all names]
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Start a service manager first, and wait until it serves: that of `headroom binder
    /// service-manager`, or SHELL COMMAND
    #[arg(long, value_name = "SHELL COMMAND", num_args = 0..=1, default_missing_value = "")]
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
    /// Make all calls by requests: accept no rings, and do not preload their library
    #[arg(long)]
    pub no_ring: bool,
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

/// Options of commands that preload a library.
#[derive(Debug, Args)]
pub struct Preloaded {
    /// The library to preload [default: the installed one]
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Subcommand)]
pub enum LimitCommand {
    /// Set the limit of a user or group at run time
    ///
    /// A runtime limit lasts until it is cleared or headroom-oomd is stopped. A reload keeps it,
    /// and so does a crash.
    Set {
        /// Name or uid, or @NAME for a group that shares a limit
        #[arg(value_hint = ValueHint::Username)]
        user: User,
        /// The limit: 268435456 (bytes), 256M, 1.5G, 25% of the machine's memory, or none
        size: Amount,
        /// Soft limit: as SIZE, or a percentage of it [default: 90%]
        #[arg(long, value_name = "SIZE")]
        soft: Option<Amount>,
        #[command(flatten)]
        grace: GraceOption,
    },
    /// Show limit and usage of a user, group or cgroup
    Get {
        /// Name or uid, or @NAME for a group that shares a limit
        #[arg(value_hint = ValueHint::Username)]
        user: User,
    },
    /// Show all limits, and those that each user has by default
    #[command(alias = "ls")]
    List,
    /// End the runtime limit of a user or group: that of the configuration applies again
    ///
    /// Root ends all limits of the account that were set at run time, a user the one that it has
    /// set for itself. `limit set USER none` exempts a user from the configuration's.
    Clear {
        /// Name or uid, or @NAME for a group that shares a limit
        #[arg(value_hint = ValueHint::Username)]
        user: User,
        #[command(flatten)]
        grace: GraceOption,
    },
}

#[derive(Debug, Args)]
pub struct GraceOption {
    /// How long the limit before holds if the usage is above the new one; 0: no time [default:
    /// grace-s in oomd.toml, or 60]
    #[arg(
        long = "grace",
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(..=86_400)
    )]
    pub seconds: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the effective configuration, or the first error (exit code 1)
    Check {
        /// The main file, beside its drop-ins [default: /etc/headroom/oomd.toml]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Make headroom-oomd read its files again, like SIGHUP; if one is invalid, nothing changes
    /// (exit code 1)
    Reload,
    /// Print the configuration that is equivalent to another OOM daemon's
    #[command(subcommand)]
    Import(ImportCommand),
}

#[derive(Debug, Subcommand)]
pub enum ImportCommand {
    /// Translate the options of earlyoom 1.7 or 1.8 into TOML, with a comment for each
    ///
    /// For an option without an equivalent the reason is given. The exit code is 2 if earlyoom
    /// would reject the options.
    Earlyoom(EarlyoomOptions),
}

/// Options of `config import earlyoom`.
#[derive(Debug, Args)]
pub struct EarlyoomOptions {
    /// Read the options from EARLYOOM_ARGS in this file, such as /etc/default/earlyoom
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
    #[arg(value_name = "PID", required = true, value_parser = pid)]
    pub pids: Vec<u32>,
    /// Include all their descendants
    #[arg(long, conflicts_with = "group")]
    pub family: bool,
    /// Include their process groups
    #[arg(long)]
    pub group: bool,
    /// Show the steps for each process, and which of its memory stays allocated; shared memory is
    /// measured first, which takes 10 ms per GiB
    #[arg(long)]
    pub report: bool,
    /// Milliseconds between SIGTERM and SIGKILL for processes that handle SIGTERM
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub grace_ms: u64,
    /// Milliseconds to wait for all processes to exit
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub deadline_ms: u64,
}

#[derive(Debug, Subcommand)]
pub enum OomCommand {
    /// Run headroom-oomd without killing any process; `headroom why` lists what would have been
    /// killed
    Observe {
        /// Its configuration
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Remove limits that a killed daemon left in the kernel
    Detach {
        /// Folder of the pinned BPF objects
        #[arg(long, value_name = "DIR", default_value = control::PINS_FOLDER)]
        bpf_pin_dir: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub enum BinderCommand {
    /// Run a command whose calls are carried by shared memory instead of requests
    ///
    /// The daemon must run with --rings; buses of `headroom run` do. The first eight calls of a
    /// thread, and those that are not made by the C library, are requests as before.
    Attach(Preloaded),
    /// Show devices, processes, threads, nodes, handles and buffers
    Ls,
    /// Release the memory of idle buffers
    Reclaim {
        /// Maximum [default: all]
        size: Option<Size>,
    },
    /// Name services on a bus, for AIDL clients and, on hwbinder, for HIDL clients
    ///
    /// It is the context manager of binder, vndbinder and hwbinder, until the bus ends. Clients of
    /// Android 9 and 10 are recognized by their requests; --api-level is for newer ones. It has no
    /// lazy services, and no manifest declares services. Every client may find all names.
    ServiceManager(ServiceManager),
    /// Replace the program of headroom-binderd while clients use it
    ///
    /// The new program continues in the same process with all opens, objects and calls; clients
    /// see a pause of some milliseconds. It verifies the state before the running program ends; if
    /// it cannot continue with it, the running program does. Root may upgrade; a session, its user.
    Upgrade {
        /// A program that root owns and no other user can write to [default: the installed one]
        program: Option<PathBuf>,
    },
    /// Show calls as they complete: sender, receiver, code, size, time, outcome
    ///
    /// '->' is a call, '~>' a one-way call. Times are measured in the daemon, from the call to the
    /// reply; 'waited' is the part before a thread of the receiver took it. With --json, one object
    /// per line. The daemon traces only while this command runs.
    Trace(Trace),
    /// Show counts of commands and returns since the daemon's start, or calls per second
    Stat {
        /// Print a line at this interval, seconds
        seconds: Option<f64>,
        /// Number of lines [default: unlimited]
        #[arg(requires = "seconds")]
        count: Option<u32>,
    },
}

#[derive(Debug, Subcommand)]
pub enum ContainerCommand {
    /// Create a bus and its CDI file: containers get it as device headroom/binder=NAME
    ///
    /// The bus is /run/headroom/bus/NAME, served by headroom-binderd@NAME.service, or, without
    /// systemd, by a daemon in the background that ends when the bus is unmounted.
    Cdi {
        /// Name of the bus: letters, digits, '_' and '-'
        #[arg(value_parser = parse_name)]
        name: String,
        /// Folder of CDI files
        #[arg(long, value_name = "DIR", default_value = "/run/cdi")]
        spec_dir: PathBuf,
    },
    /// End a bus that `container cdi` or `waydroid` has created; remove its CDI file and links
    ///
    /// Refused while a process has a device of the bus open.
    Remove {
        /// Name of the bus
        #[arg(value_parser = parse_name)]
        name: String,
        /// Folder of CDI files
        #[arg(long, value_name = "DIR", default_value = "/run/cdi")]
        spec_dir: PathBuf,
        /// Disconnect processes that use the bus: their calls fail
        #[arg(long)]
        force: bool,
    },
    /// Create a bus and write it into waydroid's configuration, in place of device files
    ///
    /// A device file that is bound alone can be opened once only, so waydroid's container gets the
    /// folder of the bus, as /dev/binderfs, and links. `waydroid init` and `waydroid upgrade` write
    /// their configuration again: run this command after them.
    Waydroid {
        /// Name of the bus: letters, digits, '_' and '-'
        #[arg(value_parser = parse_name)]
        name: String,
        /// File of mounts that waydroid has written
        #[arg(
            long,
            value_name = "FILE",
            default_value = "/var/lib/waydroid/lxc/waydroid/config_nodes"
        )]
        config: PathBuf,
    },
    /// Link /dev/DEVICE of a container to its bus: the hook that the CDI file and waydroid's
    /// configuration name
    #[command(hide = true)]
    Link {
        /// Names of devices; LXC gives other words, and links are made for all of the bus
        devices: Vec<String>,
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
    /// Only calls without a reply, and one-way calls that were not delivered
    #[arg(long)]
    pub failed: bool,
    /// Exit after this number of calls
    #[arg(short = 'n', long, value_name = "NUMBER")]
    pub count: Option<u64>,
    /// Exit after this time, seconds
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Write a trace for ui.perfetto.dev or chrome://tracing instead of text
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
}

/// A mode as `headroom-binderd` takes it, which parses it again.
fn octal_mode(text: &str) -> anyhow::Result<String> {
    headroom_daemon::permissions::parse_mode(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }

    #[test]
    fn command_lines_of_the_documents_are_valid() {
        test_support::documents::check_command_lines::<super::Arguments>("headroom");
    }
}
