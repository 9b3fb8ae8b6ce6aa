//! A process in a snapshot, and its badness as one number.

use std::fmt;

use owners::Owner;

use crate::account::{AccountId, Uid};

/// The window over which growth and births count, nanoseconds. Long enough to see a process that
/// allocates in bursts, short enough that a process which has stopped growing is soon spared.
pub const WINDOW_NS: u64 = 4_000_000_000;

/// Identifies a process uniquely: pids are reused, a pid with its start is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// Process (thread group) id.
    pub pid: u32,
    /// Increases with each start of a process, in a unit that the reader chooses; only compared.
    pub start_time: u64,
}

/// Identifies an address space within one snapshot. The default: no other process is known to use
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressSpaceId(pub u64);

/// A process name as the kernel keeps it: 15 bytes at the most, of any kind. Needs no allocation.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Comm([u8; 16]);

impl Comm {
    /// Creates a name from bytes; ends at the first NUL or after 15 bytes.
    pub fn new(bytes: &[u8]) -> Self {
        let mut comm = [0; 16];
        for (to, from) in comm[..15].iter_mut().zip(bytes.iter().take_while(|b| **b != 0)) {
            *to = *from;
        }
        Self(comm)
    }

    /// The name without the padding.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|b| *b == 0).next().unwrap_or_default()
    }
}

impl fmt::Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&String::from_utf8_lossy(self.as_bytes()), f)
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(self.as_bytes()), f)
    }
}

/// Kill preference of a process according to the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum KillPreference {
    /// Never to be killed.
    Never,
    /// Killed only when no other process of its user can be.
    Avoid,
    /// No rule matches.
    #[default]
    Ordinary,
    /// Killed before all others.
    Prefer,
}

/// A process at the moment of the snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Pid and start time.
    pub id: ProcessId,
    /// Its address space, which other processes can use as well (`CLONE_VM`, `vfork`).
    pub address_space: AddressSpaceId,
    /// Real uid.
    pub uid: Uid,
    /// The account that it is charged to: its owner's, its owner's group's, or that of the owner of
    /// its namespace.
    pub account: AccountId,
    /// Anonymous and shared memory, bytes. File pages are left out: they come back without a kill.
    pub rss_bytes: u64,
    /// Part of `rss_bytes` that other processes of its account have as well, or that the kernel can
    /// take at any time (`MADV_FREE`), bytes: its end helps nobody with it.
    pub shared_bytes: u64,
    /// Swapped memory, bytes.
    pub swap_bytes: u64,
    /// Page tables, and memory files that it holds open and has not mapped, bytes: its end frees
    /// them, but no resident set contains them.
    pub unmapped_bytes: u64,
    /// Name (`comm`).
    pub comm: Comm,
    /// A zombie, or exiting: another kill frees nothing.
    pub exiting: bool,
    /// Pid of its parent; 0 if unknown.
    pub parent_pid: u32,
    /// Its process group; 0 if unknown.
    pub group: u32,
    /// It leads a session: a login shell, a service's first process, a desktop.
    pub session_leader: bool,
    /// It has executed no program since its fork: what it has may be its parent's as well.
    pub is_copy: bool,
    /// OOM score adjustment that its owner has set, -1000 (never) to 1000.
    pub oom_score_adj: i16,
    /// Bytes by which it grew in the last [`WINDOW_NS`]; see
    /// [`Growth`](crate::growth::Growth).
    pub grown_bytes: u64,
    /// It started within [`WINDOW_NS`].
    pub newborn: bool,
    /// Number of processes of its family that were killed within that time and count for it; see
    /// [`Growth`](crate::growth::Growth).
    pub killed_kin: u32,
    /// How many of these were newborn.
    pub killed_newborns: u32,
    /// It stays within the memory that was leased to it: other processes of its account come first.
    pub within_lease: bool,
    /// Its kill preference according to the rules.
    pub preference: KillPreference,
}

