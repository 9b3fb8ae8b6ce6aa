//! Leases: memory that is reserved for a process before the process uses it.
//!
//! A process may have its memory outside of its grants (its *base*: program, libraries, stacks),
//! the memory that it was *granted*, and a small *reserve* for memory that it touches outside of
//! its allocator. The sum is its *entitlement*. The part of it that is not resident yet is
//! *reserved*: no other process can have it. As the process touches its memory, the reservation
//! shrinks by exactly the growth of its account, so a page is never counted twice, and never given
//! to another process between the grant and the first touch.

use std::collections::BTreeMap;

/// Bytes that a process may touch outside of its allocator until its next grant shows them: a
/// deeper stack, pages of allocator book-keeping, a page of a library's data. Growth of that kind
/// is also hidden by pages that were granted and not touched yet, of which an allocator keeps up to
/// ten in its caches. Eight pages were one too few for a process while its daemon was replaced.
/// Pages of arm64 can have 16 KiB.
pub const RESERVE_BYTES: u64 = 16 * if cfg!(target_arch = "aarch64") { 16 << 10 } else { 4096 };
/// Grants are multiples of this, bytes.
pub const GRAIN_BYTES: u64 = 4096;
/// A client's batch is at most this fraction of the free memory, divided by the number of clients.
const BATCH_SHARE: u64 = 4;
/// Maximum batch above the soft limit, bytes: no grants ahead of need.
const DENIED_BATCH_BYTES: u64 = 4 * GRAIN_BYTES;

/// Identifies a client from its connection until its exit.
pub type ClientId = u64;

/// One client's lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Memory outside of the grants, bytes. Negative for a forked child, which has all memory that
    /// its allocator took before the fork, and no grant for it.
    pub base: i64,
    /// Granted and not returned, bytes.
    pub granted: u64,
    /// Resident memory according to the account, bytes.
    pub resident: u64,
}

impl Lease {
    /// Maximum of the client's memory, bytes.
    pub fn entitlement(&self) -> u64 {
        let bytes = i128::from(self.base) + i128::from(self.granted) + i128::from(RESERVE_BYTES);
        u64::try_from(bytes.max(0)).unwrap_or(u64::MAX)
    }

    /// Memory that the client may still touch, bytes.
    pub fn reserved(&self) -> u64 {
        self.entitlement().saturating_sub(self.resident)
    }

    /// Records a reading. `unspent` is the part of the grants that the client has not taken yet.
    /// Resident memory beyond the grants was allocated outside of them.
    pub fn observe(&mut self, resident: u64, unspent: u64) {
        self.resident = resident;
        let spent = self.granted.saturating_sub(unspent);
        let beside = i64::try_from(resident).unwrap_or(i64::MAX).saturating_sub_unsigned(spent);
        self.base = self.base.max(beside);
    }
}

/// Usage and limits of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Hard limit, bytes.
    pub hard_bytes: u64,
    /// Soft limit, bytes.
    pub soft_bytes: u64,
    /// Usage of the user's account, bytes, including its clients.
    pub used_bytes: u64,
}

/// Decision about a request for a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Granted bytes, at least the requested need.
    Grant(u64),
    /// The need does not fit.
    Full,
}

/// The leases of one user.
#[derive(Clone, Debug, Default)]
pub struct Book {
    leases: BTreeMap<ClientId, Lease>,
}

impl Book {
    /// All leases.
    pub fn leases(&self) -> impl Iterator<Item = (ClientId, &Lease)> {
        self.leases.iter().map(|(id, lease)| (*id, lease))
    }

    /// Number of clients.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// There are no clients.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// A client's lease.
    pub fn lease(&self, id: ClientId) -> Option<&Lease> {
        self.leases.get(&id)
    }

    /// A client's lease, mutable.
    pub fn lease_mut(&mut self, id: ClientId) -> Option<&mut Lease> {
        self.leases.get_mut(&id)
    }

    /// Adds a new client, or one that reconnects.
    pub fn insert(&mut self, id: ClientId, lease: Lease) {
        self.leases.insert(id, lease);
    }

    /// Removes a client that has exited, with its lease.
    pub fn remove(&mut self, id: ClientId) -> Option<Lease> {
        self.leases.remove(&id)
    }

    /// Memory that is reserved for the clients, bytes.
    pub fn reserved(&self) -> u64 {
        self.leases.values().map(Lease::reserved).fold(0, u64::saturating_add)
    }

    /// Upper bound of the reserved memory, bytes, whatever is resident: needs no reading of an
    /// account.
    pub fn entitled(&self) -> u64 {
        self.leases.values().map(Lease::entitlement).fold(0, u64::saturating_add)
    }

    /// Memory that can still be granted, bytes.
    pub fn headroom(&self, standing: &Standing) -> u64 {
        let taken = standing.used_bytes.saturating_add(self.reserved());
        standing.hard_bytes.saturating_sub(taken)
    }

    /// Decides about a request, without changing the lease.
    pub fn decide(&self, id: ClientId, need: u64, wish: u64, standing: &Standing) -> Decision {
        if !self.leases.contains_key(&id) {
            return Decision::Full;
        }
        let free = self.headroom(standing);
        let Some(need) = need.checked_next_multiple_of(GRAIN_BYTES) else { return Decision::Full };
        if need > free {
            return Decision::Full;
        }
        Decision::Grant(self.batch(need, wish, free, standing))
    }

    /// Size of a grant ahead of need: large while much memory is free, small near the limit.
    fn batch(&self, need: u64, wish: u64, free: u64, standing: &Standing) -> u64 {
        let clients = self.leases.len().max(1) as u64;
        let share = free / (BATCH_SHARE * clients);
        let taken = standing.hard_bytes.saturating_sub(free);
        let most = if taken > standing.soft_bytes { DENIED_BATCH_BYTES } else { u64::MAX };
        let batch = wish.min(share).min(most);
        (batch - batch % GRAIN_BYTES).max(need)
    }
}
