//! A queue that serves owners in turn, and the uids of an owner in turn (deficit round robin).

use std::collections::{BTreeMap, VecDeque};

use crate::Uid;

/// A queue whose next item has a known cost.
trait Costed {
    type Item;

    /// Cost of the next item, which [`take`](Costed::take) then returns; `None` if the queue is
    /// empty.
    fn next_cost(&mut self) -> Option<u64>;

    fn take(&mut self) -> Option<Self::Item>;
}

/// First in, first out; each item has a cost.
#[derive(Debug)]
struct Fifo<T>(VecDeque<(u64, T)>);

impl<T> Costed for Fifo<T> {
    type Item = T;

    fn next_cost(&mut self) -> Option<u64> {
        self.0.front().map(|(cost, _)| *cost)
    }

    fn take(&mut self) -> Option<T> {
        self.0.pop_front().map(|(_, item)| item)
    }
}

/// A queue of one key.
#[derive(Debug)]
struct Flow<Q> {
    /// Cost that may still be served in this round. Reset when the queue becomes empty, so that an
    /// idle flow cannot save up for a burst.
    deficit: u64,
    queue: Q,
}

/// Flows that are served round robin, each up to one quantum a round.
#[derive(Debug)]
struct RoundRobin<K, Q> {
    quantum: u64,
    flows: BTreeMap<K, Flow<Q>>,
    /// Keys in the order in which they are served; exactly the keys of `flows`.
    turns: VecDeque<K>,
}

impl<K: Copy + Ord, Q: Costed> RoundRobin<K, Q> {
    fn new(quantum: u64) -> Self {
        Self { quantum, flows: BTreeMap::new(), turns: VecDeque::new() }
    }

    /// The queue of a key; the flow of a new key is appended to the round.
    fn queue(&mut self, key: K, new: impl FnOnce() -> Q) -> &mut Q {
        let (turns, deficit) = (&mut self.turns, self.quantum);
        let flow = self.flows.entry(key).or_insert_with(|| {
            turns.push_back(key);
            Flow { deficit, queue: new() }
        });
        &mut flow.queue
    }
}

impl<K: Copy + Ord, Q: Costed> Costed for RoundRobin<K, Q> {
    type Item = Q::Item;

    fn next_cost(&mut self) -> Option<u64> {
        // At most one round: no item costs more than a quantum, and a flow that is passed gets one.
        loop {
            let key = *self.turns.front()?;
            let flow = self.flows.get_mut(&key)?;
            match flow.queue.next_cost() {
                Some(cost) if cost <= flow.deficit => return Some(cost),
                Some(_) => {
                    flow.deficit += self.quantum;
                    self.turns.rotate_left(1);
                }
                None => {
                    self.flows.remove(&key);
                    self.turns.pop_front();
                }
            }
        }
    }

    fn take(&mut self) -> Option<Q::Item> {
        let cost = self.next_cost()?;
        let key = *self.turns.front()?;
        let flow = self.flows.get_mut(&key)?;
        flow.deficit -= cost;
        let item = flow.queue.take();
        if flow.queue.next_cost().is_none() {
            self.flows.remove(&key);
            self.turns.pop_front();
        }
        item
    }
}

/// Items of owners (`K`) and their uids, taken out fairly.
///
/// While several owners have items queued, each gets an equal part of the cost that is served, up
/// to one quantum and one item; so does each uid within its owner's part. The number of an owner's
/// uids and items does not affect other owners.
#[derive(Debug)]
pub struct FairQueue<K, T> {
    owners: RoundRobin<K, RoundRobin<Uid, Fifo<T>>>,
    len: usize,
}

impl<K: Copy + Ord, T> FairQueue<K, T> {
    /// Empty. In its turn an owner is served items of a cost of `quantum`: the largest cost of an
    /// item, or a multiple of it for fewer changes of owner.
    pub fn new(quantum: u64) -> Self {
        Self { owners: RoundRobin::new(quantum.max(1)), len: 0 }
    }

    /// Adds an item. A cost counts as one at least, and as a quantum at the most.
    pub fn push(&mut self, owner: K, uid: Uid, cost: u64, item: T) {
        let quantum = self.owners.quantum;
        let uids = self.owners.queue(owner, || RoundRobin::new(quantum));
        let items = uids.queue(uid, || Fifo(VecDeque::new()));
        items.0.push_back((cost.clamp(1, quantum), item));
        self.len += 1;
    }

    /// Removes and returns the next item.
    pub fn pop(&mut self) -> Option<T> {
        let item = self.owners.take();
        self.len -= usize::from(item.is_some());
        item
    }

    /// Number of queued items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no item is queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Owner;

    fn user(number: u32) -> Owner {
        Owner::User(Uid(number))
    }

    fn drain<T>(queue: &mut FairQueue<Owner, T>) -> Vec<T> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn owners_take_turns_and_items_of_one_stay_in_order() {
        let mut queue = FairQueue::new(1);
        for item in ["a1", "a2", "a3"] {
            queue.push(user(1), Uid(1), 1, item);
        }
        queue.push(user(2), Uid(2), 1, "b1");
        queue.push(user(2), Uid(2), 1, "b2");
        assert_eq!(queue.len(), 5);
        assert_eq!(drain(&mut queue), ["a1", "b1", "a2", "b2", "a3"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn an_owner_with_65536_uids_gains_nothing() {
        let mut queue = FairQueue::new(1);
        for uid in 100_000..165_536 {
            queue.push(user(1), Uid(uid), 1, 1);
        }
        for _ in 0..100 {
            queue.push(user(2), Uid(2), 1, 2);
        }
        let served: Vec<u32> = (0..200).filter_map(|_| queue.pop()).collect();
        assert_eq!(served.iter().filter(|owner| **owner == 2).count(), 100);
    }

    #[test]
    fn the_uids_of_an_owner_take_turns() {
        let mut queue = FairQueue::new(1);
        for _ in 0..3 {
            queue.push(user(1), Uid(100_000), 1, "many");
        }
        queue.push(user(1), Uid(100_001), 1, "one");
        assert_eq!(drain(&mut queue), ["many", "one", "many", "many"]);
    }

    #[test]
    fn large_items_cost_more_turns() {
        let mut queue = FairQueue::new(10);
        for _ in 0..10 {
            queue.push(user(1), Uid(1), 10, 1);
            for _ in 0..10 {
                queue.push(user(2), Uid(2), 1, 2);
            }
        }
        let first: Vec<u32> = (0..22).filter_map(|_| queue.pop()).collect();
        assert_eq!(first.iter().filter(|owner| **owner == 1).count(), 2);
    }

    #[test]
    fn a_cost_outside_of_its_range_is_taken_for_the_nearest() {
        let mut queue = FairQueue::new(10);
        queue.push(user(1), Uid(1), u64::MAX, 1);
        queue.push(user(1), Uid(1), 0, 2);
        assert_eq!(drain(&mut queue), [1, 2]);
        // With a quantum of 0 no flow would ever be served.
        let mut queue = FairQueue::new(0);
        queue.push(user(1), Uid(1), 5, 1);
        assert_eq!(drain(&mut queue), [1]);
    }
}
