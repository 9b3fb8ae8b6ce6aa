//! Death notifications, freezes and freeze notifications as data.

use std::collections::BTreeSet;
use std::fmt;

use crate::errno::Errno;
use crate::keys::{FreezeId, FreezeNotificationId, ProcessId};
use crate::write_read::queue::WorkId;

/// Where a notification is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeathState {
    /// Registered; nothing queued.
    Armed,
    /// `BR_DEAD_BINDER` is queued, or sent and not acknowledged.
    Dead,
    /// As `Dead`, and withdrawn since: the answer follows the acknowledgement.
    DeadAndClear,
    /// `BR_CLEAR_DEATH_NOTIFICATION_DONE` is queued.
    Clear,
}

impl fmt::Display for DeathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeathState::Armed => "armed",
            DeathState::Dead => "dead",
            DeathState::DeadAndClear => "dead, clear follows",
            DeathState::Clear => "clear",
        })
    }
}

/// One notification.
#[derive(Debug)]
pub struct Death {
    pub process: ProcessId,
    pub cookie: u64,
    pub state: DeathState,
    /// Queued.
    pub work: Option<WorkId>,
    /// Sent, and `BC_DEAD_BINDER_DONE` is due.
    pub delivered: bool,
}

/// What watchers are told of a node's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreezeState {
    Frozen,
    Thawed,
}

/// What a process knows of its being frozen.
#[derive(Debug, Default)]
pub struct Freezer {
    pub frozen: bool,
    /// A sync call was refused since the freeze.
    pub sync_received: bool,
    /// A one-way call came since the freeze.
    pub async_received: bool,
    /// Transactions to the process that are not over: queued, or calls not yet replied to.
    pub outstanding: usize,
    /// Watchers were last told that it is frozen.
    pub announced: bool,
    /// Freezes that wait for the last of the outstanding transactions.
    pub waits: BTreeSet<FreezeId>,
    /// Notifications registered on nodes of the process.
    pub watchers: BTreeSet<FreezeNotificationId>,
}

/// A `BINDER_FREEZE` that waits.
#[derive(Debug)]
pub struct FreezeWait {
    /// The open that asked.
    pub caller: ProcessId,
    /// The opens that are to be frozen and are still there.
    pub targets: BTreeSet<ProcessId>,
    /// They were thawed meanwhile.
    pub thawed: bool,
}

/// What becomes of a `BINDER_FREEZE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Freeze {
    /// Answer now.
    Done(Result<(), Errno>),
    /// Keep the request until [`Wake::Freeze`](crate::Wake::Freeze), an interrupt
    /// ([`Driver::freeze_interrupted`]) or its timeout ([`Driver::freeze_timed_out`]).
    Waiting(FreezeId),
}

/// One notification.
#[derive(Debug)]
pub struct FreezeNotification {
    /// Who hears of it.
    pub process: ProcessId,
    /// Whose state it is; `None` = dead, or the notification was withdrawn.
    pub owner: Option<ProcessId>,
    pub cookie: u64,
    /// What is to be told, or was told last.
    pub is_frozen: bool,
    /// Queued.
    pub work: Option<WorkId>,
    /// Sent, and `BC_FREEZE_NOTIFICATION_DONE` is due.
    pub sent: bool,
    /// The acknowledgement is followed by another one.
    pub resend: bool,
    /// Withdrawn: the next thing that is sent is the answer to that.
    pub clear: bool,
}
