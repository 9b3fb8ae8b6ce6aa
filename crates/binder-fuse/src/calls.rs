//! The threads that have called on one open, and the request that each waits in.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Threads by tid. The first thread, for most opens the only one, needs no allocation: ten thousand
/// idle opens have ten thousand of these.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Calls {
    first: Option<(u32, Option<u64>)>,
    /// All threads but the first.
    #[expect(clippy::box_collection, reason = "an open without others pays for a pointer only")]
    others: Option<Box<HashMap<u32, Option<u64>>>>,
}

impl Calls {
    fn place(&mut self, tid: u32) -> Option<&mut Option<u64>> {
        match &mut self.first {
            Some((first, request)) if *first == tid => Some(request),
            _ => self.others.as_mut()?.get_mut(&tid),
        }
    }

    /// The thread has called before.
    pub(crate) fn knows(&self, tid: u32) -> bool {
        self.first.is_some_and(|(first, _)| first == tid)
            || self.others.as_ref().is_some_and(|others| others.contains_key(&tid))
    }

    /// The request in which a thread waits.
    pub(crate) fn request(&self, tid: u32) -> Option<u64> {
        match self.first {
            Some((first, request)) if first == tid => request,
            _ => self.others.as_ref()?.get(&tid).copied().flatten(),
        }
    }

    /// Records that a thread waits in this request, or in none; adds the thread if it is new.
    pub(crate) fn set(&mut self, tid: u32, request: Option<u64>) {
        if let Some(place) = self.place(tid) {
            *place = request;
        } else if self.first.is_none() {
            self.first = Some((tid, request));
        } else {
            self.others.get_or_insert_default().insert(tid, request);
        }
    }

    /// Records that the thread no longer waits; returns the request it was in.
    pub(crate) fn take(&mut self, tid: u32) -> Option<u64> {
        self.place(tid)?.take()
    }

    /// Removes a thread that has exited.
    pub(crate) fn forget(&mut self, tid: u32) {
        if self.first.is_some_and(|(first, _)| first == tid) {
            self.first = None;
        } else if let Some(others) = &mut self.others {
            others.remove(&tid);
            if others.is_empty() {
                self.others = None;
            }
        }
    }

    /// All threads.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, Option<u64>)> {
        let others = self.others.iter().flat_map(|others| others.iter());
        self.first.into_iter().chain(others.map(|(&tid, &request)| (tid, request)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_request_in_any_order() {
        let mut calls = Calls::default();
        for tid in [7, 3, 5] {
            assert!(!calls.knows(tid));
            calls.set(tid, None);
            calls.set(tid, Some(u64::from(tid) * 10));
        }
        assert_eq!(
            [7, 3, 5, 4].map(|tid| calls.request(tid)),
            [Some(70), Some(30), Some(50), None]
        );
        assert_eq!((calls.take(7), calls.take(7), calls.take(3)), (Some(70), None, Some(30)));
        assert!(calls.knows(7) && calls.knows(3));
        calls.forget(7);
        assert!(!calls.knows(7) && calls.knows(5));
        calls.set(9, Some(90));
        let mut all: Vec<_> = calls.iter().collect();
        all.sort_unstable();
        assert_eq!(all, [(3, None), (5, Some(50)), (9, Some(90))]);
        [3, 5, 9, 5].into_iter().for_each(|tid| calls.forget(tid));
        assert_eq!(calls.iter().count(), 0);
    }
}
