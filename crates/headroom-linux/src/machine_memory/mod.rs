//! The kernel's reports on the machine's memory: `/proc/meminfo`, pressure stall information, zram.
//!
//! Readers take the root of their file tree as a parameter, return structs of `Option<T>` where the
//! kernel may leave a value out, and errors that contain the path. Both daemons use them.

pub mod pressure;
pub mod size;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use pressure::{Pressure, PressureTrigger};

/// The machine's memory in `/proc/meminfo`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meminfo {
    /// `MemTotal`.
    pub total: Option<u64>,
    /// `MemFree`.
    pub free: Option<u64>,
    /// `MemAvailable`: the kernel's estimate of what new programs can have without swapping.
    pub available: Option<u64>,
    /// `Buffers`.
    pub buffers: Option<u64>,
    /// `Cached`; includes `Shmem`.
    pub cached: Option<u64>,
    /// `AnonPages`.
    pub anon: Option<u64>,
    /// `Shmem`.
    pub shmem: Option<u64>,
    /// `PageTables`.
    pub page_tables: Option<u64>,
    /// `Unevictable`: locked memory, ramfs and others that the kernel cannot take back.
    pub unevictable: Option<u64>,
    /// `Mlocked`.
    pub mlocked: Option<u64>,
    /// `SUnreclaim`.
    pub slab_unreclaimable: Option<u64>,
    /// `KernelStack`.
    pub kernel_stack: Option<u64>,
    /// `SReclaimable`.
    pub slab_reclaimable: Option<u64>,
    /// `SwapTotal`.
    pub swap_total: Option<u64>,
    /// `SwapFree`.
    pub swap_free: Option<u64>,
}

impl Meminfo {
    /// Reads `meminfo` in the folder `proc`.
    pub fn read(proc: &Path) -> Result<Self, ReadError> {
        let path = proc.join("meminfo");
        let text = std::fs::read_to_string(&path).map_err(|e| ReadError::io(&path, e))?;
        let info = Self::parse(&text);
        if info.total.is_none() {
            return Err(ReadError::parse(&path, "MemTotal"));
        }
        Ok(info)
    }

    /// Memory that all programs have and could have: `MemAvailable` + `AnonPages` + `Shmem` +
    /// `PageTables` + `Unevictable` - `Mlocked`. The last two are files of a ramfs and secret
    /// memory; locked shared memory counts twice.
    pub fn of_programs(&self) -> u64 {
        let kinds = [self.available, self.anon, self.shmem, self.page_tables];
        let files = self.unevictable.unwrap_or(0).saturating_sub(self.mlocked.unwrap_or(0));
        let sum = kinds.into_iter().flatten().sum::<u64>() + files;
        sum.min(self.total.unwrap_or(u64::MAX))
    }

    fn parse(text: &str) -> Self {
        let mut info = Self::default();
        for (key, value) in keys_and_values(text) {
            let field = match key {
                "MemTotal" => &mut info.total,
                "MemFree" => &mut info.free,
                "MemAvailable" => &mut info.available,
                "Buffers" => &mut info.buffers,
                "Cached" => &mut info.cached,
                "AnonPages" => &mut info.anon,
                "Shmem" => &mut info.shmem,
                "PageTables" => &mut info.page_tables,
                "Unevictable" => &mut info.unevictable,
                "Mlocked" => &mut info.mlocked,
                "SUnreclaim" => &mut info.slab_unreclaimable,
                "KernelStack" => &mut info.kernel_stack,
                "SReclaimable" => &mut info.slab_reclaimable,
                "SwapTotal" => &mut info.swap_total,
                "SwapFree" => &mut info.swap_free,
                _ => continue,
            };
            *field = kib_to_bytes(value);
        }
        info
    }
}

/// No file read here is larger.
const BUFFER_BYTES: usize = 16 * 1024;

/// Swap on zram, of all devices together, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zram {
    /// Free swap space.
    pub free: u64,
    /// Swapped-out data of programs, uncompressed.
    pub stored: u64,
    /// Memory that the compressed data takes.
    pub taken: u64,
}

/// Reader of the machine's memory: `/proc/meminfo`, `/proc/pressure/memory`, and the part of the
/// swap that is compressed memory. The files stay open and the buffer is reused, so that a reading
/// does not allocate and works when no file can be opened any more.
#[derive(Debug)]
pub struct MachineReader {
    proc: PathBuf,
    sys: PathBuf,
    meminfo: File,
    pressure: Option<File>,
    vmstat: Option<File>,
    buffer: Vec<u8>,
}

