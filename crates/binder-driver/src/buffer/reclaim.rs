//! Reclaims the memory of idle pages, a bounded batch at a time.

use crate::buffer::pages::{IdlePages, PAGE};
use crate::driver::Driver;
use crate::host::Host;

/// Memory of the receivers' mappings, in pages of 4096 bytes.
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
    /// Reclaims the memory of at most `pages` idle pages, the least recently used first; returns
    /// their number. Pages in use are never reclaimed. A reclaimed page reads as zeros, and gets
    /// memory again with the next delivery.
    ///
    /// The work is proportional to `pages`: a caller that has many pages to reclaim calls this
    /// often, and serves other clients in between.
    pub fn reclaim<H: Host>(&mut self, host: &mut H, pages: u32) -> u32 {
        let (mut left, mut given) = (pages, 0);
        while let Some(run) = self.idle_pages.take_coldest(left) {
            let count = run.pages.len() as u32;
            left -= count;
            let (at, len) = (u64::from(run.pages.start * PAGE), u64::from(count * PAGE));
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
