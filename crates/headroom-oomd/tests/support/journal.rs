//! A journal socket for the daemon of a test.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::thread::UnshareFlags;

/// Directory of systemd-journald's sockets.
const FOLDER: &str = "/run/systemd/journal";

/// Fields by name.
pub type Entry = BTreeMap<String, String>;

/// A socket, mounted in place of the journal's in a mount namespace of the daemon.
pub struct Journal {
    dir: tempfile::TempDir,
    socket: UnixDatagram,
}

impl Journal {
    pub fn bind() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("socket")).unwrap();
        socket.set_read_timeout(Some(super::PATIENCE)).unwrap();
        Self { dir, socket }
    }

    /// Connects the standard error of the command's process to this journal.
    pub fn attach(&self, command: &mut Command, stderr: impl AsFd) {
        let stat = rustix::fs::fstat(stderr).unwrap();
        command.env("JOURNAL_STREAM", format!("{}:{}", stat.st_dev, stat.st_ino));
        let dir = self.dir.path().to_owned();
        let mount_journal = move || -> io::Result<()> {
            // SAFETY: no file descriptor is unshared.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
            mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
            mount("run", "/run", "tmpfs", MountFlags::empty(), None)?;
            std::fs::create_dir_all(FOLDER)?;
            Ok(mount_bind(&dir, FOLDER)?)
        };
        // SAFETY: system calls and small allocations: the allocators in use survive a fork.
        unsafe { command.pre_exec(mount_journal) };
    }

    /// Receives the next entry; blocks until there is one.
    pub fn receive(&self) -> Entry {
        loop {
            let mut datagram = vec![0; 65536];
            let len = self.socket.recv(&mut datagram).expect("the journal gets an entry");
            // The first datagram of each sender is empty, to test whether there is a journal.
            if len > 0 {
                return parse(&datagram[..len]);
            }
        }
    }

    /// Receives all entries that have arrived.
    pub fn rest(&self) -> Vec<Entry> {
        self.socket.set_nonblocking(true).unwrap();
        let mut datagram = vec![0; 65536];
        let next = || self.socket.recv(&mut datagram).ok().map(|len| parse(&datagram[..len]));
        let entries = std::iter::from_fn(next).collect();
        self.socket.set_nonblocking(false).unwrap();
        entries
    }
}

/// Parses `NAME=value`, or the name, the length in 8 bytes and the value.
fn parse(mut datagram: &[u8]) -> Entry {
    let mut entry = Entry::new();
    while let Some(end) = datagram.iter().position(|byte| *byte == b'\n') {
        let (line, rest) = (&datagram[..end], &datagram[end + 1..]);
        let (name, value);
        if let Some(equals) = line.iter().position(|byte| *byte == b'=') {
            (name, value) = (&line[..equals], &line[equals + 1..]);
            datagram = rest;
        } else {
            let (len, rest) = rest.split_first_chunk().expect("a length");
            let (bytes, rest) = rest.split_at(u64::from_le_bytes(*len) as usize);
            (name, value) = (line, bytes);
            datagram = &rest[1..];
        }
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        entry.insert(text(name), text(value));
    }
    entry
}
