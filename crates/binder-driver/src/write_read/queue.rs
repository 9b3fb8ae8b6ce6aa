//! Work queues: doubly linked lists in one slab, so that queueing allocates no memory in a steady
//! state and any item leaves its queue in constant time.

use crate::slab::{Key, Slab, key_types};
use serde::{Deserialize, Serialize};

use crate::write_read::work::Work;

key_types! {
    /// One list.
    pub struct QueueId;
    /// One queued item.
    pub struct WorkId;
}

#[derive(Debug, Serialize, Deserialize)]
struct QueuedWork {
    work: Work,
    queue: QueueId,
    previous: WorkId,
    next: WorkId,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Head {
    first: WorkId,
    last: WorkId,
    len: u32,
}

/// All queues of the driver.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Queues {
    entries: Slab<WorkId, QueuedWork>,
    heads: Slab<QueueId, Head>,
}

impl Queues {
    /// A new, empty queue.
    pub fn create(&mut self) -> QueueId {
        self.heads.insert(Head::default())
    }

    /// Removes a queue that was emptied before.
    pub fn destroy(&mut self, queue: QueueId) {
        debug_assert!(self.is_empty(queue));
        self.heads.remove(queue);
    }

    /// Appends an item.
    pub fn push(&mut self, queue: QueueId, work: Work) -> WorkId {
        let previous = self.heads[queue].last;
        let id = self.entries.insert(QueuedWork { work, queue, previous, next: WorkId::NULL });
        match self.entries.get_mut(previous) {
            Some(entry) => entry.next = id,
            None => self.heads[queue].first = id,
        }
        let head = &mut self.heads[queue];
        head.last = id;
        head.len += 1;
        id
    }

    /// Removes an item from its queue; `None` if it was removed before.
    pub fn unlink(&mut self, id: WorkId) -> Option<Work> {
        let QueuedWork { work, queue, previous, next } = self.entries.remove(id)?;
        match self.entries.get_mut(previous) {
            Some(entry) => entry.next = next,
            None => self.heads[queue].first = next,
        }
        match self.entries.get_mut(next) {
            Some(entry) => entry.previous = previous,
            None => self.heads[queue].last = previous,
        }
        self.heads[queue].len -= 1;
        Some(work)
    }

    /// Removes and returns the first item.
    pub fn pop(&mut self, queue: QueueId) -> Option<Work> {
        self.unlink(self.heads.get(queue)?.first)
    }

    /// Items in the queue.
    pub fn len(&self, queue: QueueId) -> usize {
        self.heads.get(queue).map_or(0, |head| head.len as usize)
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self, queue: QueueId) -> bool {
        self.len(queue) == 0
    }

    /// The items, first to last.
    pub fn iter(&self, queue: QueueId) -> impl Iterator<Item = (WorkId, Work)> {
        let mut at = self.heads.get(queue).map_or(WorkId::NULL, |head| head.first);
        std::iter::from_fn(move || {
            let entry = self.entries.get(at)?;
            let item = (at, entry.work);
            at = entry.next;
            Some(item)
        })
    }

    /// Whether the key is that of a queue.
    pub fn check_exists(&self, queue: QueueId) -> Result<(), String> {
        if self.heads.contains_key(queue) { Ok(()) } else { Err(format!("{queue:?} is stale")) }
    }

    /// Checks that each item is linked in the one queue that it names.
    pub fn check(&self) -> Result<(), String> {
        let mut linked = 0;
        for (queue, head) in self.heads.iter() {
            let (mut at, mut previous) = (head.first, WorkId::NULL);
            for _ in 0..head.len {
                let entry = self.entries.get(at).ok_or_else(|| format!("{queue:?} ends early"))?;
                if (entry.queue, entry.previous) != (queue, previous) {
                    return Err(format!("{at:?} is not linked in {queue:?}"));
                }
                (previous, at) = (at, entry.next);
            }
            if (at, previous) != (WorkId::NULL, head.last) {
                return Err(format!("{queue:?} is longer than {} items", head.len));
            }
            linked += head.len as usize;
        }
        if linked == self.entries.len() { Ok(()) } else { Err("an item is in no queue".into()) }
    }

    /// Number of queues, and of items in all of them.
    pub fn totals(&self) -> (usize, usize) {
        (self.heads.len(), self.entries.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn works(queues: &Queues, queue: QueueId) -> Vec<Work> {
        queues.iter(queue).map(|(_, work)| work).collect()
    }

    #[test]
    fn items_leave_in_the_order_they_came() {
        let mut queues = Queues::default();
        let queue = queues.create();
        let items = [1, 2, 3].map(Work::ReturnError);
        items.iter().for_each(|&work| _ = queues.push(queue, work));
        assert_eq!(works(&queues, queue), items);
        assert_eq!([(); 3].map(|()| queues.pop(queue).unwrap()), items);
        assert_eq!(queues.pop(queue), None);
    }

    #[test]
    fn an_item_can_leave_from_anywhere_once() {
        for leaver in 0..3 {
            let mut queues = Queues::default();
            let queue = queues.create();
            let items = [1, 2, 3].map(Work::ReturnError);
            let ids = items.map(|work| queues.push(queue, work));
            assert_eq!(queues.unlink(ids[leaver]), Some(items[leaver]));
            assert_eq!(queues.unlink(ids[leaver]), None);
            let left: Vec<_> = items.into_iter().filter(|work| *work != items[leaver]).collect();
            assert_eq!(works(&queues, queue), left);
            queues.push(queue, Work::ReturnError(4));
            assert_eq!(queues.len(queue), 3);
            assert_eq!(works(&queues, queue).last(), Some(&Work::ReturnError(4)));
        }
    }
}
