//! Opens and loads the BPF objects; attaches nothing.

use std::sync::Mutex;
use std::sync::Once;

use libbpf_rs::MapCore;
use libbpf_rs::MapFlags;
use libbpf_rs::Object;
use libbpf_rs::ObjectBuilder;
use libbpf_rs::PrintLevel;
use libbpf_rs::ProgramInput;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::pins;
use super::pins::Pins;
use super::wire::CpuAddresses;
use super::wire::CpuLayout;
use super::wire::MAX_CPUS;
use crate::error::NotifierError;

/// libelf wants an object it reads in place to be aligned.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

static NOTIFIER: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/notifier.bpf.o")));
static PERCPU_PROBE: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/percpu_probe.bpf.o")));

/// What tells this version of the programs from others.
pub fn fingerprint() -> u64 {
    pins::fingerprint(&NOTIFIER.0)
}

/// Loads the notifier's programs and maps. With `pins`, the maps are those that are pinned, or get
/// pinned.
pub fn notifier(pins: Option<&Pins>) -> Result<Object, NotifierError> {
    listen_to_libbpf();
    let layout = if per_cpu_counters()? { cpu_layout()? } else { CpuLayout::default() };
    let mut open = ObjectBuilder::default()
        .name("headroom")
        .and_then(|builder| builder.open_memory(&NOTIFIER.0))
        .map_err(|e| explain("open the notifier object", e))?;
    let mut rodata = open
        .maps_mut()
        .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
        .ok_or_else(|| NotifierError::Unsupported("the BPF object has no .rodata".into()))?;
    let constants = rodata
        .initial_value_mut()
        .and_then(|bytes| bytes.get_mut(..size_of::<CpuLayout>()))
        .ok_or_else(|| NotifierError::Unsupported("the BPF object's .rodata is short".into()))?;
    constants.copy_from_slice(layout.as_bytes());
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

/// Since Linux 6.2 an address space's counters are per-CPU ones; `struct mm_rss_stat` went with that.
fn per_cpu_counters() -> Result<bool, NotifierError> {
    let kernel = libbpf_rs::btf::Btf::from_vmlinux()
        .map_err(|e| explain("read the kernel's type information (/sys/kernel/btf/vmlinux)", e))?;
    Ok(kernel.type_by_name::<libbpf_rs::btf::types::Struct<'_>>("mm_rss_stat").is_none())
}

impl Default for CpuLayout {
    fn default() -> Self {
        Self { count: 0, unused: 0, offset: [0; MAX_CPUS] }
    }
}

/// Runs `percpu_probe.bpf.c` once and does the subtraction the verifier does not allow it.
fn cpu_layout() -> Result<CpuLayout, NotifierError> {
    let object = ObjectBuilder::default()
        .name("headroom_probe")
        .and_then(|builder| builder.open_memory(&PERCPU_PROBE.0))
        .and_then(|open| open.load())
        .map_err(|e| explain("load the per-CPU layout probe", e))?;
    let program = object
        .progs_mut()
        .find(|program| program.name() == "find_percpu")
        .ok_or_else(|| NotifierError::Unsupported("find_percpu is missing".into()))?;
    let output = program
        .test_run(ProgramInput::default())
        .map_err(|e| explain("run the per-CPU layout probe", e))?;
    let addresses = object
        .maps()
        .find(|map| map.name() == "addresses")
        .ok_or_else(|| NotifierError::Unsupported("map addresses is missing".into()))?
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(|e| explain("read the per-CPU layout", e))?
        .unwrap_or_default();
    let found = CpuAddresses::read_from_prefix(&addresses).map(|(found, _)| found).ok();
    let found = found.filter(|found| output.return_value == 0 && found.count > 0);
    let Some(found) = found else {
        return Err(NotifierError::Unsupported(format!(
            "the per-CPU layout probe gave nothing (code {})",
            output.return_value
        )));
    };
    if found.count as usize >= MAX_CPUS {
        return Err(NotifierError::Unsupported(format!("more than {} CPUs", MAX_CPUS - 1)));
    }
    let mut layout = CpuLayout { count: found.count, ..CpuLayout::default() };
    for (offset, element) in layout.offset.iter_mut().zip(found.element).take(found.count as usize)
    {
        *offset = element.wrapping_sub(found.base);
    }
    Ok(layout)
}

/// The last warnings of libbpf: its return values alone ("Invalid argument") explain nothing.
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
                // The verifier's log can be huge; its verdict is at its end.
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
    let said = WARNINGS.lock().map(|mut warnings| std::mem::take(&mut *warnings));
    let said = said.unwrap_or_default().join("; ");
    if said.is_empty() {
        NotifierError::bpf(doing, error)
    } else {
        NotifierError::bpf(format!("{doing} ({said})"), error)
    }
}
