//! Facts that several checks use: kernel version and effective capabilities.

use std::fmt;

use super::capabilities::Capabilities;

/// The tested machine.
pub struct System {
    /// Kernel release, as `6.18.44-amd64`.
    pub release: String,
    /// Its first two numbers.
    pub version: Version,
    /// Capabilities of this process.
    pub capabilities: Capabilities,
}

impl System {
    /// Reads them.
    pub fn look() -> Self {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        Self { version: Version::of(&release), release, capabilities: Capabilities::ours() }
    }

    /// A feature that each kernel has since this version, and that has no harmless probe.
    pub fn since(&self, major: u32, minor: u32) -> Result<String, String> {
        if self.version < (Version { major, minor }) {
            return Err(format!("kernel {} has none", self.version));
        }
        Ok(format!("kernel {} has it", self.version))
    }
}

/// The first two numbers of a kernel's release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl Version {
    fn of(release: &str) -> Self {
        let mut numbers =
            release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Self { major: next(), minor: next() }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn kernel_releases_of_all_shapes_have_a_version() {
        let text = |release| Version::of(release).to_string();
        assert_eq!(text("6.18.44-fc-v595"), "6.18");
        assert_eq!(text("7.2-rc1"), "7.2");
        assert_eq!(text("6.1.0-28-amd64"), "6.1");
        assert_eq!(text("strange"), "0.0");
    }
}
