//! The daemon as its systemd unit has it run: with no more system calls and capabilities than the unit allows.
#![cfg(target_arch = "x86_64")]

mod support;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use control::oomd::{Killer, Outcome, Reply, Request};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use support::daemon::Daemon;
use support::hog::Hog;
use support::{MIB, eventually, privileged};

const UID: u32 = 62910;
const UNIT: &str = include_str!("../../../dist/systemd/headroom-oomd.service");
/// `AUDIT_ARCH_X86_64` of linux/audit.h.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// Offsets in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

macro_rules! calls {
    ($($name:ident)*) => { [$((stringify!($name), libc::$name)),*] };
}

/// The calls that the unit names.
const CALLS: &[(&str, libc::c_long)] = &calls! {
    SYS_accept4 SYS_access SYS_arch_prctl SYS_bind SYS_bpf SYS_brk SYS_chdir SYS_chmod SYS_dup SYS_dup2 SYS_getpgid SYS_getpgrp SYS_pipe SYS_rt_sigsuspend
    SYS_setpgid SYS_socketpair SYS_umask SYS_vfork SYS_clock_getres
    SYS_clock_gettime SYS_clock_nanosleep SYS_clone SYS_clone3 SYS_close SYS_connect SYS_dup3
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_wait SYS_eventfd2 SYS_execve
    SYS_exit SYS_exit_group SYS_faccessat2 SYS_fchmod SYS_fchmodat SYS_fcntl SYS_flock SYS_fstat
    SYS_fstatfs SYS_fsync SYS_ftruncate SYS_futex SYS_getcwd SYS_getdents64 SYS_getegid
    SYS_geteuid SYS_getgid SYS_getpeername SYS_getpid SYS_getppid SYS_getpriority SYS_getrandom
    SYS_getrlimit SYS_getsockname SYS_getsockopt SYS_gettid SYS_gettimeofday SYS_getuid
    SYS_inotify_add_watch SYS_inotify_init1 SYS_inotify_rm_watch SYS_ioctl SYS_kill SYS_listen
    SYS_lseek SYS_lstat SYS_madvise SYS_membarrier SYS_memfd_create SYS_mkdir SYS_mkdirat
    SYS_mlock SYS_mlockall SYS_mmap SYS_mprotect SYS_mremap SYS_munlock SYS_munmap SYS_nanosleep
    SYS_newfstatat SYS_open SYS_openat SYS_pause SYS_perf_event_open SYS_pidfd_open
    SYS_pidfd_send_signal SYS_pipe2 SYS_poll SYS_ppoll SYS_prctl SYS_pread64 SYS_prlimit64
    SYS_process_mrelease SYS_pselect6 SYS_pwrite64 SYS_read SYS_readlink SYS_readlinkat
    SYS_recvfrom SYS_recvmsg SYS_rename SYS_renameat SYS_renameat2 SYS_restart_syscall SYS_rmdir
    SYS_rseq SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigtimedwait
    SYS_sched_getaffinity SYS_sched_getattr SYS_sched_getparam SYS_sched_getscheduler
    SYS_sched_setaffinity SYS_sched_setattr SYS_sched_setscheduler SYS_sched_yield SYS_sendmsg
    SYS_sendto SYS_set_robust_list SYS_set_tid_address SYS_setpriority SYS_setresuid
    SYS_setsockopt SYS_shutdown SYS_sigaltstack SYS_signalfd4 SYS_socket SYS_stat SYS_statfs
    SYS_statx SYS_sysinfo SYS_tgkill SYS_timerfd_create SYS_timerfd_settime SYS_uname SYS_unlink
    SYS_unlinkat SYS_wait4 SYS_waitid SYS_write SYS_writev
};

/// The capabilities that the unit may name, by the numbers of linux/capability.h.
const CAPABILITIES: &[(&str, u32)] = &[
    ("CAP_DAC_READ_SEARCH", 2),
    ("CAP_KILL", 5),
    ("CAP_SETUID", 7),
    ("CAP_IPC_LOCK", 14),
    ("CAP_SYS_PTRACE", 19),
    ("CAP_SYS_NICE", 23),
    ("CAP_SYS_RESOURCE", 24),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];
/// More than any kernel has.
const LAST_CAPABILITY: u32 = 63;

/// The words of all lines of the unit that set this.
fn words(setting: &str) -> Vec<&'static str> {
    let lines = UNIT.lines().filter_map(|line| line.strip_prefix(setting)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).collect()
}

fn number<N: Copy>(of: &str, known: &[(&str, N)]) -> N {
    let found = known.iter().find(|(name, _)| name.trim_start_matches("SYS_") == of);
    found.unwrap_or_else(|| panic!("the unit names {of}, and this test has no number for it")).1
}

