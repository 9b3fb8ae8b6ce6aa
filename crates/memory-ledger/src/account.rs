//! What a user has, and its victim on the way out.

use crate::account_id::{AccountId, CgroupId};
use crate::authority::{Layers, Source};
use crate::limit::Limit;
use crate::process::{Process, ProcessId};

/// How long a victim may take before it counts as stuck, besides the time for its size,
/// milliseconds. Measured on a loaded machine: a starved victim was gone after 1.8 s at the worst
/// once `process_mrelease` had helped; one in an uninterruptible sleep never goes.
pub const KILL_GRACE_MS: u64 = 2_000;
/// The slowest exit that was measured (nice 19 beside a busy loop), bytes a second.
pub const SLOWEST_EXIT_BYTES_PER_SECOND: u64 = 490_000_000;
/// How long an account may take to show that an emptied victim's memory is back, milliseconds.
/// It is there within one reading unless another process shares the victim's memory.
pub const ACCOUNT_SETTLE_MS: u64 = 100;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_SECOND: u128 = 1_000_000_000;

/// A user's account as read at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Anonymous, shared and swapped memory of all the user's processes, bytes.
    pub used_bytes: u64,
    /// Of these, bytes of processes that have been killed already.
    pub dying_bytes: u64,
    /// When it was read, nanoseconds.
    pub at_ns: u64,
}

/// Where an account stands against its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// At or below the soft limit.
    Within,
    /// Above the soft limit: a victim is kept ready.
    AboveSoft,
    /// Above the hard limit: somebody dies.
    Broken,
}

/// A victim that has been signalled and whose memory is not back yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Which.
    pub id: ProcessId,
    /// What it had, bytes.
    pub bytes: u64,
    /// What the user had at the signal, bytes.
    pub used_bytes: u64,
    /// When it was signalled, nanoseconds.
    pub signalled_ns: u64,
    /// Since when its memory counts as released from outside (`process_mrelease`), nanoseconds.
    pub released_ns: Option<u64>,
    /// Since when it is gone, nanoseconds.
    pub gone_ns: Option<u64>,
}

impl InFlight {
    /// When its grace is over, nanoseconds.
    pub fn deadline_ns(&self) -> u64 {
        let for_size =
            u128::from(self.bytes) * NS_PER_SECOND / u128::from(SLOWEST_EXIT_BYTES_PER_SECOND);
        let grace = u128::from(KILL_GRACE_MS * NS_PER_MS) + for_size;
        self.signalled_ns.saturating_add(u64::try_from(grace).unwrap_or(u64::MAX))
    }
}

/// How the wait for a victim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Its memory is back; the next one may die where that was not enough.
    Back {
        /// Bytes by which the account fell; others of the user may have grown meanwhile.
        bytes_back: u64,
        /// From the signal until the memory was back, nanoseconds.
        took_ns: u64,
    },
    /// Its grace is over.
    Stuck {
        /// How long was waited, nanoseconds.
        took_ns: u64,
    },
}

/// One limited user, or group of users.
#[derive(Clone, Debug)]
pub struct Account {
    /// Whose it is.
    pub id: AccountId,
    pub(crate) layers: Layers,
    pub(crate) limit: Limit,
    pub(crate) source: Source,
    pub(crate) reading: Reading,
    pub(crate) in_flight: Option<InFlight>,
    /// Victims that did not go; never chosen again.
    pub(crate) stuck: Vec<ProcessId>,
}

impl Account {
    /// Of a cgroup, of which only the configuration speaks.
    pub(crate) fn of_cgroup(id: CgroupId, limit: Limit) -> Self {
        let (reading, in_flight, stuck) = (Reading::default(), None, Vec::new());
        let (layers, source) = (Layers::default(), Source::Config);
        Self { id: AccountId::Cgroup(id), layers, limit, source, reading, in_flight, stuck }
    }

