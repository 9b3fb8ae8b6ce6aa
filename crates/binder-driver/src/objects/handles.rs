//! Handle numbers: the lowest free one, found through a hierarchical bitmap.
//!
//! Level 0 has one bit per handle (set = taken). A bit of level k+1 is set when the 64-bit word of
//! level k below it is full, so a search reads one word a level: O(log64 n). The levels grow and
//! shrink one word at a time at their ends, and memory follows the highest handle in use.

/// The handles 1, 2, ... of one process; 0 belongs to the context manager and is not allocated
/// here.
#[derive(Debug, Default)]
pub struct Handles {
    /// `levels[0]` are the handles; the last level has exactly one word.
    levels: Vec<Vec<u64>>,
}

impl Handles {
    /// The bitmap in which these handles are taken.
    pub fn with_taken(taken: impl Iterator<Item = u32>) -> Self {
        let mut bottom = vec![1];
        for handle in taken {
            let word = handle as usize / 64;
            if bottom.len() <= word {
                bottom.resize(word + 1, 0);
            }
            bottom[word] |= 1 << (handle % 64);
        }
        if bottom == [1] {
            return Self::default();
        }
        let mut levels = vec![bottom];
        while let Some(below) = levels.last().filter(|level| level.len() > 1) {
            let full = |words: &[u64]| {
                words.iter().rev().fold(0, |bits, &word| bits << 1 | u64::from(word == u64::MAX))
            };
            let level = below.chunks(64).map(full).collect();
            levels.push(level);
        }
        Self { levels }
    }

    /// Takes the lowest free handle, 1 or above.
    pub fn take_lowest(&mut self) -> u32 {
        if self.levels.is_empty() {
            // Bit 0 stands for handle 0, which is never allocated here.
            self.levels.push(vec![1]);
        }
        if self.levels.last().is_some_and(|top| top[0] == u64::MAX) {
            self.levels.push(vec![1]);
        }
        let mut word = 0;
        for level in (0..self.levels.len()).rev() {
            if word == self.levels[level].len() {
                self.levels[level].push(0);
            }
            let bit = self.levels[level][word].trailing_ones() as usize;
            word = word * 64 + bit;
        }
        self.set(word);
        word as u32
    }

    fn set(&mut self, mut bit: usize) {
        for level in &mut self.levels {
            let word = &mut level[bit / 64];
            *word |= 1 << (bit % 64);
            if *word != u64::MAX {
                return;
            }
            bit /= 64;
        }
    }

    /// Releases a handle; returns false and changes nothing if it is free already (or 0).
    pub fn give_back(&mut self, handle: u32) -> bool {
        if handle == 0 || !self.is_taken(handle) {
            return false;
        }
        let mut bit = handle as usize;
        for level in &mut self.levels {
            let word = &mut level[bit / 64];
            let was_full = *word == u64::MAX;
            *word &= !(1 << (bit % 64));
            if !was_full {
                break;
            }
            bit /= 64;
        }
        self.shrink();
        true
    }

    fn shrink(&mut self) {
        while self.levels[0].len() > 1 && self.levels[0].last() == Some(&0) {
            self.levels[0].pop();
        }
        let mut below = self.levels[0].len();
        for level in &mut self.levels[1..] {
            level.truncate(below.div_ceil(64));
            below = level.len();
        }
        while self.levels.len() > 1 && self.levels[self.levels.len() - 2].len() == 1 {
            self.levels.pop();
        }
        for level in &mut self.levels {
            release_excess(level);
        }
        if self.levels.len() == 1 && self.levels[0] == [1] {
            self.levels = Vec::new();
        }
    }

    /// Whether the handle is taken.
    pub fn is_taken(&self, handle: u32) -> bool {
        let word = self.levels.first().and_then(|level| level.get(handle as usize / 64));
        handle != 0 && word.is_some_and(|word| word >> (handle % 64) & 1 == 1)
    }

    /// Bytes of memory of the bitmap.
    #[cfg(test)]
    fn capacity_bytes(&self) -> usize {
        self.levels.iter().map(|level| level.capacity() * 8).sum()
    }
}

/// Halves a vector's memory once less than a quarter of it is in use: amortised O(1), because half
/// of it must fill or empty again before the next move.
pub fn release_excess<T>(vector: &mut Vec<T>) {
    if vector.capacity() > 64 && vector.len() < vector.capacity() / 4 {
        vector.shrink_to(vector.capacity() / 2);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn handles_start_at_one_and_count_up() {
        let mut handles = Handles::default();
        assert_eq!((1..=200).map(|_| handles.take_lowest()).collect::<Vec<_>>(), {
            (1..=200).collect::<Vec<_>>()
        });
    }

    #[test]
    fn the_lowest_hole_is_filled_first() {
        let mut handles = Handles::default();
        (0..10_000).for_each(|_| _ = handles.take_lowest());
        for hole in [9_999, 4_096, 64, 63] {
            assert!(handles.give_back(hole));
        }
        let refilled: Vec<_> = (0..5).map(|_| handles.take_lowest()).collect();
        assert_eq!(refilled, [63, 64, 4_096, 9_999, 10_001]);
    }

    #[test]
    fn zero_and_free_handles_cannot_be_released() {
        let mut handles = Handles::default();
        assert!(!handles.give_back(0));
        assert!(!handles.give_back(7));
        assert_eq!(handles.take_lowest(), 1);
        assert!(handles.give_back(1));
        assert!(!handles.give_back(1));
        assert!(!handles.give_back(u32::MAX));
    }

    #[test]
    fn memory_follows_the_highest_handle_in_use() {
        let mut handles = Handles::default();
        (0..1_000_000).for_each(|_| _ = handles.take_lowest());
        let full = handles.capacity_bytes();
        assert!(full >= 1_000_000 / 8);
        (2..=1_000_000).rev().for_each(|handle| assert!(handles.give_back(handle)));
        assert!(handles.capacity_bytes() < 2_048, "{} bytes kept", handles.capacity_bytes());
        assert!(handles.give_back(1));
        assert_eq!(handles.capacity_bytes(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// The model is the set of free handles below 10,000, more than are ever taken.
        #[test]
        fn any_sequence_agrees_with_an_ordered_set(
            steps in prop::collection::vec((any::<bool>(), 0u32..5_000), 1..1_000),
            start in 0u32..9_000,
        ) {
            let mut handles = Handles::default();
            let mut free: BTreeSet<u32> = (start + 1..10_000).collect();
            (0..start).for_each(|_| _ = handles.take_lowest());
            for (take, handle) in steps {
                if take {
                    prop_assert_eq!(Some(handles.take_lowest()), free.pop_first());
                } else {
                    prop_assert_eq!(handles.give_back(handle), handle > 0 && free.insert(handle));
                }
                prop_assert_eq!(handles.is_taken(handle), handle > 0 && !free.contains(&handle));
                if handle % 128 == 0 {
                    let taken = (1..10_000).filter(|handle| !free.contains(handle));
                    handles = Handles::with_taken(taken);
                }
            }
        }
    }
}
