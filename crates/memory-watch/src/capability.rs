//! Capabilities of this machine, with one probe each: for `headroom doctor` and for choosing a
//! watch. Probes try the real operation where that has no effect, and clean up after themselves.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headroom_linux::machine_memory::pressure::{PressureTrigger, Resource, Stall};
use headroom_linux::mountinfo;
use libbpf_rs::MapType;
use libbpf_rs::btf::types::Composite;
use libbpf_rs::btf::{Btf, BtfKind, BtfType};
use rustix::thread::CapabilitySet;

use crate::notifier::Notifier;

/// A capability that is used if present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// The kernel describes its types: `/sys/kernel/btf/vmlinux`.
    KernelTypes,
    /// The notifier's programs load: tracing programs are allowed and the kernel is supported.
    Notifier,
    /// BPF ring buffers (Linux 5.8).
    RingBuffer,
    /// BPF task iterators (Linux 5.8).
    TaskIterator,
    /// The function `bpf_send_signal_task` (Linux 6.13).
    SendSignalTask,
    /// The capability CAP_BPF, or CAP_SYS_ADMIN which includes it.
    CapBpf,
    /// The capability CAP_PERFMON, or CAP_SYS_ADMIN which includes it.
    CapPerfmon,
    /// The capability CAP_SYS_ADMIN.
    CapSysAdmin,
    /// The capability CAP_SYS_RESOURCE.
    CapSysResource,
    /// `/proc/pressure`.
    Pressure,
    /// PSI triggers: notification of pressure without polling.
    PressureTrigger,
    /// A mounted BPF filesystem.
    BpfFilesystem,
    /// `mm_struct` has its owner (CONFIG_MEMCG).
    MemoryOwner,
    /// The memory controller of cgroup v1.
    MemoryCgroupV1,
    /// The memory controller of cgroup v2.
    MemoryCgroupV2,
}

impl Capability {
    /// All capabilities, in the order of display.
    pub const ALL: [Self; 15] = [
        Self::KernelTypes,
        Self::Notifier,
        Self::RingBuffer,
        Self::TaskIterator,
        Self::SendSignalTask,
        Self::MemoryOwner,
        Self::CapBpf,
        Self::CapPerfmon,
        Self::CapSysAdmin,
        Self::CapSysResource,
        Self::Pressure,
        Self::PressureTrigger,
        Self::BpfFilesystem,
        Self::MemoryCgroupV1,
        Self::MemoryCgroupV2,
    ];

    /// A short name, stable enough for JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::KernelTypes => "kernel-btf",
            Self::Notifier => "bpf-notifier",
            Self::RingBuffer => "bpf-ring-buffer",
            Self::TaskIterator => "bpf-task-iterator",
            Self::SendSignalTask => "bpf-send-signal-task",
            Self::MemoryOwner => "mm-owner",
            Self::CapBpf => "cap-bpf",
            Self::CapPerfmon => "cap-perfmon",
            Self::CapSysAdmin => "cap-sys-admin",
            Self::CapSysResource => "cap-sys-resource",
            Self::Pressure => "psi",
            Self::PressureTrigger => "psi-trigger",
            Self::BpfFilesystem => "bpffs",
            Self::MemoryCgroupV1 => "memory-cgroup-v1",
            Self::MemoryCgroupV2 => "memory-cgroup-v2",
        }
    }

    /// The feature that is lost without it.
    pub fn lost_without(self) -> &'static str {
        match self {
            Self::KernelTypes | Self::Notifier | Self::RingBuffer => {
                "limits are watched by reading /proc on a timer: later, coarser, more CPU"
            }
            Self::TaskIterator => "processes are listed by reading /proc: slower scans",
            Self::SendSignalTask => {
                "a victim dies in its own next page fault or by the daemon, not in another's fault"
            }
            Self::MemoryOwner => "memory changed from outside is charged at the next own fault",
            Self::CapBpf | Self::CapPerfmon => "the BPF notifier cannot be loaded",
            Self::CapSysAdmin => "mounts, and BPF on kernels before 5.8, are refused",
            Self::CapSysResource => {
                "PSI windows must be multiples of 2 s; oom_score_adj cannot be lowered"
            }
            Self::Pressure => "no trigger on memory pressure (stalls), on free memory only",
            Self::PressureTrigger => "memory pressure is read on a timer",
            Self::BpfFilesystem => "limits are not enforced while the daemon is dead",
            Self::MemoryCgroupV1 | Self::MemoryCgroupV2 => {
                "no kernel-side hard limit of this kind as a last defence"
            }
        }
    }
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The capability that was probed.
    pub capability: Capability,
    /// `Ok`: present, with a detail that may be empty. `Err`: missing, with the reason.
    pub found: Result<String, String>,
}

