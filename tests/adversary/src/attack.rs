//! What an attack is.

use std::process::Child;

use harness::daemon::Daemon;
use harness::outcome::Check;
use harness::users::{Uid, User};

/// The attacker, and what it may use.
pub const ATTACKER: User = User { uid: Uid(64_200), subordinate: 400_000, count: 65_000 };
/// Another user with a limit.
pub const BYSTANDER: User = User { uid: Uid(64_201), subordinate: 0, count: 0 };
/// One that nobody has limited so far.
pub const NEWCOMER: User = User { uid: Uid(64_202), subordinate: 0, count: 0 };

/// Another user with a limit, within which it holds memory during each attack.
pub const INNOCENT: User = User { uid: Uid(64_203), subordinate: 0, count: 0 };
/// A user without a limit, whose program takes what it is sent.
pub const RECEIVER: User = User { uid: Uid(64_204), subordinate: 0, count: 0 };

/// What a limit promises about the memory of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// All of it counts.
    AllMemory,
    /// `docs/limitations.md` lists some of it as not seen. What is mapped or open counts.
    VisibleMemory,
}

/// An attack.
pub struct Attack {
    /// Name in tables.
    pub name: &'static str,
    /// In `programs/`.
    pub program: &'static str,
    /// The attacker's limit, MiB.
    pub limit_mib: u64,
    /// How long it lasts, seconds.
    pub seconds: u32,
    /// What counts.
    pub promise: Promise,
    /// After the socket and the seconds.
    pub arguments: fn(&Daemon) -> Vec<String>,
    /// What is done before it, beside it, and what is looked at in the end.
    pub witness: &'static dyn Witness,
}

/// What else happens in an attack.
pub trait Witness: Sync {
    /// Why the attack cannot be played on this machine.
    fn missing(&self) -> Option<&'static str> {
        None
    }

    /// Before the attack. Returns processes that are to live until its end.
    fn prepare(&self, _daemon: &Daemon) -> anyhow::Result<Vec<Child>> {
        Ok(Vec::new())
    }

    /// The attack has begun.
    fn begun(&self, _attack: &mut Child) -> anyhow::Result<()> {
        Ok(())
    }

    /// It is still going on, and has reached its height.
    fn look(&self, _daemon: &Daemon) -> anyhow::Result<Vec<Check>> {
        Ok(Vec::new())
    }

    /// It is over.
    fn after(&self, _daemon: &Daemon) -> anyhow::Result<Vec<Check>> {
        Ok(Vec::new())
    }

    /// Undoes what was prepared, when no process is left, whatever happened.
    fn clean_up(&self) {}
}
