//! Idle buffers' memory is reclaimed without an effect on clients.

use std::time::{Duration, Instant};

use binder_client::{Client, Options, Payload, Session, Sharing};
use control::Uid;
use control::binderd::{Device, Process, Reclaimed, Reply, Request, Status};
use e2e::{Bus, wait};

use crate::support::{expect_echo, find, manager, open, peer};

crate::both_mappings! {
    two_hundred_idle_clients_give_their_memory_back_and_go_on
    buffers_in_use_stay_when_idle_memory_is_reclaimed
    only_root_may_have_memory_given_back
    shared_mappings_that_their_clients_modify_do_not_delay_the_reclaim
}

const CLIENTS: usize = 200;
/// Several pages, of which the last is not full.
const ECHO_BYTES: usize = 5 * 4096 + 100;

fn status(bus: &Bus) -> Status {
    bus.status().unwrap()
}

/// Reclaims as much as possible, batch by batch; returns the number of pages.
fn reclaim(bus: &Bus) -> u64 {
    let mut all = 0;
    loop {
        match bus.request(Request::Reclaim { pages: u64::MAX }).unwrap() {
            Reply::Reclaimed(Reclaimed { pages: 0, .. }) => return all,
            Reply::Reclaimed(Reclaimed { pages, .. }) => {
                assert!(pages <= 64, "{pages} pages in one go: others wait that long");
                all += pages;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Shared memory that the daemon has mapped, bytes: the receive buffers, if clients map one of its
/// files.
fn shared_memory_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn two_hundred_idle_clients_give_their_memory_back_and_go_on(bus: &Bus) {
    let _manager = manager(bus);
    let _service = peer(bus, &["echo", "echo"]);
    let clients: Vec<_> = (0..CLIENTS).map(|_| open(bus)).collect();
    let mut sessions: Vec<_> = clients.iter().map(Session::new).collect();
    let data: Vec<u8> = (0..ECHO_BYTES).map(|at| at as u8).collect();
    let handles: Vec<u32> = sessions.iter_mut().map(|session| find(session, "echo")).collect();
    for (session, &handle) in sessions.iter_mut().zip(&handles) {
        expect_echo(session, handle, &data);
    }
    let (before, shared_before) = (status(bus), shared_memory_of(bus.pid()));
    let idle_or_reclaimed = before.idle_pages + before.reclaimed_pages;
    assert!(idle_or_reclaimed >= CLIENTS as u64 * 5, "{before:?}");
    let given = reclaim(bus);
    let (after, shared_after) = (status(bus), shared_memory_of(bus.pid()));
    // The daemon reclaims by itself as well while the machine stalls.
    let reclaimed = after.reclaimed_pages - before.reclaimed_pages;
    assert_eq!((reclaimed, after.idle_pages), (before.idle_pages, 0));
    assert_eq!(after.touched_pages, before.touched_pages - reclaimed);
    assert!(given <= reclaimed, "{given} of {reclaimed} pages");
    if before.mapping == "passthrough" {
        let back = shared_before - shared_after;
        assert!(back >= reclaimed * 4096, "{back} bytes of {reclaimed} pages are back");
    }
    for (session, &handle) in sessions.iter_mut().zip(&handles) {
        expect_echo(session, handle, &data);
    }
}

fn buffers_in_use_stay_when_idle_memory_is_reclaimed(bus: &Bus) {
    let _manager = manager(bus);
    let _service = peer(bus, &["echo", "echo"]);
    let client = open(bus);
    let mut session = Session::new(&client);
    let handle = find(&mut session, "echo");
    let data: Vec<u8> = (0..ECHO_BYTES).map(|at| (at / 7) as u8).collect();
    // Two replies; one is kept while the memory of the other is reclaimed.
    let first = session.call(handle, 1, binder_client::Payload::bytes(&data)).unwrap();
    let kept = first.data().unwrap().as_ptr() as usize;
    let second = session.call(handle, 1, binder_client::Payload::bytes(&data)).unwrap();
    session.free(second);
    session.flush().unwrap();
    assert!(reclaim(bus) >= 5);
    assert_eq!(first.data().unwrap().as_ptr() as usize, kept);
    assert!(first.data().unwrap() == data, "a page in use was emptied");
    session.free(first);
    session.flush().unwrap();
    expect_echo(&mut session, handle, &data);
}

/// The kernel writes a modified page back before it drops it, so an invalidation waits for the
/// daemon's answer to a WRITE.
fn shared_mappings_that_their_clients_modify_do_not_delay_the_reclaim(bus: &Bus) {
    const MODIFIERS: usize = 20;
    /// The page server takes over after 10 ms, once for each open.
    const LONGEST: Duration = Duration::from_secs(30);
    let _manager = manager(bus);
    let _service = peer(bus, &["echo", "echo"]);
    let options = Options { sharing: Sharing::Shared, ..Options::default() };
    let clients: Vec<_> =
        (0..MODIFIERS).map(|_| Client::open(bus.device("binder"), &options).unwrap()).collect();
    let mut sessions: Vec<_> = clients.iter().map(Session::new).collect();
    let data = [3; ECHO_BYTES];
    let handles: Vec<u32> = sessions.iter_mut().map(|session| find(session, "echo")).collect();
    for _ in 0..2 {
        for (session, &handle) in sessions.iter_mut().zip(&handles) {
            expect_echo(session, handle, &data);
        }
        clients.iter().for_each(modify_mapping);
        let begun = Instant::now();
        let pages = reclaim(bus);
        assert!(pages >= MODIFIERS as u64 * 5, "{pages}");
        assert!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
    }
    let reply = sessions[0].call(handles[0], 1, Payload::bytes(&data)).unwrap();
    assert!(reply.data().unwrap() == data);
}

/// Makes a shared mapping writable, and writes to its first pages.
fn modify_mapping(client: &Client) {
    let (address, len) = client.mapping().unwrap();
    let at = address as *mut libc::c_void;
    // SAFETY: the mapping is the client's own, and no view of it exists.
    unsafe {
        assert_eq!(libc::mprotect(at, len, libc::PROT_READ | libc::PROT_WRITE), 0);
        (0..8).for_each(|page| at.cast::<u8>().add(page * 4096).write_volatile(0xee));
        assert_eq!(libc::mprotect(at, len, libc::PROT_READ), 0);
    }
}

fn only_root_may_have_memory_given_back(bus: &Bus) {
    // As nobody: the socket permits all users.
    let socket = bus.socket().to_owned();
    let refused = test_support::spawn_as(Uid(65534), move || {
        let mut client = control::Client::connect(&socket).unwrap();
        client.call::<Reply>(&Request::Reclaim { pages: 1 }).unwrap()
    });
    let reply = refused.join().unwrap();
    assert!(
        matches!(&reply, Reply::Error { message } if message.contains("only root")),
        "{reply:?}"
    );
}

/// On a separate bus, with a daemon for which memory is always short.
#[test]
fn idle_buffers_are_reclaimed_when_memory_is_short() {
    let started = Bus::start_with(e2e::Mapping::Auto, |command| {
        command.args(["--low-memory", "100"]);
    });
    let mut bus = match started {
        Ok(bus) => bus,
        Err(e2e::BusError::Unavailable(reason)) => return test_support::skip(reason),
        Err(e2e::BusError::Broken(fault)) => panic!("{fault}"),
    };
    bus.limit_time(Duration::from_secs(300));
    let _manager = manager(&bus);
    let _service = peer(&bus, &["echo", "echo"]);
    let client = binder_client::Client::open(bus.device("binder"), &Options::default()).unwrap();
    let mut session = Session::new(&client);
    let handle = find(&mut session, "echo");
    expect_echo(&mut session, handle, &[1; ECHO_BYTES]);
    let idle = |devices: &[Device]| {
        let processes = devices.iter().flat_map(|device| &device.processes);
        processes.map(|process: &Process| process.buffers.idle_pages).sum::<u32>()
    };
    wait::until(wait::PATIENCE, || (idle(&bus.ls().unwrap()) == 0).then_some(()))
        .unwrap_or_else(|| panic!("idle memory stays: {:?}", bus.ls()));
    assert!(status(&bus).reclaimed_pages >= 5);
    expect_echo(&mut session, handle, &[2; ECHO_BYTES]);
}
