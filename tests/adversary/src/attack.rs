//! Description of an attack.

use std::process::Child;

use harness::daemon::Daemon;
use harness::outcome::Check;
use harness::users::{Uid, User};

/// The attacker, with its subordinate uids.
pub const ATTACKER: User = User { uid: Uid(64_200), subordinate: 400_000, count: 65_000 };
/// Another user with a limit.
pub const BYSTANDER: User = User { uid: Uid(64_201), subordinate: 0, count: 0 };
/// A user without a limit at first.
pub const NEWCOMER: User = User { uid: Uid(64_202), subordinate: 0, count: 0 };

/// Another user with a limit, which holds memory within it during each attack.
pub const INNOCENT: User = User { uid: Uid(64_203), subordinate: 0, count: 0 };
/// A user without a limit, whose program keeps the files that it receives.
pub const RECEIVER: User = User { uid: Uid(64_204), subordinate: 0, count: 0 };

/// The memory of an attack that a limit must cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// All memory counts.
    AllMemory,
    /// Mapped and open memory counts; `docs/limitations.md` lists other memory that is not visible.
    VisibleMemory,
}

/// An attack.
pub struct Attack {
    /// Name in tables.
    pub name: &'static str,
    /// File in `programs/`.
    pub program: &'static str,
    /// The attacker's limit, MiB.
    pub limit_mib: u64,
    /// Duration, seconds.
    pub seconds: u32,
    /// Memory that the limit must cover.
    pub guarantee: Guarantee,
    /// Arguments after the socket and the seconds.
    pub arguments: fn(&Daemon) -> Vec<String>,
    /// Setup before the attack, and checks during and after it.
    pub witness: &'static dyn Witness,
}

/// Hooks at the stages of an attack.
pub trait Witness: Sync {
    /// Why the attack cannot be carried out on this machine.
    fn missing(&self) -> Option<&'static str> {
        None
    }

    /// Runs before the attack. Returns processes that must stay alive until its end.
    fn prepare(&self, _daemon: &Daemon) -> anyhow::Result<Vec<Child>> {
        Ok(Vec::new())
    }

    /// Runs when the attack has begun.
    fn begun(&self, _attack: &mut Child) -> anyhow::Result<()> {
        Ok(())
    }

    /// Runs in the middle of the attack, at its height.
    fn look(&self, _daemon: &Daemon) -> anyhow::Result<Vec<Check>> {
        Ok(Vec::new())
    }

    /// Runs after the attack.
    fn after(&self, _daemon: &Daemon) -> anyhow::Result<Vec<Check>> {
        Ok(Vec::new())
    }

    /// Undoes the setup, after all processes have exited, whatever happened.
    fn clean_up(&self) {}
}
