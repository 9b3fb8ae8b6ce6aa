//! Attacks of an ordinary user on the daemon. Each attack prints `ready` when it has begun.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use binder_client::{Client, ClientError, Errno, Options, Parcel, Payload, Session};
use binder_uapi::command::BC_ENTER_LOOPER;
use binder_uapi::{
    BINDER_TYPE_BINDER, BinderWriteRead, FLAT_BINDER_FLAG_ACCEPTS_FDS, FlatBinderObject,
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

use crate::hung_mapping::{HungFile, Server};
use crate::wait;

const PAGE: usize = 4096;
const CALL: u32 = 1;
/// Interval of the signals to a thread that is to be interrupted.
const SIGNAL_EVERY: Duration = Duration::from_micros(200);

type Outcome = Result<(), String>;

/// Runs one of the attacks below; `None`: there is no such attack.
pub fn act(device: &str, what: &[&str]) -> Option<Outcome> {
    Some(match what {
        ["signalled-receivers", count] => signalled_receivers(device, count),
        ["inherited-open"] => inherited_open(device),
        ["setuid-opener", signal, uid, other, program] => {
            setuid_opener(device, signal, [uid, other], program)
        }
        ["opens-sent-to-themselves", count] => opens_sent_to_themselves(device, count),
        ["file-sink"] => file_sink(device),
        ["many-areas", count] => many_areas(device, count),
        ["receivers-with-areas", receivers, areas] => {
            receivers_with_areas(device, receivers, areas)
        }
        ["failing-calls"] => failing_calls(device),
        ["lingering-files", count] => lingering_files(device, count),
        ["long-ioctls", count] => long_ioctls(device, count),
        ["kept-replies"] => kept_replies(device),
        _ => return None,
    })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn open(device: &str) -> Result<Client, String> {
    Client::open(Path::new(device), &Options::default()).map_err(text)
}

/// Opens the device as a context manager that accepts files.
fn manager(device: &str) -> Result<Client, String> {
    let client = open(device)?;
    let flags = FLAT_BINDER_FLAG_ACCEPTS_FDS;
    let object = FlatBinderObject { ty: BINDER_TYPE_BINDER, flags, binder: 0, cookie: 0 };
    client.become_context_manager_ext(object).map_err(text)?;
    Ok(client)
}

fn read_into(client: &Client, address: u64, len: u64) -> Result<BinderWriteRead, Errno> {
    let mut bwr = BinderWriteRead { read_size: len, read_buffer: address, ..Default::default() };
    // SAFETY: the callers' read buffers are private memory that no other code accesses.
    unsafe { client.write_read(&mut bwr) }.map(|()| bwr)
}

/// The calling thread's id.
pub fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Reports that the attack has begun. The accomplice has to be killed before this process can exit.
pub(crate) fn report_ready(hung: &HungFile) {
    if let Some(pid) = hung.accomplice {
        println!("accomplice {pid}");
    }
    println!("ready");
}

extern "C" fn ignore(_: libc::c_int) {}

fn handle(signal: libc::c_int) {
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(signal, ignore as *const () as usize) };
}

/// Interrupts a system call of a thread of this process.
pub fn interrupt_thread(tid: u32) {
    handle(libc::SIGUSR1);
    signal_thread(tid, libc::SIGUSR1);
}

fn signal_thread(tid: u32, signal: libc::c_int) {
    // SAFETY: plain numbers. The thread may have exited, which is not an error.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), tid, signal) };
}

/// Threads that receive files, whose read buffers stop responding once all threads wait; each
/// thread is interrupted by signals continually.
fn signalled_receivers(device: &str, count: &str) -> Outcome {
    let count: usize = count.parse().map_err(text)?;
    let hung = HungFile::new(count * PAGE, Server::Accomplice)?;
    handle(libc::SIGUSR1);
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which only the driver accesses.
    let pages =
        unsafe { mmap_anonymous(std::ptr::null_mut(), count * PAGE, flags, MapFlags::PRIVATE) };
    let first = pages.map_err(text)? as u64;
    let client = Arc::new(manager(device)?);
    let mut readers = Vec::new();
    for number in 0..count {
        let (sender, receiver) = channel();
        let (client, page) = (Arc::clone(&client), first + (number * PAGE) as u64);
        readers.push(thread::spawn(move || {
            let _ = sender.send(own_tid());
            loop {
                let _ = read_into(&client, page, 256);
            }
        }));
        let tid = receiver.recv().map_err(text)?;
        wait::until_asleep(tid);
        thread::spawn(move || {
            loop {
                signal_thread(tid, libc::SIGUSR1);
                thread::sleep(SIGNAL_EVERY);
            }
        });
    }
    hung.map(Some(first))?;
    report_ready(&hung);
    readers.into_iter().for_each(|reader| drop(reader.join()));
    Ok(())
}

/// A socket whose last close blocks for a minute, unless the second one is closed.
fn lingering_socket(listener: &TcpListener) -> Result<(TcpStream, TcpStream), String> {
    let mut socket = TcpStream::connect(listener.local_addr().map_err(text)?).map_err(text)?;
    let (peer, _) = listener.accept().map_err(text)?;
    socket.set_nonblocking(true).map_err(text)?;
    while socket.write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(60)))
        .map_err(text)?;
    Ok((socket, peer))
}