    /// The limit that counts.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// All that was said of it.
    pub fn layers(&self) -> Layers {
        self.layers
    }

    /// Where the limit comes from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The latest reading.
    pub fn reading(&self) -> Reading {
        self.reading
    }

    /// The victim whose memory is awaited.
    pub fn in_flight(&self) -> Option<InFlight> {
        self.in_flight
    }

    /// Victims that did not go in time.
    pub fn stuck(&self) -> &[ProcessId] {
        &self.stuck
    }

    /// Where the latest reading stands against the limit.
    pub fn phase(&self) -> Phase {
        match self.reading.used_bytes {
            used if used > self.limit.hard_bytes() => Phase::Broken,
            used if used > self.limit.soft_bytes() => Phase::AboveSoft,
            _ => Phase::Within,
        }
    }

    /// A victim was signalled. `used_bytes` is what the user had at that moment.
    pub fn signalled(&mut self, id: ProcessId, bytes: u64, used_bytes: u64, now_ns: u64) {
        self.in_flight = Some(InFlight {
            id,
            bytes,
            used_bytes,
            signalled_ns: now_ns,
            released_ns: None,
            gone_ns: None,
        });
    }

    /// The victim's memory was released from outside though it is not gone. Not all kinds can be, so
    /// that counts only as far as the account shows it.
    pub fn released(&mut self, id: ProcessId, now_ns: u64) {
        if let Some(victim) = self.in_flight.as_mut().filter(|victim| victim.id == id) {
            victim.released_ns.get_or_insert(now_ns);
        }
    }

    /// The victim is gone.
    pub fn gone(&mut self, id: ProcessId, now_ns: u64) {
        if let Some(victim) = self.in_flight.as_mut().filter(|victim| victim.id == id) {
            victim.gone_ns.get_or_insert(now_ns);
        }
    }

    /// Looks whether the victim's memory is back or its grace is over; if so, nobody is in flight
    /// any more and the next one may die.
    pub fn settle(&mut self, now_ns: u64) -> Option<(InFlight, Settled)> {
        let victim = self.in_flight?;
        let took_ns = now_ns.saturating_sub(victim.signalled_ns);
        let settled = if self.is_back(&victim, now_ns) {
            let bytes_back = victim.used_bytes.saturating_sub(self.reading.used_bytes);
            Settled::Back { bytes_back, took_ns }
        } else if victim.gone_ns.is_none() && now_ns >= victim.deadline_ns() {
            self.stuck.push(victim.id);
            Settled::Stuck { took_ns }
        } else {
            return None;
        };
        self.in_flight = None;
        Some((victim, settled))
    }

    /// The account was read after the victim lost its memory, and shows it. What others allocate
    /// meanwhile can hide the fall, so once the victim is gone the wait has a bound.
    fn is_back(&self, victim: &InFlight, now_ns: u64) -> bool {
        let fell = self.reading.used_bytes <= victim.used_bytes.saturating_sub(victim.bytes / 2);
        let shown = self.reading.dying_bytes == 0 || fell;
        let fresh = |since: Option<u64>| since.is_some_and(|since| self.reading.at_ns >= since);
        let settled_long = victim
            .gone_ns
            .is_some_and(|gone| now_ns.saturating_sub(gone) >= ACCOUNT_SETTLE_MS * NS_PER_MS);
        (fresh(victim.gone_ns) && (shown || settled_long)) || (fresh(victim.released_ns) && shown)
    }

    /// Forgets stuck victims that are not among the living any more.
    pub fn forget_gone(&mut self, processes: &[Process]) {
        self.stuck.retain(|id| processes.iter().any(|process| process.id == *id));
    }

    /// When something has to be looked at again though nothing happens, nanoseconds.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let victim = self.in_flight?;
        Some(match victim.gone_ns {
            Some(gone_ns) => gone_ns.saturating_add(ACCOUNT_SETTLE_MS * NS_PER_MS),
            None => victim.deadline_ns(),
        })
    }
}
