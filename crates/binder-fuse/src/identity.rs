//! Identity of a client: its process, its pid as other pid namespaces see it, and its uid as other
//! user namespaces see it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use headroom_linux::machine_memory::value_of;
use headroom_linux::task_status;
use owners::Uid;
use serde::{Deserialize, Serialize};

/// `_IO(0xb7, 2)`: the parent of a pid namespace.
const NS_GET_PARENT: libc::Ioctl = 0xb702;

/// Inode of the pid namespace of this process.
pub(crate) fn own_pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino())
}

/// The process of a client's thread.
#[derive(Debug)]
pub(crate) struct Client {
    /// Its pid in our pid namespace.
    pub(crate) pid: u32,
    /// Its pids in all its namespaces.
    pub(crate) view: PidView,
    pub(crate) sigtrap: Disposition,
}

/// Whether a process ignores a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    Ignored,
    /// Handled, or not changed by the process.
    Other,
}

/// The process that the thread `tid` belongs to: its pid in our namespace (`own`) and in others.
/// `NotFound` if there is no such thread.
pub(crate) fn process_of(tid: u32, own: u64) -> io::Result<Client> {
    let status = task_status(tid)?;
    let pid = value_of(&status, "Tgid").and_then(|pid| pid.parse().ok());
    let pid: u32 = pid.ok_or(io::ErrorKind::NotFound)?;
    let seen = value_of(&status, "NStgid").and_then(|pids| {
        let chain = namespaces(tid, own)?;
        PidView::zip(&chain, pids)
    });
    // A process that cannot be inspected is treated as visible in our own namespace only.
    let seen_by_own = || PidView { own: (own, pid as i32), inner: Box::default() };
    let view = seen.unwrap_or_else(seen_by_own);
    Ok(Client { pid, view, sigtrap: disposition(&status, libc::SIGTRAP) })
}

/// The effective uid of a process's main thread.
pub(crate) fn euid_of(pid: u32) -> Option<Uid> {
    let status = task_status(pid).ok()?;
    value_of(&status, "Uid")?.split_ascii_whitespace().nth(1)?.parse().ok().map(Uid)
}

/// Whether a thread belongs to the process `pid`.
pub(crate) fn is_thread_of(pid: u32, tid: u32) -> bool {
    pid == tid || rustix::fs::stat(format!("/proc/{pid}/task/{tid}")).is_ok()
}

/// Whether a thread has CAP_KILL, in its own user namespace.
pub(crate) fn has_cap_kill(tid: u32) -> bool {
    const CAP_KILL: u32 = 5;
    let status = task_status(tid).unwrap_or_default();
    let effective = value_of(&status, "CapEff").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    effective.unwrap_or(0) >> CAP_KILL & 1 == 1
}

fn disposition(status: &str, signal: i32) -> Disposition {
    match signals(status, "SigIgn") >> (signal - 1) & 1 {
        0 => Disposition::Other,
        _ => Disposition::Ignored,
    }
}

/// The signals in a line of a status file, a bit for each.
pub(crate) fn signals(status: &str, name: &str) -> u64 {
    let mask = value_of(status, name).and_then(|mask| u64::from_str_radix(mask, 16).ok());
    mask.unwrap_or(0)
}

/// Pid namespaces of a thread, from `own` inwards.
fn namespaces(tid: u32, own: u64) -> Option<Vec<u64>> {
    let path = format!("/proc/{tid}/ns/pid");
    if std::fs::metadata(&path).ok()?.ino() == own {
        return Some(vec![own]);
    }
    let mut namespace = File::open(path).ok()?;
    let mut chain = Vec::new();
    loop {
        let inode = namespace.metadata().ok()?.ino();
        chain.push(inode);
        if inode == own {
            chain.reverse();
            return Some(chain);
        }
        // SAFETY: NS_GET_PARENT takes no argument and returns a new descriptor, or -1.
        let parent = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
        if parent < 0 {
            return None;
        }
        // SAFETY: the descriptor is new and has no other owner.
        namespace = unsafe { OwnedFd::from_raw_fd(parent) }.into();
    }
}

/// The pids of one process, from our own pid namespace inwards to its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PidView {
    /// Inode of our namespace, and the pid in it.
    own: (u64, i32),
    /// Inodes and pids of the namespaces below ours, outermost first; empty for a process in ours.
    inner: Box<[(u64, i32)]>,
}

impl PidView {
    /// `namespaces` and the pids of an `NStgid:` line, both from the outside in.
    fn zip(namespaces: &[u64], nstgid: &str) -> Option<Self> {
        let pids: Vec<i32> =
            nstgid.split_ascii_whitespace().map_while(|p| p.parse().ok()).collect();
        if pids.len() != namespaces.len() {
            return None;
        }
        let mut levels = namespaces.iter().copied().zip(pids);
        Some(Self { own: levels.next()?, inner: levels.collect() })
    }

    /// This process's pid in the namespace of `receiver`; 0 if it is not visible there.
    pub(crate) fn seen_by(&self, receiver: &PidView) -> i32 {
        let (namespace, _) = *receiver.inner.last().unwrap_or(&receiver.own);
        let mut levels = std::iter::once(&self.own).chain(&self.inner);
        levels.find(|level| level.0 == namespace).map_or(0, |level| level.1)
    }
}

