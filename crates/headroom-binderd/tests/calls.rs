//! Calls between processes over a real mount.
#![allow(missing_docs)]

mod common;
#[cfg(target_arch = "x86_64")]
mod compat;

use std::os::fd::AsFd;

use binder_client::{
    Answer, Call, Client, ClientError, Echo, Errno, Options, Parcel, Payload, Received, Service,
    Session,
};
use binder_uapi::{BinderWriteRead, TF_ACCEPT_FDS};
use common::{Daemon, cannot_mount, gettid, open, wait_for, wait_for_end};

/// Ends the role `echo`.
const STOP: u32 = 99;
const MAPPINGS: [&str; 2] = ["passthrough", "notify-store"];

fn manager(device: &std::path::Path) -> Client {
    let client = open(device);
    client.become_context_manager().unwrap();
    client
}

/// Stops an echo service.
fn stop(session: &mut Session<'_>) {
    let reply = session.call(0, STOP, Payload::default()).unwrap();
    session.free(reply);
    session.flush().unwrap();
}

#[test]
fn a_call_between_two_processes_comes_back_with_its_data() {
    if cannot_mount() {
        return;
    }
    for mapping in MAPPINGS {
        let daemon = Daemon::start_with(&["--mapping", mapping]);
        assert_eq!(daemon.status().mapping, mapping);
        let mut server = daemon.client("echo");
        let client = open(daemon.binder());
        let mut session = Session::new(&client);
        for len in [0, 1, 4, 4095, 4096, 4097, 65536, 400_000] {
            let data: Vec<u8> = (0..len).map(|i: u32| (i * 7 + len) as u8).collect();
            let reply = session.call(0, 1, Payload::bytes(&data)).unwrap();
            assert!(reply.data().unwrap() == data, "{len} bytes by {mapping} differ");
            session.free(reply);
        }
        assert_eq!(daemon.status().transactions, 8);
        stop(&mut session);
        assert!(wait_for_end(&mut server).success());
        daemon.wait_until_gone(server.pid());
    }
}

#[test]
fn calls_fail_once_execve_has_removed_the_receivers_mapping() {
    if cannot_mount() {
        return;
    }
    for mapping in MAPPINGS {
        let daemon = Daemon::start_with(&["--mapping", mapping]);
        let mut server = daemon.client("echo-then-exec");
        let client = open(daemon.binder());
        let mut session = Session::new(&client);
        let reply = session.call(0, 1, Payload::bytes(b"before")).unwrap();
        assert_eq!(reply.data().unwrap(), b"before");
        session.free(reply);
        stop(&mut session);
        assert_eq!(server.answer().as_deref(), Some("replaced"));
        daemon.wait_until_blocked(server.pid());
        std::thread::sleep(std::time::Duration::from_millis(5));
        for _ in 0..2 {
            let called = session.call(0, 1, Payload::bytes(b"after"));
            assert!(matches!(called, Err(ClientError::DeadReply)), "{mapping}: {called:?}");
            let sent = session.oneway(0, 1, Payload::bytes(b"after"));
            assert!(matches!(sent, Err(ClientError::DeadReply)), "{mapping}: {sent:?}");
        }
    }
}

#[test]
fn buffers_are_reused_and_show_what_was_sent_last() {
    if cannot_mount() {
        return;
    }
    for mapping in MAPPINGS {
        let daemon = Daemon::start_with(&["--mapping", mapping]);
        let _server = daemon.client("echo");
        let client = open(daemon.binder());
        let mut session = Session::new(&client);
        for round in 0..2000_u32 {
            let data = [round as u8; 100];
            let reply = session.call(0, 1, Payload::bytes(&data)).unwrap();
            assert_eq!(reply.data().unwrap(), data, "round {round} by {mapping}");
            session.free(reply);
        }
        stop(&mut session);
    }
}

