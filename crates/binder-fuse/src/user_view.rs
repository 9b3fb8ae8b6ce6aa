//! Users as another user namespace sees them.

use std::os::unix::fs::MetadataExt;

use owners::Uid;

/// What a user is in a namespace that does not know it, as the kernel says it.
const UNKNOWN: u32 = u32::MAX;

/// Our own user namespace, by inode.
pub(crate) fn own_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/user").map_or(0, |meta| meta.ino())
}

/// How a process sees users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UserView {
    /// As we do.
    Ours,
    /// In a namespace of its own, whose map is not written yet: asked for again.
    Unwritten,
    Mapped(Vec<UidRange>),
}

/// A line of `uid_map`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UidRange {
    /// First uid in the namespace.
    inside: u32,
    /// First uid in ours.
    ours: u32,
    count: u32,
}

impl UserView {
    /// The view of a process; `own` is our own namespace.
    pub(crate) fn of(pid: u32, own: u64) -> Self {
        match std::fs::metadata(format!("/proc/{pid}/ns/user")) {
            Ok(meta) if meta.ino() != own => Self::Unwritten,
            // One that cannot be looked at sees what we see.
            _ => Self::Ours,
        }
    }

    /// The map, in terms of our own uids.
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

    /// A user of ours as the process, whose view this is, sees it. `pid`: its number, while it
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
    fn a_user_is_what_the_map_says() {
        let mut view =
            UserView::parse("         0     100000      65536\n      1000       1000          1\n");
        for (ours, seen) in
            [(100_000, 0), (165_535, 65_535), (1000, 1000), (0, UNKNOWN), (165_536, UNKNOWN)]
        {
            assert_eq!(view.sees(None, Uid(ours)), seen, "uid {ours}");
        }
    }

    #[test]
    fn without_a_map_nobody_is_known() {
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
