//! Processes that take too much memory, and a bystander that only holds some.

use std::fs::File;
use std::os::fd::FromRawFd;
use std::process::{Child, Command};
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

use crate::Result;
use crate::clock::{now_ns, sleep_until};
use crate::memory::{MIB, Mapping};
use crate::options::Options;
use crate::shared;

/// Number of children of the herd, and how fast each grows.
const HERD: usize = 8;
const HERD_MIB_PER_S: u64 = 25;
/// Memory of each process of the fork bomb, and how often it doubles.
const BOMB_MIB: usize = 1;
const BOMB_PERIOD: Duration = Duration::from_millis(250);

/// Memory that a page table describes, and page tables that are made with one mapping.
const PAGE_TABLE_STEP: usize = 2 * MIB;
const PAGES_AT_ONCE: usize = 256;

/// Holds `--mib` of touched memory forever.
pub fn hold(options: &Options) -> Result<()> {
    let mut memory = Mapping::anonymous(options.get::<usize>("mib")? * MIB)?;
    memory.write_pages(1);
    idle()
}

/// Grows by `--rate` MiB/s (0: as fast as possible) up to `--cap` MiB (0: no limit), then holds it.
pub fn leak(options: &Options) -> Result<()> {
    let rate = options.get_or("rate", 0_u64)?;
    let cap = options.get_or("cap", 0_usize)?;
    let mut held = Vec::new();
    let started = now_ns();
    while cap == 0 || held.len() < cap {
        let mut memory = Mapping::anonymous(MIB)?;
        memory.write_pages(1);
        held.push(memory);
        if let Some(due) = (held.len() as u64 * 1_000_000_000).checked_div(rate) {
            sleep_until(started + due);
        }
    }
    idle()
}

/// A parent whose children all leak; it counts those that are killed and does not replace them.
pub fn herd(options: &Options) -> Result<()> {
    let shared = shared::map(&options.get::<String>("shared")?)?;
    let rate = HERD_MIB_PER_S.to_string();
    let program = std::env::current_exe().map_err(|e| format!("our own path: {e}"))?;
    let mut children: Vec<Child> = (0..HERD)
        .map(|_| Command::new(&program).args(["leak", "--rate", &rate]).spawn())
        .collect::<std::io::Result<_>>()
        .map_err(|e| format!("cannot start a child: {e}"))?;
    while !children.is_empty() {
        children.retain_mut(|child| {
            let alive = matches!(child.try_wait(), Ok(None));
            if !alive {
                shared.load_deaths.fetch_add(1, Relaxed);
                let _ = shared.first_death_ns.compare_exchange(0, now_ns(), Relaxed, Relaxed);
            }
            alive
        });
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Every process allocates a little and forks repeatedly.
pub fn forkbomb(_: &Options) -> Result<()> {
    // SAFETY: ignoring SIGCHLD needs no handler; the kernel then reaps the children.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    loop {
        // SAFETY: this process has one thread, so the child may continue normally.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut memory = Mapping::anonymous(BOMB_MIB * MIB)?;
            memory.write_pages(1);
            // Kept until the process exits: the mapping must not be dropped.
        }
        sleep(BOMB_PERIOD);
    }
}

/// Takes `--mib` of memory, then reads `--file` in a loop: it is larger than the memory left for
/// it.
pub fn thrash(options: &Options) -> Result<()> {
    let mut memory = Mapping::anonymous(options.get::<usize>("mib")? * MIB)?;
    memory.write_pages(1);
    let file = Mapping::file(&options.get::<String>("file")?)?;
    loop {
        file.read_pages();
        memory.read_pages();
    }
}

/// Writes to a memory file that it does not map, as fast as possible.
pub fn memfd(_: &Options) -> Result<()> {
    use std::io::Write;
    // SAFETY: the name is terminated.
    let fd = unsafe { libc::memfd_create(c"load".as_ptr(), libc::MFD_CLOEXEC) };
    if fd == -1 {
        return Err(format!("memfd_create: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: a new descriptor, which nothing else closes.
    let mut file = unsafe { File::from_raw_fd(fd) };
    let block = vec![1; MIB];
    loop {
        file.write_all(&block).map_err(|e| format!("cannot write: {e}"))?;
    }
}

/// Writes to a file of a ramfs that it mounts in namespaces of its own, as fast as possible.
pub fn ramfs(_: &Options) -> Result<()> {
    use std::io::Write;
    let failed = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
    // SAFETY: takes no arguments.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    // SAFETY: takes flags; this process has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } != 0 {
        return Err(failed("unshare")(std::io::Error::last_os_error()));
    }
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {uid} 1")),
        ("gid_map", format!("0 {gid} 1")),
    ] {
        std::fs::write(format!("/proc/self/{file}"), text).map_err(failed("namespace"))?;
    }
    let (source, place, kind) = (c"load".as_ptr(), c"/mnt".as_ptr(), c"ramfs".as_ptr());
    // SAFETY: the names are terminated.
    if unsafe { libc::mount(source, place, kind, 0, std::ptr::null()) } != 0 {
        return Err(failed("mount")(std::io::Error::last_os_error()));
    }
    let mut file = File::create("/mnt/file").map_err(failed("/mnt/file"))?;
    let block = vec![1; MIB];
    loop {
        file.write_all(&block).map_err(failed("cannot write"))?;
    }
}

/// Reads a page of each 2 MiB of memory that it never writes: each read takes a page table.
pub fn page_tables(_: &Options) -> Result<()> {
    loop {
        let memory = Mapping::unwritten(PAGE_TABLE_STEP * PAGES_AT_ONCE)?;
        memory.read_each(PAGE_TABLE_STEP);
        std::mem::forget(memory);
    }
}

fn idle() -> ! {
    loop {
        sleep(Duration::from_secs(3600));
    }
}
