//! The memory controller's charge of a user's slice, `user.slice/user-UID.slice`.
//!
//! It is the user's actual usage if the slice contains all processes of the user and no others. A
//! [bounded reader](super::bounded) reads it: the kernel first adds up the statistics of all
//! cgroups below and of all CPUs, and a user may have many cgroups.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use headroom_linux::clock::monotonic_ns;
use memory_ledger::measurement::OLDEST_MS;
use memory_ledger::{AccountId, Order};
use memory_watch::cgroups::Cgroups;
use owners::Owner;

use super::bounded::{Answer, BoundedReader, Question};
use super::slice::{SliceCharge, SliceQuery};
use crate::clock::NS_PER_MS;

/// How long a slice is not read after a read that timed out, milliseconds: a slow slice may occupy
/// a reader once in a while.
const PAUSE_MS: u64 = 5_000;

/// Reads slices and caches the results.
pub(super) struct Controller {
    cgroups: Option<Arc<Cgroups>>,
    accounts: BTreeMap<AccountId, Known>,
}

/// The slice's charge in relation to the account's sum.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargeDifference {
    /// The charge less the sum, bytes.
    pub(super) bytes: i64,
    /// Maximum of the part of the charge that is lazily freed, bytes.
    pub(super) lazily_freed_bytes: u64,
}

impl ChargeDifference {
    /// The difference if all that may be lazily freed is, bytes.
    pub(super) fn least_bytes(self) -> i64 {
        self.bytes.saturating_sub_unsigned(self.lazily_freed_bytes)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The last charge, and when it was read, nanoseconds.
    latest: Option<(ChargeDifference, u64)>,
    /// When the slice may be read again, nanoseconds.
    retry_ns: u64,
}

impl Controller {
    /// `cgroups`: the hierarchy, if there is one. It is used if it has the memory controller.
    pub(super) fn new(cgroups: Option<Cgroups>) -> Self {
        Self {
            cgroups: cgroups.filter(Cgroups::has_memory).map(Arc::new),
            accounts: BTreeMap::new(),
        }
    }

    /// The slice's charge less the account's sum; the cached one if the read times out.
    /// `None`: the charge is not the user's usage, or not known.
    pub(super) fn difference(
        &mut self,
        order: &Order,
        query: SliceQuery,
        reader: &mut BoundedReader,
    ) -> Option<ChargeDifference> {
        let cgroups = self.cgroups.as_ref()?;
        let known = self.accounts.entry(order.account).or_default();
        let now_ns = monotonic_ns();
        if now_ns >= known.retry_ns {
            let owner = Owner::User(query.uid);
            match reader.read(owner, Question::Slice(Arc::clone(cgroups), query)) {
                Some(Answer::Slice(charged)) => {
                    let difference = |charge: SliceCharge| ChargeDifference {
                        bytes: charge.bytes as i64 - order.summed_bytes as i64,
                        lazily_freed_bytes: charge.lazily_freed_bytes,
                    };
                    known.latest = charged.map(|charge| (difference(charge), now_ns));
                }
                _ => known.retry_ns = now_ns + PAUSE_MS * NS_PER_MS,
            }
        }
        let (difference, at_ns) = known.latest?;
        (now_ns - at_ns < OLDEST_MS * NS_PER_MS).then_some(difference)
    }

    /// Drops the cached charge of an account that is measured in another way.
    pub(super) fn forget(&mut self, account: AccountId) {
        if let Some(known) = self.accounts.get_mut(&account) {
            known.latest = None;
        }
        let now_ns = monotonic_ns();
        self.accounts.retain(|_, known| known.latest.is_some() || known.retry_ns > now_ns);
    }
}

/// The cgroup hierarchy of the system.
pub(super) fn hierarchy() -> Option<Cgroups> {
    Cgroups::find(Path::new("/proc")).unwrap_or_else(|error| {
        tracing::warn!("{error}; the memory controller is not used");
        None
    })
}
