//! Waiting: blocking and nonblocking reads, poll, signals, stops, kills, threads that exit.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use binder_client::{
    Answer, Client, ClientError, Echo, Errno, OnSignal, Options, Parcel, Payload, PollFlags,
    Received, Served, Session,
};
use binder_uapi::Return;
use e2e::{Bus, Peer, wait};
use rustix::event::epoll;
use rustix::process::Signal;

use crate::support::{
    CALL, bounded, expect_echo, find, manager, open, own_tid, peer, publish, take,
};

crate::both_mappings! {
    a_read_that_may_not_block_finds_nothing
    a_nonblocking_client_can_still_be_served
    poll_and_epoll_wake_when_work_comes_and_not_before
    an_edge_triggered_poller_is_woken_for_each_message
    a_signal_ends_a_blocked_read_with_eintr
    a_signal_does_not_run_commands_twice
    a_killed_client_dies_at_once_wherever_it_blocks
    a_client_stopped_in_a_call_gets_its_reply_when_it_goes_on
    a_thread_that_ends_while_serving_a_call_fails_that_call
    a_thread_exit_ioctl_fails_the_call_being_served
    a_thread_exit_ioctl_wakes_who_waits_in_the_threads_epoll_set
    a_closed_device_releases_its_readers
    many_threads_of_one_client_block_and_are_all_served
}

fn nonblocking(bus: &Bus) -> Client {
    let options = Options { nonblock: true, ..Options::default() };
    Client::open(bus.device("binder"), &options).unwrap()
}

fn a_read_that_may_not_block_finds_nothing(bus: &Bus) {
    let _manager = manager(bus);
    let client = nonblocking(bus);
    let mut session = Session::new(&client);
    session.enter_looper().unwrap();
    for _ in 0..3 {
        let error = session.receive().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::AGAIN));
    }
    // The commands in the write half of such a read are executed all the same. A fork in another
    // test closes a copy of the descriptor, which lets one read return without an item: `receive`
    // repeats it.
    session.acquire(0);
    let error = session.receive().unwrap_err();
    assert_eq!(error.errno(), Some(Errno::AGAIN));
    let devices = bus.ls().unwrap();
    let mut handles = devices.iter().flat_map(|d| &d.processes).flat_map(|p| &p.handles);
    assert!(handles.any(|handle| (handle.handle, handle.strong) == (0, 1)), "{devices:#?}");
}

fn a_nonblocking_client_can_still_be_served(bus: &Bus) {
    let server = nonblocking(bus);
    server.become_context_manager().unwrap();
    let mut session = Session::new(&server);
    session.enter_looper().unwrap();
    let mut caller = peer(bus, &["call", "manager"]);
    loop {
        let ready = server.poll(PollFlags::IN, wait::PATIENCE).unwrap();
        assert!(ready.contains(PollFlags::IN), "nothing comes: {ready:?}");
        match session.serve_one(&mut Echo) {
            Ok(Served::Transaction) => break,
            Ok(_) => {}
            Err(error) => assert_eq!(error.errno(), Some(Errno::AGAIN)),
        }
    }
    session.flush().unwrap();
    caller.expect("answered");
    caller.wait_for_success();
}

fn poll_and_epoll_wake_when_work_comes_and_not_before(bus: &Bus) {
    let server = open(bus);
    server.become_context_manager().unwrap();
    let mut session = Session::new(&server);
    session.enter_looper().unwrap();
    read_until_quiet(&server, &mut session);
    let interest = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let data = epoll::EventData::new_u64(42);
    epoll::add(&interest, &server, data, epoll::EventFlags::IN).unwrap();
    while !epoll_wait(&interest, Duration::from_millis(50)).is_empty() {
        read_until_quiet(&server, &mut session);
    }

    for round in 0..20 {
        let mut caller = peer(bus, &["call", "manager"]);
        if round % 2 == 0 {
            assert_eq!(epoll_wait(&interest, wait::PATIENCE), [42], "round {round}");
        } else {
            let ready = server.poll(PollFlags::IN, wait::PATIENCE).unwrap();
            assert!(ready.contains(PollFlags::IN), "round {round}");
        }
        let served = session.serve_one(&mut Echo).unwrap();
        assert_eq!(served, Served::Transaction, "readable, but nothing to read");
        session.flush().unwrap();
        // Takes the reply's completion, so that the next wait is for the next call.
        read_until_quiet(&server, &mut session);
        caller.expect("answered");
        caller.wait_for_success();
    }
}