/// Runs `act` in a child process, and waits until it has exited.
fn in_child(act: impl FnOnce() -> Outcome) -> Outcome {
    // SAFETY: this process has one thread, so its children may do whatever it may.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let outcome = act();
        if let Err(error) = &outcome {
            eprintln!("child: {error}");
        }
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the status is a live integer.
    unsafe { libc::waitpid(child, &mut status, 0) };
    if status == 0 { Ok(()) } else { Err(format!("a child ended with {status}")) }
}

/// Processes that exit one after the other; the open of each is in a message that is queued for
/// that open, and nowhere else. Only one at a time can be the context manager.
fn opens_sent_to_themselves(device: &str, count: &str) -> Outcome {
    println!("ready");
    for _ in 0..count.parse().map_err(text)? {
        in_child(|| {
            let own = wait::until(wait::PATIENCE, || manager(device).ok());
            let own = own.ok_or("the open of an earlier process remains")?;
            // A context manager cannot be called by its own process.
            in_child(|| {
                let client = open(device)?;
                let message = Parcel::new().fd(own.as_fd());
                Session::new(&client).oneway(0, CALL, message.payload()).map(drop).map_err(text)
            })
        })?;
    }
    println!("done");
    Ok(())
}

/// A context manager that never receives what is sent to it.
fn file_sink(device: &str) -> Outcome {
    let _manager = manager(device)?;
    println!("ready");
    until_killed()
}

/// Adds `count` areas to the address space.
fn add_areas(count: usize) -> Outcome {
    let nothing = ProtFlags::empty();
    // SAFETY: a new mapping, which is never accessed.
    let first =
        unsafe { mmap_anonymous(std::ptr::null_mut(), count * PAGE, nothing, MapFlags::PRIVATE) };
    let first = first.map_err(text)?;
    for page in (0..count).step_by(2) {
        // SAFETY: a page of the mapping.
        unsafe { mprotect(first.byte_add(page * PAGE), PAGE, MprotectFlags::READ) }
            .map_err(text)?;
    }
    Ok(())
}

/// Calls one context manager after the other, each a process of its own with `areas` areas.
fn receivers_with_areas(device: &str, receivers: &str, areas: &str) -> Outcome {
    let (receivers, areas): (usize, usize) =
        (receivers.parse().map_err(text)?, areas.parse().map_err(text)?);
    println!("ready");
    for number in 0..receivers {
        let (mut ready, serving) = std::io::pipe().map_err(text)?;
        // SAFETY: this process has one thread, so its children may do whatever it may.
        let receiver = unsafe { libc::fork() };
        if receiver == 0 {
            let client = manager(device)?;
            // Below the receive buffer, so that they are read before it.
            add_areas(areas)?;
            let mut session = Session::new(&client);
            session.enter_looper().map_err(text)?;
            session.flush().map_err(text)?;
            drop((ready, serving));
            return session.serve(&mut binder_client::Echo).map_err(text);
        }
        drop(serving);
        ready.read_to_end(&mut Vec::new()).map_err(text)?;
        let client = open(device)?;
        let mut session = Session::new(&client);
        let called = session.call(0, CALL, Payload::default());
        let called = called.map(|reply| session.free(reply));
        // SAFETY: plain numbers, of a child that is not reaped yet; nothing is written.
        unsafe {
            libc::kill(receiver, libc::SIGKILL);
            libc::waitpid(receiver, std::ptr::null_mut(), 0);
        }
        called.map_err(|error| format!("receiver {number}: {error}"))?;
    }
    println!("all called");
    Ok(())
}