/// A filter that lets these calls through. Another one is the end of the process: harder than the unit, so that a
/// name which is missing is not taken for an error that is dealt with.
fn filter() -> Vec<libc::sock_filter> {
    let allowed: Vec<u32> =
        words("SystemCallFilter").iter().map(|name| number(name, CALLS) as u32).collect();
    let step = |code: u32, jt: usize, k| libc::sock_filter {
        code: code as u16,
        jt: u8::try_from(jt).unwrap(),
        jf: 0,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let give = libc::BPF_RET | libc::BPF_K;
    let mut filter = vec![
        step(load, 0, ARCHITECTURE_AT),
        step(equal, 1, AUDIT_ARCH_X86_64),
        step(give, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(load, 0, NUMBER_AT),
    ];
    let count = allowed.len();
    filter.extend(allowed.iter().enumerate().map(|(at, call)| step(equal, count - at, *call)));
    filter.push(step(give, 0, libc::SECCOMP_RET_KILL_PROCESS));
    filter.push(step(give, 0, libc::SECCOMP_RET_ALLOW));
    filter
}

fn prctl(
    option: i32,
    argument: libc::c_ulong,
    pointer: *const libc::sock_fprog,
) -> std::io::Result<()> {
    // SAFETY: of the options used here only PR_SET_SECCOMP takes a pointer, which is that of a filter.
    match unsafe { libc::prctl(option, argument, pointer, 0, 0) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// As the unit has it.
fn confine(command: &mut Command) {
    let filter = filter();
    let names = words("CapabilityBoundingSet");
    let kept: Vec<u32> = names.iter().map(|name| number(name, CAPABILITIES)).collect();
    let confine = move || {
        for capability in (0..=LAST_CAPABILITY).filter(|capability| !kept.contains(capability)) {
            // Refused: the kernel has no such capability.
            let _ = prctl(libc::PR_CAPBSET_DROP, capability.into(), std::ptr::null());
        }
        prctl(libc::PR_SET_NO_NEW_PRIVS, 1, std::ptr::null())?;
        let program =
            libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        prctl(libc::PR_SET_SECCOMP, libc::c_ulong::from(libc::SECCOMP_MODE_FILTER), &program)
    };
    // SAFETY: only system calls, on memory that was made before the fork.
    unsafe { command.pre_exec(confine) };
}

#[test]
#[ignore = "a helper of the others"]
fn hog_that_other_tests_start() {
    support::hog::obey();
}

/// One process of a limited user grows past its limit; returns how that ended.
fn break_a_limit(daemon: &Daemon, uid: u32) -> Option<Killer> {
    daemon.set_limit(uid, 64 * MIB);
    let mut hog = Hog::start(uid);
    hog.grow(60 * 1024);
    hog.survived();
    hog.grow(32 * 1024);
    let why = daemon.ended(uid);
    eventually("the process dies", || (!hog.is_alive()).then_some(()));
    assert_eq!(why.victim.as_ref().map(|victim| victim.pid), Some(hog.pid()), "{why:#?}");
    assert!(matches!(why.outcome, Outcome::Reclaimed { .. }), "{why:#?}");
    why.killer
}

#[test]
fn as_the_service_has_it_the_notifier_kills_and_a_successor_takes_over() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let bpffs = dir.path().join("bpf");
    std::fs::create_dir(&bpffs).unwrap();
    mount("bpf", &bpffs, "bpf", MountFlags::empty(), None).unwrap();
    let _unmount = Unmount(bpffs.clone());
    let pins = format!("--pins={}", bpffs.join("headroom").display());
    let state = format!("--state-dir={}", dir.path().join("state").display());
    let mut daemon = Daemon::start_prepared("", &["--notifier=bpf", &pins, &state], confine);
    let without = ["oom_score_adj"];
    let degraded = daemon.status().degraded;
    let unexpected = |what: &&String| !without.iter().any(|known| what.contains(known));
    assert_eq!(degraded.iter().filter(unexpected).count(), 0, "{degraded:?}");
    assert_eq!(break_a_limit(&daemon, UID), Some(Killer::Kernel));
    assert!(matches!(daemon.ask(&Request::Explain { uid: None }), Reply::Explained(_)));
    daemon.die();
    daemon.start_again("");
    assert_eq!(daemon.why(UID).len(), 1);
    assert_eq!(daemon.limit(UID).map(|limit| limit.hard_bytes), Some(64 * MIB));
    daemon.stop();
    assert!(!bpffs.join("headroom").exists());
}

/// Unmounts on drop.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn as_the_service_has_it_the_daemon_kills_without_the_notifier() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start_prepared("", &["--notifier=proc"], confine);
    assert_eq!(break_a_limit(&daemon, UID + 1), Some(Killer::Daemon));
    let reply = daemon.ask(&Request::RunOomKiller { uid: Some(UID + 1) });
    assert!(matches!(reply, Reply::Ran { .. }), "{reply:?}");
    let (status, _, log) = daemon.end(rustix::process::Signal::TERM);
    assert!(status.success(), "{log:?}");
}

#[test]
fn as_the_service_has_it_everybody_is_told() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let script = path("hook");
    std::fs::write(
        &script,
        "#!/bin/sh\necho \"$HEADROOM_PID\" > \"$1.new\"\nmv \"$1.new\" \"$1\"\n",
    )
    .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let hook = |name: &str| format!("[\"{}\", \"{}\"]", script.display(), path(name).display());
    let config = format!(
        "[hooks]\nbefore = {}\nafter = {}\nwarn = {}\n[warnings]\nterminals = true\n\
         [metrics]\ntextfile = \"{}\"\nsocket = \"{}\"\ninterval-s = 1\n",
        hook("before"),
        hook("after"),
        hook("warn"),
        path("headroom.prom").display(),
        path("metrics.sock").display()
    );
    let journal = std::os::unix::net::UnixDatagram::bind(path("journal")).unwrap();
    journal.set_nonblocking(true).unwrap();
    let arguments = ["--notifier=proc", &format!("--journal={}", path("journal").display())];
    let daemon = Daemon::start_prepared(&config, &arguments, confine);
    assert_eq!(break_a_limit(&daemon, UID + 2), Some(Killer::Daemon));
    for name in ["before", "after", "warn"] {
        eventually(&format!("{name} is run"), || path(name).exists().then_some(()));
    }
    let metrics = eventually("the socket answers", || {
        use std::io::{Read, Write};
        let mut stream = std::os::unix::net::UnixStream::connect(path("metrics.sock")).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    });
    assert!(metrics.contains("headroom_processes_killed_total 1\n"), "{metrics}");
    eventually("the file is written", || path("headroom.prom").exists().then_some(()));
    eventually("the journal has an entry", || journal.recv(&mut [0; 4096]).ok());
    let (status, _, log) = daemon.end(rustix::process::Signal::TERM);
    assert!(status.success(), "{log:?}");
}

#[test]
fn the_manual_has_every_option() {
    let manual = include_str!("../../../dist/man/headroom-oomd.8").replace("\\-", "-");
    let help = Command::new(env!("CARGO_BIN_EXE_headroom-oomd")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let words = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let options: Vec<_> = words.filter(|word| word.len() > 2 && word.starts_with("--")).collect();
    assert!(options.len() > 8, "{help}");
    for option in options {
        assert!(manual.contains(option), "nothing about {option}");
    }
}

#[test]
fn the_manual_of_the_configuration_has_every_section_and_every_key_in_it() {
    let manual = include_str!("../../../dist/man/oomd.toml.5").replace("\\-", "-");
    for (section, keys) in headroom_oomd::config::SECTIONS {
        let start = manual.find(&format!(".SH \"[{section}]\""));
        let start = start.or_else(|| manual.find(&format!(".SH \"[[{section}]]\"")));
        let start = start.unwrap_or_else(|| panic!("no section on {section}"));
        let text = &manual[start + 3..];
        let text = &text[..text.find("\n.SH").unwrap_or(text.len())];
        let words: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with(".B"))
            .flat_map(|line| line.split([' ', '"', ',']))
            .collect();
        for key in keys {
            assert!(words.contains(key), "[{section}] says nothing about {key}");
        }
    }
}

#[test]
fn systemd_understands_the_unit_and_finds_little_to_wish_for() {
    let dir = tempfile::tempdir().unwrap();
    let unit = dir.path().join("headroom-oomd.service");
    std::fs::write(&unit, UNIT.replace("/usr/local/bin/headroom-oomd", "/bin/true")).unwrap();
    let analyze = |arguments: &[&str]| {
        let done = Command::new("systemd-analyze").args(arguments).arg(&unit).output();
        done.map(|done| (done.status.success(), format!("{done:?}")))
    };
    match analyze(&["verify", "--man=no"]) {
        Ok((success, said)) => assert!(success, "{said}"),
        Err(error) => return println!("skipped: systemd-analyze: {error}"),
    }
    // Of 100, where 100 is a service that is not confined at all.
    let (success, said) = analyze(&["security", "--offline=yes", "--threshold=30"]).unwrap();
    assert!(success, "{said}");
}
