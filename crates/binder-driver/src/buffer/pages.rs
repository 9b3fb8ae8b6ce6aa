//! Pages of receivers' mappings that hold memory, which of them can be reclaimed, and their
//! reclaim, a bounded batch at a time.
//!
//! A page is *untouched* until data is stored in it, *in use* while it is part of a buffer, and
//! *idle* after that: it keeps its memory, so that the next buffer finds it in the cache, until
//! [`IdlePages`] reclaims it under pressure. All idle pages of all receivers are on one list, the
//! least recently used first. Memory is proportional to the touched pages, not to the mappings.

use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::driver::{Driver, ProcessId};
use crate::host::Host;

/// Size of the machine's pages, the unit in which a mapping's memory is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    /// Binary logarithm of the bytes.
    shift: u32,
}

impl PageSize {
    /// A size in bytes; `None` if it is no power of two, below 4 KiB or above 64 KiB.
    pub const fn new(bytes: usize) -> Option<Self> {
        match bytes {
            0x1000..=0x1_0000 if bytes.is_power_of_two() => {
                Some(Self { shift: bytes.trailing_zeros() })
            }
            _ => None,
        }
    }

    /// Bytes of a page.
    pub const fn bytes(self) -> u32 {
        1 << self.shift
    }

    /// The pages of a range, including those of which it covers one byte only.
    fn under(self, range: Range<u32>) -> Range<u32> {
        range.start >> self.shift..range.end.div_ceil(self.bytes())
    }

    /// The pages that lie wholly in a range.
    fn inside(self, range: Range<u32>) -> Range<u32> {
        range.start.div_ceil(self.bytes())..range.end >> self.shift
    }
}

/// The smallest size.
impl Default for PageSize {
    fn default() -> Self {
        Self { shift: 12 }
    }
}

/// State of a page: no data was stored in it, or it was reclaimed.
const UNTOUCHED: u32 = u32::MAX;

/// State of a page: it holds memory and is part of a buffer.
const IN_USE: u32 = u32::MAX - 1;

/// Link of the list: no previous or next entry.
const NONE: u32 = u32::MAX;

/// The pages of one receiver's mapping.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct AreaPages {
    /// By page number, up to the last touched one: `UNTOUCHED`, `IN_USE`, or the index in the list.
    #[serde(serialize_with = "without_places")]
    states: Vec<u32>,
    touched: u32,
    idle: u32,
}

/// Idle pages without their indices in the list, which are other ones when the state is read back.
fn without_places<S: Serializer>(states: &[u32], serializer: S) -> Result<S::Ok, S::Error> {
    let place = |state: &u32| if *state < IN_USE { 0 } else { *state };
    serializer.collect_seq(states.iter().map(place))
}

impl AreaPages {
    /// Number of pages up to the last one that holds memory.
    pub fn known_len(&self) -> usize {
        self.states.len()
    }

    /// Number of pages that hold memory.
    pub fn touched(&self) -> u32 {
        self.touched
    }

    /// Number of these pages that are not part of a buffer.
    pub fn idle(&self) -> u32 {
        self.idle
    }

    /// Restores the index of an idle page in the list after both were read back. False: the page is
    /// not idle.
    pub fn restore_place(&mut self, page: u32, place: u32) -> bool {
        match self.states.get_mut(page as usize) {
            Some(state) if *state < IN_USE => {
                *state = place;
                true
            }
            _ => false,
        }
    }

    fn known(&self, pages: Range<u32>) -> Range<usize> {
        let end = (pages.end as usize).min(self.states.len());
        (pages.start as usize).min(end)..end
    }

    /// Data is about to be stored in a live buffer. Returns the number of pages that get memory.
    pub fn touch(&mut self, size: PageSize, buffer: Range<u32>) -> u32 {
        let before = self.touched;
        let pages = size.under(buffer);
        if self.states.len() < pages.end as usize {
            self.states.resize(pages.end as usize, UNTOUCHED);
        }
        for state in &mut self.states[pages.start as usize..pages.end as usize] {
            if *state == UNTOUCHED {
                *state = IN_USE;
                self.touched += 1;
            }
        }
        self.touched - before
    }

