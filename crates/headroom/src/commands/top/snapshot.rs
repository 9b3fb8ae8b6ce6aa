//! Data of one update.

use std::path::Path;
use std::time::Instant;

use control::oomd::{Reply, Request, Status, UserLimit, Why};
use machine_memory::Meminfo;
use machine_memory::pressure::{Pressure, Resource};

use crate::helpers::client::{call_on, connect, unexpected};

/// Number of decisions to request.
const DECISIONS: u32 = 20;

/// The state of the daemon and the machine at one time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Time of the requests.
    pub at: Instant,
    /// Status of the daemon.
    pub status: Status,
    /// Limits that this user may see; by uid.
    pub limits: Vec<UserLimit>,
    /// The latest decisions, newest first.
    pub decisions: Vec<Why>,
    /// `/proc/meminfo`.
    pub memory: Meminfo,
    /// `/proc/pressure/memory`, where the kernel has it.
    pub pressure: Option<Pressure>,
}

/// Queries the daemon and reads the machine's state.
pub fn take(socket: &Path) -> anyhow::Result<Snapshot> {
    let mut client = connect("headroom-oomd", socket)?;
    let status = match call_on(&mut client, &Request::Status)? {
        Reply::Status(status) => status,
        reply => return Err(unexpected(&reply)),
    };
    let limits = match call_on(&mut client, &Request::ListLimits)? {
        Reply::Limits { limits } => limits,
        reply => return Err(unexpected(&reply)),
    };
    let decisions = match call_on(&mut client, &Request::Why { last: DECISIONS })? {
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
