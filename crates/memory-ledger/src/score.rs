//! The badness of a process, as one number.

use crate::process::{KillPreference, Process};

/// Weight of a byte that was allocated in the last window, in additional bytes: at the same rate
/// the process will have them in half a minute. An idle database is then spared for a leak of a
/// tenth of its size, and a program that starts up beside an old slow leak is not always the
/// victim.
pub const GROWTH_WEIGHT: u64 = 8;
/// A session leader's score is divided by this: killing a login shell kills all its jobs and the
/// user's work, and frees little memory. A session leader that leaks is still selected.
pub const SESSION_LEADER_SHARE: u64 = 4;
/// A process grows notably if it would double in [`GROWTH_WEIGHT`] windows.
pub const NOTABLE_SHARE: u64 = 8;

/// `oom_score_adj` at which the kernel never kills a process; headroom-oomd does not either.
pub const OOM_SCORE_ADJ_NEVER: i16 = -1000;

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