#[test]
fn pages_that_the_cache_dropped_come_back() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start_with(&["--mapping", "notify-store"]);
    let _server = daemon.client("echo");
    let client = open(daemon.binder());
    let mut session = Session::new(&client);
    let data: Vec<u8> = (0..50_000_u32).map(|i| (i / 3) as u8).collect();
    for round in 0..50 {
        let reply = session.call(0, 1, Payload::bytes(&data)).unwrap();
        rustix::fs::fadvise(client.as_fd(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if round % 2 == 0 {
            assert!(reply.data().unwrap() == data, "round {round}");
        }
        // Sent directly from the receive buffer; in the odd rounds its pages were not accessed
        // before: the daemon's own copy faults, and the page must come from the daemon.
        let again = Payload::bytes(reply.data().unwrap());
        let second = session.call(0, 1, again).unwrap();
        assert!(second.data().unwrap() == data, "round {round}");
        session.free(second);
        session.free(reply);
    }
    stop(&mut session);
}

#[test]
fn a_mapping_is_found_wherever_it_lies_and_a_missing_one_fails_the_call_alone() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let _server = daemon.client("echo");
    let unmapped =
        Client::open(daemon.binder(), &Options { map_len: 0, ..Options::default() }).unwrap();
    let mut session = Session::new(&unmapped);
    let failed = session.call(0, 1, Payload::bytes(b"x")).unwrap_err();
    assert!(matches!(failed, ClientError::DeadReply | ClientError::FailedReply), "{failed}");

    let mapped =
        Client::open(daemon.binder(), &Options { map_len: 4096, ..Options::default() }).unwrap();
    let mut session = Session::new(&mapped);
    let reply = session.call(0, 1, Payload::bytes(b"small")).unwrap();
    assert_eq!(reply.data().unwrap(), b"small");
    session.free(reply);
    let too_much = session.call(0, 1, Payload::bytes(&[0; 8192])).unwrap_err();
    assert_eq!(too_much, ClientError::FailedReply);
    stop(&mut session);
}

#[test]
fn a_writable_mapping_gets_nothing() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let _server = daemon.client("echo");
    let options = Options { map_writable: true, ..Options::default() };
    let client = Client::open(daemon.binder(), &options).unwrap();
    let mut session = Session::new(&client);
    let failed = session.call(0, 1, Payload::bytes(b"x")).unwrap_err();
    assert!(matches!(failed, ClientError::DeadReply | ClientError::FailedReply), "{failed}");
    let good = open(daemon.binder());
    stop(&mut Session::new(&good));
}

#[test]
fn a_device_has_one_manager_and_each_device_has_its_own() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let first = manager(&daemon.binder());
    let second = open(daemon.binder());
    let refused = second.become_context_manager().unwrap_err();
    assert_eq!(refused.errno(), Some(Errno::BUSY));
    let other = manager(&daemon.mount().join("hwbinder"));
    let managers: Vec<_> = daemon.ls().iter().map(|device| device.manager).collect();
    let own = Some(std::process::id());
    assert_eq!(managers, [own, own, None]);
    drop((first, other));
    wait_for("the manager to be gone", || second.become_context_manager().ok());
}

#[test]
fn the_death_of_the_server_ends_the_call() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let mut server = daemon.client("swallow");
    let client = open(daemon.binder());
    let caller = std::thread::scope(|scope| {
        let call = scope.spawn(|| {
            let mut session = Session::new(&client);
            session.call(0, 1, Payload::bytes(b"lost")).map(drop)
        });
        assert_eq!(server.answer().unwrap(), "swallowed");
        server.child.kill().unwrap();
        wait_for_end(&mut server);
        call.join().unwrap()
    });
    assert_eq!(caller.unwrap_err(), ClientError::DeadReply);
    daemon.wait_until_gone(server.pid());
}

#[test]
fn a_client_of_another_user_calls_with_its_own_uid() {
    if cannot_mount() {
        return;
    }
    for mapping in MAPPINGS {
        let daemon = Daemon::start_with(&["--mapping", mapping]);
        let client = manager(&daemon.binder());
        let mut session = Session::new(&client);
        let mut other = daemon.client("call-as-nobody");
        let mut introduce = |_: &mut Session<'_>, incoming: &Received<'_>| {
            let data = incoming.transaction();
            let text = format!("uid {} pid {}", data.sender_euid, data.sender_pid);
            Answer::Stop(Parcel::new().bytes(text.as_bytes()))
        };
        session.serve(&mut introduce).unwrap();
        assert_eq!(other.answer().unwrap(), format!("uid 65534 pid {}", other.pid()));
        assert!(wait_for_end(&mut other).success());
    }
}

