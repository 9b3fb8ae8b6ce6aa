//! Mutations without coverage: deterministic from a seed, so that a failure can be reproduced.

/// Maximum length of an input, bytes.
const LONGEST: usize = 4096;

/// A seeded source of choices (SplitMix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Values that often trigger errors.
const ODD: [u64; 10] =
    [0, 1, 7, 8, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 63, u64::MAX - 7, u64::MAX];

/// Changes an input in one to four places; parts of `other` may be copied into it.
pub fn mutate(random: &mut Random, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(input.len() + 1);
        match random.below(8) {
            0 => input.insert(at, random.below(256) as u8),
            1 if at < input.len() => drop(input.remove(at)),
            2 if at < input.len() => input[at] ^= 1 << random.below(8),
            3 if at < input.len() => input[at] = random.below(256) as u8,
            4 => {
                let odd = ODD[random.below(ODD.len())].to_le_bytes();
                let len = [1, 2, 4, 8][random.below(4)].min(input.len() - at);
                input[at..at + len].copy_from_slice(&odd[..len]);
            }
            5 => input.truncate(at),
            6 if !other.is_empty() => {
                let from = random.below(other.len());
                let len = (1 + random.below(64)).min(other.len() - from);
                input.splice(at..at, other[from..from + len].iter().copied());
            }
            _ if at + 4 <= input.len() => {
                let from = random.below(input.len() - 3);
                input.copy_within(from..from + 4, at);
            }
            _ => {}
        }
    }
    input.truncate(LONGEST);
}
