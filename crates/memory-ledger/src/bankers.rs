//! The bankers' check: can everybody who has declared how much it will want at the most still get it,
//! one after the other?
//!
//! One resource, bytes. Whoever reaches its claim is taken to finish and to give back all it holds. If
//! an order exists in which all can finish, the one by ascending remaining need is such an order.

/// A client that has declared its maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claimant {
    /// What it holds, bytes.
    pub held: u64,
    /// What it may still ask for, bytes.
    pub need: u64,
}

/// Whether all can finish when so much is free. `by_need` is sorted by ascending need.
///
/// O(n), or shorter: it ends with the first who cannot be served, after whom nobody can.
pub fn is_safe(free: u64, by_need: &[Claimant]) -> bool {
    debug_assert!(by_need.is_sorted_by_key(|claimant| claimant.need));
    all_finish(free, by_need)
}

/// Whether all finish in this very order, each giving back what it holds.
fn all_finish<'a>(mut free: u64, order: impl IntoIterator<Item = &'a Claimant>) -> bool {
    order.into_iter().all(|claimant| {
        let served = claimant.need <= free;
        free = free.saturating_add(claimant.held);
        served
    })
}

/// Whether all can finish after the claimant at `requester` was given `bytes` out of `free`. O(n): only
/// the requester changes its place in the order.
pub fn is_safe_after(free: u64, by_need: &[Claimant], requester: usize, bytes: u64) -> bool {
    let Some(left) = free.checked_sub(bytes) else { return false };
    let Some(old) = by_need.get(requester) else { return false };
    let Some(need) = old.need.checked_sub(bytes) else { return false };
    let requester_then = Claimant { held: old.held.saturating_add(bytes), need };
    let (before, after) = (&by_need[..requester], &by_need[requester + 1..]);
    // With its smaller need the requester only ever moves towards the front.
    let place = before.partition_point(|claimant| claimant.need <= need);
    let order =
        before[..place].iter().chain([&requester_then]).chain(&before[place..]).chain(after);
    all_finish(left, order)
}