/// A context manager with no receive buffer and `count` areas in its address space.
fn many_areas(device: &str, count: &str) -> Outcome {
    add_areas(count.parse().map_err(text)?)?;
    let options = Options { map_len: 0, ..Options::default() };
    let client = Client::open(Path::new(device), &options).map_err(text)?;
    client.become_context_manager().map_err(text)?;
    println!("ready");
    until_killed()
}

/// Calls the context manager, which cannot receive anything, in an endless loop.
fn failing_calls(device: &str) -> Outcome {
    let client = open(device)?;
    let mut session = Session::new(&client);
    println!("ready");
    loop {
        if session.oneway(0, CALL, Payload::default()).is_ok() {
            return Err("the call was not refused".to_owned());
        }
    }
}

/// Keeps the replies of the context manager on many opens, until one is refused.
fn kept_replies(device: &str) -> Outcome {
    const BYTES: usize = 512 << 10;
    const REPLIES_OF_AN_OPEN: usize = 7;
    let options = Options { map_len: 4 << 20, ..Options::default() };
    let data = vec![7; BYTES];
    println!("ready");
    let mut kept = 0;
    let refused = 'opens: loop {
        // Open until this process is killed.
        let client = Client::open(Path::new(device), &options).map_err(text)?;
        let client: &'static Client = Box::leak(Box::new(client));
        let mut session = Session::new(client);
        for _ in 0..REPLIES_OF_AN_OPEN {
            // Its buffer is never freed.
            if let Err(error) = session.call(0, CALL, Payload::bytes(&data)) {
                break 'opens error;
            }
            kept += BYTES;
        }
        std::mem::forget(session);
    };
    println!("{kept} bytes, then {refused}");
    until_killed()
}

fn until_killed() -> ! {
    loop {
        thread::park();
    }
}

/// Passes lingering sockets to the context manager. The daemon has their only descriptors.
fn lingering_files(device: &str, count: &str) -> Outcome {
    let count: usize = count.parse().map_err(text)?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    let client = open(device)?;
    let mut session = Session::new(&client);
    for _ in 0..count {
        let (socket, peer) = lingering_socket(&listener)?;
        session.oneway(0, CALL, Parcel::new().fd(socket.as_fd()).payload()).map_err(text)?;
        // Never read from, and open until this process is killed.
        std::mem::forget(peer);
    }
    println!("ready");
    until_killed()
}

/// Calls with an open whose opener has exited and was reaped.
fn inherited_open(device: &str) -> Outcome {
    let (mut go, gone) = (std::io::pipe().map_err(text)?, std::io::pipe().map_err(text)?);
    // SAFETY: this process has one thread, so its children may do whatever it may.
    let opener = unsafe { libc::fork() };
    if opener != 0 {
        drop(gone.1);
        let mut status = 0;
        // SAFETY: the status is a live integer.
        unsafe { libc::waitpid(opener, &mut status, 0) };
        println!("ready");
        go.1.write_all(b"!").map_err(text)?;
        // The child that inherits the open closes its pipe when it has called.
        let _ = std::io::read_to_string(gone.0);
        return Ok(());
    }
    let client = open(device)?;
    let mut session = Session::new(&client);
    // The daemon finds the mapping while its process exists.
    let reply = session.call(0, CALL, Payload::default()).map_err(text)?;
    session.free(reply);
    session.flush().map_err(text)?;
    // SAFETY: as above.
    if unsafe { libc::fork() } != 0 {
        // SAFETY: ends the opener at once.
        unsafe { libc::_exit(0) };
    }
    drop(gone.0);
    go.0.read_exact(&mut [0]).map_err(text)?;
    // The service gets the call; its reply finds no mapping.
    match session.call(0, CALL, Payload::default()) {
        Err(ClientError::DeadReply) => println!("no reply"),
        other => println!("{other:?}"),
    }
    // SAFETY: ends the child; its parent is the process that is waited for.
    unsafe { libc::_exit(0) };
}

