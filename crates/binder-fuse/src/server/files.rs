//! Names, attributes, directories: all file operations that are not specific to binder.

use std::io;

use super::Server;
use crate::place::{Log, Place};
use crate::wire::reply::{Dirent, push_dirent};
use crate::wire::types::{AttrOut, EntryOut, InHeader, OpenOut, ReadIn, SetattrIn, StatfsOut};

/// How long the kernel may cache attributes, seconds.
const ATTR_SECONDS: u64 = 1;
/// How long the kernel may cache the name of a fixed entry, seconds.
const FIXED_NAME_SECONDS: u64 = 3600;

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
}
