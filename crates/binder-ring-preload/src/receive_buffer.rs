//! Keeps the receive buffer from children of `fork`, as the kernel's driver does (`VM_DONTCOPY`): a
//! child would read what arrives for its parent.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::system::{self, FileId};

/// Number of bytes of `/proc/self/maps` that are searched: some ten thousand areas.
const MAX_TEXT: usize = 1 << 20;

/// Excludes all mappings of an open from children, once per open.
pub(crate) fn keep_from_children(fd: c_int) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let Some(file) = system::file(fd) else { return };
    if LAST.swap(file.number(), Relaxed) == file.number() {
        return;
    }
    let Some(maps) = system::open_own_maps() else { return };
    let (mut text, mut area, mut left) = ([0; 4096], Area::default(), MAX_TEXT);
    while let count @ 1.. = system::read(maps, &mut text).min(left) {
        left -= count;
        for &byte in &text[..count] {
            if area.push(byte) && area.file == file {
                system::keep_from_children(area.start, area.end.saturating_sub(area.start));
            }
        }
    }
    system::close(maps);
}

/// What ends the fields of a line of `/proc/self/maps`:
/// `START-END PERMISSIONS OFFSET MAJOR:MINOR INODE NAME`.
const SEPARATORS: [u8; 7] = *b"-   :  ";

/// A line of it, as far as it was read.
#[derive(Default)]
struct Area {
    field: usize,
    start: u64,
    end: u64,
    file: FileId,
}

impl Area {
    /// Adds a byte. True: all that is needed of the line is there.
    fn push(&mut self, byte: u8) -> bool {
        if byte == b'\n' {
            *self = Self::default();
            return false;
        }
        if SEPARATORS.get(self.field) == Some(&byte) {
            self.field += 1;
            return self.field == SEPARATORS.len();
        }
        let (number, base) = match self.field {
            0 => (&mut self.start, 16),
            1 => (&mut self.end, 16),
            4 => (&mut self.file.major, 16),
            5 => (&mut self.file.minor, 16),
            6 => (&mut self.file.inode, 10),
            _ => return false,
        };
        let digit = char::from(byte).to_digit(base).unwrap_or(0);
        *number = number.wrapping_mul(base.into()).wrapping_add(digit.into());
        false
    }
}
