//! What the BPF notifier of `headroom-oomd` uses. Nothing here is indispensable: without it the daemon
//! reads `/proc` on a timer.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::capabilities::Capability;
use super::system::System;
use super::{Check, system_fd};

/// What is lost without any BPF.
const LOST: &str =
    "limits are checked on a timer in place of at every page: more memory over the limit";
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// All checks.
pub fn checks(system: &System) -> Vec<Check> {
    let btf = std::fs::read(BTF);
    let types = match &btf {
        Ok(types) => Ok(format!("{BTF}, {} KiB", types.len() / 1024)),
        Err(error) => Err(format!("{BTF}: {error}")),
    };
    let has = |name: &str| match &btf {
        Ok(types) if has_name(types, name) => Ok(format!("{name} is there")),
        Ok(_) => Err(format!("this kernel has no {name}")),
        Err(_) => Err("cannot be told without BTF".into()),
    };
    let capability = |c| system.capabilities.require(c);
    vec![
        Check::new("BTF", types, LOST, "a kernel with CONFIG_DEBUG_INFO_BTF"),
        Check::new(
            "CAP_BPF",
            // CAP_SYS_ADMIN contains both.
            capability(Capability::SysAdmin).or_else(|_| {
                let bpf = capability(Capability::Bpf)?;
                Ok(format!("{bpf} and {}", capability(Capability::Perfmon)?))
            }),
            LOST,
            "run the daemon as root, or with CAP_BPF and CAP_PERFMON",
        ),
        Check::new("BPF ring buffer", ring_buffer(), LOST, "kernel 5.8 or newer; no lockdown"),
        Check::new("BPF programs", program(), LOST, "allow the bpf call: seccomp, lockdown, LSM"),
        Check::new(
            "tp_btf/rss_stat",
            has("btf_trace_rss_stat"),
            LOST,
            "kernel 5.5 or newer with BTF",
        ),
        Check::new(
            "bpf_send_signal_task",
            has("bpf_send_signal_task"),
            "the kernel half kills only the process that breaks the limit; others wait for the daemon",
            "kernel 6.13 or newer",
        ),
    ]
}

/// A name is in the type information when it stands between two NULs of its string table.
fn has_name(types: &[u8], name: &str) -> bool {
    let needle = [b"\0", name.as_bytes(), b"\0"].concat();
    types.windows(needle.len()).any(|window| window == needle)
}

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_MAP_TYPE_RINGBUF: u32 = 27;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;

/// The first members of `union bpf_attr` for `BPF_MAP_CREATE` (linux/bpf.h).
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

/// The first members of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> Result<OwnedFd, Errno> {
    // SAFETY: the kernel reads as many bytes as it is told, which is the size of the value.
    system_fd(unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) })
}

fn ring_buffer() -> Result<String, String> {
    let max_entries = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    let attributes =
        MapCreate { map_type: BPF_MAP_TYPE_RINGBUF, key_size: 0, value_size: 0, max_entries };
    bpf(BPF_MAP_CREATE, &attributes)
        .map(|_| "one can be made".into())
        .map_err(|errno| format!("cannot make one: {errno}"))
}

fn program() -> Result<String, String> {
    // r0 = 0; exit
    let instructions: [u64; 2] = [0x0000_0000_0000_00b7, 0x0000_0000_0000_0095];
    let attributes = ProgLoad {
        prog_type: BPF_PROG_TYPE_RAW_TRACEPOINT,
        insn_cnt: 2,
        insns: instructions.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
    };
    bpf(BPF_PROG_LOAD, &attributes)
        .map(|_| "one can be loaded".into())
        .map_err(|errno| format!("cannot load one: {errno}"))
}

#[cfg(test)]
mod tests {
    use super::has_name;

    #[test]
    fn a_name_is_found_whole_or_not_at_all() {
        let strings = b"junk\0btf_trace_rss_stat\0bpf_send_signal\0";
        assert!(has_name(strings, "btf_trace_rss_stat"));
        assert!(has_name(strings, "bpf_send_signal"));
        assert!(!has_name(strings, "bpf_send_signal_task"));
        assert!(!has_name(strings, "rss_stat"));
    }
}
