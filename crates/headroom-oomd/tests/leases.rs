//! Memory that a real daemon leases to real processes.

mod support;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use control::Uid;
use control::lease::{Request, VERSION};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use support::daemon::Daemon;
use support::leaser::Leaser;
use support::{MIB, eventually, privileged};

const LIMIT_MIB: u64 = 64;

fn config(uid: Uid) -> String {
    format!("[[limit]]\nuser = {uid}\nhard = \"{LIMIT_MIB}M\"\n")
}

fn daemon(uid: Uid) -> Daemon {
    Daemon::start(&config(uid), &[])
}

/// Checks that no process was killed, and that the usage never exceeded the limit.
fn assert_limit_held_without_kills(daemon: &Daemon, uid: Uid) {
    assert!(daemon.why(uid).is_empty(), "{:#?}", daemon.why(uid));
    let limit = daemon.limit(uid).unwrap();
    assert!(limit.peak_bytes <= limit.hard_bytes, "{limit:?}");
}

const ALL: &str = "fill 1000000";

#[test]
fn reserved_memory_can_be_touched_after_another_process_took_the_rest() {
    if !privileged() {
        return;
    }
    let uid = Uid(63_101);
    let daemon = daemon(uid);
    let mut sleeper = Leaser::start(uid, &daemon.lease_socket());
    let mut filler = Leaser::start(uid, &daemon.lease_socket());
    let block = 40 * MIB;
    assert_eq!(sleeper.request(&format!("allocate {block}")), 1);
    assert!(daemon.limit(uid).unwrap().leased_bytes >= block);
    let pieces = filler.request(ALL);
    assert!(pieces > 0 && pieces * 4096 < LIMIT_MIB * MIB - block, "{pieces} pieces");
    assert_eq!(sleeper.request("touch 0"), 1);
    assert!(sleeper.is_alive() && filler.is_alive());
    let limit = daemon.limit(uid).unwrap();
    assert!(limit.peak_bytes > limit.hard_bytes / 100 * 95, "{limit:?}");
    assert_limit_held_without_kills(&daemon, uid);
}

#[test]
fn a_reservation_is_kept_until_it_is_used_and_goes_back_when_it_is_released() {
    if !privileged() {
        return;
    }
    let uid = Uid(63_102);
    let daemon = daemon(uid);
    let mut holder = Leaser::start(uid, &daemon.lease_socket());
    let mut other = Leaser::start(uid, &daemon.lease_socket());
    assert_eq!(holder.request(&format!("reserve {}", 50 * MIB)), 1);
    assert_eq!(other.request(&format!("allocate {}", 20 * MIB)), 0, "it is reserved already");
    assert!(other.request("headroom 0") < 14 * MIB);
    assert_eq!(holder.request("release 0"), 1);
    assert_eq!(other.request(&format!("allocate {}", 20 * MIB)), 1, "it was released");
    assert_eq!(holder.request(&format!("reserve {}", 30 * MIB)), 1);
    other.order(ALL);
    other.answer().unwrap();
    assert_eq!(holder.request("commit 0"), 1);
    let pieces = holder.request(&format!("fill {}", 29 * MIB / 4096));
    assert_eq!(pieces, 29 * MIB / 4096, "what was reserved cannot be refused");
    assert_limit_held_without_kills(&daemon, uid);
}

#[test]
fn a_lease_ends_with_its_process_within_ten_milliseconds_in_every_state() {
    if !privileged() {
        return;
    }
    let uid = Uid(63_103);
    let daemon = daemon(uid);
    let states = [
        vec![],
        vec![format!("allocate {}", 40 * MIB)],
        vec![format!("reserve {}", 40 * MIB)],
        vec![format!("reserve {}", 40 * MIB), "commit 0".to_owned()],
        vec![format!("allocate {}", 40 * MIB), "touch 0".to_owned()],
        vec![ALL.to_owned()],
    ];
    for state in &states {
        let mut leaser = Leaser::start(uid, &daemon.lease_socket());
        for order in state {
            assert!(leaser.request(order) > 0, "{order}");
        }
        leaser.kill();
        eventually("the lease is back", || {
            let limit = daemon.limit(uid).unwrap();
            (limit.leaseholders == 0 && limit.leased_bytes == 0).then_some(())
        });
    }
    // Kills the client while its requests are in progress.
    for _ in 0..10 {
        let mut leaser = Leaser::start(uid, &daemon.lease_socket());
        leaser.order(ALL);
        std::thread::sleep(Duration::from_millis(3));
        leaser.kill();
        eventually("the lease is back", || {
            let limit = daemon.limit(uid).unwrap();
            (limit.leaseholders == 0 && limit.leased_bytes == 0).then_some(())
        });
    }
    assert_limit_held_without_kills(&daemon, uid);
}

