//! `headroom-oomd`: kills one process of a user that breaks its memory limit, and says why.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use control::{BINDERD_SOCKET, Client, ControlError, MARGIN_FILE, OOMD_SOCKET, Server};
use headroom_oomd::config::Config;
use headroom_oomd::daemon::{self, Signals};
use headroom_oomd::killer::Killer;
use headroom_oomd::leases::Leases;
use headroom_oomd::log::Log;
use headroom_oomd::shrink::Shrinker;
use headroom_oomd::{margin, privileges, watching};
use memory_ledger::{Asker, Source};
use reclaim::Reaper;

/// Where the configuration is unless told otherwise.
const DEFAULT_CONFIG: &str = "/etc/headroom/oomd.toml";
/// Connecting needs write permission; what a user may then ask is decided by its uid.
const SOCKET_MODE: u32 = 0o666;
/// Two victims at a time get help with their memory. More gained nothing on two CPUs.
const REAPERS: usize = 2;

/// Watches the memory of limited users; of a user that breaks its limit the largest process dies.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Where to listen for requests
    #[arg(long, default_value = OOMD_SOCKET)]
    socket: PathBuf,
    /// The configuration file; the default one, /etc/headroom/oomd.toml, may be missing
    #[arg(long)]
    config: Option<PathBuf>,
    /// Control socket of a headroom-binderd that gives idle memory back before anybody is killed (repeat for more)
    #[arg(long, value_name = "PATH", default_value = BINDERD_SOCKET)]
    reclaimer: Vec<PathBuf>,
    /// What `headroom oom margin --save` has measured; may be missing
    #[arg(long, default_value = MARGIN_FILE)]
    margin: PathBuf,
    /// How memory is watched
    #[arg(long, value_enum, default_value_t)]
    notifier: watching::Wanted,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("headroom-oomd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let ram_bytes = ram_bytes();
    let (margin, complaint) = match margin::load(&arguments.margin) {
        Ok(margin) => (margin, None),
        Err(complaint) => (None, Some(complaint)),
    };
    let config = match &arguments.config {
        Some(path) => Config::load(path, false, ram_bytes, margin)?,
        None => Config::load(Path::new(DEFAULT_CONFIG), true, ram_bytes, margin)?,
    };
    let signals = Signals::block().context("cannot take over SIGINT and SIGTERM")?;
    let _log = Log::start().context("cannot start the log thread")?;
    // Before anything is killed; the socket itself comes last, as the sign that limits are in force.
    if Client::connect(&arguments.socket).is_ok() {
        return Err(ControlError::InUse(arguments.socket.clone()).into());
    }

    let mut degraded = Vec::from_iter(complaint);
    let chosen = watching::select(arguments.notifier).context("cannot watch memory")?;
    degraded.extend(chosen.degraded);
    // Threads inherit the scheduling of the one that starts them: as reapers first, then as ourselves.
    degraded.extend(privileges::be_reaper().err());
    let reaper = Reaper::start(REAPERS).context("cannot start the reapers")?;
    let _ = privileges::be_daemon();
    degraded.extend(privileges::be_spared_by_the_kernel().err());

    let mut killer = Killer::new(chosen.watch, reaper).context("cannot make epoll")?;
    killer.set_margin(margin);
    let shrinker = Shrinker::start(arguments.reclaimer.clone());
    killer.shrink_first(shrinker.context("cannot start the shrinker")?);
    degraded.extend(privileges::lock_memory().err());
    if let Some(thresholds) = config.machine {
        let lost = killer.watch_machine(thresholds).context("cannot watch the machine's memory")?;
        degraded.extend(lost);
    }
    killer.obey(config.rules);
    for what in &degraded {
        tracing::warn!("degraded: {what}");
    }
    for (uid, limit) in config.limits {
        killer
            .set_limit(uid, limit, Source::Config, Asker::Root)
            .with_context(|| format!("cannot put the limit of uid {uid} into force"))?;
    }
    let mut server = Server::bind(&arguments.socket, SOCKET_MODE)?;
    let mut leases = Leases::start(&arguments.socket, &mut killer)
        .context("cannot offer leases beside the control socket")?;
    let notifier = killer.status(&[]).notifier;
    tracing::info!(notifier, socket = %arguments.socket.display(), "ready");
    daemon::run(&mut killer, &mut server, &mut leases, &signals, &degraded)?;
    tracing::info!("told to end; limits are not enforced from here on");
    Ok(())
}

fn ram_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // Of type c_ulong, which is u32 on 32-bit machines.
    #[allow(clippy::useless_conversion)]
    let units = u64::try_from(info.totalram).unwrap_or(u64::MAX);
    units.saturating_mul(info.mem_unit.into())
}
