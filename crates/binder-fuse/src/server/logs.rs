//! The files of `binder_logs`. The text is created when a file is opened, and does not change until
//! it is closed.

use std::collections::HashMap;
use std::time::Instant;

use binder_driver::Driver;
use client_files::Charge;
use owners::bounds::{LOG_TIME, LOGS};
use owners::{Owner, Quota, TokenBuckets, Uid};

use super::Server;
use super::device::owner_of;
use crate::coarse_clock;
use crate::place::Log;
use crate::wire::types::{FOPEN_DIRECT_IO, InHeader, OpenOut};

/// Distinguishes file handles of texts from those of devices, which are smaller.
const TEXT: u64 = 1 << 63;
/// The charge of texts that were open before an upgrade: the state has none.
const UNKNOWN: Charge = Charge { owner: Owner::User(Uid::ROOT), uid: Uid::ROOT };

/// The opens of logs, charged to their openers.
pub(super) struct OpenLogs {
    slots: Quota,
    /// Nanoseconds in which texts were created.
    time: TokenBuckets<Owner>,
    charges: HashMap<u64, Charge>,
    pub(super) next: u64,
}

impl OpenLogs {
    pub(super) fn new() -> Self {
        let (slots, time) = (Quota::new(LOGS.slots()), TokenBuckets::new(LOG_TIME.of_an_owner()));
        Self { slots, time, charges: HashMap::new(), next: 0 }
    }

    /// Errno (positive) if the owner has to close some, or to wait.
    fn check(&mut self, charge: Charge) -> Result<(), i32> {
        self.slots.check(charge.owner, charge.uid).map_err(|_| libc::ENFILE)?;
        let has_time =
            charge.owner.is_root() || self.time.is_ready(charge.owner, coarse_clock::now_ns());
        if has_time { Ok(()) } else { Err(libc::EAGAIN) }
    }

    fn insert(&mut self, charge: Charge, begun: Instant) -> u64 {
        let fh = TEXT | self.next;
        self.next = (self.next + 1) & !TEXT;
        let took_ns = begun.elapsed().as_nanos() as u64;
        self.time.charge(charge.owner, coarse_clock::now_ns(), took_ns);
        self.hold(fh, charge);
        fh
    }

    fn hold(&mut self, fh: u64, Charge { owner, uid }: Charge) {
        self.slots.insert(owner, uid);
        self.charges.insert(fh, Charge { owner, uid });
    }

    fn remove(&mut self, fh: u64) {
        if let Some(Charge { owner, uid }) = self.charges.remove(&fh) {
            self.slots.give_back(owner, uid);
        }
    }
}

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
    /// Errno (positive) on failure: `ENFILE` if too many texts are open, `EAGAIN` if the owner's
    /// texts took too much time.
    pub(super) fn open_log(&mut self, header: &InHeader, log: Log) -> Result<OpenOut, i32> {
        let uid = Uid(header.uid);
        let owner = owner_of(header.pid, uid).map_err(|_| libc::EPERM)?;
        let charge = Charge { owner, uid };
        self.logs.check(charge).inspect_err(|&errno| {
            let why =
                if errno == libc::ENFILE { "too many are open" } else { "they took too long" };
            self.warn_once("logs", || {
                format!("files of binder_logs for {owner}: {why}, refusing more")
            });
        })?;
        let begun = Instant::now();
        let text = text(&self.driver, log);
        let fh = self.logs.insert(charge, begun);
        self.pages.add_text(fh, text);
        Ok(OpenOut { fh, open_flags: FOPEN_DIRECT_IO, ..OpenOut::default() })
    }

    /// A text that was open before an upgrade.
    pub(super) fn restore_log(&mut self, fh: u64, text: String) {
        self.logs.hold(fh, UNKNOWN);
        self.pages.add_text(fh, text);
    }

    pub(super) fn close_log(&mut self, fh: u64) {
        if fh & TEXT != 0 {
            self.logs.remove(fh);
            self.pages.remove_text(fh);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn user(uid: u32) -> Charge {
        Charge { owner: Owner::User(Uid(uid)), uid: Uid(uid) }
    }

    #[test]
    fn an_owner_that_opens_logs_leaves_files_and_time_to_others() {
        let mut logs = OpenLogs::new();
        let part = LOGS.slots().of_an_owner;
        let opened: Vec<u64> = (0..part).map(|_| logs.insert(user(7), Instant::now())).collect();
        assert_eq!(logs.check(user(7)), Err(libc::ENFILE));
        assert_eq!([logs.check(user(8)), logs.check(UNKNOWN)], [Ok(()); 2]);
        opened.into_iter().for_each(|fh| logs.remove(fh));
        assert_eq!(logs.check(user(7)), Ok(()));
        let begun = Instant::now().checked_sub(Duration::from_secs(3600)).unwrap();
        let opened = logs.insert(user(7), begun);
        logs.remove(opened);
        assert_eq!(logs.check(user(7)), Err(libc::EAGAIN), "an hour is more than its time");
        assert_eq!([logs.check(user(8)), logs.check(UNKNOWN)], [Ok(()); 2]);
    }
}
