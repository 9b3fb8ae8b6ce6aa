//! Address ranges that a program has mapped, and whether their memory was granted: a sorted list of
//! fixed size, because it is used where allocation is impossible.

/// State of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anonymous, and not writable (yet): memory is granted when it becomes writable.
    Reserved,
    /// Its memory was granted.
    Granted,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub start: usize,
    /// First address after the range.
    pub end: usize,
    /// State of the range.
    pub kind: Kind,
}

/// Maximum number of ranges; further ones are not recorded, and count as they are touched.
pub const MOST: usize = 8192;

/// The sorted list of ranges.
pub struct Ranges {
    ranges: [Range; MOST],
    len: usize,
}

impl Ranges {
    /// An empty list.
    pub const fn new() -> Self {
        Self { ranges: [Range { start: 0, end: 0, kind: Kind::Reserved }; MOST], len: 0 }
    }

    /// The ranges, by address.
    pub fn as_slice(&self) -> &[Range] {
        &self.ranges[..self.len]
    }

    /// There is room for the entries that one change can add.
    pub fn has_room(&self) -> bool {
        self.len + 2 <= MOST
    }

    /// Total size of the ranges of a kind within an address range, bytes.
    pub fn bytes(&self, start: usize, end: usize, kind: Kind) -> usize {
        let of_kind = self.as_slice().iter().filter(|range| range.kind == kind);
        of_kind.map(|range| range.end.min(end).saturating_sub(range.start.max(start))).sum()
    }

    /// Sets the state of an address range; `None`: unknown. Returns the number of bytes in it that
    /// were granted before. Without room, a new range is not recorded.
    pub fn set(&mut self, start: usize, end: usize, kind: Option<Kind>) -> usize {
        if start >= end {
            return 0;
        }
        let granted = self.bytes(start, end, Kind::Granted);
        let first = self.as_slice().partition_point(|range| range.end <= start);
        let behind = self.as_slice().partition_point(|range| range.start < end);
        let mut new = [None; 3];
        if let Some(range) = self.as_slice()[first..behind].first()
            && range.start < start
        {
            new[0] = Some(Range { end: start, ..*range });
        }
        if let Some(range) = self.as_slice()[first..behind].last()
            && range.end > end
        {
            new[2] = Some(Range { start: end, ..*range });
        }
        new[1] = kind.map(|kind| Range { start, end, kind });
        self.replace(first, behind, new);
        granted
    }

    /// Replaces the ranges from `first` to before `behind` by these, and joins adjacent ranges of
    /// the same kind.
    fn replace(&mut self, first: usize, behind: usize, new: [Option<Range>; 3]) {
        let count = new.iter().flatten().count();
        let len = self.len - (behind - first) + count;
        if len > MOST {
            // Drops the new range, or else the right remainder of a range that was split.
            let [left, _, right] = new;
            let fewer = if new[1].is_some() { [left, None, right] } else { [left, None, None] };
            if fewer != new {
                self.replace(first, behind, fewer);
            }
            return;
        }
        self.ranges.copy_within(behind..self.len, first + count);
        for (at, range) in new.into_iter().flatten().enumerate() {
            self.ranges[first + at] = range;
        }
        self.len = len;
        for at in (first.saturating_sub(1)..(first + count).min(self.len.saturating_sub(1))).rev() {
            let (left, right) = (self.ranges[at], self.ranges[at + 1]);
            if left.end == right.start && left.kind == right.kind {
                self.ranges[at].end = right.end;
                self.ranges.copy_within(at + 2..self.len, at + 1);
                self.len -= 1;
            }
        }
    }
}

impl Default for Ranges {
    fn default() -> Self {
        Self::new()
    }
}