impl Probe {
    /// The capability is present.
    pub fn is_present(&self) -> bool {
        self.found.is_ok()
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.capability.name();
        match &self.found {
            Ok(detail) if detail.is_empty() => write!(f, "{name}: present"),
            Ok(detail) => write!(f, "{name}: present ({detail})"),
            Err(reason) => {
                write!(f, "{name}: missing ({reason}); {}", self.capability.lost_without())
            }
        }
    }
}

/// Probes all capabilities.
pub fn probe_all() -> Vec<Probe> {
    Capability::ALL.into_iter().map(probe).collect()
}

/// Probes one capability.
pub fn probe(capability: Capability) -> Probe {
    let found = match capability {
        Capability::KernelTypes => kernel_types().map(|_| String::new()),
        Capability::Notifier => {
            Notifier::load().map(|_| String::new()).map_err(|error| error.to_string())
        }
        Capability::RingBuffer => ring_buffer(),
        Capability::TaskIterator => {
            has_type("bpf_iter__task", BtfKind::Struct, "this kernel has no task iterator")
        }
        Capability::SendSignalTask => {
            has_type("bpf_send_signal_task", BtfKind::Func, "needs Linux 6.13")
        }
        Capability::MemoryOwner => memory_owner(),
        Capability::CapBpf => effective_capability(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN),
        Capability::CapPerfmon => {
            effective_capability(CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN)
        }
        Capability::CapSysAdmin => effective_capability(CapabilitySet::SYS_ADMIN),
        Capability::CapSysResource => effective_capability(CapabilitySet::SYS_RESOURCE),
        Capability::Pressure => exists("/proc/pressure/memory"),
        Capability::PressureTrigger => pressure_trigger(),
        Capability::BpfFilesystem => mounted("bpf", None),
        Capability::MemoryCgroupV1 => mounted("cgroup", Some("memory")),
        Capability::MemoryCgroupV2 => memory_cgroup_v2(),
    };
    Probe { capability, found }
}

fn kernel_types() -> Result<Btf<'static>, String> {
    exists("/sys/kernel/btf/vmlinux")?;
    Btf::from_vmlinux().map_err(|error| format!("/sys/kernel/btf/vmlinux: {error}"))
}

fn has_type(name: &str, kind: BtfKind, otherwise: &str) -> Result<String, String> {
    let types = kernel_types()?;
    match types.type_by_name::<BtfType<'_>>(name) {
        Some(found) if found.kind() == kind => Ok(String::new()),
        _ => Err(otherwise.to_owned()),
    }
}

fn memory_owner() -> Result<String, String> {
    let types = kernel_types()?;
    let mm = types.type_by_name::<Composite<'_>>("mm_struct").ok_or("no struct mm_struct")?;
    if has_member(&types, &mm, "owner") {
        Ok(String::new())
    } else {
        Err("the kernel is built without CONFIG_MEMCG".to_owned())
    }
}