    fn forget(&mut self, page: u32) {
        self.states[page as usize] = UNTOUCHED;
        self.touched -= 1;
        while self.states.last() == Some(&UNTOUCHED) {
            self.states.pop();
        }
        if self.states.len() < self.states.capacity() / 4 {
            self.states.shrink_to(2 * self.states.len());
        }
    }
}

/// A run of idle pages of one receiver that was removed from the list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ColdRun {
    /// The receiver.
    process: ProcessId,
    /// Page numbers.
    pages: Range<u32>,
}

#[derive(Clone, Copy, Debug)]
struct IdlePage {
    process: ProcessId,
    page: u32,
    colder: u32,
    warmer: u32,
}

/// The idle pages of all receivers, least recently used first.
#[derive(Debug)]
pub struct IdlePages {
    /// Not serialised, as it is the machine's.
    page_size: PageSize,
    entries: Vec<IdlePage>,
    /// Indexes of entries that are not on the list.
    spare: Vec<u32>,
    coldest: u32,
    warmest: u32,
}

impl Default for IdlePages {
    fn default() -> Self {
        let (entries, spare) = (Vec::new(), Vec::new());
        Self { page_size: PageSize::default(), entries, spare, coldest: NONE, warmest: NONE }
    }
}

impl IdlePages {
    /// Sets the size of all pages, before the first one is touched or after they were read back.
    pub fn set_page_size(&mut self, page_size: PageSize) {
        self.page_size = page_size;
    }

    /// The size of all pages.
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Number of idle pages.
    pub fn len(&self) -> usize {
        self.entries.len() - self.spare.len()
    }

    /// A buffer was allocated: its pages are no longer idle.
    pub fn take(&mut self, area: &mut AreaPages, buffer: Range<u32>) {
        for page in area.known(self.page_size.under(buffer)) {
            let place = area.states[page];
            if place < IN_USE {
                self.unlink(place);
                area.states[page] = IN_USE;
                area.idle -= 1;
            }
        }
    }

    /// A buffer was freed. `hole` is the free range that it was merged into: pages that lie wholly
    /// inside are not part of another buffer.
    pub fn put(
        &mut self,
        process: ProcessId,
        area: &mut AreaPages,
        buffer: Range<u32>,
        hole: Range<u32>,
    ) {
        let under = self.page_size.under(buffer);
        let whole = self.page_size.inside(hole);
        let pages = under.start.max(whole.start)..under.end.min(whole.end);
        for page in area.known(pages) {
            if area.states[page] == IN_USE {
                area.states[page] = self.push_warmest(process, page as u32);
                area.idle += 1;
            }
        }
    }

    /// Removes the least recently used page and the following list entries that follow it in its
    /// mapping, at most `most` pages. They count as untouched from now on; `area` returns their
    /// mapping.
    fn take_coldest(&mut self, most: u32) -> Option<ColdRun> {
        if most == 0 || self.coldest == NONE {
            return None;
        }
        let IdlePage { process, page, .. } = self.entries[self.coldest as usize];
        let mut pages = page..page;
        while pages.len() < most as usize && self.coldest != NONE {
            let next = self.entries[self.coldest as usize];
            if next.process != process || next.page != pages.end {
                break;
            }
            self.unlink(self.coldest);
            pages.end += 1;
        }
        Some(ColdRun { process, pages })
    }

    /// The pages were reclaimed.
    fn given_back(area: &mut AreaPages, pages: Range<u32>) {
        area.idle -= pages.len() as u32;
        // Backwards, because the last page with a state must be a touched one.
        for page in pages.rev() {
            area.forget(page);
        }
    }

    /// Reclaiming the pages failed: they keep their memory until they have been part of a buffer
    /// again.
    fn kept(area: &mut AreaPages, pages: Range<u32>) {
        area.idle -= pages.len() as u32;
        for page in pages {
            area.states[page as usize] = IN_USE;
        }
    }

    /// The mapping was removed.
    pub fn forget(&mut self, area: &AreaPages) {
        for &place in area.states.iter().filter(|&&state| state < IN_USE) {
            self.unlink(place);
        }
    }

