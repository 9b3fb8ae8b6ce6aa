//! Data structures of death notifications, freezes and freeze notifications.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::errno::Errno;
use crate::keys::{FreezeId, FreezeNotificationId, ProcessId};
use crate::write_read::queue::WorkId;

/// State of a death notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeathState {
    /// Registered; no work is queued.
    Armed,
    /// `BR_DEAD_BINDER` is queued, or sent and not acknowledged.
    Dead,
    /// Like `Dead`, and withdrawn since: the confirmation follows the acknowledgement.
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

/// A death notification.
#[derive(Debug, Serialize, Deserialize)]
pub struct Death {
    pub process: ProcessId,
    pub cookie: u64,
    pub state: DeathState,
    /// The notification's work item, when queued.
    pub work: Option<WorkId>,
    /// `BR_DEAD_BINDER` was sent, and `BC_DEAD_BINDER_DONE` is due.
    pub delivered: bool,
}

/// State of a node's owner that is reported to watchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FreezeState {
    Frozen,
    Thawed,
}

/// Freeze state of a process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Freezer {
    pub frozen: bool,
    /// A sync call was refused since the freeze.
    pub sync_received: bool,
    /// A one-way call was received since the freeze.
    pub async_received: bool,
    /// Transactions to the process that have not ended: queued, or calls without a reply.
    pub outstanding: usize,
    /// The last state reported to watchers was frozen.
    pub announced: bool,
    /// Pending freezes that wait for the last of the outstanding transactions.
    pub waits: BTreeSet<FreezeId>,
    /// Notifications registered on nodes of the process.
    pub watchers: BTreeSet<FreezeNotificationId>,
}

/// A pending `BINDER_FREEZE`.
#[derive(Debug, Serialize, Deserialize)]
pub struct FreezeWait {
    /// The open that requested it.
    pub caller: ProcessId,
    /// The opens to freeze, without those released since.
    pub targets: BTreeSet<ProcessId>,
    /// The opens were thawed meanwhile.
    pub thawed: bool,
}

/// Result of a `BINDER_FREEZE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Freeze {
    /// The result is known.
    Done(Result<(), Errno>),
    /// Keep the request until [`Wake::Freeze`](crate::Wake::Freeze), an interrupt
    /// ([`Driver::freeze_interrupted`]) or its timeout ([`Driver::freeze_timed_out`]).
    Waiting(FreezeId),
}

/// A freeze notification.
#[derive(Debug, Serialize, Deserialize)]
pub struct FreezeNotification {
    /// The process that receives it.
    pub process: ProcessId,
    /// The watched process; `None` = dead, or the notification was withdrawn.
    pub owner: Option<ProcessId>,
    pub cookie: u64,
    /// State to report, or reported last.
    pub is_frozen: bool,
    /// The notification's work item, when queued.
    pub work: Option<WorkId>,
    /// `BR_FROZEN_BINDER` was sent, and `BC_FREEZE_NOTIFICATION_DONE` is due.
    pub sent: bool,
    /// The state has to be sent again after the acknowledgement.
    pub resend: bool,
    /// The notification was withdrawn: the confirmation of that is sent next.
    pub clear: bool,
}