#[test]
fn reservations_outlive_a_killed_daemon() {
    if !privileged() {
        return;
    }
    let uid = Uid(63_104);
    let mut daemon = daemon(uid);
    let mut sleeper = Leaser::start(uid, &daemon.lease_socket());
    assert_eq!(sleeper.request(&format!("allocate {}", 40 * MIB)), 1);
    let mut filler = Leaser::start(uid, &daemon.lease_socket());
    let mut late = Leaser::start(uid, &daemon.lease_socket());
    filler.order(ALL);
    daemon.replace(&config(uid), Duration::from_millis(50));
    // The sleeper has sent no request to the new daemon.
    let pieces: u64 = filler.answer().expect("it lives").parse().unwrap();
    late.request(ALL);
    assert!(pieces * 4096 < 24 * MIB, "{pieces} pieces");
    assert_eq!(sleeper.request("touch 0"), 1);
    assert!(sleeper.is_alive() && filler.is_alive() && late.is_alive());
    assert_limit_held_without_kills(&daemon, uid);
}

#[test]
fn without_a_daemon_limited_processes_do_not_grow() {
    if !privileged() {
        return;
    }
    let uid = Uid(63_105);
    let daemon = daemon(uid);
    let mut leaser = Leaser::start(uid, &daemon.lease_socket());
    assert_eq!(leaser.request(&format!("allocate {}", 10 * MIB)), 1);
    drop(daemon);
    // The client waits for the next daemon for a while, and then fails.
    let got = leaser.request(ALL) * 4096;
    assert!(got <= 16 * MIB, "{got} bytes, more than any batch");
    assert_eq!(leaser.request("touch 0"), 1, "what it has, it has");
}

#[test]
fn a_waiting_client_is_served_when_another_releases_or_exits() {
    if !privileged() {
        return;
    }
    let uid = Uid(63_106);
    let daemon = daemon(uid);
    let mut holder = Leaser::start(uid, &daemon.lease_socket());
    let mut waiter = Leaser::start(uid, &daemon.lease_socket());
    for give_back in [true, false] {
        assert_eq!(holder.request(&format!("allocate {}", 40 * MIB)), 1);
        let waiting = format!("reserve-within-10s {}", 40 * MIB);
        waiter.order(&waiting);
        std::thread::sleep(Duration::from_millis(100));
        if give_back {
            assert_eq!(holder.request("free 0"), 1);
        } else {
            holder.kill();
        }
        assert_eq!(waiter.answer().as_deref(), Some("1"));
        assert_eq!(waiter.request("release 0"), 1);
    }
    assert_limit_held_without_kills(&daemon, uid);
}

#[test]
fn a_user_without_a_limit_gets_all_it_wants_until_it_has_one() {
    if !privileged() {
        return;
    }
    let uid = Uid(63_108);
    let daemon = Daemon::start("", &[]);
    let mut leaser = Leaser::start(uid, &daemon.lease_socket());
    assert_eq!(leaser.request(&format!("fill {}", 100 * MIB / 4096)), 100 * MIB / 4096);
    daemon.set_limit(uid, 150 * MIB);
    let more = leaser.request(ALL) * 4096;
    assert!(more < 50 * MIB && more > 40 * MIB, "{more}");
    assert!(leaser.is_alive());
    let limit = daemon.limit(uid).unwrap();
    assert!(limit.peak_bytes <= limit.hard_bytes, "{limit:?}");
    assert!(daemon.why(uid).is_empty());
}

