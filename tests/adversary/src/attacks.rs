//! All attacks.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, ensure};
use harness::MIB;
use harness::daemon::Daemon;
use harness::outcome::Check;
use harness::users::Uid;
use headroom_linux::descriptors::PassRights;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with, sockopt,
};
use serde_json::json;

use crate::attack::{ATTACKER, Attack, BYSTANDER, Guarantee, NEWCOMER, Witness};
use crate::witnesses::{
    ContainerOfRoot, HugePages, IoUring, ManyCgroups, Receiver, SOCKET_NAME, SetuidHelper,
    SubordinateMemory, Swap, SysvSegments, map_namespace,
};

const PLAIN: Attack = Attack {
    name: "",
    program: "",
    limit_mib: 64,
    seconds: 4,
    guarantee: Guarantee::AllMemory,
    arguments: |_| Vec::new(),
    witness: &Nothing,
};

/// Every attack, as seen from an ordinary account.
pub const ALL: &[Attack] = &[
    Attack {
        name: "clone-vm-decoys",
        program: "clone_vm_decoys",
        limit_mib: 128,
        seconds: 6,
        arguments: |_| vec!["700".into()],
        ..PLAIN
    },
    Attack {
        name: "held-at-exit",
        program: "held_at_exit",
        limit_mib: 256,
        seconds: 10,
        arguments: |_| vec!["900".into()],
        ..PLAIN
    },
    Attack {
        name: "memfd-written",
        program: "memfd_written",
        limit_mib: 64,
        seconds: 4,
        arguments: |_| vec!["400".into()],
        ..PLAIN
    },
    Attack {
        name: "memfd-mapped",
        program: "memfd_written",
        limit_mib: 64,
        seconds: 4,
        arguments: |_| vec!["400".into(), "mapped".into()],
        ..PLAIN
    },
    Attack {
        name: "tmpfs-detached",
        program: "tmpfs_detached",
        limit_mib: 64,
        seconds: 4,
        arguments: |_| vec!["400".into(), "tmpfs".into()],
        ..PLAIN
    },
    Attack {
        name: "ramfs-detached",
        program: "tmpfs_detached",
        limit_mib: 64,
        seconds: 4,
        arguments: |_| vec!["400".into(), "ramfs".into()],
        ..PLAIN
    },
    Attack {
        name: "secret-memory",
        program: "secret_memory",
        limit_mib: 64,
        seconds: 4,
        arguments: |_| vec!["400".into()],
        ..PLAIN
    },
    Attack {
        name: "page-tables",
        program: "page_tables",
        limit_mib: 64,
        seconds: 4,
        arguments: |_| vec!["300".into()],
        ..PLAIN
    },
    Attack {
        name: "main-thread-exited",
        program: "main_thread_exited",
        limit_mib: 100,
        seconds: 4,
        arguments: |_| vec!["300".into()],
        ..PLAIN
    },
    Attack {
        name: "connections",
        program: "subordinate_uids",
        limit_mib: 64,
        seconds: 4,
        arguments: |daemon| subordinate(daemon, "connections"),
        witness: &SubordinateUids,
        ..PLAIN
    },
    Attack {
        name: "self-set-limits",
        program: "subordinate_uids",
        limit_mib: 64,
        seconds: 12,
        arguments: |daemon| subordinate(daemon, "limits"),
        witness: &SubordinateUids,
        ..PLAIN
    },
    Attack {
        name: "lease-connections",
        program: "subordinate_uids",
        limit_mib: 64,
        seconds: 5,
        arguments: |daemon| subordinate(daemon, "leases"),
        witness: &SubordinateUids,
        ..PLAIN
    },
    Attack {
        name: "files-to-sockets",
        program: "files_to_sockets",
        arguments: |daemon| vec![daemon.lease_socket().display().to_string()],
        witness: &FilesToSockets { rights: PassRights::Refused },
        ..PLAIN
    },
    Attack {
        name: "files-to-older-sockets",
        program: "files_to_sockets",
        arguments: |daemon| vec![daemon.lease_socket().display().to_string()],
        witness: &FilesToSockets { rights: PassRights::Accepted },
        ..PLAIN
    },
    Attack {
        name: "pipelined-run-oom-killer",
        program: "pipelined_run",
        limit_mib: 64,
        seconds: 6,
        arguments: |_| vec!["100".into()],
        witness: &Resources,
        ..PLAIN
    },
    Attack {
        name: "explain-flood",
        program: "explain_flood",
        limit_mib: 256,
        seconds: 5,
        arguments: |_| vec!["200".into()],
        witness: &Resources,
        ..PLAIN
    },
    Attack {
        name: "soft-limit-oscillation",
        program: "oscillation",
        limit_mib: 64,
        seconds: 5,
        arguments: |_| vec!["48".into()],
        ..PLAIN
    },
    Attack {
        name: "history-eviction",
        program: "many_kills",
        limit_mib: 8,
        seconds: 40,
        arguments: |_| vec!["32".into(), "1100".into()],
        witness: &History,
        ..PLAIN
    },
    Attack {
        name: "io-uring-buffers",
        program: "io_uring_buffers",
        arguments: |_| vec!["200".into()],
        witness: &IoUring,
        ..PLAIN
    },
    Attack {
        name: "vfork-waits",
        program: "vfork_waits",
        arguments: |_| vec!["300".into()],
        ..PLAIN
    },
    Attack {
        name: "setuid-helper",
        program: "setuid_helper",
        arguments: |_| {
            let helper = SetuidHelper::path().display().to_string();
            vec![helper, "100".into(), "4".into()]
        },
        witness: &SetuidHelper,
        ..PLAIN
    },
    Attack {
        name: "memfd-sent",
        program: "memfd_sent",
        // Memory that the receiver keeps after the attacker has exited does not count for the
        // attacker.
        guarantee: Guarantee::VisibleMemory,
        arguments: |_| vec![SOCKET_NAME.into(), "keep".into(), "300".into()],
        witness: &Receiver { mappings: 0 },
        ..PLAIN
    },
    Attack {
        name: "memfd-sent-and-closed",
        program: "memfd_sent",
        guarantee: Guarantee::VisibleMemory,
        arguments: |_| vec![SOCKET_NAME.into(), "close".into(), "300".into()],
        witness: &Receiver { mappings: 0 },
        ..PLAIN
    },
    Attack {
        name: "mapped-elsewhere",
        program: "mapped_elsewhere",
        // The other user's proportional shares do not count for the attacker.
        guarantee: Guarantee::VisibleMemory,
        arguments: |_| vec![SOCKET_NAME.into(), "300".into()],
        witness: &Receiver { mappings: 3 },
        ..PLAIN
    },
    Attack {
        name: "sysv-attached",
        program: "sysv_segments",
        arguments: |_| vec!["attached".into(), "300".into()],
        witness: &SysvSegments,
        ..PLAIN
    },
    Attack {
        name: "sysv-detached",
        program: "sysv_segments",
        guarantee: Guarantee::VisibleMemory,
        arguments: |_| vec!["detached".into(), "300".into()],
        witness: &SysvSegments,
        ..PLAIN
    },
    Attack {
        name: "huge-pages",
        program: "huge_pages",
        guarantee: Guarantee::VisibleMemory,
        arguments: |_| vec![HugePages::MIB.to_string(), "400".into()],
        witness: &HugePages,
        ..PLAIN
    },
    Attack {
        name: "locked-memory",
        program: "locked_memory",
        arguments: |_| vec!["300".into()],
        ..PLAIN
    },
    Attack {
        name: "swapped-out",
        program: "swapped_out",
        arguments: |_| vec!["300".into()],
        witness: &Swap,
        ..PLAIN
    },
    Attack {
        name: "many-cgroups",
        program: "many_cgroups",
        arguments: |_| vec![ManyCgroups::path().display().to_string(), "2000".into(), "300".into()],
        witness: &ManyCgroups,
        ..PLAIN
    },
    Attack {
        name: "limit-changes",
        program: "limit_changes",
        arguments: |_| vec!["64".into(), "400".into()],
        ..PLAIN
    },
    Attack {
        name: "dead-address-space",
        program: "dead_address_space",
        seconds: 6,
        arguments: |_| vec!["40".into(), "8".into()],
        ..PLAIN
    },
    Attack {
        name: "dead-in-steps",
        program: "dead_in_steps",
        limit_mib: 256,
        seconds: 14,
        arguments: |_| vec!["230".into()],
        ..PLAIN
    },
    Attack {
        name: "subordinate-memory",
        program: "subordinate_memory",
        arguments: |_| vec!["20".into(), "15".into()],
        witness: &SubordinateMemory,
        ..PLAIN
    },
    Attack {
        name: "hung-exec",
        program: "hung_exec",
        seconds: 12,
        arguments: |_| ["14", "2400", "26"].map(str::to_owned).into(),
        witness: &HungExec,
        ..PLAIN
    },
    Attack {
        name: "hung-victims",
        program: "hung_exec",
        limit_mib: 16,
        seconds: 12,
        arguments: |_| ["14", "3000", "1"].map(str::to_owned).into(),
        // The kernel frees the memory of a victim when its file server lets it exit.
        guarantee: Guarantee::VisibleMemory,
        witness: &HungExec,
    },
    Attack {
        name: "container-of-root",
        program: "subordinate_memory",
        arguments: |_| vec!["20".into(), "15".into()],
        witness: &ContainerOfRoot,
        ..PLAIN
    },
];