impl MachineReader {
    /// Opens the files in `proc`; zram devices are searched in `sys`.
    pub fn open(proc: &Path, sys: &Path) -> Result<Self, ReadError> {
        let path = proc.join("meminfo");
        let meminfo = File::open(&path).map_err(|e| ReadError::io(&path, e))?;
        let pressure = File::open(proc.join("pressure/memory")).ok();
        // A kernel with pressure stall information switched off has the file, but a read fails.
        let pressure = pressure.filter(|file| file.read_at(&mut [0], 0).is_ok());
        let vmstat = File::open(proc.join("vmstat")).ok();
        let (proc, sys) = (proc.to_owned(), sys.to_owned());
        Ok(Self { proc, sys, meminfo, pressure, vmstat, buffer: vec![0; BUFFER_BYTES] })
    }

    /// The kernel reports stall times.
    pub fn knows_stalls(&self) -> bool {
        self.pressure.is_some()
    }

    /// Reads `/proc/meminfo`.
    pub fn meminfo(&mut self) -> Result<Meminfo, ReadError> {
        let path = || self.proc.join("meminfo");
        let text = read(&self.meminfo, &mut self.buffer).map_err(|e| ReadError::io(&path(), e))?;
        let info = Meminfo::parse(text);
        if info.total.is_none() || info.available.is_none() {
            return Err(ReadError::parse(&path(), "MemTotal and MemAvailable"));
        }
        Ok(info)
    }

    /// Time that all non-idle tasks have been stalled on memory since boot (PSI full).
    pub fn stalled(&mut self) -> Option<Duration> {
        let text = read(self.pressure.as_ref()?, &mut self.buffer).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("full "))?;
        let total = line.split_ascii_whitespace().find_map(|field| field.strip_prefix("total="))?;
        Some(Duration::from_micros(total.parse().ok()?))
    }

    /// Counter of global reclaim since boot: direct reclaims plus pages scanned by kswapd. Reclaim
    /// because of a control group's limit is not counted.
    pub fn reclaims(&mut self) -> Option<u64> {
        let text = read(self.vmstat.as_ref()?, &mut self.buffer).ok()?;
        let counts = |name: &str| name.starts_with("allocstall") || name == "pgscan_kswapd";
        let fields = text.lines().filter_map(|line| line.split_once(' '));
        let of_it = fields.filter(|(name, _)| counts(name));
        let values: Vec<u64> = of_it.filter_map(|(_, value)| value.parse().ok()).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// Number of pages that were lazily freed (`MADV_FREE`) since boot.
    pub fn lazily_freed_pages(&mut self) -> Option<u64> {
        let text = read(self.vmstat.as_ref()?, &mut self.buffer).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix("pglazyfree "))?;
        value.parse().ok()
    }

    /// Swap on zram; all 0 without any. Opens files, so not for every reading.
    pub fn zram(&self) -> Zram {
        let mut sum = Zram::default();
        let Ok(swaps) = std::fs::read_to_string(self.proc.join("swaps")) else { return sum };
        for line in swaps.lines() {
            let mut fields = line.split_ascii_whitespace();
            let Some(device) = fields.next().and_then(|path| path.strip_prefix("/dev/zram")) else {
                continue;
            };
            let mut kib = fields.skip(1).map(|field| field.parse::<u64>().unwrap_or(0));
            let (size, used) = (kib.next().unwrap_or(0), kib.next().unwrap_or(0));
            sum.free += size.saturating_sub(used) * 1024;
            let stat = self.sys.join(format!("block/zram{device}/mm_stat"));
            let stat = std::fs::read_to_string(stat).unwrap_or_default();
            // orig_data_size, compr_data_size, mem_used_total, ...
            let mut bytes = stat.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0));
            sum.stored += bytes.next().unwrap_or(0);
            sum.taken += bytes.nth(1).unwrap_or(0);
        }
        sum
    }
}

fn read<'b>(file: &File, buffer: &'b mut [u8]) -> io::Result<&'b str> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read_at(&mut buffer[len..], len as u64) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    std::str::from_utf8(&buffer[..len]).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Splits `Key:   value` lines, which several files of `/proc` consist of; lines of another form
/// are left out.
pub fn keys_and_values(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(':')).map(|(key, value)| (key, value.trim()))
}

/// `1234 kB` in bytes; `None` for any other form.
pub fn kib_to_bytes(value: &str) -> Option<u64> {
    value.strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// The value of a key.
pub fn value_of<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    keys_and_values(text).find_map(|(name, value)| (name == key).then_some(value))
}

/// The value of a key with an amount of memory, in bytes.
pub fn bytes_of(text: &str, key: &str) -> Option<u64> {
    kib_to_bytes(value_of(text, key)?)
}

/// A file of `/proc` (or of a test's tree in its place) could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The file was read but does not have the expected form.
    #[error("{}: cannot parse {what}", path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// The field or line that is missing or malformed.
        what: String,
    },
}

