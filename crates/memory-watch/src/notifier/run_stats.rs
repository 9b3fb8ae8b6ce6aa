//! Costs of the notifier's program, as counted by the kernel.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::Object;

use crate::error::NotifierError;

/// Counters of the program on `rss_stat` since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Id of the program, as shown by `bpftool prog`.
    pub program_id: u32,
    /// Events handled; counted while a [`CountRuns`] exists.
    pub runs: u64,
    /// Time spent on them, nanoseconds, including its measurement (some 40 ns per run); counted
    /// while a [`CountRuns`] exists.
    pub run_time_ns: u64,
    /// Events that arrived while the program was already running on the same CPU and were lost;
    /// always counted. The next event or scan corrects the accounts.
    pub recursion_misses: u64,
}

/// While a value exists, the kernel counts and times the runs of all BPF programs on this machine.
pub struct CountRuns {
    _fd: OwnedFd,
}

impl CountRuns {
    /// Starts counting.
    pub fn start() -> Result<Self, NotifierError> {
        // SAFETY: takes a constant, returns a descriptor or -1.
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            return Err(NotifierError::os("count the runs of BPF programs", error));
        }
        // SAFETY: a fresh descriptor with no other owner.
        Ok(Self { _fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }
}

pub(super) fn read(object: &Object) -> Result<RunStats, NotifierError> {
    let program = object
        .progs_mut()
        .find(|program| program.name() == "on_rss_stat")
        .ok_or_else(|| NotifierError::Unsupported("on_rss_stat is missing".into()))?;
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: `info` is writable for `len` bytes; all its pointers are null, so nothing else is
    // written.
    let failed = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &mut info, &mut len)
    };
    if failed != 0 {
        let error = std::io::Error::last_os_error();
        return Err(NotifierError::os("read the counters of on_rss_stat", error));
    }
    Ok(RunStats {
        program_id: info.id,
        runs: info.run_cnt,
        run_time_ns: info.run_time_ns,
        recursion_misses: info.recursion_misses,
    })
}
