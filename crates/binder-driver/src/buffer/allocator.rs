//! The ranges of one receiver's mapping: best fit by size, merged with their neighbours on release.
//!
//! Memory is proportional to the live ranges (and the free ranges between them), not to the size of
//! the mapping.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Debug)]
struct Range<T> {
    len: u32,
    /// `None` = free.
    owner: Option<T>,
}

/// A range that was released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released<T> {
    /// Length, bytes.
    pub len: u32,
    /// The value that the range carried.
    pub owner: T,
    /// The free range that it has been merged into.
    pub hole: std::ops::Range<u32>,
}

/// An allocator of ranges of `0..size`; a live range carries a `T`.
#[derive(Debug)]
pub struct Allocator<T> {
    /// All ranges in address order, without gaps; two free ranges are never adjacent.
    ranges: BTreeMap<u32, Range<T>>,
    /// The free ranges as (length, offset).
    free: BTreeSet<(u32, u32)>,
    size: u32,
    used: u32,
    live: usize,
}

impl<T: Copy> Allocator<T> {
    /// An allocator with one free range of `size` bytes.
    pub fn new(size: u32) -> Self {
        let mut new =
            Self { ranges: BTreeMap::new(), free: BTreeSet::new(), size, used: 0, live: 0 };
        if size > 0 {
            new.insert_free(0, size);
        }
        new
    }

    fn insert_free(&mut self, offset: u32, len: u32) {
        self.ranges.insert(offset, Range { len, owner: None });
        self.free.insert((len, offset));
    }

    /// Allocates `len` bytes (not 0) from the smallest free range that is large enough, the lowest
    /// among equals. `None`: no free range is that large.
    pub fn allocate(&mut self, len: u32, owner: T) -> Option<u32> {
        debug_assert!(len > 0);
        let &(found, offset) = self.free.range((len, 0)..).next()?;
        self.free.remove(&(found, offset));
        self.ranges.insert(offset, Range { len, owner: Some(owner) });
        if found > len {
            self.insert_free(offset + len, found - len);
        }
        self.used += len;
        self.live += 1;
        Some(offset)
    }

    /// Frees the live range that starts at `offset`.
    pub fn release(&mut self, offset: u32) -> Option<Released<T>> {
        let range = self.ranges.get(&offset)?;
        let (len, owner) = (range.len, range.owner?);
        self.used -= len;
        self.live -= 1;
        let (mut start, mut end) = (offset, offset + len);
        if let Some((&next, range)) = self.ranges.range(end..).next()
            && range.owner.is_none()
        {
            end = next + range.len;
            self.free.remove(&(range.len, next));
            self.ranges.remove(&next);
        }
        if let Some((&previous, range)) = self.ranges.range(..offset).next_back()
            && range.owner.is_none()
        {
            start = previous;
            self.free.remove(&(range.len, previous));
            self.ranges.remove(&offset);
        }
        self.insert_free(start, end - start);
        Some(Released { len, owner, hole: start..end })
    }

    /// The owner of the live range that starts at `offset`.
    pub fn owner(&self, offset: u32) -> Option<T> {
        self.ranges.get(&offset)?.owner
    }

    /// Live ranges in address order: offset, length, owner.
    pub fn live(&self) -> impl Iterator<Item = (u32, u32, T)> {
        self.ranges.iter().filter_map(|(&at, range)| Some((at, range.len, range.owner?)))
    }

    /// Number of live ranges.
    pub fn live_count(&self) -> usize {
        self.live
    }

    /// Bytes in live ranges.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Size of the whole area, bytes.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The end of the live range that contains `offset`.
    pub fn live_end(&self, offset: u32) -> Option<u32> {
        let (at, range) = self.ranges.range(..=offset).next_back()?;
        range.owner.map(|_| at + range.len).filter(|end| *end > offset)
    }

    /// Whether a byte of `range` is part of a live range.
    pub fn covers(&self, range: std::ops::Range<u32>) -> bool {
        let before = self.ranges.range(..=range.start).next_back();
        let inside = self.ranges.range(range.clone());
        before.into_iter().chain(inside).any(|(&at, entry)| {
            entry.owner.is_some() && at < range.end && at + entry.len > range.start
        })
    }

