//! Capabilities of this machine, with one probe each: for `headroom doctor`, and for the reason why
//! the notifier does not load. Probes try the real operation where that has no effect, and clean up
//! after themselves.

use std::path::Path;
use std::time::Duration;

use headroom_linux::features::has_capability;
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
    /// The capability CAP_BPF, or CAP_SYS_ADMIN which includes it.
    CapBpf,
    /// The capability CAP_PERFMON, or CAP_SYS_ADMIN which includes it.
    CapPerfmon,
    /// The kernel describes its types: `/sys/kernel/btf/vmlinux`.
    KernelTypes,
    /// BPF ring buffers (Linux 5.8).
    RingBuffer,
    /// The notifier's programs load: tracing programs are allowed and the kernel is supported.
    Notifier,
    /// BPF task iterators (Linux 5.8).
    TaskIterator,
    /// The function `bpf_send_signal_task` (Linux 6.13).
    SendSignalTask,
    /// `mm_struct` has its owner (CONFIG_MEMCG).
    MemoryOwner,
    /// A mounted BPF filesystem.
    BpfFilesystem,
    /// The capability CAP_SYS_RESOURCE.
    CapSysResource,
    /// `/proc/pressure`.
    Pressure,
    /// PSI triggers: notification of pressure without polling.
    PressureTrigger,
}

/// Text about a capability, for operators and programs.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// A short name, stable enough for JSON.
    pub name: &'static str,
    /// The feature that is lost without it.
    pub lost: &'static str,
    /// How to get it.
    pub remedy: &'static str,
}

const POLLS: &str = "limits are watched by reading /proc on a timer: later, coarser, more CPU";

impl Capability {
    /// All capabilities, in the order of display: what the notifier needs precedes it.
    pub const ALL: [Self; 12] = [
        Self::CapBpf,
        Self::CapPerfmon,
        Self::KernelTypes,
        Self::RingBuffer,
        Self::Notifier,
        Self::TaskIterator,
        Self::SendSignalTask,
        Self::MemoryOwner,
        Self::BpfFilesystem,
        Self::CapSysResource,
        Self::Pressure,
        Self::PressureTrigger,
    ];

    /// The capabilities without which the notifier does not load.
    const OF_NOTIFIER: [Self; 4] =
        [Self::CapBpf, Self::CapPerfmon, Self::KernelTypes, Self::RingBuffer];

    /// Only a privileged process has it, or can test it.
    pub fn needs_privilege(self) -> bool {
        use Capability::{
            CapBpf, CapPerfmon, CapSysResource, Notifier, PressureTrigger, RingBuffer,
        };
        matches!(
            self,
            CapBpf | CapPerfmon | CapSysResource | Notifier | PressureTrigger | RingBuffer
        )
    }

    /// Its name, its use and how to get it.
    pub fn description(self) -> Description {
        let (name, lost, remedy) = match self {
            Self::CapBpf => ("cap-bpf", POLLS, "run the daemon as root, or with CAP_BPF"),
            Self::CapPerfmon => {
                ("cap-perfmon", POLLS, "run the daemon as root, or with CAP_PERFMON")
            }
            Self::KernelTypes => ("kernel-btf", POLLS, "a kernel with CONFIG_DEBUG_INFO_BTF"),
            Self::RingBuffer => ("bpf-ring-buffer", POLLS, "kernel 5.8 or newer"),
            Self::Notifier => (
                "bpf-notifier",
                POLLS,
                "kernel 6.1 or newer with BTF and tp_btf/rss_stat; no seccomp filter, lockdown or \
                 LSM that forbids bpf(); `headroom-oomd --notifier bpf` logs what libbpf reports",
            ),
            Self::TaskIterator => (
                "bpf-task-iterator",
                "processes are listed by reading /proc: slower scans",
                "kernel 5.8 or newer",
            ),
            Self::SendSignalTask => (
                "bpf-send-signal-task",
                "a victim dies in its own next page fault or by the daemon, not in another's fault",
                "kernel 6.13 or newer",
            ),
            Self::MemoryOwner => (
                "mm-owner",
                "memory changed from outside is charged at the next own fault",
                "a kernel with CONFIG_MEMCG",
            ),
            Self::BpfFilesystem => (
                "bpffs",
                "limits are not enforced while the daemon is dead",
                "mount -t bpf none /sys/fs/bpf",
            ),
            Self::CapSysResource => (
                "cap-sys-resource",
                "PSI windows must be multiples of 2 s; oom_score_adj cannot be lowered",
                "give the daemon CAP_SYS_RESOURCE",
            ),
            Self::Pressure => (
                "psi",
                "no trigger on memory pressure (stalls), on free memory only",
                "a kernel with CONFIG_PSI, started with psi=1",
            ),
            Self::PressureTrigger => (
                "psi-trigger",
                "memory pressure is read on a timer",
                "kernel 5.2 or newer; run the daemon as root",
            ),
        };
        Description { name, lost, remedy }
    }

    /// Tests it. `Ok`: present, with a detail that may be empty. `Err`: missing, with the reason.
    pub fn probe(self) -> Result<String, String> {
        match self {
            Self::CapBpf => effective_capability(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN),
            Self::CapPerfmon => {
                effective_capability(CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN)
            }
            Self::KernelTypes => kernel_types().map(|_| String::new()),
            Self::RingBuffer => ring_buffer(),
            Self::Notifier => {
                Notifier::load().map(|_| String::new()).map_err(|error| error.to_string())
            }
            Self::TaskIterator => {
                has_type("bpf_iter__task", BtfKind::Struct, "this kernel has no task iterator")
            }
            Self::SendSignalTask => {
                has_type("bpf_send_signal_task", BtfKind::Func, "needs Linux 6.13")
            }
            Self::MemoryOwner => memory_owner(),
            Self::BpfFilesystem => bpf_filesystem(),
            Self::CapSysResource => effective_capability(CapabilitySet::SYS_RESOURCE),
            Self::Pressure => exists("/proc/pressure/memory"),
            Self::PressureTrigger => pressure_trigger(),
        }
    }
}

/// Why the notifier does not load: the first capability that it lacks. `None`: it lacks none.
pub(crate) fn obstacle() -> Option<String> {
    Capability::OF_NOTIFIER.into_iter().find_map(|capability| {
        let Description { name, remedy, .. } = capability.description();
        let why = capability.probe().err()?;
        Some(format!("{name} is missing ({why}); {remedy}"))
    })
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

fn effective_capability(any_of: CapabilitySet) -> Result<String, String> {
    if has_capability(any_of) {
        Ok(String::new())
    } else {
        Err("this process does not have it".to_owned())
    }
}

fn bpf_filesystem() -> Result<String, String> {
    let path = "/proc/self/mountinfo";
    let text = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let found = mountinfo::entries(&text).find(|mount| mount.fs_type == "bpf");
    found.map(|mount| mount.mount_point.display().to_string()).ok_or_else(|| "not mounted".into())
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
    fn every_probe_names_what_is_lost_and_why() {
        for capability in Capability::ALL {
            let Description { name, lost, remedy } = capability.description();
            let found = capability.probe();
            println!("{name}: {found:?}");
            assert!([name, lost, remedy].iter().all(|text| !text.is_empty()), "{capability:?}");
            assert_ne!(found, Err(String::new()), "{name}");
        }
    }

    #[test]
    fn a_notifier_that_loads_lacks_nothing() {
        if Capability::Notifier.probe().is_ok() {
            assert_eq!(obstacle(), None);
            assert!(Capability::TaskIterator.probe().is_ok());
        } else {
            test_support::skip("no BPF notifier here");
        }
    }
}
