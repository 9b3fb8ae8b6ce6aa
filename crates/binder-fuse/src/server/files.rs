//! Names, attributes, directories and the files of `binder_logs`: all file operations that are not
//! specific to binder.
//!
//! The text of a log is created when its file is opened, and does not change until it is closed.

use std::collections::HashMap;
use std::io;
use std::time::Instant;

use binder_driver::Driver;
use owners::bounds::{LOG_TIME, LOGS};
use owners::client_files::Charge;
use owners::{Owner, Quota, TokenBuckets, Uid};

use super::Server;
use super::device::owner_of;
use crate::fixed::{Log, Place};
use crate::owner_budgets::coarse_now_ns;
use crate::wire::types::{
    AttrOut, EntryOut, FOPEN_DIRECT_IO, InHeader, OpenOut, ReadIn, SetattrIn, StatfsOut,
};
use crate::wire::{Dirent, push_dirent};

/// How long the kernel may cache attributes, seconds.
const ATTR_SECONDS: u64 = 1;
/// How long the kernel may cache the name of a fixed entry, seconds.
const FIXED_NAME_SECONDS: u64 = 3600;
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
        let has_time = charge.owner.is_root() || self.time.is_ready(charge.owner, coarse_now_ns());
        if has_time { Ok(()) } else { Err(libc::EAGAIN) }
    }

    fn insert(&mut self, charge: Charge, begun: Instant) -> u64 {
        let fh = TEXT | self.next;
        self.next = (self.next + 1) & !TEXT;
        let took_ns = begun.elapsed().as_nanos() as u64;
        self.time.charge(charge.owner, coarse_now_ns(), took_ns);
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
    pub(super) fn send_ok(&mut self, header: &InHeader) -> io::Result<()> {
        self.channel.send(self.reply.bytes(header.unique, &[]))
    }

    pub(super) fn send_error(&mut self, header: &InHeader, errno: i32) -> io::Result<()> {
        self.channel.send(self.reply.error(header.unique, errno))
    }

    pub(super) fn send_attr(&mut self, header: &InHeader) -> io::Result<()> {
        match self.tree.attr(header.nodeid) {
            Some(attr) => {
                let out = AttrOut { attr_valid: ATTR_SECONDS, attr, ..AttrOut::default() };
                self.channel.send(self.reply.body(header.unique, &out))
            }
            None => self.send_error(header, libc::ENOENT),
        }
    }

    pub(super) fn lookup(&mut self, header: &InHeader, name: &[u8]) -> io::Result<()> {
        let node = match self.tree.lookup(header.nodeid, name) {
            Ok(node) => node,
            Err(errno) => return self.send_error(header, errno),
        };
        // A device's name is never cached: the next open must look it up again, and gets another
        // node. Processes come and go.
        let place = self.tree.place(node);
        let fleeting = matches!(place, Some(Place::Device(_) | Place::Log(Log::Process(_))));
        if matches!(place, Some(Place::Log(Log::Process(pid))) if !self.driver.has_pid(pid)) {
            return self.send_error(header, libc::ENOENT);
        }
        let entry_valid = if fleeting { 0 } else { FIXED_NAME_SECONDS };
        let attr = self.tree.attr(node).unwrap_or_default();
        let (nodeid, attr_valid) = (node, ATTR_SECONDS);
        let out = EntryOut { nodeid, entry_valid, attr_valid, attr, ..EntryOut::default() };
        self.channel.send(self.reply.body(header.unique, &out))
    }

    pub(super) fn setattr(&mut self, header: &InHeader, change: &SetattrIn) -> io::Result<()> {
        match self.tree.setattr(header.nodeid, change) {
            Ok(()) => self.send_attr(header),
            Err(errno) => self.send_error(header, errno),
        }
    }

    pub(super) fn unlink(&mut self, header: &InHeader, name: &[u8]) -> io::Result<()> {
        match self.tree.unlink(header.nodeid, name) {
            Ok(context) => {
                self.driver.remove_context(context);
                self.send_ok(header)
            }
            Err(errno) => self.send_error(header, errno),
        }
    }

    /// A device whose name is given to another one is treated as unlinked.
    pub(super) fn rename(
        &mut self,
        header: &InHeader,
        old: &[u8],
        new: (u64, &[u8]),
        flags: u32,
    ) -> io::Result<()> {
        match self.tree.rename((header.nodeid, old), new, flags) {
            Ok(replaced) => {
                if let Some(context) = replaced {
                    self.driver.remove_context(context);
                }
                self.send_ok(header)
            }
            Err(errno) => self.send_error(header, errno),
        }
    }

    pub(super) fn opendir(&mut self, header: &InHeader) -> io::Result<()> {
        self.channel.send(self.reply.body(header.unique, &OpenOut::default()))
    }

    pub(super) fn readdir(&mut self, header: &InHeader, read: &ReadIn) -> io::Result<()> {
        let mut out = Vec::new();
        let processes = self.tree.place(header.nodeid) == Some(Place::Processes);
        let pids = if processes { self.driver.pids() } else { Vec::new() };
        for entry in self.tree.entries(header.nodeid, read.offset, &pids) {
            let room = read.size as usize;
            if !push_dirent(
                &mut out,
                room,
                Dirent {
                    ino: entry.ino,
                    next: entry.next,
                    directory: entry.directory,
                    name: &entry.name,
                },
            ) {
                break;
            }
        }
        self.channel.send(self.reply.bytes(header.unique, &out))
    }

    pub(super) fn statfs(&mut self, header: &InHeader) -> io::Result<()> {
        let out = StatfsOut { bsize: 4096, frsize: 4096, namelen: 255, ..StatfsOut::default() };
        self.channel.send(self.reply.body(header.unique, &out))
    }

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
    use std::time::Duration;

    use super::*;

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