    /// The allocator of ranges that follow each other: lengths and owners. `None`: a length is 0,
    /// the sum does not fit in 32 bits, or two free ranges are adjacent.
    fn of_ranges(ranges: Vec<(u32, Option<T>)>) -> Option<Self> {
        let mut new = Self::new(0);
        let mut last_free = false;
        for (len, owner) in ranges {
            let (offset, free) = (new.size, owner.is_none());
            if len == 0 || (free && last_free) {
                return None;
            }
            new.size = offset.checked_add(len)?;
            last_free = free;
            if free {
                new.free.insert((len, offset));
            } else {
                new.used += len;
                new.live += 1;
            }
            new.ranges.insert(offset, Range { len, owner });
        }
        Some(new)
    }

    /// Checks redundant data against each other; the error names the first mismatch.
    pub fn check(&self) -> Result<(), String> {
        let (mut at, mut used, mut live, mut holes, mut last_free) = (0, 0, 0, 0, false);
        for (&offset, range) in &self.ranges {
            let free = range.owner.is_none();
            if offset != at || range.len == 0 {
                return Err(format!("range at {offset} of {} bytes, expected at {at}", range.len));
            }
            if free && last_free {
                return Err(format!("two free ranges touch at {offset}"));
            }
            if free != self.free.contains(&(range.len, offset)) {
                return Err(format!("free list and range at {offset} disagree"));
            }
            (at, last_free) = (offset + range.len, free);
            if free {
                holes += 1;
            } else {
                used += range.len;
                live += 1;
            }
        }
        let counted = (at, used, live, holes);
        let kept = (self.size, self.used, self.live, self.free.len());
        if counted == kept { Ok(()) } else { Err(format!("counted {counted:?}, kept {kept:?}")) }
    }
}

/// The lengths and owners of the ranges; all else follows from them.
impl<T: Serialize> Serialize for Allocator<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.ranges.values().map(|range| (range.len, &range.owner)))
    }
}

