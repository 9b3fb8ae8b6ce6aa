//! Reads that wait, and all events that end a wait.
#![allow(missing_docs)]

mod common;

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use binder_client::{Client, ClientError, Errno, Options, Payload, PollFlags, Session};
use binder_uapi::{BinderWriteRead, Command, Return};
use common::{Daemon, cannot_mount, gettid, kill, open, wait_for, wait_for_end};
use rustix::event::{Timespec, epoll};
use rustix::fs::OFlags;

/// Serialises the tests: starting a client closes the copies of our descriptors that it has
/// inherited, and a close makes the waiting readers of that open return, here as with the kernel's
/// driver.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const LONG: Duration = Duration::from_secs(20);

/// State letter of a process in /proc.
fn state_of(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[test]
fn a_client_killed_in_its_wait_is_gone_at_once() {
    if cannot_mount() {
        return;
    }
    let _alone = alone();
    let daemon = Daemon::start();
    for _ in 0..20 {
        let mut client = daemon.client("echo-tid");
        let tid: u32 = client.answer().unwrap().parse().unwrap();
        daemon.wait_until_blocked(tid);
        assert_eq!(state_of(tid), 'S', "an ordinary sleep");
        client.child.kill().unwrap();
        wait_for_end(&mut client);
        daemon.wait_until_gone(client.pid());
    }
}

#[test]
fn stopping_and_continuing_a_waiting_client_does_not_disturb_it() {
    if cannot_mount() {
        return;
    }
    let _alone = alone();
    let daemon = Daemon::start();
    let mut server = daemon.client("echo-tid");
    let tid: u32 = server.answer().unwrap().parse().unwrap();
    daemon.wait_until_blocked(tid);
    kill(server.pid() as i32, libc::SIGSTOP);
    wait_for("the server to stop", || (state_of(server.pid()) == 'T').then_some(()));
    kill(server.pid() as i32, libc::SIGCONT);
    daemon.wait_until_blocked(tid);
    let client = open(daemon.binder());
    let mut session = Session::new(&client);
    let reply = session.call(0, 1, Payload::bytes(b"still there?")).unwrap();
    assert_eq!(reply.data().unwrap(), b"still there?");
    session.free(reply);
    session.flush().unwrap();
}

static HANDLED: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

extern "C" fn count_first(_: libc::c_int) {
    HANDLED[0].fetch_add(1, SeqCst);
}

extern "C" fn count_second(_: libc::c_int) {
    HANDLED[1].fetch_add(1, SeqCst);
}

fn handle(signal: i32, handler: extern "C" fn(libc::c_int), flags: i32) {
    // SAFETY: the handler only adds to an atomic; the structure is zeroed before use.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

fn signal_thread(tid: u32, signal: i32) {
    // SAFETY: plain numbers.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, signal) };
    assert_eq!(sent, 0);
}

/// One BINDER_WRITE_READ that enters the looper and waits. If the first ioctl of a new thread is a
/// read, it returns at once: so another ioctl is made before it.
fn enter_and_read(client: &Client) -> (Result<(), Errno>, BinderWriteRead) {
    Session::new(client).write().unwrap();
    let mut commands = Vec::new();
    Command::EnterLooper.write_to(&mut commands);
    let mut returns = [0_u8; 256];
    let mut bwr = BinderWriteRead {
        write_size: commands.len() as u64,
        write_buffer: commands.as_ptr() as u64,
        read_size: returns.len() as u64,
        read_buffer: returns.as_mut_ptr() as u64,
        ..Default::default()
    };
    // SAFETY: the read buffer is ours and has this length.
    let result = unsafe { client.write_read(&mut bwr) };
    (result, bwr)
}

#[test]
fn a_signal_ends_the_wait_and_what_was_written_stays_written() {
    if cannot_mount() {
        return;
    }
    handle(libc::SIGUSR1, count_first, 0);
    let _alone = alone();
    let daemon = Daemon::start();
    let client = open(daemon.binder());
    let (tid_out, tid_in) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            tid_out.send(gettid()).unwrap();
            enter_and_read(&client)
        });
        let tid = tid_in.recv().unwrap();
        daemon.wait_until_blocked(tid);
        signal_thread(tid, libc::SIGUSR1);
        let (result, bwr) = waiter.join().unwrap();
        assert_eq!(result, Err(Errno::INTR));
        assert_eq!(bwr.write_consumed, bwr.write_size, "the command was taken");
        assert_eq!(HANDLED[0].load(SeqCst), 1);
    });
}