    fn push_warmest(&mut self, process: ProcessId, page: u32) -> u32 {
        let entry = IdlePage { process, page, colder: self.warmest, warmer: NONE };
        let place = match self.spare.pop() {
            Some(place) => {
                self.entries[place as usize] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        match self.warmest {
            NONE => self.coldest = place,
            warmest => self.entries[warmest as usize].warmer = place,
        }
        self.warmest = place;
        place
    }

    fn unlink(&mut self, place: u32) {
        let IdlePage { colder, warmer, .. } = self.entries[place as usize];
        match colder {
            NONE => self.coldest = warmer,
            colder => self.entries[colder as usize].warmer = warmer,
        }
        match warmer {
            NONE => self.warmest = colder,
            warmer => self.entries[warmer as usize].colder = colder,
        }
        self.spare.push(place);
        if self.spare.len() == self.entries.len() {
            // No page is idle: releases the memory of the list.
            *self = Self { page_size: self.page_size, ..Self::default() };
        }
    }

    /// The idle pages with their indices in the list.
    pub fn places(&self) -> impl Iterator<Item = (u32, ProcessId, u32)> {
        (0..).zip(&self.entries).map(|(place, entry)| (place, entry.process, entry.page))
    }

    /// Checks redundant data. `covered` returns whether a page of a receiver is part of a live
    /// buffer.
    pub fn check<'a>(
        &self,
        areas: impl Iterator<Item = (ProcessId, &'a AreaPages)>,
        covered: impl Fn(ProcessId, u32) -> bool,
    ) -> Result<(), String> {
        let mut listed = 0;
        for (process, area) in areas {
            let touched = area.states.iter().filter(|&&state| state != UNTOUCHED).count();
            let idle = area.states.iter().filter(|&&state| state < IN_USE).count();
            if (touched, idle) != (area.touched as usize, area.idle as usize) {
                return Err(format!("{process:?}: {touched} pages touched, {idle} idle: {area:?}"));
            }
            for (page, &state) in (0..).zip(&area.states) {
                if state < IN_USE {
                    let entry = self.entries.get(state as usize);
                    let here = entry.is_some_and(|e| e.process == process && e.page == page);
                    if !here || covered(process, page) {
                        return Err(format!("{process:?}: page {page} is not idle"));
                    }
                }
            }
            listed += idle;
        }
        let (mut walked, mut at) = (0, self.coldest);
        while at != NONE && walked <= self.entries.len() {
            (walked, at) = (walked + 1, self.entries[at as usize].warmer);
        }
        if (listed, listed) == (walked, self.len()) {
            Ok(())
        } else {
            Err(format!("{listed} idle pages, {walked} on the list, {} kept", self.len()))
        }
    }
}

/// The idle pages, least recently used first.
impl Serialize for IdlePages {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entry = |at: u32| self.entries.get(at as usize);
        let all = std::iter::successors(entry(self.coldest), |last| entry(last.warmer));
        let pages: Vec<_> = all.map(|entry| (entry.process, entry.page)).collect();
        pages.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for IdlePages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pages: Vec<(ProcessId, u32)> = Vec::deserialize(deserializer)?;
        let mut idle = Self::default();
        for (process, page) in pages {
            idle.push_warmest(process, page);
        }
        Ok(idle)
    }
}

/// Memory of the receivers' mappings, in pages of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Pages that hold memory.
    pub touched: u64,
    /// Number of these pages that are not part of a buffer, which [`Driver::reclaim`] can reclaim.
    pub idle: u64,
    /// Pages reclaimed since the start.
    pub reclaimed: u64,
}

impl Driver {
    /// Sets the size of the machine's pages, before the first call; 4 KiB by default.
    pub fn set_page_size(&mut self, page_size: PageSize) {
        self.idle_pages.set_page_size(page_size);
    }

    /// Bytes of a page of the machine.
    pub(crate) fn page_bytes(&self) -> u32 {
        self.idle_pages.page_size().bytes()
    }

