//! The *owner* of a process, and fair sharing of a daemon's resources between owners.
//!
//! A uid is a poor unit for quotas: a user with subordinate uids has 65,536 of them. The owner of a
//! process is the user that is responsible for it ([`Owner`]). The reason for each rule is in
//! `docs/design/owners.md`.
//!
//! These modules make no system calls and read no clock:
//!
//! * [`quota`]: a bounded number of slots, of which one owner cannot take all;
//! * [`token_bucket`]: a bounded rate;
//! * [`round_robin`]: a queue that serves owners in turn, and the uids of an owner in turn.
//!
//! [`bounds`] lists every bound with its parts. [`reader`] reads user namespaces from the kernel;
//! [`client_files`] closes files of clients in threads.

pub mod bounds;
pub mod client_files;
pub mod quota;
pub mod reader;
pub mod round_robin;
pub mod token_bucket;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use quota::{Exhausted, Quota, QuotaSize};
pub use round_robin::FairQueue;
pub use token_bucket::{Rate, TokenBucket, TokenBuckets};

/// A uid in the initial user namespace, or in the outermost one that the reader can see.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Uid(pub u32);

impl Uid {
    /// The superuser, which is never limited.
    pub const ROOT: Self = Self(0);
    /// `(uid_t) -1`: no user.
    pub const NONE: Self = Self(u32::MAX);
    /// Highest uid that can have an account. The uids above it are reserved for the keys of groups
    /// and cgroups in the BPF maps; no system assigns them.
    pub const LAST_LIMITABLE: Self = Self(0xfffd_ffff);

    /// A user with this uid can have an account.
    pub fn is_limitable(self) -> bool {
        (Self(1)..=Self::LAST_LIMITABLE).contains(&self)
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Inode number of a user namespace. Unique while the namespace exists; the kernel may reuse it
/// afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamespaceId(pub u64);

/// A user namespace below the initial one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceLevel {
    /// The namespace.
    pub id: NamespaceId,
    /// Effective uid of the process that created it, in the initial namespace.
    pub creator: Uid,
}

/// The party that a process, and everything that it uses, is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Owner {
    /// A user of the machine, with all uids that it uses in namespaces of its own.
    User(Uid),
    /// A user namespace that root created (LXD, rootful podman, Kubernetes), with all uids in it.
    Namespace(NamespaceId),
}

impl Owner {
    /// The owner of a process with this uid. `levels` are the user namespaces that the process is
    /// in, innermost first, without the initial one.
    pub fn of(uid: Uid, levels: &[NamespaceLevel]) -> Self {
        match levels.last() {
            None => Self::User(uid),
            Some(outermost) if outermost.creator == Uid::ROOT => Self::Namespace(outermost.id),
            Some(outermost) => Self::User(outermost.creator),
        }
    }

    /// True for root in the initial namespace, which may use the reserved part of each resource.
    pub fn is_root(self) -> bool {
        self == Self::User(Uid::ROOT)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(Uid(uid)) => write!(to, "uid {uid}"),
            Self::Namespace(NamespaceId(id)) => write!(to, "user namespace {id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(id: u64, creator: u32) -> NamespaceLevel {
        NamespaceLevel { id: NamespaceId(id), creator: Uid(creator) }
    }

    #[test]
    fn in_the_initial_namespace_the_owner_is_the_uid() {
        assert_eq!(Owner::of(Uid(1000), &[]), Owner::User(Uid(1000)));
        assert!(Owner::of(Uid::ROOT, &[]).is_root());
    }

    #[test]
    fn in_a_users_namespace_the_owner_is_its_creator_whatever_the_uid() {
        for uid in [0, 1000, 100_000, 165_535] {
            assert_eq!(Owner::of(Uid(uid), &[level(7, 1000)]), Owner::User(Uid(1000)));
        }
    }

    #[test]
    fn the_outermost_namespace_decides() {
        // A container in a user's container: its inner namespace was created by a subordinate uid.
        let nested = [level(9, 100_005), level(8, 100_000), level(7, 1000)];
        assert_eq!(Owner::of(Uid(100_007), &nested), Owner::User(Uid(1000)));
        // A user's namespace inside of an LXD container belongs to the container.
        let in_lxd = [level(9, 1_001_000), level(7, 0)];
        assert_eq!(Owner::of(Uid(1_001_000), &in_lxd), Owner::Namespace(NamespaceId(7)));
    }

    #[test]
    fn root_never_owns_a_namespace() {
        for uid in [0, 1000, 100_000] {
            let owner = Owner::of(Uid(uid), &[level(7, 0)]);
            assert_eq!(owner, Owner::Namespace(NamespaceId(7)));
            assert!(!owner.is_root());
        }
        // Two containers that map the same uids are two owners.
        assert_ne!(Owner::of(Uid(1), &[level(7, 0)]), Owner::of(Uid(1), &[level(8, 0)]));
    }

    #[test]
    fn an_owner_is_printed_by_name() {
        assert_eq!(Owner::User(Uid(1000)).to_string(), "uid 1000");
        assert_eq!(Owner::Namespace(NamespaceId(77)).to_string(), "user namespace 77");
    }
}
