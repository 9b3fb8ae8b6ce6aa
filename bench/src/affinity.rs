//! Where and how eagerly the processes run.

use std::fs;

use anyhow::{Context, Result};
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Binds the calling thread, and what it starts from now on, to one core.
pub fn pin(cpu: usize) -> Result<()> {
    pin_thread(None, cpu)
}

fn pin_thread(thread: Option<Pid>, cpu: usize) -> Result<()> {
    let mut cpus = CpuSet::new();
    anyhow::ensure!(cpu < CpuSet::MAX_CPU, "there is no core {cpu}");
    cpus.set(cpu);
    sched_setaffinity(thread, &cpus).with_context(|| format!("cannot pin to core {cpu}"))
}

/// Binds all threads of a running process to one core.
pub fn pin_process(pid: u32, cpu: usize) -> Result<()> {
    let folder = format!("/proc/{pid}/task");
    for thread in fs::read_dir(&folder).with_context(|| folder.clone())? {
        let tid = thread?.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        pin_thread(Some(tid.context("a thread id that is no number")?), cpu)?;
    }
    Ok(())
}

/// Takes the highest ordinary priority, for what is started from now on too. False where we may not.
pub fn be_eager() -> bool {
    setpriority_process(None, -20).is_ok()
}