#[test]
fn with_sa_restart_the_call_is_interrupted_too_as_by_the_kernels_driver() {
    if cannot_mount() {
        return;
    }
    handle(libc::SIGUSR2, count_second, libc::SA_RESTART);
    let _alone = alone();
    let daemon = Daemon::start();
    let client = open(daemon.binder());
    let (tid_out, tid_in) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            tid_out.send(gettid()).unwrap();
            enter_and_read(&client)
        });
        let tid = tid_in.recv().unwrap();
        daemon.wait_until_blocked(tid);
        signal_thread(tid, libc::SIGUSR2);
        let (result, bwr) = waiter.join().unwrap();
        assert_eq!(result, Err(Errno::INTR));
        assert_eq!(bwr.write_consumed, bwr.write_size, "the command was taken");
        assert_eq!(HANDLED[1].load(SeqCst), 1);
    });
}

#[test]
fn without_blocking_a_read_of_nothing_is_eagain() {
    if cannot_mount() {
        return;
    }
    let _alone = alone();
    let daemon = Daemon::start();
    let options = Options { nonblock: true, ..Options::default() };
    let client = Client::open(daemon.binder(), &options).unwrap();
    let mut session = Session::new(&client);
    session.enter_looper().unwrap();
    let nothing = loop {
        // The first read may return BR_NOOP only, without work, which is no failure.
        match session.write_read() {
            Ok(()) => continue,
            Err(error) => break error,
        }
    };
    assert_eq!(nothing.errno(), Some(Errno::AGAIN));
}

/// Sets or clears `O_NONBLOCK` of an open device.
fn set_flags(client: &Client, flags: OFlags) {
    rustix::fs::fcntl_setfl(client.as_fd(), flags).unwrap();
}

#[test]
fn nonblock_that_was_set_after_the_open_holds_until_it_is_cleared() {
    if cannot_mount() {
        return;
    }
    let _alone = alone();
    let daemon = Daemon::start();
    let server = open(daemon.binder());
    server.become_context_manager().unwrap();
    let mut session = Session::new(&server);
    session.enter_looper().unwrap();
    let mut receive = || loop {
        match session.receive() {
            Ok(Return::Transaction(data)) => {
                session.push(Command::FreeBuffer(data.buffer));
                return true;
            }
            Ok(_) => {}
            Err(ClientError::Ioctl { errno: Errno::AGAIN, .. }) => return false,
            Err(error) => panic!("{error}"),
        }
    };
    let mut client = daemon.client("poke");
    for round in 0..20 {
        set_flags(&server, OFlags::NONBLOCK);
        assert!(!receive(), "round {round}: there was nothing to receive");
        set_flags(&server, OFlags::empty());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(5));
                client.begin("hello");
            });
            assert!(receive(), "round {round}: the read of a blocking descriptor did not wait");
        });
    }
}

/// Messages that an edge-triggered poller receives.
const MESSAGES: u32 = 100_000;
/// Messages that are sent before the sender waits for the receiver.
const WINDOW: u32 = 64;

