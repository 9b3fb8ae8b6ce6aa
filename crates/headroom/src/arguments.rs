//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::size::Size;
use crate::user::User;

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
    /// Control socket of headroom-binderd
    #[arg(long, global = true, value_name = "PATH", default_value = control::BINDERD_SOCKET)]
    pub binderd_socket: PathBuf,
    /// Control socket of headroom-oomd
    #[arg(long, global = true, value_name = "PATH", default_value = control::OOMD_SOCKET)]
    pub oomd_socket: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run both daemons in the foreground until Ctrl-C
    Up(Up),
    /// Set, show and clear users' memory limits
    #[command(subcommand)]
    Limit(LimitCommand),
    /// Look now, and kill where a limit is broken
    RunOomKiller {
        /// Only this user (name or uid); all limited users otherwise
        user: Option<User>,
    },
    /// Say which daemons run and how (exit code 1 if none does)
    Status,
    /// Explain the latest decisions, newest first
    Why {
        /// So many decisions
        #[arg(short = 'n', long, default_value_t = 10, conflicts_with = "id")]
        number: u32,
        /// Only the decision with this number
        id: Option<u64>,
    },
    /// Say who would die now, and why
    Explain {
        /// If this user's limit were broken; otherwise, if the machine ran short of memory
        user: Option<User>,
    },
    /// Look into the binder driver
    #[command(subcommand)]
    Binder(BinderCommand),
    /// Say what this machine offers, what is missing, and what is lost by it (exit code 1 if a daemon
    /// cannot work here)
    Doctor,
}

/// Options of `up`.
#[derive(Debug, Args)]
pub struct Up {
    /// Where to mount the bus
    #[arg(long, value_name = "DIR", default_value = "/dev/binderfs")]
    pub mount: PathBuf,
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

#[derive(Debug, Subcommand)]
pub enum LimitCommand {
    /// Set a user's limit until it is cleared or the daemon restarts
    Set {
        /// Name or uid
        user: User,
        /// Bytes that may not be exceeded: 268435456, 256M, 1.5G
        size: Size,
        /// Bytes at which the daemon gets ready; 90 % of SIZE otherwise
        #[arg(long, value_name = "SIZE")]
        soft: Option<Size>,
    },
    /// Show a user's limit and use
    Get {
        /// Name or uid
        user: User,
    },
    /// Show all limits
    List,
    /// Remove a user's limit
    Clear {
        /// Name or uid
        user: User,
    },
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
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
