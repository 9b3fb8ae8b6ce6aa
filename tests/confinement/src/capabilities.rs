//! Capabilities by name.

use std::ops::RangeInclusive;

/// Range of capabilities, larger than that of any kernel.
pub(crate) const ALL: RangeInclusive<u32> = 0..=63;

/// `CAP_IPC_LOCK`.
pub(crate) const IPC_LOCK: u32 = 14;

/// In the order of linux/capability.h, from 0.
const NAMES: &str = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP \
                     LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK \
                     IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN \
                     SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE \
                     AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM \
                     BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE";

/// The number of a capability with a name like `CAP_KILL`.
pub(crate) fn number(of: &str) -> Option<u32> {
    let name = of.strip_prefix("CAP_")?;
    NAMES.split_whitespace().position(|known| known == name).map(|at| at as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernel() {
        let some = [
            ("CAP_CHOWN", 0),
            ("CAP_IPC_LOCK", IPC_LOCK),
            ("CAP_SYS_PTRACE", 19),
            ("CAP_SYS_ADMIN", 21),
            ("CAP_BPF", 39),
        ];
        for (name, expected) in some {
            assert_eq!(number(name), Some(expected), "{name}");
        }
    }
}