fn subordinate(daemon: &Daemon, what: &str) -> Vec<String> {
    let lease_socket = daemon.lease_socket().display().to_string();
    vec![what.into(), lease_socket, ATTACKER.subordinate.to_string()]
}

/// No hooks.
struct Nothing;

impl Witness for Nothing {}

/// Checks that other users still get their resources.
struct Resources;

impl Witness for Resources {
    fn prepare(&self, daemon: &Daemon) -> anyhow::Result<Vec<Child>> {
        daemon.set_limit(BYSTANDER.uid, 64 * MIB)?;
        Ok(Vec::new())
    }

    fn look(&self, daemon: &Daemon) -> anyhow::Result<Vec<Check>> {
        let status = daemon.request(&json!({"request": "status"}));
        let limit = daemon.set_limit(NEWCOMER.uid, 64 * MIB);
        let lease = lease_as(&daemon.lease_socket(), BYSTANDER.uid);
        let found = |result: &anyhow::Result<()>| match result {
            Ok(()) => "done".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        Ok(vec![
            Check::new("root-is-served", status.is_ok(), found(&status.map(drop))),
            Check::new("root-sets-limits", limit.is_ok(), found(&limit)),
            Check::new("others-lease", lease.is_ok(), found(&lease)),
        ])
    }
}

/// As [`Resources`], for an attack with files, on sockets that refuse them, or as before Linux
/// 6.16.
struct FilesToSockets {
    rights: PassRights,
}

impl Witness for FilesToSockets {
    fn prepare(&self, daemon: &Daemon) -> anyhow::Result<Vec<Child>> {
        if self.rights == PassRights::Accepted {
            daemon.accept_files()?;
        }
        Resources.prepare(daemon)
    }