#[test]
fn receivers_see_the_effective_uid_of_the_process_that_opened_the_device() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let client = manager(&daemon.binder());
    let mut session = Session::new(&client);
    let mut caller = daemon.client("call-under-several-uids");
    let mut seen = Vec::new();
    let mut introduce = |_: &mut Session<'_>, incoming: &Received<'_>| {
        seen.push(incoming.transaction().sender_euid);
        if seen.len() == UIDS_SEEN.len() { Answer::Stop(Parcel::new()) } else { Answer::Echo }
    };
    session.serve(&mut introduce).unwrap();
    assert_eq!(caller.answer().unwrap(), "done");
    assert_eq!(seen, UIDS_SEEN);
    assert!(wait_for_end(&mut caller).success());
}

/// Sender euids that the manager receives from the role `call-under-several-uids`: the process's
/// own, the same while a thread has another one, the process's new one, and the process's own
/// restored.
const UIDS_SEEN: [u32; 4] = [0, 0, 65534, 0];

#[test]
fn commands_in_a_mapping_of_a_served_file_do_not_hang_the_bus() {
    if cannot_mount() {
        return;
    }
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let daemon = Daemon::start();
    let client = open(daemon.binder());
    for name in ["features/extended_error", "hwbinder"] {
        let file = std::fs::File::open(daemon.mount().join(name)).unwrap();
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let address = unsafe {
            mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE, &file, 0)
        }
        .unwrap();
        let mut bwr =
            BinderWriteRead { write_size: 4, write_buffer: address as u64, ..Default::default() };
        // SAFETY: nothing is read.
        let result = unsafe { client.write_read(&mut bwr) };
        assert_eq!(result, Err(Errno::INVAL), "{name}: no command looks like that");
    }
    assert_eq!(client.version(), Ok(8));
}

#[test]
fn a_fault_in_a_clients_memory_affects_that_client_only() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let _server = daemon.client("echo");
    let client = open(daemon.binder());
    for (size, buffer) in [(4, 8), (u64::MAX, 8), (4, u64::MAX - 1), (1 << 40, 0x1000)] {
        let mut bwr =
            BinderWriteRead { write_size: size, write_buffer: buffer, ..Default::default() };
        // SAFETY: nothing is read.
        let result = unsafe { client.write_read(&mut bwr) };
        assert_eq!(result, Err(Errno::FAULT), "{size} bytes at {buffer:#x}");
        assert_eq!(bwr.write_consumed, 0);
    }
    let mut session = Session::new(&client);
    let mut service = Echo;
    let call = Call { handle: 0, code: 1, flags: TF_ACCEPT_FDS, payload: Payload::bytes(b"ok") };
    let reply = session.call_with(call, &mut service as &mut dyn Service).unwrap();
    assert_eq!(reply.data().unwrap(), b"ok");
    session.free(reply);
    stop(&mut session);
}

#[test]
fn threads_of_one_open_are_served_side_by_side() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let _server = daemon.client("echo");
    let client = open(daemon.binder());
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let client = &client;
            scope.spawn(move || {
                let mut session = Session::new(client);
                for round in 0..200_u8 {
                    let data = [thread ^ round; 33];
                    let reply = session.call(0, 1, Payload::bytes(&data)).unwrap();
                    assert_eq!(reply.data().unwrap(), data);
                    session.free(reply);
                }
                session.flush().unwrap();
                gettid()
            });
        }
    });
    let mut session = Session::new(&client);
    stop(&mut session);
    wait_for("the threads to be forgotten", || {
        let opens = daemon.opens_of(std::process::id());
        (opens.len() == 1 && opens[0].threads.len() <= 1).then_some(())
    });
}
