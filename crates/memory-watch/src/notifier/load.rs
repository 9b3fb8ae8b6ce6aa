//! Opens and loads the BPF objects, without attaching them: the sizes of the tables, and what the
//! kernel counts of the program's runs.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, Once};

use headroom_linux::features;
use headroom_linux::machine_memory::ReadError;
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, OpenObject, PrintLevel, ProgramInput};
use zerocopy::FromBytes;

use super::pins::{self, Pins};
use super::wire::{CHUNK_SLOTS, CpuLayout, MAX_CPUS};
use crate::NotifierError;

/// libelf requires an object that it reads in place to be aligned.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

static NOTIFIER: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/notifier.bpf.o")));

/// Distinguishes this version of the programs from others.
pub fn fingerprint() -> u64 {
    pins::fingerprint(&NOTIFIER.0)
}

/// Loads the notifier's programs, and maps with this capacity. With `pins`, pinned maps are reused,
/// with the capacity that they have, and new ones are pinned.
pub fn notifier(pins: Option<&Pins>, capacity: Capacity) -> Result<Object, NotifierError> {
    listen_to_libbpf();
    require_atomics()?;
    let cpus = cpu_count()?;
    let mut open = ObjectBuilder::default()
        .name("headroom")
        .and_then(|builder| builder.open_memory(&NOTIFIER.0))
        .map_err(|e| explain("open the notifier object", e))?;
    let mut rodata = open
        .maps_mut()
        .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
        .ok_or_else(|| NotifierError::Unsupported("the BPF object has no .rodata".into()))?;
    let count = rodata
        .initial_value_mut()
        .and_then(|bytes| bytes.first_chunk_mut())
        .ok_or_else(|| NotifierError::Unsupported("the BPF object's .rodata is short".into()))?;
    *count = cpus.to_ne_bytes();
    set_capacity(&mut open, capacity)?;
    let taken_over = pins.filter(|pins| pins.are_there());
    if let Some(pins) = taken_over {
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if pins::MAPS.contains(&name.as_str()) {
                map.reuse_pinned_map(pins.map(&name))
                    .map_err(|e| explain(&format!("take over map {name}"), e))?;
            }
        }
    }
    let mut object = open.load().map_err(|e| explain("load the notifier's programs", e))?;
    find_cpus(&object, cpus as usize)?;
    if let (Some(pins), None) = (pins, taken_over) {
        pins.clear();
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if pins::MAPS.contains(&name.as_str()) {
                map.pin(pins.map(&name)).map_err(|e| explain(&format!("pin map {name}"), e))?;
            }
        }
    }
    Ok(object)
}

fn set_capacity(object: &mut OpenObject, capacity: Capacity) -> Result<(), NotifierError> {
    for mut map in object.maps_mut() {
        let entries = match map.name().to_str() {
            Some("accounts") => capacity.address_spaces,
            Some("slot_of_uid") => capacity.users,
            Some("slots") => capacity.users / CHUNK_SLOTS,
            _ => continue,
        };
        map.set_max_entries(entries).map_err(|e| explain("set the size of a map", e))?;
    }
    Ok(())
}

/// Checks the kernel's version, since the verifier's message does not name what is missing: atomic
/// instructions that return the old value.
fn require_atomics() -> Result<(), NotifierError> {
    let lacks = |why| format!("atomic BPF instructions need Linux 5.12: {why}");
    features::since(5, 12).map(drop).map_err(|why| NotifierError::Unsupported(lacks(why)))
}

/// One more than the highest possible CPU number of this machine.
fn cpu_count() -> Result<u32, NotifierError> {
    let path = Path::new("/sys/devices/system/cpu/possible");
    let text = std::fs::read_to_string(path).map_err(|e| ReadError::io(path, e))?;
    match highest(&text) {
        Some(highest) if (highest as usize) < MAX_CPUS - 1 => Ok(highest + 1),
        Some(_) => Err(NotifierError::Unsupported(format!("more than {} CPUs", MAX_CPUS - 1))),
        None => Err(NotifierError::Unsupported(format!("{}: no list of CPUs", path.display()))),
    }
}

/// The last number of a list like `0-3,8-11`.
fn highest(list: &str) -> Option<u32> {
    list.trim_end().rsplit(['-', ',']).next()?.parse().ok()
}