impl Process {
    /// The owner whose part of a daemon's resources its reads are charged to: the user of its
    /// account, or its own if that is a group or a control group.
    pub fn owner(&self) -> Owner {
        Owner::User(self.account.user().unwrap_or(self.uid))
    }

    /// A process of this user, charged to its own account, with defaults otherwise.
    pub fn of(uid: Uid) -> Self {
        Self { uid, account: AccountId::User(uid), ..Self::default() }
    }

    /// Both belong to one user: to one account, which may be that of several users.
    pub fn is_of_same_user(&self, other: &Self) -> bool {
        // All uids of a user's account are the user's own, as those of its containers.
        self.account == other.account
            && (matches!(self.account, AccountId::User(_)) || self.uid == other.uid)
    }

    /// Memory that is charged for it, bytes.
    pub fn charged_bytes(&self) -> u64 {
        self.rss_bytes.saturating_add(self.swap_bytes)
    }

    /// Memory that is charged for it, less `shared_bytes`.
    pub fn own_bytes(&self) -> u64 {
        self.charged_bytes().saturating_sub(self.shared_bytes)
    }

    /// Memory that a kill would free, bytes.
    pub fn freed_bytes(&self) -> u64 {
        self.own_bytes().saturating_add(self.unmapped_bytes)
    }
}

/// Weight of a byte that was allocated in the last window, in additional bytes: at the same rate
/// the process will have them in half a minute. An idle database is then spared for a leak of a
/// tenth of its size, and a program that starts up beside an old slow leak is not always the
/// victim.
const GROWTH_WEIGHT: u64 = 8;
/// A session leader's score is divided by this: killing a login shell kills all its jobs and the
/// user's work, and frees little memory. A session leader that leaks is still selected.
const SESSION_LEADER_SHARE: u64 = 4;
/// A process grows notably if it would double in [`GROWTH_WEIGHT`] windows.
const NOTABLE_SHARE: u64 = 8;

/// `oom_score_adj` at which the kernel never kills a process; headroom-oomd does not either.
pub(crate) const OOM_SCORE_ADJ_NEVER: i16 = -1000;

/// Memory of the process plus its weighted growth, scaled by `oom_score_adj`.
pub fn score(process: &Process) -> u64 {
    let grown = GROWTH_WEIGHT.saturating_mul(process.grown_bytes);
    let bytes = process.freed_bytes().saturating_add(grown);
    // As a share of its own memory, unlike the kernel's, which adds a share of the machine's: there
    // a small process with a high value is killed before a large one, and little is freed.
    let willing = (1000 + i64::from(process.oom_score_adj)).clamp(0, 2000) as u64;
    let share = if process.session_leader { SESSION_LEADER_SHARE } else { 1 };
    // Below 8 PiB; a division of 128 bits takes the time of several reads, for each process.
    if let Some(weighed) = bytes.checked_mul(willing) {
        return weighed / 1000 / share;
    }
    let weighed = u128::from(bytes) * u128::from(willing) / 1000 / u128::from(share);
    u64::try_from(weighed).unwrap_or(u64::MAX)
}

/// The process has grown notably.
pub fn grows(process: &Process) -> bool {
    process.grown_bytes > 0 && process.grown_bytes >= process.own_bytes() / NOTABLE_SHARE
}

/// Order of victim selection, independent of the order of the list. Of equal processes the younger
/// one, which has less work to lose, is killed first; of those the higher pid.
///
/// An avoided process ranks as any other: which user loses a process does not depend on it.
pub fn rank(process: &Process) -> (KillPreference, u64, u64, u32) {
    let preference = process.preference.max(KillPreference::Ordinary);
    (preference, score(process), process.id.start_time, process.id.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_at_fifteen_bytes_and_at_a_nul() {
        assert_eq!(Comm::new(b"a-name-that-is-too-long").as_bytes(), b"a-name-that-is-");
        assert_eq!(Comm::new(b"sh\0garbage").as_bytes(), b"sh");
        assert_eq!(Comm::new(b"").as_bytes(), b"");
        assert_eq!(Comm::new(b"a\xffb").to_string(), "a\u{fffd}b");
    }
}
