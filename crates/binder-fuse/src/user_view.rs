//! Translates uids into other user namespaces.

use std::os::unix::fs::MetadataExt;

use owners::Uid;
use serde::{Deserialize, Serialize};

/// The uid of a user that has none in a namespace, as the kernel reports it.
const UNKNOWN: u32 = u32::MAX;

/// Inode of our own user namespace.
pub(crate) fn own_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/user").map_or(0, |meta| meta.ino())
}

/// The user namespace of a process.
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
            Self::Unwritten => UNKNOWN,
            Self::Mapped(ranges) => ranges
                .iter()
                .find_map(|&UidRange { inside, ours, count }| {
                    let offset = uid.checked_sub(ours).filter(|&offset| offset < count)?;
                    inside.checked_add(offset)
                })
                .unwrap_or(UNKNOWN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_translated_by_the_map() {
        let mut view =
            UserView::parse("         0     100000      65536\n      1000       1000          1\n");
        for (ours, seen) in
            [(100_000, 0), (165_535, 65_535), (1000, 1000), (0, UNKNOWN), (165_536, UNKNOWN)]
        {
            assert_eq!(view.sees(None, Uid(ours)), seen, "uid {ours}");
        }
    }

    #[test]
    fn without_a_map_no_user_is_known() {
        let mut view = UserView::parse("");
        assert_eq!(view, UserView::Unwritten);
        assert_eq!(view.sees(Some(u32::MAX), Uid::ROOT), UNKNOWN);
    }

    #[test]
    fn our_own_namespace_needs_no_map() {
        let mut view = UserView::of(std::process::id(), own_namespace());
        assert_eq!(view, UserView::Ours);
        assert_eq!(view.sees(Some(std::process::id()), Uid(1234)), 1234);
    }
}