/// Waits as event loops do (tokio, mio): after a read without a result, for the next edge.
fn an_edge_triggered_poller_is_woken_for_each_message(bus: &Bus) {
    const CALLERS: usize = 3;
    const CALLS: usize = 300;
    let server = nonblocking(bus);
    server.become_context_manager().unwrap();
    let mut session = Session::new(&server);
    session.enter_looper().unwrap();
    let interest = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&interest, &server, epoll::EventData::new_u64(1), flags).unwrap();
    let mut callers: Vec<_> =
        (0..CALLERS).map(|_| peer(bus, &["calls", &CALLS.to_string()])).collect();
    let mut served = 0;
    while served < CALLERS * CALLS {
        match session.serve_one(&mut Echo) {
            Ok(Served::Transaction) => served += 1,
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.errno(), Some(Errno::AGAIN));
                let mut events = [MaybeUninit::uninit(); 1];
                let patience = wait::PATIENCE.try_into().unwrap();
                let (ready, _) = epoll::wait(&interest, &mut events, Some(&patience)).unwrap();
                assert_eq!(ready.len(), 1, "no edge after {served} calls");
            }
        }
    }
    session.flush().unwrap();
    callers.iter_mut().for_each(Peer::wait_for_success);
}

/// Reads while the device is readable: if poll were wrong, the read would block.
///
/// A read that returns only `BR_NOOP` does not contradict poll. When any process that has inherited
/// a copy of the descriptor closes it, as one that is being started by another test does, all
/// readers are woken.
fn read_until_quiet(client: &Client, session: &mut Session<'_>) {
    while client.poll(PollFlags::IN, Duration::from_millis(50)).unwrap().contains(PollFlags::IN) {
        session.write_read().unwrap();
    }
}

/// Data of the descriptors that are ready.
fn epoll_wait(interest: &OwnedFd, patience: Duration) -> Vec<u64> {
    let mut events = [MaybeUninit::uninit(); 4];
    let timeout = patience.try_into().unwrap();
    let (ready, _) = epoll::wait(interest, &mut events, Some(&timeout)).unwrap();
    ready.iter().map(|event| event.data.u64()).collect()
}

/// As with the kernel's driver: the waiter's own thread is new, so it finds the device readable.
fn a_thread_exit_ioctl_wakes_who_waits_in_the_threads_epoll_set(bus: &Bus) {
    let client = open(bus);
    let mut session = Session::new(&client);
    read_until_quiet(&client, &mut session);
    let interest = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&interest, &client, epoll::EventData::new_u64(1), epoll::EventFlags::IN).unwrap();
    // A fork in another test closes a copy of the descriptor, which makes the device readable once.
    for _ in 0..20 {
        while !epoll_wait(&interest, Duration::from_millis(50)).is_empty() {
            read_until_quiet(&client, &mut session);
        }
        let (report, tid) = channel();
        let (waits, woken) = thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                report.send(own_tid()).unwrap();
                epoll_wait(&interest, wait::PATIENCE)
            });
            let (tid, mut asleep) = (tid.recv().unwrap(), 0);
            let waits = wait::until(wait::PATIENCE, || {
                asleep = if wait::state(tid) == Some('S') { asleep + 1 } else { 0 };
                (waiter.is_finished() || asleep >= 5).then(|| !waiter.is_finished())
            });
            if waits == Some(true) {
                client.thread_exit().unwrap();
            }
            (waits, waiter.join().unwrap())
        });
        assert_eq!(woken, [1], "nobody wakes it");
        if waits == Some(true) {
            return;
        }
    }
    panic!("it never waits");
}

