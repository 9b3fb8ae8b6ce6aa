//! The processes of a measurement: one that holds memory and is killed, and its competitor.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::ptr;

use anyhow::{Context, ensure};
use headroom_linux::sched::SchedAttr;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::arguments::MarginPeer;

const PAGE: usize = 4096;
/// Line that a process prints when it is in its measured state.
const READY: &str = "ready";

/// A child process; killed on drop.
pub struct Peer(Child);

impl Peer {
    /// Starts a child on a CPU: it holds `bytes` as `SCHED_IDLE`, or is busy.
    pub fn start(cpu: usize, bytes: Option<u64>) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("where am I?")?;
        let mut command = Command::new(program);
        command.args(["oom", "margin-peer", &cpu.to_string()]);
        command.args(bytes.map(|bytes| bytes.to_string()));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut peer = Self(command.spawn().context("cannot start a process to kill")?);
        let stdout = peer.0.stdout.take().context("no standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line.trim_end() == READY, "a process to kill did not start");
        Ok(peer)
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Main function of the child, until it is killed.
pub fn be(arguments: &MarginPeer) -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let mut cpus = CpuSet::new();
    ensure!(arguments.cpu < CpuSet::MAX_CPU, "there is no CPU {}", arguments.cpu);
    cpus.set(arguments.cpu);
    sched_setaffinity(None, &cpus).context("cannot choose a CPU")?;
    // The parent may be real-time.
    let ordinary = if arguments.bytes.is_some() { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let memory = arguments.bytes.map(|bytes| Memory::filled(bytes, Pages::Small)).transpose()?;
    SchedAttr::with_policy(ordinary as u32).apply(None).context("cannot be slow")?;
    println!("{READY}");
    loop {
        match &memory {
            Some(_) => std::thread::park(),
            None => std::hint::spin_loop(),
        }
    }
}

/// Page size of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB, which are freed slowest.
    Small,
    /// Huge pages if the kernel has them, which are allocated fastest.
    Huge,
}

/// New memory, unmapped on drop.
pub struct Memory {
    at: *mut libc::c_void,
    len: usize,
}

impl Memory {
    /// Maps `len` bytes and writes to every page.
    pub fn filled(len: usize, pages: Pages) -> anyhow::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let advice = match pages {
            Pages::Small => Advice::LinuxNoHugepage,
            Pages::Huge => Advice::LinuxHugepage,
        };
        // SAFETY: a new mapping. The advice changes no content, and is refused where there are no
        // huge pages. All writes are inside it.
        unsafe {
            let at = mmap_anonymous(ptr::null_mut(), len, prot, flags).context("no memory")?;
            let memory = Self { at, len };
            let _ = madvise(at, len, advice);
            for page in (0..len).step_by(PAGE) {
                at.cast::<u8>().add(page).write_volatile(1);
            }
            Ok(memory)
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `filled`, as long as this, and not used after.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}
