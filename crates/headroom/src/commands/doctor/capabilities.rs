//! Effective capabilities of this process.

use rustix::thread::CapabilitySet;

/// A capability that a check requires.
#[derive(Clone, Copy, Debug)]
pub enum Capability {
    // Of the OOM manager's checks, which the static program does not have.
    #[cfg_attr(not(feature = "bpf"), expect(dead_code))]
    Kill,
    SysAdmin,
}

impl Capability {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "CAP_KILL",
            Self::SysAdmin => "CAP_SYS_ADMIN",
        }
    }

    fn bit(self) -> CapabilitySet {
        match self {
            Self::Kill => CapabilitySet::KILL,
            Self::SysAdmin => CapabilitySet::SYS_ADMIN,
        }
    }
}

/// The effective set.
pub struct Capabilities(CapabilitySet);

impl Capabilities {
    /// The set of this process; empty if it cannot be read.
    pub fn ours() -> Self {
        Self(rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |it| it.effective))
    }

    /// `Ok` with the capability's name, or `Err` with the message that it is missing.
    pub fn require(&self, capability: Capability) -> Result<String, String> {
        let name = capability.name();
        if self.0.contains(capability.bit()) {
            Ok(name.into())
        } else {
            Err(format!("{name} is not effective"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_capability_is_named() {
        let set = Capabilities(CapabilitySet::KILL);
        assert!(set.require(Capability::Kill).is_ok());
        let missing = set.require(Capability::SysAdmin).unwrap_err();
        assert_eq!(missing, "CAP_SYS_ADMIN is not effective");
    }
}