static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// SIGUSR1 interrupts system calls, SIGUSR2 lets them restart; both are counted.
fn install_handlers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (signal, flags) in [(libc::SIGUSR1, 0), (libc::SIGUSR2, libc::SA_RESTART)] {
            // SAFETY: all zeros is a valid `sigaction`.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = count_signal as *const () as usize;
            action.sa_flags = flags;
            // SAFETY: the handler only touches an atomic.
            let result = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
            assert_eq!(result, 0);
        }
    });
}

fn signal_thread(tid: u32, signal: i32) {
    // SAFETY: plain numbers. The thread may have exited, which is not an error.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id() as i32, tid as i32, signal) };
}

fn a_signal_ends_a_blocked_read_with_eintr(bus: &Bus) {
    install_handlers();
    // Also if the handler requests restarts: the kernel's driver does the same.
    for signal in [libc::SIGUSR1, libc::SIGUSR2] {
        let client = open(bus);
        let (sender, receiver) = channel();
        let reader = thread::spawn(move || {
            let mut session = Session::new(&client);
            session.on_signal(OnSignal::Return);
            session.enter_looper().unwrap();
            sender.send(own_tid()).unwrap();
            session.receive()
        });
        let tid = take("the reader's id", &receiver);
        assert!(wait::until_asleep(tid));
        // Repeatedly: other tests of this program start children, whose copies of the descriptor
        // are closed, which wakes all readers for a moment; a signal in that moment interrupts
        // nothing.
        let interrupted = wait::until(wait::PATIENCE, || {
            signal_thread(tid, signal);
            thread::sleep(Duration::from_millis(20));
            reader.is_finished().then_some(())
        });
        assert!(
            interrupted.is_some(),
            "no signal interrupts: {}",
            wait::describe(std::process::id())
        );
        let result = reader.join().unwrap();
        assert_eq!(result.unwrap_err().errno(), Some(Errno::INTR));
    }
}

fn a_signal_does_not_run_commands_twice(bus: &Bus) {
    const CALLS: u32 = 200;
    install_handlers();
    let _manager = manager(bus);
    let client = open(bus);
    let (sender, receiver) = channel();
    let calling = thread::spawn(move || {
        let mut session = Session::new(&client);
        sender.send(own_tid()).unwrap();
        for number in 0..CALLS {
            // A call that ran twice would leave a second reply, which the next call would receive.
            expect_echo(&mut session, 0, &number.to_ne_bytes());
        }
    });
    let tid = take("the caller's id", &receiver);
    let mut signals = 0;
    while !calling.is_finished() {
        let signal = if signals % 2 == 0 { libc::SIGUSR1 } else { libc::SIGUSR2 };
        signal_thread(tid, signal);
        signals += 1;
        thread::sleep(Duration::from_micros(200));
    }
    calling.join().unwrap();
}

fn a_killed_client_dies_at_once_wherever_it_blocks(bus: &Bus) {
    let _manager = manager(bus);
    let busy = peer(bus, &["busy", "busy"]);
    for _ in 0..5 {
        let mut reading = peer(bus, &["read"]);
        reading.expect_asleep();
        let mut reading_in_thread = peer(bus, &["read-in-thread"]);
        reading_in_thread.expect_asleep();
        let mut calling = peer(bus, &["call", "busy"]);
        calling.expect_asleep();
        for client in [&mut reading, &mut reading_in_thread, &mut calling] {
            client.kill();
        }
    }
    busy.expect("called");
    drop(busy);
}

