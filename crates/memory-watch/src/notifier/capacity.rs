//! Sizes of the tables, by the capacity of the machine.

use std::path::Path;

use machine_memory::ReadError;

use super::wire::CHUNK_SLOTS;
use crate::error::NotifierError;

/// Maximum number of limited users, members of groups included. The table of uids takes 16 bytes
/// for each, used or not.
const MAX_USERS: u32 = 65_536;

/// The number of entries of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Address spaces of limited users.
    pub address_spaces: u32,
    /// Users with a limit, members of groups included; a multiple of the slots in a chunk.
    pub users: u32,
}

impl Capacity {
    /// Sufficient for this many processes, each of which may be of another user.
    pub fn for_processes(processes: u32) -> Self {
        let users = processes.min(MAX_USERS).next_multiple_of(CHUNK_SLOTS);
        Self { address_spaces: processes, users }
    }

    /// The capacity of this machine: there is no address space without a task, except for those
    /// that are being freed.
    pub fn of_machine() -> Result<Self, NotifierError> {
        let kernel = Path::new("/proc/sys/kernel");
        let tasks = read(&kernel.join("threads-max"))?.min(read(&kernel.join("pid_max"))?);
        Ok(Self::for_processes(tasks))
    }
}

fn read(path: &Path) -> Result<u32, NotifierError> {
    let text = std::fs::read_to_string(path).map_err(|e| ReadError::io(path, e))?;
    text.trim_end()
        .parse()
        .map_err(|_| NotifierError::Unsupported(format!("{}: no number", path.display())))
}
