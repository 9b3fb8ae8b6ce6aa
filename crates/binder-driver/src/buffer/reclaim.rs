//! Reclaims the memory of idle pages, a bounded batch at a time.

use crate::buffer::pages::{IdlePages, PageSize};
use crate::driver::Driver;
use crate::host::Host;

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