fn a_client_stopped_in_a_call_gets_its_reply_when_it_goes_on(bus: &Bus) {
    let server = open(bus);
    server.become_context_manager().unwrap();
    let mut session = Session::new(&server);
    session.enter_looper().unwrap();
    for round in 0..5 {
        let mut caller = peer(bus, &["call", "manager"]);
        caller.expect_asleep();
        caller.signal(Signal::STOP);
        let stopped = || (wait::state(caller.pid()) == Some('T')).then_some(());
        assert!(
            wait::until(wait::PATIENCE, stopped).is_some(),
            "round {round}: not stopped: {}",
            wait::describe(caller.pid())
        );
        // Half of them continue before they are answered, half after.
        if round % 2 == 0 {
            caller.signal(Signal::CONT);
        }
        while session.serve_one(&mut Echo).unwrap() != Served::Transaction {}
        session.flush().unwrap();
        if round % 2 == 1 {
            caller.signal(Signal::CONT);
        }
        caller.expect("answered");
        caller.wait_for_success();
    }
}

fn a_thread_that_ends_while_serving_a_call_fails_that_call(bus: &Bus) {
    ends_while_serving_a_call(bus, |_| ());
}

fn a_thread_exit_ioctl_fails_the_call_being_served(bus: &Bus) {
    ends_while_serving_a_call(bus, |client| client.thread_exit().unwrap());
}

fn ends_while_serving_a_call(bus: &Bus, before_exit: fn(&Client)) {
    const STOP: u32 = 99;
    let _manager = manager(bus);
    let server = publish(bus, "server", &Options::default());
    thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let mut session = Session::new(&server);
            session.enter_looper().unwrap();
            let taken = session.receive().unwrap();
            assert!(matches!(taken, Return::Transaction(_)), "{taken:?}");
            before_exit(&server);
        });
        let device = bus.device("binder");
        let called = bounded("the call", move || {
            let client = Client::open(device, &Options::default()).unwrap();
            let mut session = Session::new(&client);
            let handle = find(&mut session, "server");
            let called = session.call(handle, CALL, Payload::default());
            called.map(drop)
        });
        taking.join().unwrap();
        assert_eq!(called, Err(ClientError::DeadReply));
    });
    // Only the thread has exited: the open stays, and another thread of it serves.
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut service = |_: &mut Session<'_>, incoming: &Received<'_>| match incoming.code() {
                STOP => Answer::Stop(Parcel::new()),
                _ => Answer::Echo,
            };
            Session::new(&server).serve(&mut service).unwrap();
        });
        let client = open(bus);
        let mut session = Session::new(&client);
        let handle = find(&mut session, "server");
        expect_echo(&mut session, handle, b"still there");
        let stopped = session.call(handle, STOP, Payload::default()).unwrap();
        session.free(stopped);
        session.flush().unwrap();
        serving.join().unwrap();
    });
}

fn a_closed_device_releases_its_readers(bus: &Bus) {
    let client = open(bus);
    let (sender, receiver) = channel();
    let second = rustix::io::dup(&client).unwrap();
    let closing = Arc::new(AtomicBool::new(false));
    let is_closing = Arc::clone(&closing);
    let reader = thread::spawn(move || {
        let mut session = Session::new(&client);
        session.enter_looper().unwrap();
        sender.send(own_tid()).unwrap();
        // One ioctl: close(2) of any descriptor makes reads return without work. Other tests that
        // start processes may cause that too, so such a return does not count before the close.
        while !is_closing.load(Ordering::SeqCst) {
            session.write_read()?;
        }
        Ok::<_, ClientError>(())
    });
    let tid = take("the reader's id", &receiver);
    assert!(wait::until_asleep(tid));
    closing.store(true, Ordering::SeqCst);
    drop(second);
    let result = bounded("the released read", move || reader.join().unwrap());
    assert_eq!(result, Ok(()));
}

fn many_threads_of_one_client_block_and_are_all_served(bus: &Bus) {
    const THREADS: usize = 40;
    let manager = peer(bus, &["manager", "4"]);
    let client = open(bus);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let client = &client;
            scope.spawn(move || {
                let mut session = Session::new(client);
                for round in 0..20usize {
                    expect_echo(&mut session, 0, &vec![number as u8; round * 100]);
                }
            });
        }
    });
    drop(manager);
}