fn set_uids(uids: [u32; 3]) -> Outcome {
    // SAFETY: plain numbers; the process has one thread.
    match unsafe { libc::setresuid(uids[0], uids[1], uids[2]) } {
        0 => Ok(()),
        _ => Err(format!("cannot become {uids:?}: {}", std::io::Error::last_os_error())),
    }
}

/// Starts as root. A user opens the device, a process of another user inherits the open, the opener
/// executes a setuid program and gets a signal. Then the other process calls.
fn setuid_opener(device: &str, signal: &str, uids: [&str; 2], program: &str) -> Outcome {
    const KEEP: u32 = u32::MAX;
    let [uid, other] = uids.map(|uid| uid.parse().map_err(text));
    let (uid, other): (u32, u32) = (uid?, other?);
    let signal: libc::c_int = signal.parse().map_err(text)?;
    let (mut executed, executing) = std::io::pipe().map_err(text)?;
    let (mut gone, go) = std::io::pipe().map_err(text)?;
    let (mut called, calling) = std::io::pipe().map_err(text)?;
    // SAFETY: this process has one thread, so its children may do whatever it may.
    let opener = unsafe { libc::fork() };
    if opener == 0 {
        drop(go);
        set_uids([KEEP, uid, KEEP])?;
        let client = open(device)?;
        // SAFETY: as above.
        let is_opener = unsafe { libc::fork() } != 0;
        set_uids([KEEP, 0, KEEP])?;
        if is_opener {
            set_uids([uid; 3])?;
            // The ends of the pipes are closed by it. It ends by itself if this test fails.
            let mut command = std::process::Command::new(program);
            let error = command.arg("60").stdout(Stdio::null()).stderr(Stdio::null()).exec();
            return Err(format!("{program}: {error}"));
        }
        drop(executing);
        set_uids([other; 3])?;
        gone.read_to_end(&mut Vec::new()).map_err(text)?;
        let mut session = Session::new(&client);
        for _ in 0..3 {
            session.oneway(0, CALL, Payload::default()).map_err(text)?;
        }
        return Ok(());
    }
    drop((executing, calling));
    executed.read_to_end(&mut Vec::new()).map_err(text)?;
    // Its credentials change a little later than its descriptors.
    let is_root = || {
        let status = std::fs::read_to_string(format!("/proc/{opener}/status")).ok()?;
        status.contains(&format!("Uid:\t{uid}\t0\t")).then_some(())
    };
    wait::until(wait::PATIENCE, is_root).ok_or("the opener runs no setuid program")?;
    // SAFETY: plain numbers; the child is not reaped yet.
    unsafe { libc::kill(opener, signal) };
    drop(go);
    called.read_to_end(&mut Vec::new()).map_err(text)?;
    // SAFETY: as above; nothing is written.
    unsafe {
        libc::kill(opener, libc::SIGKILL);
        libc::waitpid(opener, std::ptr::null_mut(), 0);
    }
    Ok(())
}

/// Threads that call ioctls with as many commands as fit into 4 MiB, one after the other.
fn long_ioctls(device: &str, count: &str) -> Outcome {
    let count: usize = count.parse().map_err(text)?;
    let client = open(device)?;
    let commands = BC_ENTER_LOOPER.to_ne_bytes().repeat(1 << 20);
    let begun = std::sync::Barrier::new(count + 1);
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                begun.wait();
                loop {
                    let _ = write_from(&client, &commands);
                }
            });
        }
        begun.wait();
        println!("ready");
    });
    Ok(())
}

/// Runs commands in one ioctl; returns its argument with the consumed size, whatever the result.
pub fn write_from(client: &Client, commands: &[u8]) -> (BinderWriteRead, Result<(), Errno>) {
    let mut bwr = BinderWriteRead {
        write_size: commands.len() as u64,
        write_buffer: commands.as_ptr() as u64,
        ..Default::default()
    };
    // SAFETY: the write buffer outlives the call, and there is no read buffer.
    let result = unsafe { client.write_read(&mut bwr) };
    (bwr, result)
}
