//! What several checks ask: kernel version and our own capabilities.

use super::capabilities::Capabilities;

/// The machine as we find it.
pub struct System {
    /// `6.18.44-amd64`.
    pub release: String,
    /// Its first two numbers.
    pub version: (u32, u32),
    /// Ours.
    pub capabilities: Capabilities,
}

impl System {
    /// Looks.
    pub fn look() -> Self {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        Self { version: version(&release), release, capabilities: Capabilities::ours() }
    }
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn kernel_releases_of_all_shapes_have_a_version() {
        assert_eq!(version("6.18.44-fc-v595"), (6, 18));
        assert_eq!(version("7.2-rc1"), (7, 2));
        assert_eq!(version("6.1.0-28-amd64"), (6, 1));
        assert_eq!(version("strange"), (0, 0));
    }
}
