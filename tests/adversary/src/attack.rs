//! What an attack is.

use std::process::Child;

use harness::daemon::Daemon;
use harness::outcome::Check;
use harness::users::User;

/// The attacker, and what it may use.
pub const ATTACKER: User = User { uid: 64_200, subordinate: 400_000, count: 65_000 };
/// Another user with a limit.
pub const BYSTANDER: User = User { uid: 64_201, subordinate: 0, count: 0 };
/// One that nobody has limited so far.
pub const NEWCOMER: User = User { uid: 64_202, subordinate: 0, count: 0 };

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
    /// After the socket and the seconds.
    pub arguments: fn(&Daemon) -> Vec<String>,
    /// What is done before it, beside it, and what is looked at in the end.
    pub witness: &'static dyn Witness,
}

/// What else happens in an attack.
pub trait Witness: Sync {
    /// Before the attack.
    fn prepare(&self, _daemon: &Daemon) -> anyhow::Result<()> {
        Ok(())
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
}
