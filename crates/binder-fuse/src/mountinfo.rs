//! `/proc/self/mountinfo`: what is mounted where, learned without touching the mount itself.

use std::path::{Path, PathBuf};

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// Device numbers, as `/proc/<pid>/maps` shows them too.
    pub(crate) device: Device,
    /// Where.
    pub(crate) mount_point: PathBuf,
    /// `fuse.binder`, `tmpfs`, ...
    pub(crate) fstype: String,
}

/// Major and minor number of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl Device {
    /// Whether `stat(2)` means it by this number.
    pub(crate) fn is(self, number: u64) -> bool {
        (self.major, self.minor) == (rustix::fs::major(number), rustix::fs::minor(number))
    }
}

/// The topmost mount on `mount_point`, in the text of a mountinfo file.
pub(crate) fn topmost(mountinfo: &str, mount_point: &Path) -> Option<MountEntry> {
    mountinfo.lines().filter_map(parse_line).rfind(|entry| entry.mount_point == mount_point)
}

fn parse_line(line: &str) -> Option<MountEntry> {
    let (left, right) = line.split_once(" - ")?;
    let mut fields = left.split(' ').skip(2);
    let (major, minor) = fields.next()?.split_once(':')?;
    let mount_point = unescape(fields.nth(1)?);
    let device = Device { major: major.parse().ok()?, minor: minor.parse().ok()? };
    let fstype = right.split(' ').next()?.to_owned();
    Some(MountEntry { device, mount_point, fstype })
}

/// Undoes `\040` and its like (three octal digits).
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\' && tail.len() >= 3)
            .then(|| std::str::from_utf8(&tail[..3]).ok())
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
21 1 254:0 / / rw,relatime - ext4 /dev/root rw
22 21 0:5 / /dev rw,relatime - devtmpfs devtmpfs rw,size=12G
40 22 0:39 / /dev/binderfs rw,nosuid,nodev shared:7 master:1 - fuse.binder headroom rw,user_id=0
41 22 0:40 / /mnt/with\\040space rw - tmpfs tmpfs rw
42 40 0:41 / /dev/binderfs rw - tmpfs over rw
";

    #[test]
    fn the_last_mount_on_a_point_is_on_top() {
        let top = topmost(SAMPLE, Path::new("/dev/binderfs")).unwrap();
        assert_eq!(top.fstype, "tmpfs");
        assert_eq!(top.device, Device { major: 0, minor: 41 });
    }

    #[test]
    fn optional_fields_and_escapes_are_understood() {
        let before = SAMPLE.lines().take(4).collect::<Vec<_>>().join("\n");
        let ours = topmost(&before, Path::new("/dev/binderfs")).unwrap();
        assert_eq!(ours.fstype, "fuse.binder");
        assert_eq!(ours.device.minor, 39);
        let space = topmost(&before, Path::new("/mnt/with space")).unwrap();
        assert_eq!(space.fstype, "tmpfs");
        assert_eq!(topmost(&before, Path::new("/nowhere")), None);
    }
}