impl ReadError {
    /// Creates the error for a file that cannot be opened or read.
    pub fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    /// Creates the error for a missing or malformed field.
    pub fn parse(path: &Path, what: impl Into<String>) -> Self {
        Self::Parse { path: path.to_owned(), what: what.into() }
    }

    /// The process that the file belongs to has exited (`ENOENT` or `ESRCH`).
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Io { source, .. } => {
                source.kind() == io::ErrorKind::NotFound
                    || source.raw_os_error() == Some(libc::ESRCH)
            }
            Self::Parse { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_machine() {
        let info = Meminfo::read(Path::new("/proc")).unwrap();
        assert!(info.available <= info.total);
        assert!(info.swap_free <= info.swap_total);
        assert!(info.free.unwrap() > 0);
    }

    #[test]
    fn files_that_cannot_be_reclaimed_are_memory_of_programs() {
        let text = "MemTotal: 100 kB\nMemAvailable: 20 kB\nAnonPages: 30 kB\nShmem: 5 kB\n\
                    PageTables: 1 kB\nUnevictable: 12 kB\nMlocked: 2 kB\n";
        let info = Meminfo::parse(text);
        assert_eq!(info.of_programs(), 66 << 10);
        let locked = Meminfo { mlocked: Some(13 << 10), ..info };
        assert_eq!(locked.of_programs(), 56 << 10);
        let twice = Meminfo { unevictable: Some(90 << 10), ..info };
        assert_eq!(twice.of_programs(), 100 << 10, "not more than there is");
    }

    #[test]
    fn a_line_that_is_missing_or_odd_is_none() {
        let info = Meminfo::parse("MemTotal:  12 kB\nMemFree: lots\nHugePages_Total: 0\n");
        assert_eq!(info, Meminfo { total: Some(12 * 1024), ..Meminfo::default() });
    }

    #[test]
    fn a_file_without_a_total_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("meminfo"), "nothing\n").unwrap();
        let message = Meminfo::read(dir.path()).unwrap_err().to_string();
        assert!(message.contains("meminfo") && message.contains("MemTotal"), "{message}");
    }

    #[test]
    fn reads_this_machine_again_and_again() {
        let mut reader = MachineReader::open(Path::new("/proc"), Path::new("/sys")).unwrap();
        for _ in 0..3 {
            let info = reader.meminfo().unwrap();
            assert!(info.available.unwrap() > 0 && info.anon.unwrap() > 0);
        }
        assert_eq!(reader.stalled().is_some(), reader.knows_stalls());
        assert!(reader.reclaims().is_some());
    }

    #[test]
    fn swap_on_zram_is_distinguished_from_swap_on_a_disk() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("block/zram0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("mm_stat"), "3145728 1000000 1048576 0 9 0 0 0 0\n").unwrap();
        let swaps = "Filename Type Size Used Priority\n/dev/sda2 partition 900 100 -2\n\
                     /dev/zram0 partition 8192 3072 100\n";
        std::fs::write(dir.path().join("swaps"), swaps).unwrap();
        std::fs::write(dir.path().join("meminfo"), "MemTotal: 1 kB\n").unwrap();
        let mut reader = MachineReader::open(dir.path(), dir.path()).unwrap();
        let expected = Zram { free: 5120 * 1024, stored: 3145728, taken: 1048576 };
        assert_eq!(reader.zram(), expected);
        assert_eq!((reader.stalled(), reader.reclaims()), (None, None));
        let vmstat = "allocstall_dma 1\nallocstall_normal 20\npgscan_kswapd 300\n\
                      pgscan_kswapd_throttle 7\npgscan_direct 9\npglazyfree 5\n\
                      pglazyfreed 3\n";
        std::fs::write(dir.path().join("vmstat"), vmstat).unwrap();
        let mut reader = MachineReader::open(dir.path(), dir.path()).unwrap();
        assert_eq!(reader.reclaims(), Some(321));
        assert_eq!(reader.lazily_freed_pages(), Some(5));
        let message = reader.meminfo().unwrap_err().to_string();
        assert!(message.contains("MemAvailable"), "{message}");
    }

    #[test]
    fn a_value_is_found_by_its_whole_key_and_counts_only_with_its_unit() {
        let text = "VmRSSX:\t  1 kB\nVmRSS:\t  4260 kB\nThreads:\t3\n";
        assert_eq!((value_of(text, "Threads"), value_of(text, "Vm")), (Some("3"), None));
        assert_eq!(bytes_of(text, "VmRSS"), Some(4260 << 10));
        assert_eq!((bytes_of(text, "Threads"), bytes_of(text, "VmSwap")), (None, None));
    }
}