    /// Reclaims the memory of at most `pages` idle pages, the least recently used first; returns
    /// their number. Pages in use are never reclaimed. A reclaimed page reads as zeros, and gets
    /// memory again with the next delivery.
    ///
    /// The work is proportional to `pages`: a caller that has many pages to reclaim calls this
    /// often, and serves other clients in between.
    pub fn reclaim<H: Host>(&mut self, host: &mut H, pages: u32) -> u32 {
        let page = self.page_bytes();
        let (mut left, mut given) = (pages, 0);
        while let Some(run) = self.idle_pages.take_coldest(left) {
            let count = run.pages.len() as u32;
            left -= count;
            let (at, len) = (u64::from(run.pages.start * page), u64::from(count * page));
            let punched = host.punch(run.process, at, len);
            let process = self.processes.get_mut(run.process);
            let Some(area) = process.and_then(|process| process.area.as_mut()) else { continue };
            if punched.is_ok() {
                IdlePages::given_back(&mut area.pages, run.pages);
                self.discharge_pages(run.process, count);
                given += count;
            } else {
                IdlePages::kept(&mut area.pages, run.pages);
            }
        }
        self.reclaimed_pages += u64::from(given);
        given
    }

    /// Number of pages that hold memory.
    pub fn page_counts(&self) -> PageCounts {
        let areas = self.processes.values().filter_map(|process| process.area.as_ref());
        PageCounts {
            touched: areas.map(|area| u64::from(area.pages.touched())).sum(),
            idle: self.idle_pages.len() as u64,
            reclaimed: self.reclaimed_pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet, VecDeque};

    use crate::slab::Slab;
    use proptest::prelude::*;

    use super::*;

    const SIZE_OF_PAGES: PageSize = PageSize { shift: 12 };
    const PAGE: u32 = SIZE_OF_PAGES.bytes();

    fn processes(count: usize) -> Vec<ProcessId> {
        let mut map: Slab<ProcessId, ()> = Slab::default();
        (0..count).map(|_| map.insert(())).collect()
    }

    #[test]
    fn a_page_is_idle_when_its_last_buffer_is_gone() {
        let process = processes(1)[0];
        let (mut area, mut idle) = (AreaPages::default(), IdlePages::default());
        area.touch(SIZE_OF_PAGES, 0..100);
        area.touch(SIZE_OF_PAGES, 104..5000);
        assert_eq!((area.touched(), area.idle()), (2, 0));
        idle.put(process, &mut area, 0..100, 0..104);
        assert_eq!(idle.len(), 0, "the other buffer lies on it");
        idle.put(process, &mut area, 104..5000, 0..8 * PAGE);
        assert_eq!((area.idle(), idle.len()), (2, 1 + 1));
        idle.take(&mut area, 4000..4008);
        assert_eq!((area.idle(), idle.len()), (1, 1));
    }

    #[test]
    fn memory_of_the_states_is_released_once_a_quarter_of_it_is_used() {
        let mut area = AreaPages::default();
        area.states.reserve_exact(1024);
        assert_eq!(area.touch(SIZE_OF_PAGES, 0..1024 * PAGE), 1024);
        for page in (0..1024).rev() {
            let before = area.states.capacity();
            area.forget(page);
            let len = area.known_len();
            assert_eq!((len, area.touched()), (page as usize, page));
            let expected = if len < before / 4 { 2 * len } else { before };
            assert_eq!(area.states.capacity(), expected, "{len} of {before} states are used");
        }
    }

    #[test]
    fn only_untouched_pages_get_memory_and_states_end_with_the_last_touched_page() {
        let mut area = AreaPages::default();
        assert_eq!(area.touch(SIZE_OF_PAGES, PAGE..3 * PAGE), 2);
        assert_eq!(area.touch(SIZE_OF_PAGES, 2 * PAGE..4 * PAGE + 1), 2, "page 2 has memory");
        assert_eq!(area.touch(SIZE_OF_PAGES, 0..5 * PAGE), 1, "page 0 has none");
        assert_eq!((area.touched(), area.known_len()), (5, 5));
        area.forget(3);
        assert_eq!((area.touched(), area.known_len()), (4, 5), "page 4 is the last one");
        area.forget(4);
        assert_eq!((area.touched(), area.known_len()), (3, 3), "so is page 2");
        assert_eq!(area.states, [IN_USE; 3]);
        let all = [2, 1, 0].map(|page| {
            area.forget(page);
            (area.touched(), area.known_len())
        });
        assert_eq!(all, [(2, 2), (1, 1), (0, 0)]);
    }

    #[test]
    fn states_are_written_without_places_in_the_list() {
        let process = processes(1)[0];
        let (mut area, mut idle) = (AreaPages::default(), IdlePages::default());
        area.touch(SIZE_OF_PAGES, 0..3 * PAGE);
        area.touch(SIZE_OF_PAGES, 4 * PAGE..5 * PAGE);
        for page in [1, 0] {
            let range = page * PAGE..(page + 1) * PAGE;
            idle.put(process, &mut area, range.clone(), range);
        }
        assert_eq!(area.states, [1, 0, IN_USE, UNTOUCHED, IN_USE]);
        let bytes = postcard::to_allocvec(&area).unwrap();
        let read: AreaPages = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(read.states, [0, 0, IN_USE, UNTOUCHED, IN_USE]);
    }

    #[test]
    fn a_place_is_restored_for_an_idle_page_only() {
        let process = processes(1)[0];
        let (mut area, mut idle) = (AreaPages::default(), IdlePages::default());
        area.touch(SIZE_OF_PAGES, PAGE..4 * PAGE);
        idle.put(process, &mut area, 2 * PAGE..3 * PAGE, 2 * PAGE..3 * PAGE);
        let restored = [0, 1, 2, 3, 4].map(|page| area.restore_place(page, 7));
        assert_eq!(restored, [false, false, true, false, false]);
        assert_eq!(area.states, [UNTOUCHED, IN_USE, 7, IN_USE]);
    }

    #[test]
    fn sizes_of_pages_are_powers_of_two_from_4_to_64_kib() {
        let bytes = [0, 2048, 4096, 4097, 6144, 16 << 10, 64 << 10, 128 << 10].map(PageSize::new);
        let bytes = bytes.map(|size| size.map(PageSize::bytes));
        let none = None;
        let kib = |kib: u32| Some(kib << 10);
        assert_eq!(bytes, [none, none, kib(4), none, none, kib(16), kib(64), none]);
    }

    #[test]
    fn a_forgotten_mapping_leaves_the_idle_pages_of_others_in_their_order() {
        let [a, b] = processes(2)[..] else { unreachable!() };
        let mut areas = [AreaPages::default(), AreaPages::default()];
        let mut idle = IdlePages::default();
        for area in &mut areas {
            area.touch(SIZE_OF_PAGES, 0..6 * PAGE);
        }
        for page in [1, 3, 5] {
            let range = page * PAGE..(page + 1) * PAGE;
            idle.put(a, &mut areas[0], range.clone(), range.clone());
            idle.put(b, &mut areas[1], range.clone(), range);
        }
        // The order on the list, and that of the entries whose pages are not idle any more.
        assert_eq!(order(&idle), [(a, 1), (b, 1), (a, 3), (b, 3), (a, 5), (b, 5)]);
        idle.forget(&areas[0]);
        assert_eq!((idle.len(), order(&idle)), (3, vec![(b, 1), (b, 3), (b, 5)]));
        let known = [(b, &areas[1])].into_iter();
        assert_eq!(idle.check(known, |_, page| page % 2 == 0), Ok(()));
        idle.forget(&areas[1]);
        assert_eq!((idle.len(), idle.entries.capacity()), (0, 0), "the list has no memory");
    }

    #[test]
    fn the_size_of_pages_outlasts_the_last_idle_page() {
        let process = processes(1)[0];
        let (mut area, mut idle) = (AreaPages::default(), IdlePages::default());
        let size = PageSize::new(16 << 10).unwrap();
        idle.set_page_size(size);
        area.touch(size, 0..100);
        idle.put(process, &mut area, 0..100, 0..size.bytes());
        assert_eq!(idle.places().collect::<Vec<_>>(), [(0, process, 0)]);
        idle.take(&mut area, 0..100);
        assert_eq!((idle.len(), idle.page_size()), (0, size));
    }

    /// All idle pages, least recently used first.
    fn order(idle: &IdlePages) -> Vec<(ProcessId, u32)> {
        let first = idle.entries.get(idle.coldest as usize);
        let all = std::iter::successors(first, |last| idle.entries.get(last.warmer as usize));
        all.map(|entry| (entry.process, entry.page)).collect()
    }

    #[test]
    fn inconsistent_data_is_found() {
        let process = processes(1)[0];
        type Change = fn(&mut AreaPages, &mut IdlePages);
        let changes: [(&str, Change); 8] = [
            ("2 pages touched, 1 idle", |area, _| area.touched += 1),
            ("2 pages touched, 1 idle", |area, _| area.idle -= 1),
            ("page 1 is not idle", |area, _| area.states[1] = 7),
            ("page 1 is not idle", |_, idle| idle.entries[0].page = 0),
            ("page 0 is not idle", |area, _| area.states.swap(0, 1)),
            ("1 idle pages, 0 on the list, 1 kept", |_, idle| idle.coldest = NONE),
            ("1 idle pages, 2 on the list, 1 kept", |_, idle| idle.entries[0].warmer = 0),
            ("1 idle pages, 1 on the list, 0 kept", |_, idle| idle.spare.push(0)),
        ];
        for (expected, change) in changes {
            let (mut area, mut idle) = (AreaPages::default(), IdlePages::default());
            area.touch(SIZE_OF_PAGES, 0..2 * PAGE);
            idle.put(process, &mut area, PAGE..2 * PAGE, PAGE..2 * PAGE);
            let covered = |_: ProcessId, page| page == 0;
            assert_eq!(idle.check([(process, &area)].into_iter(), covered), Ok(()));
            let uncovered = idle.check([(process, &area)].into_iter(), |_, _| true);
            assert!(uncovered.is_err(), "an idle page is in a buffer");
            change(&mut area, &mut idle);
            let error = idle.check([(process, &area)].into_iter(), covered).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_coldest_pages_go_first_and_in_runs() {
        let [a, b] = processes(2)[..] else { unreachable!() };
        let mut areas = [AreaPages::default(), AreaPages::default()];
        let mut idle = IdlePages::default();
        let all = 0..8 * PAGE;
        areas[0].touch(SIZE_OF_PAGES, 0..3 * PAGE);
        areas[1].touch(SIZE_OF_PAGES, 0..PAGE);
        idle.put(a, &mut areas[0], PAGE..3 * PAGE, all.clone());
        idle.put(b, &mut areas[1], 0..PAGE, all.clone());
        idle.put(a, &mut areas[0], 0..PAGE, all);
        assert_eq!(idle.take_coldest(1), Some(ColdRun { process: a, pages: 1..2 }));
        IdlePages::given_back(&mut areas[0], 1..2);
        assert_eq!(idle.take_coldest(9), Some(ColdRun { process: a, pages: 2..3 }));
        IdlePages::given_back(&mut areas[0], 2..3);
        assert_eq!(idle.take_coldest(9), Some(ColdRun { process: b, pages: 0..1 }));
        IdlePages::kept(&mut areas[1], 0..1);
        assert_eq!((areas[0].touched(), areas[0].idle(), areas[0].states.len()), (1, 1, 1));
        assert_eq!((areas[1].touched(), areas[1].idle()), (1, 0));
        idle.forget(&areas[0]);
        assert_eq!(idle.take_coldest(9), None);
    }

    /// The expected state of pages, computed in the most obvious way.
    #[derive(Default)]
    struct Naive {
        touched: BTreeSet<(usize, u32)>,
        /// Least recently used first.
        idle: VecDeque<(usize, u32)>,
        buffers: BTreeMap<(usize, u32), u32>,
    }

    impl Naive {
        fn covered(&self, owner: usize, page: u32) -> bool {
            self.buffers.iter().any(|(&(process, at), &len)| {
                process == owner && at < (page + 1) * PAGE && at + len > page * PAGE
            })
        }

        /// The free range around an offset that is not part of a buffer.
        fn hole(&self, owner: usize, at: u32, size: u32) -> Range<u32> {
            let mine = self.buffers.iter().filter(|((process, _), _)| *process == owner);
            let start = mine.clone().map(|(&(_, from), &len)| from + len).filter(|&end| end <= at);
            let end = mine.map(|(&(_, from), _)| from).filter(|&from| from > at);
            start.max().unwrap_or(0)..end.min().unwrap_or(size)
        }
    }

    const SIZE: u32 = 8 * PAGE;

    proptest! {
        #[test]
        fn any_sequence_agrees_with_a_naive_model(
            steps in prop::collection::vec((0_u8..8, 0_usize..2, 0..SIZE / 8, 1_u32..2500), 1..200),
        ) {
            let ids = processes(2);
            let mut areas = [AreaPages::default(), AreaPages::default()];
            let mut idle = IdlePages::default();
            let mut naive = Naive::default();
            for (what, owner, at, words) in steps {
                let (at, len) = (at * 8, words * 8);
                let range = at..at + len;
                match what {
                    // A new buffer if there is room for it, with data stored in it or (7) not.
                    0..4 | 7 => {
                        let hole = naive.hole(owner, at, SIZE);
                        let taken = naive.buffers.iter().any(|(&(process, from), &l)| {
                            process == owner && from < range.end && from + l > range.start
                        });
                        if taken || hole.end < range.end || range.end > SIZE { continue }
                        naive.buffers.insert((owner, at), len);
                        idle.take(&mut areas[owner], range.clone());
                        let under = SIZE_OF_PAGES.under(range.clone());
                        naive.idle.retain(|&(p, page)| p != owner || !under.contains(&page));
                        if what != 7 {
                            let new = areas[owner].touch(SIZE_OF_PAGES, range.clone());
                            let before = naive.touched.len();
                            let under = SIZE_OF_PAGES.under(range);
                            naive.touched.extend(under.map(|page| (owner, page)));
                            prop_assert_eq!(new as usize, naive.touched.len() - before);
                        }
                    }
                    4 | 5 => {
                        let next = naive.buffers.range((owner, at)..).next();
                        let Some((&(owner, at), &len)) = next else { continue };
                        naive.buffers.remove(&(owner, at));
                        let hole = naive.hole(owner, at, SIZE);
                        idle.put(ids[owner], &mut areas[owner], at..at + len, hole);
                        for page in SIZE_OF_PAGES.under(at..at + len) {
                            let touched = naive.touched.contains(&(owner, page));
                            if touched && !naive.covered(owner, page) {
                                naive.idle.push_back((owner, page));
                            }
                        }
                    }
                    _ => {
                        let Some(run) = idle.take_coldest(words % 4) else {
                            prop_assert!(words % 4 == 0 || naive.idle.is_empty());
                            continue;
                        };
                        let owner = usize::from(run.process != ids[0]);
                        IdlePages::given_back(&mut areas[owner], run.pages.clone());
                        for page in run.pages {
                            prop_assert_eq!(naive.idle.pop_front(), Some((owner, page)));
                            naive.touched.remove(&(owner, page));
                        }
                    }
                }
                let listed = naive.idle.iter().map(|&(owner, page)| (ids[owner], page));
                prop_assert_eq!(order(&idle), listed.collect::<Vec<_>>());
                prop_assert_eq!(idle.len(), naive.idle.len());
                for (owner, area) in areas.iter().enumerate() {
                    let touched = naive.touched.iter().filter(|(process, _)| *process == owner);
                    let last = touched.clone().next_back().map_or(0, |(_, page)| page + 1);
                    prop_assert_eq!(area.known_len(), last as usize);
                    prop_assert_eq!(area.touched() as usize, touched.count());
                }
                let known = ids.iter().copied().zip(&areas);
                let covered = |process, page| naive.covered(usize::from(process != ids[0]), page);
                prop_assert_eq!(idle.check(known, covered), Ok(()));
            }
        }
    }
}
