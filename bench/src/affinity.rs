//! CPU affinity and scheduling class of the processes.

use std::fs;

use anyhow::{Context, Result};
use headroom_linux::sched::SchedAttr;
use rustix::io::Errno;
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::peer::report_ready;

/// Binds the calling thread, and the threads and processes that it starts later, to one core.
pub fn pin(cpu: usize) -> Result<()> {
    pin_thread(None, cpu)
}

/// Binds the calling thread, and the threads and processes that it starts meanwhile, to one core
/// until the guard is dropped.
pub fn bind(cpu: usize) -> Result<Bound> {
    let usual = sched_getaffinity(None).context("cannot read the affinity")?;
    pin(cpu)?;
    Ok(Bound(usual))
}

/// Restores the affinity from before [`bind`].
pub struct Bound(CpuSet);

impl Drop for Bound {
    fn drop(&mut self) {
        // These CPUs were allowed before; a failure means that they went offline.
        let _ = sched_setaffinity(None, &self.0);
    }
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

/// Sets the highest ordinary priority (nice -20), which later children inherit, if the kernel
/// permits it.
pub fn be_eager() {
    if let Err(error) = setpriority_process(None, -20) {
        eprintln!("the priority cannot be raised ({error}): other work will disturb");
    }
}

/// Binds the calling thread, and the threads and processes that it starts later, to all cores but
/// one. False if there is no other core.
pub fn avoid(cpu: usize) -> Result<bool> {
    let mut cpus = CpuSet::new();
    // The kernel leaves out those that it does not have, and refuses a set without any other.
    (0..CpuSet::MAX_CPU).filter(|core| *core != cpu).for_each(|core| cpus.set(core));
    match sched_setaffinity(None, &cpus) {
        Err(Errno::INVAL) => Ok(false),
        done => done.map(|()| true).with_context(|| format!("cannot avoid core {cpu}")),
    }
}

/// How a client is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// Real time, first in first out, with a priority from 1 to 99.
    Fifo(i32),
    /// Ordinary, with a nice value from -20 to 19.
    Nice(i32),
    /// `SCHED_IDLE`.
    Idle,
}

impl Class {
    /// Name of the class: `fifo-99`, `nice -20`.
    pub fn name(self) -> String {
        match self {
            Self::Fifo(priority) => format!("fifo-{priority}"),
            Self::Nice(nice) => format!("nice {nice}"),
            Self::Idle => "SCHED_IDLE".to_owned(),
        }
    }

    /// Parses such a name.
    pub fn parse(name: &str) -> Result<Self> {
        let fifo =
            name.strip_prefix("fifo-").and_then(|number| Some(Self::Fifo(number.parse().ok()?)));
        let nice =
            name.strip_prefix("nice ").and_then(|number| Some(Self::Nice(number.parse().ok()?)));
        match fifo.or(nice) {
            Some(class @ (Self::Fifo(1..=99) | Self::Nice(-20..=19))) => Ok(class),
            _ => anyhow::bail!(
                "\"{name}\" is no class: fifo-1 to fifo-99, \"nice -20\" to \"nice 19\""
            ),
        }
    }

    /// Sets this class for the calling thread and the threads that it starts later.
    pub fn take(self) -> Result<()> {
        let attributes = match self {
            Self::Fifo(priority) => SchedAttr::fifo(priority as u32),
            Self::Nice(nice) => SchedAttr::other(nice),
            Self::Idle => SchedAttr::with_policy(libc::SCHED_IDLE as u32),
        };
        attributes.apply(None).with_context(|| self.name())
    }
}

/// Main function of a peer that occupies a CPU.
pub fn spin(class: Class) -> Result<()> {
    class.take()?;
    report_ready();
    loop {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_as_they_are_written() {
        for class in [Class::Fifo(99), Class::Fifo(1), Class::Nice(-20), Class::Nice(19)] {
            assert_eq!(Class::parse(&class.name()).unwrap(), class);
        }
        for wrong in ["", "fifo-0", "fifo-100", "nice 20", "nice", "batch 3"] {
            let error = Class::parse(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("\"{wrong}\"")), "{error}");
        }
    }
}
