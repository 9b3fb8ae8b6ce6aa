//! The machine's memory: `/proc/meminfo`, `/proc/pressure/memory`, and the part of the swap that is
//! compressed memory. The files stay open and the buffer is reused, so that a reading does not
//! allocate and works when no file can be opened any more.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::ReadError;
use crate::meminfo::Meminfo;

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

/// Reader of the machine's memory.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
