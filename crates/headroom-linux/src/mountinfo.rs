//! `/proc/<pid>/mountinfo`: the mounts that a process sees, read without touching them. And the
//! device that mounts of FUSE need.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;

/// One mount. Names are bytes: a user can mount FUSE on a path that is no UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The mount's number, as `statx(2)` reports it.
    pub id: u64,
    /// The filesystem's device number, as `/proc/<pid>/maps` shows it too.
    pub device: Device,
    /// The folder within the filesystem that is mounted: `/` for all of it.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// `tmpfs`, `fuse.binder`, ...
    pub fs_type: String,
    /// Options of the filesystem, separated by commas.
    super_options: String,
}

impl MountEntry {
    /// Whether the filesystem has this option.
    pub fn has_super_option(&self, option: &str) -> bool {
        self.super_options.split(',').any(|one| one == option)
    }
}

/// Device number of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Major number: 0 for filesystems without a device.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Device {
    /// Whether `stat(2)` reports this device by that number.
    pub fn is(self, number: u64) -> bool {
        (self.major, self.minor) == (rustix::fs::major(number), rustix::fs::minor(number))
    }
}

/// The mounts in the text of a mountinfo file, in its order. Lines that cannot be parsed are left
/// out.
pub fn entries(mountinfo: &[u8]) -> impl DoubleEndedIterator<Item = MountEntry> {
    mountinfo.split(|byte| *byte == b'\n').filter_map(parse_line)
}

/// The topmost mount on `mount_point`.
pub fn topmost(mountinfo: &[u8], mount_point: &Path) -> Option<MountEntry> {
    entries(mountinfo).rfind(|entry| entry.mount_point == mount_point)
}

/// `36 35 98:0 /root /point rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=continue`
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let (major, minor) = str::from_utf8(fields.nth(1)?).ok()?.split_once(':')?;
    let device = Device { major: major.parse().ok()?, minor: minor.parse().ok()? };
    let (root, mount_point) = (fields.next()?, fields.next()?);
    // Optional fields, as many as there are, end with a dash.
    let mut filesystem = fields.skip_while(|field| *field != b"-").skip(1);
    let (fs_type, super_options) = (filesystem.next()?, filesystem.nth(1)?);
    Some(MountEntry {
        id,
        device,
        root: unescape(root),
        mount_point: unescape(mount_point),
        fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        super_options: String::from_utf8_lossy(super_options).into_owned(),
    })
}

/// Replaces `\040` and its like (three octal digits) by the byte.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| first == b'\\');
        let digits = digits.and_then(|digits| str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    OsStr::from_bytes(&bytes).into()
}

/// Device number of `/dev/fuse`, from devices.txt of the kernel.
const FUSE_DEVICE: u64 = libc::makedev(10, 229);

/// Why FUSE is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FuseError {
    /// The device does not open.
    #[error("cannot open /dev/fuse: {0}")]
    Open(Errno),
    /// Another file is in its place.
    #[error("/dev/fuse is not the FUSE device, but another file")]
    OtherFile,
}

impl FuseError {
    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Open(Errno::ACCESS | Errno::PERM) => {
                "chmod 666 /dev/fuse as root, which is how udev makes it; in a container, allow \
                 the device (c 10:229 rw)"
            }
            Self::Open(_) => "modprobe fuse; in a container, let it have the device /dev/fuse",
            Self::OtherFile => {
                "rm /dev/fuse && mknod -m 666 /dev/fuse c 10 229; in a container, let it have the \
                 device /dev/fuse"
            }
        }
    }
}

/// Opens a new connection, non-blocking.
pub fn open_fuse() -> Result<OwnedFd, FuseError> {
    open_device(Path::new("/dev/fuse"))
}

fn open_device(path: &Path) -> Result<OwnedFd, FuseError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = open(path, flags, Mode::empty()).map_err(FuseError::Open)?;
    let stat = fstat(&device).map_err(FuseError::Open)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let is_fuse = kind == FileType::CharacterDevice && stat.st_rdev == FUSE_DEVICE;
    if is_fuse { Ok(device) } else { Err(FuseError::OtherFile) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"\
21 1 254:0 / / rw,relatime - ext4 /dev/root rw
22 21 0:5 / /dev rw,relatime - devtmpfs devtmpfs rw,size=12G
36 23 0:30 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
37 23 0:30 /docker/1 /mnt/freezer rw - cgroup cgroup rw,freezer
40 22 0:39 / /dev/binderfs rw,nosuid shared:7 master:1 - fuse.binder headroom rw,user_id=0
41 22 0:40 / /mnt/with\\040space rw - tmpfs tmpfs rw
43 22 0:42 / /mnt/\xff\\x rw - fuse.x x rw
nonsense
42 40 0:41 / /dev/binderfs rw - tmpfs over rw
";

    #[test]
    fn the_last_mount_on_a_point_is_on_top() {
        let top = topmost(SAMPLE, Path::new("/dev/binderfs")).unwrap();
        assert_eq!((top.id, top.fs_type.as_str()), (42, "tmpfs"));
        assert_eq!(top.device, Device { major: 0, minor: 41 });
        assert_eq!(topmost(SAMPLE, Path::new("/nowhere")), None);
    }

    #[test]
    fn optional_fields_and_escapes_are_understood() {
        let all: Vec<MountEntry> = entries(SAMPLE).collect();
        assert_eq!(all.len(), 8);
        let by_type = |fs_type| all.iter().find(|entry| entry.fs_type == fs_type).unwrap();
        assert_eq!(by_type("fuse.binder").device.minor, 39);
        assert!(by_type("fuse.binder").has_super_option("user_id=0"));
        assert_eq!(by_type("tmpfs").mount_point, Path::new("/mnt/with space"));
        assert_eq!(by_type("fuse.x").mount_point.as_os_str().as_bytes(), b"/mnt/\xff\\x");
    }

    #[test]
    fn a_part_of_a_filesystem_has_another_root_than_all_of_it() {
        let freezer = entries(SAMPLE).filter(|entry| entry.has_super_option("freezer"));
        let roots: Vec<PathBuf> = freezer.map(|entry| entry.root).collect();
        assert_eq!(roots, [Path::new("/"), Path::new("/docker/1")]);
    }

    #[test]
    fn the_mounts_of_this_process_can_be_read() {
        let text = std::fs::read("/proc/self/mountinfo").unwrap();
        let proc = topmost(&text, Path::new("/proc")).unwrap();
        assert_eq!(proc.fs_type, "proc");
        let stat = rustix::fs::stat("/proc").unwrap();
        assert!(proc.device.is(stat.st_dev));
    }

    #[test]
    fn the_remedy_follows_from_what_is_wrong_with_fuse() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let opened = |path| open_device(path).map(drop);
        for (path, fact, remedy) in [
            (file.path(), "another file", "rm /dev/fuse && mknod"),
            (Path::new("/dev/null"), "another file", "rm /dev/fuse && mknod"),
            (Path::new("/nonexistent"), "No such file", "modprobe fuse"),
        ] {
            let error = opened(path).unwrap_err();
            assert!(error.to_string().contains(fact), "{error}");
            assert!(error.remedy().starts_with(remedy), "{error:?}");
        }
        assert!(FuseError::Open(Errno::ACCESS).remedy().starts_with("chmod 666"));
    }
}
