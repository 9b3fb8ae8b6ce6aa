//! The machine's clocks and memory, as the kernel reports them.

use std::path::Path;

use anyhow::{Context, Result};
use headroom_linux::machine_memory::Meminfo;

fn clock_ns(clock: libc::clockid_t) -> Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the structure in, which is ours.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(std::io::Error::last_os_error()).context("a clock of CPU time");
    }
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// CPU time of the calling thread, nanoseconds.
pub fn thread_cpu_ns() -> Result<u64> {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of a whole process, nanoseconds.
pub fn process_cpu_ns(pid: u32) -> Result<u64> {
    let mut clock = 0;
    // SAFETY: the C library fills in the id, which is ours.
    let code = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) };
    if code != 0 {
        let error = std::io::Error::from_raw_os_error(code);
        return Err(error).with_context(|| format!("the CPU clock of process {pid}"));
    }
    clock_ns(clock).with_context(|| format!("process {pid}"))
}

/// Memory available without swapping, MiB.
pub fn available_mib() -> Result<u64> {
    let info = Meminfo::read(Path::new("/proc"))?;
    Ok(info.available.context("/proc/meminfo: no MemAvailable")? >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_reported() {
        assert!(available_mib().unwrap() > 0);
    }

    #[test]
    fn a_process_uses_at_least_the_time_of_its_thread() {
        let thread = thread_cpu_ns().unwrap();
        let process = process_cpu_ns(std::process::id()).unwrap();
        assert!(process >= thread, "{process} < {thread}");
    }
}
