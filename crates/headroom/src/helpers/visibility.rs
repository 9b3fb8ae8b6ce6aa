//! What `headroom-oomd` shows: everything to root; to other users their own limits and decisions.

use control::Uid;

/// The accounts that this process may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// All.
    All,
    /// Those of this user.
    Own(Uid),
}

impl Visibility {
    /// That of this process.
    pub fn ours() -> Self {
        match rustix::process::geteuid() {
            uid if uid.is_root() => Self::All,
            uid => Self::Own(Uid(uid.as_raw())),
        }
    }

    /// The line for an empty list of limits.
    pub fn no_limit(self) -> &'static str {
        match self {
            Self::All => "no user has a limit",
            Self::Own(_) => "you have no limit; only root sees those of other users",
        }
    }

    /// The line for an empty list of decisions.
    pub fn no_decision(self) -> &'static str {
        match self {
            Self::All => "no decision is recorded: no process was killed",
            Self::Own(_) => {
                "no decision about you is recorded; only root sees those about other users"
            }
        }
    }
}
