//! What is asked and read for one look.

use std::path::Path;
use std::time::Instant;

use control::oomd::{Reply, Request, Status, UserLimit, Why};
use machine_memory::Meminfo;
use machine_memory::pressure::{Pressure, Resource};

use crate::helpers::client::{ask_on, connect, unexpected};

/// Decisions that are shown.
const DECISIONS: u32 = 20;

/// One look at everything.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When.
    pub at: Instant,
    /// The daemon.
    pub status: Status,
    /// Users that may be seen, and have a limit; by uid.
    pub limits: Vec<UserLimit>,
    /// The latest decisions, newest first.
    pub decisions: Vec<Why>,
    /// `/proc/meminfo`.
    pub memory: Meminfo,
    /// `/proc/pressure/memory`, where the kernel has it.
    pub pressure: Option<Pressure>,
}

/// Asks the daemon and looks at the machine.
pub fn take(socket: &Path) -> anyhow::Result<Snapshot> {
    let mut client = connect("headroom-oomd", socket)?;
    let status = match ask_on(&mut client, &Request::Status)? {
        Reply::Status(status) => status,
        reply => return Err(unexpected(&reply)),
    };
    let limits = match ask_on(&mut client, &Request::ListLimits)? {
        Reply::Limits { limits } => limits,
        reply => return Err(unexpected(&reply)),
    };
    let decisions = match ask_on(&mut client, &Request::Why { last: DECISIONS })? {
        Reply::Why { records } => records,
        reply => return Err(unexpected(&reply)),
    };
    let proc = Path::new("/proc");
    Ok(Snapshot {
        at: Instant::now(),
        status,
        limits,
        decisions,
        memory: Meminfo::read(proc)?,
        pressure: Pressure::read(proc, Resource::Memory).ok(),
    })
}