/// Runs `find_cpus` once and does the subtraction that the verifier does not allow.
fn find_cpus(object: &Object, count: usize) -> Result<(), NotifierError> {
    let program = object
        .progs_mut()
        .find(|program| program.name() == "find_cpus")
        .ok_or_else(|| NotifierError::Unsupported("find_cpus is missing".into()))?;
    let output = program
        .test_run(ProgramInput::default())
        .map_err(|e| explain("look for the CPUs' variables", e))?;
    if output.return_value != 0 {
        let code = output.return_value;
        return Err(NotifierError::Unsupported(format!("find_cpus gave nothing (code {code})")));
    }
    let map = object
        .maps()
        .find(|map| map.name().to_string_lossy().ends_with(".bss"))
        .ok_or_else(|| NotifierError::Unsupported("the BPF object has no .bss".into()))?;
    let key = 0u32.to_ne_bytes();
    let found = map.lookup(&key, MapFlags::ANY);
    let mut found = found.map_err(|e| explain("read the CPUs' layout", e))?.unwrap_or_default();
    let (layout, _) = CpuLayout::mut_from_prefix(&mut found)
        .map_err(|_| NotifierError::Unsupported("the BPF object's .bss is short".into()))?;
    if layout.base == 0 {
        return Ok(());
    }
    for offset in layout.offset.iter_mut().take(count) {
        *offset = offset.wrapping_sub(layout.base);
    }
    map.update(&key, &found, MapFlags::ANY).map_err(|e| explain("set the CPUs' layout", e))
}

/// The last warnings of libbpf: its return values alone ("Invalid argument") lack the reason.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn listen_to_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Info, |level, text| {
            let text = text.trim_end();
            tracing::debug!(target: "libbpf", "{text}");
            if level == PrintLevel::Warn
                && let Ok(mut warnings) = WARNINGS.lock()
            {
                if warnings.len() >= 8 {
                    warnings.remove(0);
                }
                // The verifier's log can be huge; its verdict is at the end.
                warnings.push(last_chars(text, 600).to_owned());
            }
        })));
    });
}

fn last_chars(text: &str, count: usize) -> &str {
    let start = text.len().saturating_sub(count);
    (start..text.len()).find_map(|at| text.get(at..)).unwrap_or_default()
}

/// What libbpf reports goes to the log: it is long, and its remedies are for programmers.
fn explain(doing: &str, error: libbpf_rs::Error) -> NotifierError {
    let warnings = WARNINGS.lock().map(|mut warnings| std::mem::take(&mut *warnings));
    for warning in warnings.unwrap_or_default() {
        tracing::warn!("{warning}");
    }
    NotifierError::bpf(doing, error)
}

/// Maximum number of limited users, members of groups included. The table of uids takes 16 bytes
/// for each, used or not.
const MAX_USERS: u32 = 65_536;

/// The number of entries of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Address spaces of limited users.
    pub address_spaces: u32,
    /// Users with a limit, members of groups included; a multiple of the slots in a chunk.
    pub users: u32,
}

impl Capacity {
    /// Sufficient for this many processes, each of which may be of another user.
    pub fn for_processes(processes: u32) -> Self {
        let users = processes.min(MAX_USERS).next_multiple_of(CHUNK_SLOTS);
        Self { address_spaces: processes, users }
    }

    /// The capacity of this machine: there is no address space without a task, except for those
    /// that are being freed.
    pub fn of_machine() -> Result<Self, NotifierError> {
        let kernel = Path::new("/proc/sys/kernel");
        let tasks =
            read_number(&kernel.join("threads-max"))?.min(read_number(&kernel.join("pid_max"))?);
        Ok(Self::for_processes(tasks))
    }
}

fn read_number(path: &Path) -> Result<u32, NotifierError> {
    let text = std::fs::read_to_string(path).map_err(|e| ReadError::io(path, e))?;
    text.trim_end()
        .parse()
        .map_err(|_| NotifierError::Unsupported(format!("{}: no number", path.display())))
}

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

pub fn run_stats(object: &Object) -> Result<RunStats, NotifierError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_cpu_of_a_list_is_its_last_number() {
        for (list, last) in [("0\n", 0), ("0-1\n", 1), ("0-3,8-11", 11), ("0,2", 2)] {
            assert_eq!(highest(list), Some(last), "{list}");
        }
        assert_eq!(["", "\n", "0-", "x"].map(highest), [None; 4]);
    }
}
