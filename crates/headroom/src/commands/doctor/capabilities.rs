//! Our effective capabilities, from `/proc/self/status`.

/// Numbers from `linux/capability.h`.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub enum Capability {
    Kill = 5,
    SysAdmin = 21,
}

impl Capability {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "CAP_KILL",
            Self::SysAdmin => "CAP_SYS_ADMIN",
        }
    }
}

/// A set of them.
pub struct Capabilities(u64);

impl Capabilities {
    /// What this process may do now; nothing if it cannot be told.
    pub fn ours() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self(effective(&status).unwrap_or(0))
    }

    /// `Ok` with its name, or `Err` with the complaint.
    pub fn require(&self, capability: Capability) -> Result<String, String> {
        let name = capability.name();
        if self.0 & (1 << capability as u8) != 0 {
            Ok(name.into())
        } else {
            Err(format!("{name} is not effective"))
        }
    }
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_set_is_read_and_not_another() {
        let status = "CapPrm:\tffffffffffffffff\nCapEff:\t0000000000000020\nCapBnd:\tffff\n";
        let set = Capabilities(effective(status).unwrap());
        assert!(set.require(Capability::Kill).is_ok());
        assert_eq!(
            set.require(Capability::SysAdmin).unwrap_err(),
            "CAP_SYS_ADMIN is not effective"
        );
        assert_eq!(effective("Name: x\n"), None);
    }
}