    fn look(&self, daemon: &Daemon) -> anyhow::Result<Vec<Check>> {
        Resources.look(daemon)
    }
}

/// As [`Resources`], for an attack with subordinate uids.
struct SubordinateUids;

impl Witness for SubordinateUids {
    fn prepare(&self, daemon: &Daemon) -> anyhow::Result<Vec<Child>> {
        Resources.prepare(daemon)
    }

    fn begun(&self, attack: &mut Child) -> anyhow::Result<()> {
        let mut stdout = map_namespace(attack)?;
        stdout.read_exact(&mut [0]).context("the attack ended before its time")
    }

    fn look(&self, daemon: &Daemon) -> anyhow::Result<Vec<Check>> {
        Resources.look(daemon)
    }
}

/// Checks that another user is served, and that its program lives, which forks with memory that
/// counts for each process until it is measured.
struct HungExec;

impl Witness for HungExec {
    fn prepare(&self, daemon: &Daemon) -> anyhow::Result<Vec<Child>> {
        daemon.set_limit(BYSTANDER.uid, 400 * MIB)?;
        Ok(Vec::new())
    }

    fn look(&self, daemon: &Daemon) -> anyhow::Result<Vec<Check>> {
        let program = crate::run::programs().join("forks");
        let forks = BYSTANDER.command(program).args(["-", "4", "220"]).output()?;
        let forked = format!("{}", forks.status);
        let mut checks = vec![Check::new("others-fork", forks.status.success(), forked)];
        checks.extend(Resources.look(daemon)?);
        Ok(checks)
    }
}

/// Sends a request on the lease socket as another user.
fn lease_as(socket: &Path, uid: Uid) -> anyhow::Result<()> {
    let socket = socket.to_owned();
    let attempt = test_support::spawn_as(uid, move || {
        let flags = SocketFlags::CLOEXEC;
        let fd: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let patience = Some(Duration::from_secs(2));
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, patience)?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, patience)?;
        connect(&fd, &SocketAddrUnix::new(&socket)?)?;
        // Anything but a hello: a daemon with a free slot replies that the request is invalid.
        send(&fd, &[0; 40], SendFlags::NOSIGNAL).context("it is turned away")?;
        let mut reply = [0u8; 32];
        let (len, _) = recv(&fd, &mut reply[..], RecvFlags::empty()).context("no reply")?;
        let status = reply.first_chunk::<4>().map(|status| u32::from_ne_bytes(*status));
        const TOO_MANY_CLIENTS: u32 = 6;
        ensure!(len == 32 && status != Some(TOO_MANY_CLIENTS), "there is no room for it");
        Ok(())
    });
    attempt.join().unwrap_or_else(|_| anyhow::bail!("the thread panicked"))
}

/// Checks that the records of another user's kills are kept.
struct History;

impl History {
    fn records(daemon: &Daemon) -> anyhow::Result<usize> {
        Ok(daemon.decisions(|uid| BYSTANDER.has(uid))?.len())
    }
}

impl Witness for History {
    fn prepare(&self, daemon: &Daemon) -> anyhow::Result<Vec<Child>> {
        daemon.set_limit(BYSTANDER.uid, 8 * MIB)?;
        let program = crate::run::programs().join("many_kills");
        let mut kills = BYSTANDER.command(program).args(["-", "10", "32", "3"]).spawn()?;
        ensure!(kills.wait()?.success(), "no process of the bystander was killed");
        ensure!(Self::records(daemon)? == 3, "{} records of the bystander", Self::records(daemon)?);
        Ok(Vec::new())
    }

    fn after(&self, daemon: &Daemon) -> anyhow::Result<Vec<Check>> {
        let left = Self::records(daemon)?;
        let found = format!("{left} of 3 records of another user are left");
        Ok(vec![Check::new("others-records", left == 3, found)])
    }
}