/// Runs a program of a limited user with the preloaded library; `None` if the program is missing.
fn preloaded(daemon: &Daemon, uid: Uid, program: &str, arguments: &[&str]) -> Option<String> {
    use std::os::unix::process::CommandExt;
    const NAME: &str = "libtmalloc_preload.so";
    if !std::path::Path::new(program).exists() {
        test_support::skip(format_args!("{program} is missing"));
        return None;
    }
    // A directory that any user can access.
    let library = daemon.lease_socket().with_file_name(NAME);
    std::fs::copy(test_support::programs::library(NAME), &library).unwrap();
    let mut command = std::process::Command::new(program);
    command.args(arguments).env("LD_PRELOAD", library).current_dir("/").uid(uid.0);
    let output = command.env("HEADROOM_LEASE_SOCKET", daemon.lease_socket()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[test]
fn an_unmodified_program_gets_enomem_before_the_limit() {
    if !privileged() {
        return;
    }
    let uid = Uid(63_109);
    let daemon = daemon(uid);
    let script = "a = []\ntry:\n    while True: a.append(bytearray(1 << 20))\n\
                  except MemoryError: print(len(a))";
    let Some(mib) = preloaded(&daemon, uid, "/usr/bin/python3.11", &["-c", script]) else { return };
    let mib: u64 = mib.parse().unwrap();
    assert!((LIMIT_MIB / 2..LIMIT_MIB).contains(&mib), "{mib} MiB");
    assert_limit_held_without_kills(&daemon, uid);
    let script = "import mmap\ntry:\n    \
                  mmap.mmap(-1, 100 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
                  except OSError as e: print(e.errno)";
    let errno = preloaded(&daemon, uid, "/usr/bin/python3.11", &["-c", script]);
    assert_eq!(errno.as_deref(), Some("12"), "ENOMEM");
    assert_limit_held_without_kills(&daemon, uid);
}

#[test]
fn one_user_cannot_open_so_many_connections_that_others_get_none() {
    if !privileged() {
        return;
    }
    let (uid, other) = (Uid(63_110), Uid(63_111));
    let daemon = Daemon::start(&format!("{}{}", config(uid), config(other)), &[]);
    let socket = daemon.lease_socket();
    let connect_all = move || (0..600).filter_map(|_| connected(&socket)).collect::<Vec<_>>();
    let held = test_support::spawn_as(uid, connect_all).join().unwrap();
    assert_eq!(held.len(), 600, "each waits until the daemon takes it");
    assert_gets_a_lease(&daemon, other);
}

/// A connection to the lease socket, if the daemon accepts one more.
fn connected(socket: &Path) -> Option<OwnedFd> {
    // Waits for a place in the queue of the socket: a busy machine accepts later.
    let flags = SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    connect(&fd, &SocketAddrUnix::new(socket).unwrap()).ok().map(|()| fd)
}

fn assert_gets_a_lease(daemon: &Daemon, uid: Uid) {
    let mut leaser = Leaser::start(uid, &daemon.lease_socket());
    assert_eq!(leaser.request(&format!("allocate {}", 10 * MIB)), 1);
    assert_eq!(daemon.limit(uid).unwrap().leaseholders, 1);
}

/// How often the work of [`others_get_leases_beside`] must have been done to be a flood.
const FLOOD: usize = 1_000;

/// Another user gets leases, again and again, while a thread of `uid` does `work` on its
/// connections to the lease socket, until that is a flood on a slow machine, too. Returns how often
/// it was done.
fn others_get_leases_beside(uid: Uid, work: fn(&Path, &mut Vec<OwnedFd>) -> usize) -> usize {
    let other = Uid(uid.0 + 1);
    let daemon = Daemon::start(&format!("{}{}", config(uid), config(other)), &[]);
    let (socket, done) = (daemon.lease_socket(), Arc::new(AtomicBool::new(false)));
    let count = Arc::new(AtomicUsize::new(0));
    let (is_done, counted) = (Arc::clone(&done), Arc::clone(&count));
    let flood = test_support::spawn_as(uid, move || {
        let mut connections = Vec::new();
        while !is_done.load(Ordering::Relaxed) {
            counted.fetch_add(work(&socket, &mut connections), Ordering::Relaxed);
        }
    });
    let end = Instant::now() + Duration::from_secs(60);
    let is_flood = || count.load(Ordering::Relaxed) > FLOOD || Instant::now() > end;
    for number in 0.. {
        if number >= 30 && is_flood() {
            break;
        }
        assert_gets_a_lease(&daemon, other);
    }
    done.store(true, Ordering::Relaxed);
    flood.join().unwrap();
    count.load(Ordering::Relaxed)
}

#[test]
fn a_user_that_floods_the_lease_socket_leaves_time_to_others() {
    if !privileged() {
        return;
    }
    let answered = others_get_leases_beside(Uid(63_112), |socket, connections| {
        if connections.len() < 64 {
            connections.extend(connected(socket));
        }
        // Refused, as the process is root's, and so no client.
        let hello = Request::Hello { version: VERSION, spent: 0, unspent: 0, base: 0 }.encode();
        let mut answered = 0;
        connections.retain(|connection| {
            while send(connection, &hello, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok() {}
            loop {
                match recv(connection, &mut [0_u8; 64][..], RecvFlags::DONTWAIT) {
                    Ok((0, _)) => return false,
                    Ok(_) => answered += 1,
                    Err(error) => return error == rustix::io::Errno::AGAIN,
                }
            }
        });
        answered
    });
    assert!(answered > FLOOD, "no flood: {answered} answers");
}

#[test]
fn a_user_that_connects_all_the_time_leaves_lease_connections_to_others() {
    if !privileged() {
        return;
    }
    let made =
        others_get_leases_beside(Uid(63_114), |socket, _| usize::from(connected(socket).is_some()));
    assert!(made > FLOOD, "no flood: {made} connections");
}
