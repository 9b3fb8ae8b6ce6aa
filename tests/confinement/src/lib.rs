//! Runs a program with exactly the system calls and capabilities that its systemd unit allows,
//! without systemd. For tests of units.
//!
//! Stricter than the unit: a system call that is not listed kills the process, so that a missing
//! name is not mistaken for an error that the program handles.
#![cfg(target_arch = "x86_64")]

mod calls;
mod capabilities;
mod opinion;

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

pub use opinion::opinion_of_systemd;

/// `AUDIT_ARCH_X86_64` of linux/audit.h.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// Offsets in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
/// `DefaultLimitMEMLOCK=` of systemd. Bytes.
const UNIT_MEMLOCK: libc::rlim_t = 8 << 20;
/// Maximum distance of a jump in a filter.
const MOST_CALLS: usize = 254;

/// What a unit allows.
pub struct Confinement {
    /// System calls; `None`: all.
    calls: Option<Vec<u32>>,
    capabilities: Vec<u32>,
    /// Whether it may lock all its memory without a capability.
    locks_memory: bool,
}

impl Confinement {
    /// Parses `SystemCallFilter=`, `CapabilityBoundingSet=` and `LimitMEMLOCK=infinity` in the text
    /// of a unit. The error names a word that is not known here.
    pub fn of(unit: &str) -> Result<Self, String> {
        let number = |of: &str, known: &dyn Fn(&str) -> Option<u32>| {
            known(of).ok_or_else(|| format!("the unit names {of}, which has no number here"))
        };
        let calls = words(unit, "SystemCallFilter").map(|name| number(name, &calls::number));
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        if calls.len() > MOST_CALLS {
            return Err(format!("{} system calls are more than {MOST_CALLS}", calls.len()));
        }
        let kept = words(unit, "CapabilityBoundingSet");
        let kept = kept.map(|name| number(name, &capabilities::number));
        Ok(Self {
            calls: (!calls.is_empty()).then_some(calls),
            capabilities: kept.collect::<Result<_, _>>()?,
            locks_memory: words(unit, "LimitMEMLOCK").eq(["infinity"]),
        })
    }

    /// Makes the program run with this confinement; only root can start it then.
    pub fn apply(self, command: &mut Command) {
        let filter = self.calls.as_deref().map(filter);
        let memory = if self.locks_memory { libc::RLIM_INFINITY } else { UNIT_MEMLOCK };
        let confine = move || {
            let limit = libc::rlimit { rlim_cur: memory, rlim_max: memory };
            // SAFETY: the limit is live.
            let is_limited = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) == 0 };
            // Where root may not raise the limit, the capability stands for it.
            let lock = (!is_limited && self.locks_memory).then_some(capabilities::IPC_LOCK);
            let is_kept = |one: &u32| self.capabilities.contains(one) || lock == Some(*one);
            for capability in capabilities::ALL.filter(|one| !is_kept(one)) {
                // Refused if the kernel has no such capability.
                let _ = prctl(libc::PR_CAPBSET_DROP, capability.into(), std::ptr::null());
            }
            prctl(libc::PR_SET_NO_NEW_PRIVS, 1, std::ptr::null())?;
            let Some(filter) = &filter else { return Ok(()) };
            let program =
                libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            prctl(libc::PR_SET_SECCOMP, libc::c_ulong::from(libc::SECCOMP_MODE_FILTER), &program)
        };
        // SAFETY: only system calls, on memory that was allocated before the fork.
        unsafe { command.pre_exec(confine) };
    }
}

/// Kills the process at a call that is not among these.
fn filter(calls: &[u32]) -> Vec<libc::sock_filter> {
    let step =
        |code: u32, jt: usize, k| libc::sock_filter { code: code as u16, jt: jt as u8, jf: 0, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let give = libc::BPF_RET | libc::BPF_K;
    let mut filter = vec![
        step(load, 0, ARCHITECTURE_AT),
        step(equal, 1, AUDIT_ARCH_X86_64),
        step(give, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(load, 0, NUMBER_AT),
    ];
    let count = calls.len();
    let steps = calls.iter().enumerate();
    filter.extend(steps.map(|(at, call)| step(equal, count - at, *call)));
    filter.push(step(give, 0, libc::SECCOMP_RET_KILL_PROCESS));
    filter.push(step(give, 0, libc::SECCOMP_RET_ALLOW));
    filter
}

/// The words of all lines of the unit with this setting.
fn words<'a>(unit: &'a str, setting: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = unit.lines().filter_map(move |line| line.strip_prefix(setting)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace)
}

fn prctl(option: i32, argument: libc::c_ulong, pointer: *const libc::sock_fprog) -> io::Result<()> {
    // SAFETY: of the options used here only PR_SET_SECCOMP takes a pointer, and it gets that of a
    // filter.
    match unsafe { libc::prctl(option, argument, pointer, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    const SHELL: &str = "access arch_prctl brk close execve exit_group fcntl fstat futex getegid \
                         geteuid getgid getpid getppid getrandom getuid mmap mprotect munmap \
                         newfstatat openat pread64 prlimit64 read rseq rt_sigaction rt_sigprocmask \
                         rt_sigreturn sched_getaffinity set_robust_list set_tid_address \
                         sigaltstack stat wait4 write";

    fn run(unit: &str) -> std::process::ExitStatus {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", ": > /dev/null; cd /"]);
        Confinement::of(unit).unwrap().apply(&mut command);
        command.status().unwrap()
    }

    #[test]
    fn a_syscall_outside_the_filter_kills_and_filter_lines_are_merged() {
        if !test_support::privileged() {
            return;
        }
        let unit = format!("[Service]\nSystemCallFilter={SHELL}\n");
        assert_eq!(run(&unit).signal(), Some(libc::SIGSYS), "it changes its folder");
        assert!(run(&format!("{unit}SystemCallFilter=chdir dup2 getcwd\n")).success());
    }

    #[test]
    fn an_unknown_word_is_named() {
        let error = |unit: &str| Confinement::of(unit).err().unwrap();
        assert!(error("SystemCallFilter=read raed\n").contains("raed"));
        assert!(error("CapabilityBoundingSet=CAP_NET_ADMIN CAP_X\n").contains("CAP_X"));
    }
}