#[test]
fn an_edge_triggered_poller_misses_none_of_100_000_messages() {
    if cannot_mount() {
        return;
    }
    let _alone = alone();
    let daemon = Daemon::start();
    let options = Options { nonblock: true, ..Options::default() };
    let server = Client::open(daemon.binder(), &options).unwrap();
    server.become_context_manager().unwrap();
    let mut session = Session::new(&server);
    session.enter_looper().unwrap();
    // mio is edge-triggered, and is what tokio's AsyncFd consists of.
    let mut poll = mio::Poll::new().unwrap();
    let fd = server.as_fd().as_raw_fd();
    let interest = mio::Interest::READABLE | mio::Interest::WRITABLE;
    poll.registry().register(&mut mio::unix::SourceFd(&fd), mio::Token(7), interest).unwrap();
    let mut events = mio::Events::with_capacity(4);
    let mut client = daemon.client("poke-often");
    client.begin(&format!("{MESSAGES} {WINDOW}"));
    let mut received = 0;
    while received < MESSAGES {
        poll.poll(&mut events, Some(LONG)).unwrap();
        assert!(!events.is_empty(), "no edge after {received} messages");
        loop {
            match session.receive() {
                Ok(Return::Transaction(data)) => {
                    session.push(Command::FreeBuffer(data.buffer));
                    received += 1;
                    if received % WINDOW == 0 {
                        client.begin("next");
                    }
                }
                Ok(_) => {}
                Err(ClientError::Ioctl { errno: Errno::AGAIN, .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert_eq!(received, MESSAGES);
}

#[test]
fn poll_wakes_when_work_comes_and_not_before() {
    if cannot_mount() {
        return;
    }
    let _alone = alone();
    let daemon = Daemon::start();
    let server = open(daemon.binder());
    server.become_context_manager().unwrap();
    let mut client = daemon.client("poke");
    let mut session = Session::new(&server);
    session.enter_looper().unwrap();
    let nothing = server.poll(PollFlags::IN, Duration::from_millis(50)).unwrap();
    assert_eq!(nothing, PollFlags::empty());
    for _ in 0..20 {
        std::thread::scope(|scope| {
            let poller = scope.spawn(|| server.poll(PollFlags::IN, LONG).unwrap());
            client.begin("hello");
            assert!(poller.join().unwrap().contains(PollFlags::IN));
        });
        let incoming = loop {
            if let Return::Transaction(data) = session.receive().unwrap() {
                break data;
            }
        };
        session.push(Command::FreeBuffer(incoming.buffer));
        session.flush().unwrap();
    }
    let nothing = server.poll(PollFlags::IN, Duration::ZERO).unwrap();
    assert_eq!(nothing, PollFlags::empty(), "all was read");
}

#[test]
fn epoll_wakes_each_time_that_work_comes() {
    if cannot_mount() {
        return;
    }
    let _alone = alone();
    let daemon = Daemon::start();
    let options = Options { nonblock: true, ..Options::default() };
    let server = Client::open(daemon.binder(), &options).unwrap();
    server.become_context_manager().unwrap();
    let mut session = Session::new(&server);
    session.enter_looper().unwrap();
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&set, server.as_fd(), epoll::EventData::new_u64(7), epoll::EventFlags::IN).unwrap();
    let mut client = daemon.client("poke");
    let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
    for round in 0..50_u8 {
        client.begin("hello");
        let mut taken = false;
        while !taken {
            let mut events = [std::mem::MaybeUninit::uninit(); 4];
            let (ready, _) = epoll::wait(&set, &mut events, Some(&patience)).unwrap();
            assert_eq!(ready.len(), 1, "no wake-up in round {round}");
            loop {
                match session.receive() {
                    Ok(Return::Transaction(data)) => {
                        session.push(Command::FreeBuffer(data.buffer));
                        taken = true;
                    }
                    Ok(_) => {}
                    Err(ClientError::Ioctl { errno: Errno::AGAIN, .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

#[test]
fn a_thread_that_exits_silently_is_forgotten() {
    if cannot_mount() {
        return;
    }
    let _alone = alone();
    let daemon = Daemon::start();
    let client = open(daemon.binder());
    let threads = |daemon: &Daemon| -> Vec<u32> {
        let opens = daemon.opens_of(std::process::id());
        opens.iter().flat_map(|open| &open.threads).map(|thread| thread.tid).collect()
    };
    let silent = std::thread::scope(|scope| {
        let enter = || {
            Session::new(&client).enter_looper().unwrap();
            assert!(threads(&daemon).contains(&gettid()));
            gettid()
        };
        scope.spawn(enter).join().unwrap()
    });
    wait_for("the silent thread to be forgotten", || {
        (!threads(&daemon).contains(&silent)).then_some(())
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            Session::new(&client).enter_looper().unwrap();
            client.thread_exit().unwrap();
            assert!(!threads(&daemon).contains(&gettid()), "its record was removed");
        });
    });
}

#[test]
fn closing_one_descriptor_wakes_the_readers_of_the_other() {
    if cannot_mount() {
        return;
    }
    let _alone = alone();
    let daemon = Daemon::start();
    let client = open(daemon.binder());
    let (tid_out, tid_in) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            tid_out.send(gettid()).unwrap();
            enter_and_read(&client)
        });
        let tid = tid_in.recv().unwrap();
        daemon.wait_until_blocked(tid);
        drop(client.as_fd().try_clone_to_owned().unwrap());
        let (result, _) = reader.join().unwrap();
        assert_eq!(result, Ok(()), "it returns to user space, with nothing");
    });
}
