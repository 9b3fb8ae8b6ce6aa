//! How `headroom-oomd` watches memory: the probes of the library that does the watching. No feature
//! here is indispensable: without BPF, `/proc` is read on a timer.

use memory_watch::capability::{Capability, probe};

use super::check::Check;

/// All checks.
pub fn checks() -> Vec<Check> {
    WANTED
        .into_iter()
        .map(|(capability, remedy)| {
            let found = probe(capability)
                .found
                .map(|detail| if detail.is_empty() { "present".into() } else { detail });
            Check::new(capability.name(), found, capability.lost_without(), remedy)
        })
        .collect()
}

/// Features that the daemon uses, with the remedy for an operator if one is missing.
const WANTED: [(Capability, &str); 11] = [
    (Capability::CapBpf, "run the daemon as root, or with CAP_BPF"),
    (Capability::CapPerfmon, "run the daemon as root, or with CAP_PERFMON"),
    (Capability::KernelTypes, "a kernel with CONFIG_DEBUG_INFO_BTF"),
    (
        Capability::Notifier,
        "kernel 6.1 or newer with BTF and tp_btf/rss_stat; no seccomp filter, lockdown or LSM that \
         forbids bpf()",
    ),
    (Capability::RingBuffer, "kernel 5.8 or newer"),
    (Capability::TaskIterator, "kernel 5.8 or newer"),
    (Capability::SendSignalTask, "kernel 6.13 or newer"),
    (Capability::MemoryOwner, "a kernel with CONFIG_MEMCG"),
    (Capability::CapSysResource, "give the daemon CAP_SYS_RESOURCE"),
    (Capability::Pressure, "a kernel with CONFIG_PSI, started with psi=1"),
    (Capability::PressureTrigger, "kernel 5.2 or newer; run the daemon as root"),
];
