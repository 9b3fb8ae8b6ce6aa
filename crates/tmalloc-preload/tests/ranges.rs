//! The list of ranges against a model with single pages.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tmalloc_preload::ranges::{Kind, MOST, Ranges};

fn kind() -> impl Strategy<Value = Option<Kind>> {
    prop_oneof![Just(None), Just(Some(Kind::Reserved)), Just(Some(Kind::Granted))]
}

proptest! {
    #[test]
    fn the_list_has_the_last_state_of_each_page(
        changes in proptest::collection::vec((0..60usize, 1..20usize, kind()), 1..60)
    ) {
        let mut ranges = Box::new(Ranges::new());
        let mut pages = BTreeMap::new();
        for (start, len, kind) in changes {
            let granted = |pages: &BTreeMap<usize, Kind>| {
                pages.range(start..start + len).filter(|(_, k)| **k == Kind::Granted).count()
            };
            prop_assert_eq!(ranges.set(start, start + len, kind), granted(&pages));
            for page in start..start + len {
                match kind {
                    Some(kind) => drop(pages.insert(page, kind)),
                    None => drop(pages.remove(&page)),
                }
            }
            let listed: BTreeMap<usize, Kind> = ranges
                .as_slice()
                .iter()
                .flat_map(|range| (range.start..range.end).map(|page| (page, range.kind)))
                .collect();
            prop_assert_eq!(&listed, &pages);
            let joined = ranges.as_slice().windows(2).all(|pair| {
                pair[0].end < pair[1].start
                    || (pair[0].end == pair[1].start && pair[0].kind != pair[1].kind)
            });
            prop_assert!(joined, "{:?}", ranges.as_slice());
        }
    }
}

#[test]
fn a_full_list_drops_new_entries() {
    let mut ranges = Box::new(Ranges::new());
    for n in 0..MOST + 10 {
        ranges.set(2 * n, 2 * n + 1, Some(Kind::Granted));
    }
    assert_eq!(ranges.as_slice().len(), MOST);
    assert!(!ranges.has_room());
    assert_eq!(ranges.set(0, 2 * MOST, None), MOST);
    assert_eq!(ranges.as_slice(), []);
}
