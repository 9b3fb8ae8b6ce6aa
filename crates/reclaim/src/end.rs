//! What has become of a victim.

use std::{fmt, fs};

use rustix::io::Errno;

use crate::family::sharer_of;
use crate::holdings::Holdings;
use crate::identity::{Identity, stat};
use crate::mrelease::Mrelease;
use crate::victim::{KillError, Victim};

/// A victim is still there though it was sent SIGKILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReapError {
    /// It waits inside the kernel for something that does not come, most often a device or a server
    /// of a file system, and dies when it does.
    #[error("pid {pid} is stuck in an uninterruptible sleep; {memory}")]
    Stuck {
        /// The pid.
        pid: u32,
        /// Its private memory.
        memory: Memory,
    },
    /// It shares its memory with another process that is not dying.
    #[error("pid {pid} shares its memory with pid {sharer}, which is not dying")]
    Shared {
        /// The pid.
        pid: u32,
        /// The other one's.
        sharer: u32,
    },
    /// It runs, or waits for others.
    #[error("pid {pid} is still {}; {memory}", state_name(*.state))]
    StillAlive {
        /// The pid.
        pid: u32,
        /// Its state, as `/proc/<pid>/stat` has it.
        state: u8,
        /// Its private memory.
        memory: Memory,
    },
}

impl ReapError {
    /// About a victim that is still there.
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

    /// Its private memory is back all the same.
    pub fn released(&self) -> bool {
        match self {
            Self::Stuck { memory, .. } | Self::StillAlive { memory, .. } => {
                *memory == Memory::Released
            }
            Self::Shared { .. } => false,
        }
    }
}

/// The private memory of a victim that is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// It was released all the same.
    Released,
    /// The victim has it.
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

/// The state of a process: of those of its threads, the one that keeps it from ending first. The
/// thread that gave the process its pid may be long gone, and say nothing about the others. `None`:
/// it is gone.
pub fn state_of(pid: u32) -> Option<u8> {
    /// From what keeps a process to what does not.
    const KEEPERS: &[u8] = b"DtTRSIZX";
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    let states = tids.filter_map(|tid| Some(stat(tid)?.state));
    states.min_by_key(|state| KEEPERS.iter().position(|keeper| keeper == state))
}

/// A process's state in words: the letter of `/proc/<pid>/stat`.
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

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is gone.
    Gone,
    /// It got no signal.
    Refused(KillError),
    /// It is still there.
    Remains(ReapError),
}

/// What is known of one victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VictimReport {
    /// Who.
    pub identity: Identity,
    /// What it had before; nothing for one that was a zombie.
    pub holdings: Holdings,
    /// What came back, bytes.
    pub bytes_back: u64,
    /// What `process_mrelease` said, if it was called.
    pub mrelease: Option<Mrelease>,
    /// So many threads were raised.
    pub threads_raised: usize,
    /// It was taken out of a frozen control group.
    pub thawed: bool,
    /// Why its priority could not be raised or it could not be thawed, if so.
    pub boost_refused: Option<Errno>,
    /// What has become of it.
    pub end: End,
}
