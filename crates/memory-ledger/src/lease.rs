//! Leases: memory that is promised to a process before it uses it.
//!
//! A process may have what it had beside its grants (its *base*: program, libraries, stacks), what
//! it was *granted*, and a small *reserve* for what it touches beside its allocator. Together that
//! is its *entitlement*. What of it is not resident yet is *promised*: nobody else can have it. As
//! the process touches its memory the promise is drawn down by just what its account grows, so a
//! page is never counted twice, and never given away between the grant and the first touch.

use std::collections::BTreeMap;

/// What a process may touch beside its allocator until its next grant shows it, bytes: a deeper
/// stack, pages of allocator book-keeping, a page of a library's data. Growth of that kind also
/// hides behind pages that were granted and not touched yet, of which an allocator keeps up to ten
/// in its caches. Eight pages were one too few for a process whose daemon was replaced meanwhile.
pub const RESERVE_BYTES: u64 = 16 * 4096;
/// Grants are multiples of this, bytes.
pub const GRAIN_BYTES: u64 = 4096;
/// One client's batch is at most this part of what is free, divided by the number of clients.
const BATCH_SHARE: u64 = 4;
/// Above the soft limit a batch is at most this, bytes: growth ahead of need is denied.
const DENIED_BATCH_BYTES: u64 = 4 * GRAIN_BYTES;

/// A client, for as long as it lives.
pub type ClientId = u64;

/// One client's lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// What it had beside its grants, bytes. Negative for a forked child, which has all that its
    /// allocator took before the fork and was promised none of it.
    pub base: i64,
    /// Granted and not given back, bytes.
    pub granted: u64,
    /// What its account shows, bytes.
    pub resident: u64,
}

impl Lease {
    /// What it may have at the most, bytes.
    pub fn entitlement(&self) -> u64 {
        let bytes = i128::from(self.base) + i128::from(self.granted) + i128::from(RESERVE_BYTES);
        u64::try_from(bytes.max(0)).unwrap_or(u64::MAX)
    }

    /// What it may still touch, bytes.
    pub fn promised(&self) -> u64 {
        self.entitlement().saturating_sub(self.resident)
    }

    /// Takes a fresh look. `unspent` is the balance that it has not taken yet. What is resident
    /// beyond its grants has come beside them.
    pub fn observe(&mut self, resident: u64, unspent: u64) {
        self.resident = resident;
        let spent = self.granted.saturating_sub(unspent);
        let beside = i64::try_from(resident).unwrap_or(i64::MAX).saturating_sub_unsigned(spent);
        self.base = self.base.max(beside);
    }
}

/// Where a user stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Hard limit, bytes.
    pub hard_bytes: u64,
    /// Soft limit, bytes.
    pub soft_bytes: u64,
    /// The user's account, bytes; that of its clients is part of it.
    pub used_bytes: u64,
}

/// What becomes of a request for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// So many bytes, at least what was needed.
    Grant(u64),
    /// It does not fit.
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

    /// How many clients there are.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// There is no client.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// A client's lease.
    pub fn lease(&self, id: ClientId) -> Option<&Lease> {
        self.leases.get(&id)
    }

    /// A client's lease, to be changed.
    pub fn lease_mut(&mut self, id: ClientId) -> Option<&mut Lease> {
        self.leases.get_mut(&id)
    }

    /// A new client, or one that comes back.
    pub fn insert(&mut self, id: ClientId, lease: Lease) {
        self.leases.insert(id, lease);
    }

    /// The client is gone, and its lease with it.
    pub fn remove(&mut self, id: ClientId) -> Option<Lease> {
        self.leases.remove(&id)
    }

    /// Memory that nobody else can have, bytes.
    pub fn promised(&self) -> u64 {
        self.leases.values().map(Lease::promised).fold(0, u64::saturating_add)
    }

    /// At the most so much is promised, whatever is resident: no account need be looked at.
    pub fn entitled(&self) -> u64 {
        self.leases.values().map(Lease::entitlement).fold(0, u64::saturating_add)
    }

    /// What could still be granted, bytes.
    pub fn headroom(&self, standing: &Standing) -> u64 {
        let taken = standing.used_bytes.saturating_add(self.promised());
        standing.hard_bytes.saturating_sub(taken)
    }

    /// Decides about a request; nothing changes yet.
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

    /// How much to grant ahead of need: much while there is plenty, little near the limit.
    fn batch(&self, need: u64, wish: u64, free: u64, standing: &Standing) -> u64 {
        let clients = self.leases.len().max(1) as u64;
        let share = free / (BATCH_SHARE * clients);
        let taken = standing.hard_bytes.saturating_sub(free);
        let most = if taken > standing.soft_bytes { DENIED_BATCH_BYTES } else { u64::MAX };
        let batch = wish.min(share).min(most);
        (batch - batch % GRAIN_BYTES).max(need)
    }
}
