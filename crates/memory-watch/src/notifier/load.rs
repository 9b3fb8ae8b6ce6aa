//! Opens and loads the BPF objects, without attaching them.

use std::path::Path;
use std::sync::{Mutex, Once};

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, OpenObject, PrintLevel, ProgramInput};
use machine_memory::ReadError;
use zerocopy::FromBytes;

use super::capacity::Capacity;
use super::pins;
use super::pins::Pins;
use super::wire::{CHUNK_SLOTS, CpuLayout, MAX_CPUS};
use crate::error::NotifierError;

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

/// Checks the kernel's version, since the verifier's message does not name what is missing.
fn require_atomics() -> Result<(), NotifierError> {
    /// First kernel with atomic BPF instructions that return the old value.
    const FIRST: (u32, u32) = (5, 12);
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    match version(&release) {
        Some(version) if version < FIRST => Err(NotifierError::Unsupported(format!(
            "atomic BPF instructions need Linux {}.{}, and this is {release}",
            FIRST.0, FIRST.1
        ))),
        _ => Ok(()),
    }
}

/// The first two numbers of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
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

fn explain(doing: &str, error: libbpf_rs::Error) -> NotifierError {
    let warnings = WARNINGS.lock().map(|mut warnings| std::mem::take(&mut *warnings));
    let warnings = warnings.unwrap_or_default().join("; ");
    if warnings.is_empty() {
        NotifierError::bpf(doing, error)
    } else {
        NotifierError::bpf(format!("{doing} ({warnings})"), error)
    }
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

    #[test]
    fn versions_of_kernels_are_ordered_by_number() {
        assert_eq!(version("5.10.0-32-amd64"), Some((5, 10)));
        assert!(version("5.9.1") < version("5.10.0-32-amd64"));
        assert_eq!(version("7.2-rc1"), Some((7, 2)));
        assert_eq!(version("strange"), None);
    }
}
