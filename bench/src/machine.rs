//! The machine's clocks and memory, as the kernel tells them.

use std::fs;

use anyhow::{Context, Result};

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

/// Memory that could be had without swapping, MiB.
pub fn available_mib() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    available_of(&text).context("/proc/meminfo: no MemAvailable")
}

fn available_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_mebibytes() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:    2097152 kB\n";
        assert_eq!(available_of(text), Some(2048));
        assert_eq!(available_of("MemTotal: 1 kB\n"), None);
        assert!(available_mib().unwrap() > 0);
    }

    #[test]
    fn a_process_uses_at_least_the_time_of_its_thread() {
        let thread = thread_cpu_ns().unwrap();
        let process = process_cpu_ns(std::process::id()).unwrap();
        assert!(process >= thread, "{process} < {thread}");
    }
}