/// Searches nameless structs and unions too: most of `mm_struct` is in one.
fn has_member(types: &Btf<'_>, composite: &Composite<'_>, name: &str) -> bool {
    composite.iter().any(|member| match member.name {
        Some(found) if !found.is_empty() => found == name,
        _ => types
            .type_by_id::<Composite<'_>>(member.ty)
            .is_some_and(|inner| has_member(types, &inner, name)),
    })
}

fn ring_buffer() -> Result<String, String> {
    match MapType::RingBuf.is_supported() {
        Ok(true) => Ok(String::new()),
        Ok(false) => Err("needs Linux 5.8 and the right to use BPF".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether one of these capabilities is effective.
fn effective_capability(any_of: CapabilitySet) -> Result<String, String> {
    let sets = rustix::thread::capabilities(None).map_err(|errno| format!("capget: {errno}"))?;
    if sets.effective.intersects(any_of) {
        Ok(String::new())
    } else {
        Err("this process does not have it".to_owned())
    }
}

/// The mount point of a filesystem of this type, with this option if one is given.
fn mounted(fs_type: &str, option: Option<&str>) -> Result<String, String> {
    let path = "/proc/self/mountinfo";
    let text = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let found = find_mount(&text, fs_type, option);
    found.map(|path| path.display().to_string()).ok_or_else(|| "not mounted".to_owned())
}

fn find_mount(mountinfo: &[u8], fs_type: &str, option: Option<&str>) -> Option<PathBuf> {
    let mut mounts = mountinfo::entries(mountinfo).filter(|mount| mount.fs_type == fs_type);
    let found = mounts.find(|mount| option.is_none_or(|option| mount.has_super_option(option)));
    found.map(|mount| mount.mount_point)
}

fn memory_cgroup_v2() -> Result<String, String> {
    let root = mounted("cgroup2", None)?;
    let path = Path::new(&root).join("cgroup.controllers");
    let controllers =
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    if controllers.split_ascii_whitespace().any(|controller| controller == "memory") {
        Ok(root)
    } else {
        Err(format!("{} does not list memory", path.display()))
    }
}

/// Sets a trigger that will not fire (all CPUs stalled for nearly the whole window) and drops it.
fn pressure_trigger() -> Result<String, String> {
    let wanted = Duration::from_secs(1);
    let trigger =
        PressureTrigger::open(Path::new("/proc"), Resource::Memory, Stall::Full, wanted, wanted)
            .map_err(|error| error.to_string())?;
    Ok(if trigger.window() == wanted {
        String::new()
    } else {
        format!("windows of multiples of {} s only", trigger.window().as_secs())
    })
}

fn exists(path: &str) -> Result<String, String> {
    std::fs::metadata(path).map(|_| String::new()).map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_mounts_by_type_and_option() {
        let mounts = b"1 0 0:1 / /sys/fs/bpf rw - bpf bpf rw,mode=700\n\
                       2 0 0:2 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                       3 0 0:3 / /cg/memory rw - cgroup cgroup rw,memory\n";
        let found = |fs_type, option| find_mount(mounts, fs_type, option);
        assert_eq!(found("bpf", None), Some("/sys/fs/bpf".into()));
        assert_eq!(found("cgroup", Some("memory")), Some("/cg/memory".into()));
        assert_eq!(found("cgroup2", None), None);
    }

    #[test]
    fn every_probe_answers_and_names_the_lost_features() {
        for probe in probe_all() {
            let line = probe.to_string();
            println!("{line}");
            assert!(line.starts_with(probe.capability.name()));
            assert_eq!(line.contains("missing"), !probe.is_present());
            if let Err(reason) = &probe.found {
                assert!(!reason.is_empty(), "{line}");
            }
        }
    }

    #[test]
    fn probes_agree_with_each_other() {
        if probe(Capability::Notifier).is_present() {
            for needed in [
                Capability::KernelTypes,
                Capability::RingBuffer,
                Capability::TaskIterator,
                Capability::CapBpf,
            ] {
                assert!(probe(needed).is_present(), "{needed:?}");
            }
        } else {
            test_support::skip("no BPF notifier here");
        }
    }
}
