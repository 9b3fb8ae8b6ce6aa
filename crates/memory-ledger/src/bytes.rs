//! The number format of amounts of memory, for all messages: `50.7 MiB`.

use std::fmt;

const UNITS: [char; 6] = ['B', 'K', 'M', 'G', 'T', 'P'];

/// An amount of memory, displayed with one decimal and a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = u128::from(self.0);
        if bytes < 1024 {
            return f.pad(&format!("{bytes} B"));
        }
        let mut exponent = 1;
        // Compare the printed value, so that 1023.96 KiB is printed as 1.0 MiB and not as 1024.0
        // KiB.
        let tenths = |exponent: usize| (bytes * 10 + (1 << (10 * exponent - 1))) >> (10 * exponent);
        while tenths(exponent) >= 10240 && exponent + 1 < UNITS.len() {
            exponent += 1;
        }
        let tenths = tenths(exponent);
        f.pad(&format!("{}.{} {}iB", tenths / 10, tenths % 10, UNITS[exponent]))
    }
}