/// The uid of a user that has none in a namespace, as the kernel reports it.
const NO_UID: u32 = u32::MAX;

/// Inode of our own user namespace.
pub(crate) fn own_user_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/user").map_or(0, |meta| meta.ino())
}

/// The user namespace of a process, into which uids are translated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum UserView {
    /// Our own user namespace.
    Ours,
    /// Another user namespace, whose map is not written yet and has to be read again.
    Unwritten,
    Mapped(Vec<UidRange>),
}

/// A line of `uid_map`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UidRange {
    /// First uid in the namespace.
    inside: u32,
    /// First uid in our namespace.
    ours: u32,
    count: u32,
}

impl UserView {
    /// The user namespace of a process; `own` is the inode of our own.
    pub(crate) fn of(pid: u32, own: u64) -> Self {
        match std::fs::metadata(format!("/proc/{pid}/ns/user")) {
            Ok(meta) if meta.ino() != own => Self::Unwritten,
            // A process that cannot be inspected is treated as if it were in our namespace.
            _ => Self::Ours,
        }
    }

    /// Reads the map, in terms of our own uids.
    fn read(pid: u32) -> Self {
        let text = std::fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap_or_default();
        Self::parse(&text)
    }

    fn parse(text: &str) -> Self {
        let range = |line: &str| {
            let mut numbers = line.split_ascii_whitespace().map(str::parse);
            let mut number = || numbers.next()?.ok();
            Some(UidRange { inside: number()?, ours: number()?, count: number()? })
        };
        let ranges: Vec<_> = text.lines().filter_map(range).collect();
        if ranges.is_empty() { Self::Unwritten } else { Self::Mapped(ranges) }
    }

    /// The uid in the process's namespace for a uid of ours. `pid`: the process, as long as it
    /// exists.
    pub(crate) fn sees(&mut self, pid: Option<u32>, Uid(uid): Uid) -> u32 {
        if let (Self::Unwritten, Some(pid)) = (&self, pid) {
            *self = Self::read(pid);
        }
        match self {
            Self::Ours => uid,
            Self::Unwritten => NO_UID,
            Self::Mapped(ranges) => ranges
                .iter()
                .find_map(|&UidRange { inside, ours, count }| {
                    let offset = uid.checked_sub(ours).filter(|&offset| offset < count)?;
                    inside.checked_add(offset)
                })
                .unwrap_or(NO_UID),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(namespaces: &[u64], nstgid: &str) -> PidView {
        PidView::zip(namespaces, nstgid).unwrap()
    }

    #[test]
    fn a_pid_is_what_the_receivers_namespace_sees() {
        let host = view(&[1], "500");
        let inner = view(&[1, 2], "600\t7");
        let sibling = view(&[1, 3], "700\t9");
        assert_eq!(host.seen_by(&host), 500);
        assert_eq!(inner.seen_by(&host), 600, "from outside");
        assert_eq!(inner.seen_by(&inner), 7, "from within");
        assert_eq!(host.seen_by(&inner), 0, "not visible from within");
        assert_eq!(inner.seen_by(&sibling), 0, "nor from beside");
    }

    #[test]
    fn our_own_process_is_found() {
        let Client { pid, view, .. } = process_of(std::process::id(), own_pid_namespace()).unwrap();
        assert_eq!(pid, std::process::id());
        assert_eq!(view.seen_by(&view), pid as i32);
        assert!(process_of(0, own_pid_namespace()).is_err());
    }

    #[test]
    fn an_ignored_signal_is_a_bit_of_the_status_file() {
        let of = |status| disposition(status, libc::SIGTRAP);
        assert_eq!(of("SigIgn:\t0000000000000010\n"), Disposition::Ignored);
        assert_eq!(of("SigIgn:\t0000000000001001\n"), Disposition::Other);
        assert_eq!(of("SigCgt:\t0000000000000010\n"), Disposition::Other);
    }

    #[test]
    fn a_thread_belongs_to_its_process() {
        let found = std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            assert_ne!(tid, std::process::id());
            assert!(is_thread_of(std::process::id(), tid) && !is_thread_of(1, tid));
            process_of(tid, own_pid_namespace())
        });
        let Client { pid, view, .. } = found.join().unwrap().unwrap();
        assert_eq!(pid, std::process::id());
        assert_eq!(view.seen_by(&view), pid as i32, "not the thread's id");
    }

    #[test]
    fn a_user_is_translated_by_the_map() {
        let mut view =
            UserView::parse("         0     100000      65536\n      1000       1000          1\n");
        for (ours, seen) in
            [(100_000, 0), (165_535, 65_535), (1000, 1000), (0, NO_UID), (165_536, NO_UID)]
        {
            assert_eq!(view.sees(None, Uid(ours)), seen, "uid {ours}");
        }
    }

    #[test]
    fn without_a_map_no_user_is_known() {
        let mut view = UserView::parse("");
        assert_eq!(view, UserView::Unwritten);
        assert_eq!(view.sees(Some(u32::MAX), Uid::ROOT), NO_UID);
    }

    #[test]
    fn our_own_namespace_needs_no_map() {
        let mut view = UserView::of(std::process::id(), own_user_namespace());
        assert_eq!(view, UserView::Ours);
        assert_eq!(view.sees(Some(std::process::id()), Uid(1234)), 1234);
    }
}