impl<'de, T: Copy + Deserialize<'de>> Deserialize<'de> for Allocator<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ranges = Vec::deserialize(deserializer)?;
        Self::of_ranges(ranges).ok_or_else(|| D::Error::custom("ranges of a receive area"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_smallest_hole_that_fits_is_taken() {
        let mut a = Allocator::new(1024);
        let [big, wall, small, _end] = [256, 8, 64, 8].map(|len| a.allocate(len, ()).unwrap());
        a.release(big);
        a.release(small);
        assert_eq!(a.allocate(64, ()), Some(small));
        assert_eq!(a.allocate(72, ()), Some(big));
        assert_eq!(wall, 256);
    }

    #[test]
    fn a_full_area_refuses_and_recovers() {
        let mut a = Allocator::new(64);
        assert_eq!(a.allocate(64, ()), Some(0));
        assert_eq!(a.allocate(8, ()), None);
        assert_eq!(a.release(0), Some(Released { len: 64, owner: (), hole: 0..64 }));
        assert_eq!(a.release(0), None);
        assert_eq!(a.allocate(64, ()), Some(0));
    }

    #[test]
    fn an_empty_area_refuses_everything() {
        assert_eq!(Allocator::new(0).allocate(8, ()), None);
    }

    #[test]
    fn neighbours_merge_whatever_the_order_of_release() {
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for order in orders {
            let mut a = Allocator::new(96);
            let at = [32, 32, 32].map(|len| a.allocate(len, ()).unwrap());
            for i in order {
                a.release(at[i]).unwrap();
                a.check().unwrap();
            }
            assert_eq!(a.allocate(96, ()), Some(0), "{order:?}");
        }
    }

    /// One entry per byte: the first byte of a range has its length.
    struct Naive {
        bytes: Vec<bool>,
        live: BTreeMap<u32, u32>,
    }

    impl Naive {
        fn allocate(&mut self, len: u32) -> Option<u32> {
            let mut holes = Vec::new();
            let mut at = 0;
            while at < self.bytes.len() {
                let taken = self.bytes[at];
                let run = self.bytes[at..].iter().take_while(|&&b| b == taken).count();
                if !taken {
                    holes.push((run as u32, at as u32));
                }
                at += run;
            }
            let (_, offset) = holes.into_iter().filter(|&(run, _)| run >= len).min()?;
            self.bytes[offset as usize..(offset + len) as usize].fill(true);
            self.live.insert(offset, len);
            Some(offset)
        }

        /// The free bytes around a free one.
        fn hole(&self, at: u32) -> std::ops::Range<u32> {
            let (before, after) = self.bytes.split_at(at as usize);
            let before = before.iter().rev().take_while(|&&taken| !taken).count() as u32;
            let after = after.iter().take_while(|&&taken| !taken).count() as u32;
            at - before..at + after
        }

        fn release(&mut self, offset: u32) -> Option<u32> {
            let len = self.live.remove(&offset)?;
            self.bytes[offset as usize..(offset + len) as usize].fill(false);
            Some(len)
        }
    }

    /// Ranges that follow each other: lengths, and owners unless free.
    type Layout = Vec<(u32, Option<u32>)>;

    /// All layouts of an area of `size` in which no two free ranges are adjacent.
    fn layouts(size: u32) -> Vec<Layout> {
        let mut all = vec![Layout::new(); usize::from(size == 0)];
        for len in 1..=size {
            for rest in layouts(size - len) {
                let live = (len, Some(size));
                if rest.first().is_none_or(|(_, owner)| owner.is_some()) {
                    all.push([&[(len, None)], &rest[..]].concat());
                }
                all.push([&[live], &rest[..]].concat());
            }
        }
        all
    }

    /// Indices and offsets of the ranges.
    fn offsets(layout: &Layout) -> impl Iterator<Item = (usize, u32)> {
        let ends = layout.iter().scan(0, |end, (len, _)| {
            *end += len;
            Some(*end)
        });
        std::iter::once(0).chain(ends).take(layout.len()).enumerate()
    }

    /// The offset that is to be allocated, and the layout after that.
    fn after_allocation(layout: &Layout, len: u32, owner: u32) -> Option<(u32, Layout)> {
        let holes = offsets(layout).filter(|(at, _)| layout[*at].1.is_none());
        let fitting = holes.filter(|(at, _)| layout[*at].0 >= len);
        let (at, offset) = fitting.min_by_key(|(at, offset)| (layout[*at].0, *offset))?;
        let rest = layout[at].0 - len;
        let parts = [(len, Some(owner)), (rest, None)];
        let mut after = layout.clone();
        after.splice(at..=at, parts.into_iter().take(if rest == 0 { 1 } else { 2 }));
        Some((offset, after))
    }

    /// The layout after the release of a live range, and the free range around it.
    fn after_release(layout: &Layout, at: usize) -> (std::ops::Range<u32>, Layout) {
        let is_free = |at: usize| layout.get(at).is_some_and(|(_, owner)| owner.is_none());
        let from = at - usize::from(at > 0 && is_free(at - 1));
        let to = at + usize::from(is_free(at + 1));
        let len = layout[from..=to].iter().map(|(len, _)| len).sum();
        let offset: u32 = layout[..from].iter().map(|(len, _)| len).sum();
        let mut after = layout.clone();
        after.splice(from..=to, [(len, None)]);
        (offset..offset + len, after)
    }

    /// Each call on each state of a small area. Every call leads to a state of the same area, so
    /// this holds for sequences of any length.
    #[test]
    fn each_call_in_each_state_of_a_small_area_has_the_expected_result() {
        let state = |layout: &Layout| Allocator::of_ranges(layout.clone()).unwrap();
        let text = |allocator: &Allocator<u32>| format!("{allocator:?}");
        let mut calls = 0;
        for size in 0..=7 {
            let empty = if size == 0 { vec![] } else { vec![(size, None)] };
            assert_eq!(text(&Allocator::new(size)), text(&state(&empty)));
            for layout in layouts(size) {
                for len in 1..=size + 1 {
                    let mut a = state(&layout);
                    let expected = after_allocation(&layout, len, 99);
                    assert_eq!(a.allocate(len, 99), expected.as_ref().map(|(at, _)| *at));
                    let after = expected.map_or(layout.clone(), |(_, after)| after);
                    assert_eq!(text(&a), text(&state(&after)), "{len} of {layout:?}");
                    calls += 1;
                }
                for offset in 0..=size {
                    let mut a = state(&layout);
                    let found = offsets(&layout).find(|(_, start)| *start == offset);
                    let live = found.and_then(|(at, _)| Some((at, layout[at].0, layout[at].1?)));
                    assert_eq!(a.owner(offset), live.map(|(_, _, owner)| owner));
                    let expected = live.map(|(at, len, owner)| {
                        let (hole, after) = after_release(&layout, at);
                        (Released { len, owner, hole }, after)
                    });
                    assert_eq!(a.release(offset).as_ref(), expected.as_ref().map(|(r, _)| r));
                    let after = expected.map_or(layout.clone(), |(_, after)| after);
                    assert_eq!(text(&a), text(&state(&after)), "{offset} of {layout:?}");
                    calls += 1;
                }
                check_queries(&state(&layout), &layout);
            }
        }
        assert!(calls > 10_000, "{calls}");
    }

    /// Compares what a state returns with a list of its bytes' owners.
    fn check_queries(a: &Allocator<u32>, layout: &Layout) {
        let repeat = |(len, owner): &(u32, Option<u32>)| vec![*owner; *len as usize];
        let bytes: Vec<_> = layout.iter().flat_map(repeat).collect();
        let starts: Vec<_> = offsets(layout).collect();
        let live =
            starts.iter().filter_map(|(at, offset)| Some((*offset, layout[*at].0, layout[*at].1?)));
        let live: Vec<_> = live.collect();
        assert_eq!(a.live().collect::<Vec<_>>(), live);
        assert_eq!(a.live_count(), live.len());
        assert_eq!(
            (a.size(), a.used() as usize),
            (bytes.len() as u32, bytes.iter().filter(|owner| owner.is_some()).count(),)
        );
        for from in 0..=a.size() {
            let end = live.iter().find(|(at, len, _)| (*at..at + len).contains(&from));
            assert_eq!(a.live_end(from), end.map(|(at, len, _)| at + len), "{from} of {layout:?}");
            for to in from + 1..=a.size() + 1 {
                let part = bytes.iter().take(to as usize).skip(from as usize);
                let covered = part.flatten().next().is_some();
                assert_eq!(a.covers(from..to), covered, "{from}..{to} of {layout:?}");
            }
        }
        assert_eq!(a.check(), Ok(()));
    }

    #[test]
    fn inconsistent_data_is_found() {
        let good = || Allocator::of_ranges(vec![(2, Some(7)), (3, None), (1, Some(8))]).unwrap();
        type Change = fn(&mut Allocator<u32>);
        let changes: [(&str, Change); 9] = [
            ("expected at 2", |a| _ = a.ranges.remove(&2)),
            ("expected at 6", |a| _ = a.ranges.insert(6, Range { len: 0, owner: Some(9) })),
            ("two free", |a| {
                a.insert_free(6, 1);
                a.insert_free(7, 1);
            }),
            ("disagree", |a| _ = a.free.pop_first()),
            ("disagree", |a| _ = a.free.insert((2, 0))),
            ("counted", |a| _ = a.free.insert((2, 1))),
            ("counted", |a| a.size += 1),
            ("counted", |a| a.used -= 1),
            ("counted", |a| a.live += 1),
        ];
        for (part, change) in changes {
            let mut a = good();
            change(&mut a);
            let error = a.check().unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        for bad in
            [vec![(0, None)], vec![(1, None), (1, None)], vec![(u32::MAX, None), (1, Some(1))]]
        {
            assert!(Allocator::<u32>::of_ranges(bad.clone()).is_none(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_sequence_agrees_with_a_naive_model(
            steps in prop::collection::vec((any::<bool>(), 1u32..40, any::<prop::sample::Index>()),
                                           1..300),
        ) {
            let mut real = Allocator::new(1024);
            let mut naive = Naive { bytes: vec![false; 1024], live: BTreeMap::new() };
            for (allocate, words, which) in steps {
                if allocate || naive.live.is_empty() {
                    prop_assert_eq!(real.allocate(words * 8, words), naive.allocate(words * 8));
                } else {
                    let offset = *which.get(&naive.live.keys().copied().collect::<Vec<_>>());
                    let len = naive.release(offset).unwrap();
                    prop_assert_eq!(real.owner(offset), Some(len / 8));
                    let hole = naive.hole(offset);
                    let released = Released { len, owner: len / 8, hole };
                    prop_assert_eq!(real.release(offset), Some(released));
                }
                prop_assert_eq!(real.check(), Ok(()));
                prop_assert_eq!(real.live_count(), naive.live.len());
                prop_assert_eq!(real.used(), naive.live.values().sum::<u32>());
                let live: Vec<_> = real.live().map(|(at, len, _)| (at, len)).collect();
                prop_assert_eq!(live, naive.live.clone().into_iter().collect::<Vec<_>>());
            }
        }
    }
}
