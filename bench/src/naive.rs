//! The baseline: the lowest free handle, found by walking an ordered map from its start.

use std::collections::BTreeMap;

/// Handles in use, as drivers kept them before they had a bitmap.
#[derive(Default)]
pub struct NaiveTable {
    used: BTreeMap<u32, u64>,
}

impl NaiveTable {
    /// Takes the lowest free handle for `node`, walking over all below it. Handle 0 is the context
    /// manager's.
    pub fn allocate(&mut self, node: u64) -> u32 {
        let mut free = 1;
        for handle in self.used.keys() {
            if *handle > free {
                break;
            }
            free = handle + 1;
        }
        self.used.insert(free, node);
        free
    }

    /// Takes a handle that the caller knows to be the lowest free one: the same result as
    /// [`Self::allocate`] without the walk.
    pub fn insert(&mut self, handle: u32, node: u64) {
        self.used.insert(handle, node);
    }

    /// Frees a handle.
    pub fn release(&mut self, handle: u32) {
        self.used.remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_handle_is_found() {
        let mut table = NaiveTable::default();
        assert_eq!([0; 3].map(|_| table.allocate(9)), [1, 2, 3]);
        table.insert(4, 9);
        table.release(2);
        assert_eq!([0; 2].map(|_| table.allocate(9)), [2, 5]);
        table.release(1);
        assert_eq!(table.allocate(9), 1);
    }
}
