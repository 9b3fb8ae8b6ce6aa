//! All attacks.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, ensure};
use harness::MIB;
use harness::daemon::Daemon;
use harness::outcome::Check;
use harness::users::map_subordinate;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with, sockopt,
};
use serde_json::json;

use crate::attack::{ATTACKER, Attack, BYSTANDER, NEWCOMER, Witness};

/// Every attack, as observed from an ordinary account.
pub const ALL: &[Attack] = &[
    Attack {
        name: "clone-vm-decoys",
        program: "clone_vm_decoys",
        limit_mib: 128,
        seconds: 6,
        arguments: |_| vec!["700".into()],
        witness: &Nothing,
    },
    Attack {
        name: "held-at-exit",
        program: "held_at_exit",
        limit_mib: 256,
        seconds: 10,
        arguments: |_| vec!["900".into()],
        witness: &Nothing,
    },
    Attack {
        name: "memfd-written",
        program: "memfd_written",
        limit_mib: 64,
        seconds: 4,
        arguments: |_| vec!["400".into()],
        witness: &Nothing,
    },
    Attack {
        name: "page-tables",
        program: "page_tables",
        limit_mib: 64,
        seconds: 4,
        arguments: |_| vec!["300".into()],
        witness: &Nothing,
    },
    Attack {
        name: "main-thread-exited",
        program: "main_thread_exited",
        limit_mib: 100,
        seconds: 4,
        arguments: |_| vec!["300".into()],
        witness: &Nothing,
    },
    Attack {
        name: "connections",
        program: "subordinate_uids",
        limit_mib: 64,
        seconds: 4,
        arguments: |daemon| subordinate(daemon, "connections"),
        witness: &SubordinateUids,
    },
    Attack {
        name: "self-set-limits",
        program: "subordinate_uids",
        limit_mib: 64,
        seconds: 12,
        arguments: |daemon| subordinate(daemon, "limits"),
        witness: &SubordinateUids,
    },
    Attack {
        name: "lease-connections",
        program: "subordinate_uids",
        limit_mib: 64,
        seconds: 5,
        arguments: |daemon| subordinate(daemon, "leases"),
        witness: &SubordinateUids,
    },
    Attack {
        name: "pipelined-run-oom-killer",
        program: "pipelined_run",
        limit_mib: 64,
        seconds: 6,
        arguments: |_| vec!["100".into()],
        witness: &Resources,
    },
    Attack {
        name: "explain-flood",
        program: "explain_flood",
        limit_mib: 256,
        seconds: 5,
        arguments: |_| vec!["200".into()],
        witness: &Resources,
    },
    Attack {
        name: "soft-limit-oscillation",
        program: "oscillation",
        limit_mib: 64,
        seconds: 5,
        arguments: |_| vec!["48".into()],
        witness: &Nothing,
    },
    Attack {
        name: "history-eviction",
        program: "many_kills",
        limit_mib: 8,
        seconds: 40,
        arguments: |_| vec!["32".into(), "1100".into()],
        witness: &History,
    },
];

fn subordinate(daemon: &Daemon, what: &str) -> Vec<String> {
    let lease_socket = daemon.lease_socket().display().to_string();
    vec![what.into(), lease_socket, ATTACKER.subordinate.to_string()]
}

/// Nothing but the attack.
struct Nothing;

impl Witness for Nothing {}

/// Whether others still get what they are entitled to.
struct Resources;

impl Witness for Resources {
    fn prepare(&self, daemon: &Daemon) -> anyhow::Result<()> {
        daemon.set_limit(BYSTANDER.uid, 64 * MIB)
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

/// The same, for an attack with subordinate uids.
struct SubordinateUids;

impl Witness for SubordinateUids {
    fn prepare(&self, daemon: &Daemon) -> anyhow::Result<()> {
        Resources.prepare(daemon)
    }

    fn begun(&self, attack: &mut Child) -> anyhow::Result<()> {
        let pid = attack.id();
        let mut stdin = attack.stdin.take().context("no standard input")?;
        let mut stdout = attack.stdout.take().context("no standard output")?;
        let mut byte = [0];
        stdout.read_exact(&mut byte).context("the attack did not make its namespace")?;
        map_subordinate(pid, ATTACKER).context("cannot map subordinate uids")?;
        stdin.write_all(b"m")?;
        stdout.read_exact(&mut byte).context("the attack ended before its time")
    }

    fn look(&self, daemon: &Daemon) -> anyhow::Result<Vec<Check>> {
        Resources.look(daemon)
    }
}

/// Introduces itself on the lease socket as another user. A thread has its own credentials, as far
/// as the kernel is concerned.
fn lease_as(socket: &Path, uid: u32) -> anyhow::Result<()> {
    let socket = socket.to_owned();
    let attempt = std::thread::spawn(move || {
        let user = rustix::process::Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(user, user, user)?;
        let flags = SocketFlags::CLOEXEC;
        let fd: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let patience = Some(Duration::from_secs(2));
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, patience)?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, patience)?;
        connect(&fd, &SocketAddrUnix::new(&socket)?)?;
        // Anything but a hello: a daemon that has room says that it makes no sense.
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

/// Whether the records of another user's kills are kept.
struct History;

impl History {
    fn records(daemon: &Daemon) -> anyhow::Result<usize> {
        Ok(daemon.decisions(|uid| BYSTANDER.has(uid))?.len())
    }
}

impl Witness for History {
    fn prepare(&self, daemon: &Daemon) -> anyhow::Result<()> {
        daemon.set_limit(BYSTANDER.uid, 8 * MIB)?;
        let program = crate::run::programs().join("many_kills");
        let mut kills = BYSTANDER.command(program).args(["-", "10", "32", "3"]).spawn()?;
        ensure!(kills.wait()?.success(), "no process of the bystander was killed");
        ensure!(Self::records(daemon)? == 3, "{} records of the bystander", Self::records(daemon)?);
        Ok(())
    }

    fn after(&self, daemon: &Daemon) -> anyhow::Result<Vec<Check>> {
        let left = Self::records(daemon)?;
        let found = format!("{left} of 3 records of another user are left");
        Ok(vec![Check::new("others-records", left == 3, found)])
    }
}
