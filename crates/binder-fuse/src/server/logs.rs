//! The files of `binder_logs`. The text is created when a file is opened, and does not change until
//! it is closed.

use binder_driver::Driver;

use super::Server;
use crate::place::Log;
use crate::wire::types::{FOPEN_DIRECT_IO, OpenOut};

/// Distinguishes file handles of texts from those of devices, which are smaller.
const TEXT: u64 = 1 << 63;

fn text(driver: &Driver, log: Log) -> String {
    match log {
        Log::FailedTransactions => driver.failed_transaction_log(),
        Log::State => driver.state(),
        Log::Stats => driver.stats(),
        Log::LastTransactions => driver.transaction_log(),
        Log::Transactions => driver.transactions(),
        Log::Process(pid) => driver.process_state(pid),
    }
}

impl Server {
    /// Errno (positive) on failure: `ENFILE` if too many texts are open.
    pub(super) fn open_log(&mut self, log: Log) -> Result<OpenOut, i32> {
        let fh = TEXT | self.next_text;
        self.next_text = (self.next_text + 1) & !TEXT;
        if !self.pages.add_text(fh, text(&self.driver, log)) {
            self.warn_once("logs", || "too many logs are open, refusing more".to_owned());
            return Err(libc::ENFILE);
        }
        Ok(OpenOut { fh, open_flags: FOPEN_DIRECT_IO, ..OpenOut::default() })
    }

    pub(super) fn close_log(&mut self, fh: u64) {
        if fh & TEXT != 0 {
            self.pages.remove_text(fh);
        }
    }
}
