//! Result of a kill for one victim.

use std::{fmt, fs};

use rustix::io::Errno;

use crate::family::sharer_of;
use crate::holdings::Holdings;
use crate::identity::{Identity, status};
use crate::mrelease::Mrelease;
use crate::victim::{KillError, Victim};

/// A victim that was sent SIGKILL has not exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReapError {
    /// It waits in the kernel for an event that does not occur, usually from a device or a file
    /// server, and exits once it does.
    #[error("pid {pid} is stuck in an uninterruptible sleep; {memory}")]
    Stuck {
        /// Pid of the victim.
        pid: u32,
        /// State of its private memory.
        memory: Memory,
    },
    /// It shares its memory with another process that is not dying.
    #[error("pid {pid} shares its memory with pid {sharer}, which is not dying")]
    Shared {
        /// Pid of the victim.
        pid: u32,
        /// Pid of the other process.
        sharer: u32,
    },
    /// It runs, or waits for other processes.
    #[error("pid {pid} is still {}; {memory}", state_name(*.state))]
    StillAlive {
        /// Pid of the victim.
        pid: u32,
        /// Its state, as in `/proc/<pid>/stat`.
        state: u8,
        /// State of its private memory.
        memory: Memory,
    },
}

impl ReapError {
    /// The reason why a victim has not exited.
    pub(crate) fn of(victim: &Victim, mrelease: Option<Mrelease>) -> Self {
        let pid = victim.pid();
        let memory =
            if mrelease == Some(Mrelease::Freed) { Memory::Released } else { Memory::Held };
        let sharer = if mrelease == Some(Mrelease::NotDying) { sharer_of(victim) } else { None };
        match (sharer, state_of(pid).unwrap_or(b'?')) {
            (Some(sharer), _) => Self::Shared { pid, sharer },
            (None, b'D') => Self::Stuck { pid, memory },
            (None, state) => Self::StillAlive { pid, state, memory },
        }
    }

    /// Its private memory was released nevertheless.
    pub fn released(&self) -> bool {
        match self {
            Self::Stuck { memory, .. } | Self::StillAlive { memory, .. } => {
                *memory == Memory::Released
            }
            Self::Shared { .. } => false,
        }
    }
}

/// The private memory of a victim that has not exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Released by `process_mrelease`.
    Released,
    /// Still in use by the victim.
    Held,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Released => "its memory is back",
            Self::Held => "it has its memory",
        })
    }
}

/// The state of a process: of its threads' states, the one that prevents its exit most. The main
/// thread may have exited long before, and then its state does not show that of the others. `None`:
/// the process has exited.
pub fn state_of(pid: u32) -> Option<u8> {
    /// Ordered from states that prevent an exit to those that do not.
    const KEEPERS: &[u8] = b"DtTRSIZX";
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    let states = tids.filter_map(|tid| Some(status(tid)?.state));
    states.min_by_key(|state| KEEPERS.iter().position(|keeper| keeper == state))
}

/// A process's state as text, from the letter of `/proc/<pid>/stat`.
pub fn state_name(state: u8) -> &'static str {
    match state {
        b'D' => "in an uninterruptible sleep",
        b'R' => "running",
        b'S' | b'I' => "sleeping",
        b'T' => "stopped",
        b't' => "held by a debugger",
        b'Z' | b'X' => "a zombie",
        _ => "in an unknown state",
    }
}

/// Result of the signal for a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It has exited.
    Gone,
    /// It could not be signalled.
    Refused(KillError),
    /// It has not exited.
    Remains(ReapError),
}

/// Report on one victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VictimReport {
    /// Pid, uid and start number.
    pub identity: Identity,
    /// Its memory before the kill; all 0 for a zombie.
    pub holdings: Holdings,
    /// Memory that was freed, bytes.
    pub bytes_back: u64,
    /// The result of `process_mrelease`, if it was called.
    pub mrelease: Option<Mrelease>,
    /// Number of threads with a raised priority.
    pub threads_raised: usize,
    /// It was moved out of a frozen control group.
    pub thawed: bool,
    /// The error if its priority could not be raised or it could not be thawed.
    pub boost_refused: Option<Errno>,
    /// Whether it has exited.
    pub end: End,
}
