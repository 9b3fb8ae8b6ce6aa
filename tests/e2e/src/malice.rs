//! Actions of a malicious or faulty client.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use binder_client::{Client, Errno, Options, Parcel, Payload, Session};
use binder_uapi::{
    BINDER_TYPE_BINDER, BinderTransactionData, BinderWriteRead, Command,
    FLAT_BINDER_FLAG_ACCEPTS_FDS, FlatBinderObject,
};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::attacks::report_ready;
use crate::hung_mapping::{HungFile, Server};
use crate::random::Random;

const CALL: u32 = 1;
const PAGE: usize = 4096;

type Outcome = Result<(), String>;

/// Runs one of the actions below; `None`: there is no such action.
pub fn act(device: &str, what: &[&str]) -> Option<Outcome> {
    Some(match what {
        ["silent-memory", part] => {
            silent_pages(1, |_| ()).and_then(|(page, _held)| silent_memory(device, part, page))
        }
        ["hung-mapping", part] => {
            let file = HungFile::new(PAGE, Server::Thread);
            file.and_then(|file| file.map(None)).and_then(|page| silent_memory(device, part, page))
        }
        ["hung-file-in-transit"] => hung_file_in_transit(device),
        ["silent-receivers", count] => silent_receivers(device, count),
        ["changing-memory", seed] => changing_memory(device, seed),
        ["vanishing-memory"] => vanishing_memory(device),
        ["never-reads"] => never_reads(device),
        ["oneway-flood"] => oneway_flood(device),
        ["handle-flood"] => handle_flood(device),
        ["death-flood"] => death_flood(device),
        ["open-flood"] => open_flood(device),
        ["thread-flood"] => thread_flood(device),
        ["fork"] => fork(device),
        ["exec"] => exec(device),
        ["same-tid"] => same_tid(device),
        _ => return None,
    })
}

fn open(device: &str) -> Result<Client, String> {
    Client::open(Path::new(device), &Options::default()).map_err(|error| error.to_string())
}

/// Sends a file to the context manager whose close waits for a server that never answers.
fn hung_file_in_transit(device: &str) -> Outcome {
    let file = HungFile::new(PAGE, Server::SilentAccomplice)?;
    let client = open(device)?;
    let parcel = Parcel::new().fd(file.as_fd());
    Session::new(&client).oneway(0, CALL, parcel.payload()).map_err(text)?;
    report_ready(&file);
    loop {
        thread::park();
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn write_read(
    client: &Client,
    commands: &[u8],
    read: (u64, u64),
) -> Result<BinderWriteRead, Errno> {
    let mut bwr = BinderWriteRead {
        write_size: commands.len() as u64,
        write_buffer: commands.as_ptr() as u64,
        read_size: read.1,
        read_buffer: read.0,
        ..Default::default()
    };
    // SAFETY: the callers' read buffers are private memory that no other code accesses.
    unsafe { client.write_read(&mut bwr) }.map(|()| bwr)
}

/// Pages whose faults are never handled.
///
/// While `before` runs with their address, they are ordinary pages.
fn silent_pages(count: usize, before: impl FnOnce(u64)) -> Result<(u64, OwnedFd), String> {
    const API: u64 = 0xaa;
    const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
    const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
    const MISSING: u64 = 1;
    let last = || std::io::Error::last_os_error().to_string();
    // SAFETY: the structures are as the kernel expects them and live across the calls; the
    // descriptor is new.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
        if fd < 0 {
            return Err(format!("no userfaultfd: {}", last()));
        }
        let fd = OwnedFd::from_raw_fd(fd as i32);
        let api = [API, 0, 0];
        if libc::ioctl(fd.as_raw_fd(), UFFDIO_API, api.as_ptr()) != 0 {
            return Err(last());
        }
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        let page = mmap_anonymous(ptr::null_mut(), count * PAGE, flags, MapFlags::PRIVATE)
            .map_err(text)?;
        before(page as u64);
        let range = [page as u64, (count * PAGE) as u64, MISSING, 0];
        if libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, range.as_ptr()) != 0 {
            return Err(last());
        }
        libc::madvise(page, count * PAGE, libc::MADV_DONTNEED);
        Ok((page as u64, fd))
    }
}

/// Calls with its commands, its data or its read buffer in a page whose faults are never handled.
fn silent_memory(device: &str, part: &str, page: u64) -> Outcome {
    let client = open(device)?;
    let data =
        BinderTransactionData { code: CALL, data_size: 64, buffer: page, ..Default::default() };
    let mut commands = Vec::new();
    Command::Transaction { data, buffers_size: None }.write_to(&mut commands);
    let mut room = [0_u8; 256];
    println!("ready");
    let result = match part {
        "commands" => {
            let mut bwr =
                BinderWriteRead { write_size: 64, write_buffer: page, ..Default::default() };
            // SAFETY: there is no read buffer.
            unsafe { client.write_read(&mut bwr) }.map(|()| bwr)
        }
        "data" => write_read(&client, &commands, (room.as_mut_ptr() as u64, 256)),
        "returns" => write_read(&client, &[], (page, 256)),
        _ => return Err(format!("no part {part}")),
    };
    Err(format!("{result:?}"))
}

/// Threads that receive files, each into a page whose faults are not handled any more once it
/// waits.
fn silent_receivers(device: &str, count: &str) -> Outcome {
    let count = count.parse().map_err(text)?;
    let client = open(device)?;
    let flags = FLAT_BINDER_FLAG_ACCEPTS_FDS;
    let object = FlatBinderObject { ty: BINDER_TYPE_BINDER, flags, binder: 0, cookie: 0 };
    client.become_context_manager_ext(object).map_err(text)?;
    let client = Arc::new(client);
    let mut readers = Vec::new();
    let (_, _held) = silent_pages(count, |first| {
        for page in (0..count).map(|number| first + (number * PAGE) as u64) {
            let (sender, receiver) = std::sync::mpsc::channel();
            let client = Arc::clone(&client);
            readers.push(thread::spawn(move || {
                let _ = sender.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
                // BR_NOOP alone is not work.
                while write_read(&client, &[], (page, 256)).is_ok_and(|bwr| bwr.read_consumed <= 4)
                {
                }
            }));
            if let Ok(tid) = receiver.recv() {
                crate::wait::until_asleep(tid);
            }
        }
    })?;
    println!("ready");
    readers.into_iter().for_each(|reader| drop(reader.join()));
    Ok(())
}

/// Calls repeatedly while another thread overwrites the data of the call.
fn changing_memory(device: &str, seed: &str) -> Outcome {
    let client = open(device)?;
    let mut random = Random::new(seed.parse().map_err(text)?);
    let data: Vec<AtomicU64> = (0..32).map(|_| AtomicU64::new(0)).collect();
    let offsets: Vec<AtomicU64> = (0..4).map(|i| AtomicU64::new(i * 24)).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(1);
            while !done.load(Ordering::Relaxed) {
                let at = random.below(32) as usize;
                let value = match random.below(4) {
                    0 => u64::from(BINDER_TYPE_BINDER),
                    1 => u64::from(FlatBinderObject::default().ty) | random.below(1 << 32) << 32,
                    _ => random.below(u64::MAX),
                };
                data[at].store(value, Ordering::Relaxed);
                offsets[random.below(4) as usize].store(random.below(300), Ordering::Relaxed);
            }
        });
        let mut room = [0_u8; 1024];
        println!("ready");
        for _ in 0..3000 {
            for (at, offset) in offsets.iter().enumerate() {
                offset.store(at as u64 * 24, Ordering::Relaxed);
                data[at * 3].store(u64::from(BINDER_TYPE_BINDER), Ordering::Relaxed);
            }
            let mut commands = Vec::new();
            let call = BinderTransactionData {
                code: CALL,
                flags: random.below(2) as u32,
                data_size: 256,
                offsets_size: 32,
                buffer: data.as_ptr() as u64,
                offsets: offsets.as_ptr() as u64,
                ..Default::default()
            };
            Command::Transaction { data: call, buffers_size: None }.write_to(&mut commands);
            let _ = write_read(&client, &commands, (room.as_mut_ptr() as u64, 1024));
        }
        done.store(true, Ordering::Relaxed);
    });
    Ok(())
}

/// Calls repeatedly while another thread unmaps and maps the data of the call and the read buffer.
fn vanishing_memory(device: &str) -> Outcome {
    let options = Options { nonblock: true, ..Options::default() };
    let client = Client::open(Path::new(device), &options).map_err(text)?;
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh mappings. The test is about what is done to them below; only the driver
    // accesses them.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), 2 * PAGE, flags, MapFlags::PRIVATE) };
    let page = page.map_err(text)? as usize;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // SAFETY: as above.
                unsafe {
                    let at = ptr::with_exposed_provenance_mut(page);
                    let _ = munmap(at, 2 * PAGE);
                    let _ =
                        mmap_anonymous(at, 2 * PAGE, flags, MapFlags::PRIVATE | MapFlags::FIXED);
                }
            }
        });
        println!("ready");
        for _ in 0..5000 {
            let data = BinderTransactionData {
                code: CALL,
                data_size: 128,
                buffer: page as u64,
                ..Default::default()
            };
            let mut commands = Vec::new();
            Command::Transaction { data, buffers_size: None }.write_to(&mut commands);
            let _ = write_read(&client, &commands, (page as u64 + PAGE as u64, 256));
        }
        done.store(true, Ordering::Relaxed);
    });
    Ok(())
}

/// Sends calls that fail, and never reads the errors.
fn never_reads(device: &str) -> Outcome {
    let client = open(device)?;
    let mut commands = Vec::new();
    for handle in 0..40 {
        Command::ClearDeathNotification(binder_uapi::BinderHandleCookie { handle, cookie: 1 })
            .write_to(&mut commands);
        let data = BinderTransactionData { target: 4711, code: CALL, ..Default::default() };
        Command::Transaction { data, buffers_size: None }.write_to(&mut commands);
    }
    println!("ready");
    for _ in 0..5000 {
        let _ = write_read(&client, &commands, (0, 0));
    }
    Ok(())
}

/// Makes one-way calls to the manager until there is no space, repeatedly.
fn oneway_flood(device: &str) -> Outcome {
    let client = open(device)?;
    let mut session = Session::new(&client);
    println!("ready");
    let mut refused = 0;
    let data = vec![7; 8192];
    while refused < 200 {
        if session.oneway(0, 1000, Payload::bytes(&data)).is_err() {
            refused += 1;
        }
    }
    println!("refused");
    Ok(())
}

/// Sends new objects, of which the manager keeps a handle, in a long series of calls.
fn handle_flood(device: &str) -> Outcome {
    let client = open(device)?;
    let mut session = Session::new(&client);
    println!("ready");
    for round in 0..400_u64 {
        let parcel = (0..100).fold(binder_client::Parcel::new(), |parcel, i| {
            parcel.binder(0x1000 + (round * 100 + i) * 16, 0)
        });
        let reply = session.call(0, CALL, parcel.payload()).map_err(text)?;
        session.free(reply);
    }
    session.flush().map_err(text)
}

/// Requests and clears many death notifications.
fn death_flood(device: &str) -> Outcome {
    let client = open(device)?;
    let mut session = Session::new(&client);
    session.acquire(0);
    println!("ready");
    for cookie in 0..20_000 {
        session.request_death(0, cookie);
        if cookie % 3 == 0 {
            session.clear_death(0, cookie);
        }
        // Never reads the resulting notifications.
        if cookie % 100 == 0 {
            session.flush().map_err(text)?;
        }
    }
    Ok(())
}

/// As an ordinary user, opens the device until an open is refused.
fn open_flood(device: &str) -> Outcome {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
    let mut files = Vec::new();
    println!("ready");
    let error = loop {
        match File::options().read(true).write(true).open(device) {
            Ok(file) => files.push(file),
            Err(error) => break error,
        }
    };
    if error.raw_os_error() != Some(libc::EMFILE) {
        return Err(format!("after {} opens: {error}", files.len()));
    }
    println!("refused {}", files.len());
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// Calls on several opens from more and more threads, which stay, until a call is refused. A second
/// later all of them exit, and one more thread calls.
fn thread_flood(device: &str) -> Outcome {
    let clients = Arc::new((0..8).map(|_| open(device)).collect::<Result<Vec<_>, _>>()?);
    println!("ready");
    let calls = |end: Arc<AtomicBool>| {
        let (clients, (tell, told)) = (Arc::clone(&clients), mpsc::channel());
        let work = move || {
            let _ = tell.send(clients.iter().try_for_each(|client| client.version().map(|_| ())));
            while !end.load(Ordering::Acquire) {
                thread::park_timeout(Duration::from_secs(1));
            }
        };
        let thread = thread::Builder::new().stack_size(64 << 10).spawn(work);
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok::<_, String>((thread, told.recv().map_err(text)?))
    };
    let (end, mut threads) = (Arc::new(AtomicBool::new(false)), Vec::new());
    let error = loop {
        let (thread, called) = calls(Arc::clone(&end))?;
        threads.push(thread);
        if let Err(error) = called {
            break error;
        }
    };
    if error.errno() != Some(Errno::NOMEM) {
        return Err(format!("after {} threads: {error}", threads.len()));
    }
    println!("refused {}", threads.len());
    thread::sleep(Duration::from_secs(1));
    end.store(true, Ordering::Release);
    for thread in threads {
        thread.thread().unpark();
        thread.join().map_err(|_| "a thread has panicked")?;
    }
    // The daemon sees their exits shortly after this.
    let deadline = Instant::now() + Duration::from_secs(20);
    while let (_, Err(error)) = calls(Arc::clone(&end))? {
        if Instant::now() > deadline {
            return Err(format!("after all threads have ended: {error}"));
        }
    }
    Ok(())
}

/// Forks; child and parent use the parent's open.
fn fork(device: &str) -> Outcome {
    let client = open(device)?;
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    let mut session = Session::new(&client);
    if child == 0 {
        // Every call must return, with any result.
        for _ in 0..50 {
            let _ = session.call(0, CALL, Payload::bytes(b"the child"));
        }
        // SAFETY: ends the child at once, without the parent's destructors.
        unsafe { libc::_exit(0) };
    }
    println!("ready");
    let mut status = 0;
    // SAFETY: the status is a live integer.
    unsafe { libc::waitpid(child, &mut status, 0) };
    for _ in 0..50 {
        let reply = session.call(0, CALL, Payload::bytes(b"the parent")).map_err(text)?;
        if reply.data().map_err(text)? != b"the parent" {
            return Err("an answer to another client".into());
        }
        session.free(reply);
    }
    session.flush().map_err(text)
}

/// Executes another program while its threads are blocked in the driver.
fn exec(device: &str) -> Outcome {
    use std::os::unix::process::CommandExt;
    let client: &'static Client = Box::leak(Box::new(open(device)?));
    for _ in 0..3 {
        thread::spawn(|| Session::new(client).receive().map(drop));
    }
    thread::sleep(Duration::from_millis(20));
    println!("ready");
    Err(std::process::Command::new("/bin/true").exec().to_string())
}

/// A thread receives a call and exits, and a new thread gets the same tid: it must not inherit the
/// call.
fn same_tid(device: &str) -> Outcome {
    let client: &'static Client = Box::leak(Box::new(open(device)?));
    client.become_context_manager().map_err(text)?;
    println!("ready");
    let own = || rustix::thread::gettid().as_raw_nonzero().get();
    let taken = thread::spawn(move || {
        let mut session = Session::new(client);
        let _ = session.enter_looper();
        let _ = session.receive();
        own()
    });
    let tid = taken.join().map_err(|_| "a panic")?;
    // Sets the next tid to be assigned; other processes may get it first.
    for _ in 0..2000 {
        let _ = std::fs::write("/proc/sys/kernel/ns_last_pid", (tid - 1).to_string());
        let again = thread::spawn(move || {
            if own() != tid {
                return None;
            }
            // It has received no call, so a reply must fail.
            Some(Session::new(client).reply(Payload::bytes(b"not mine")).is_err())
        });
        match again.join().map_err(|_| "a panic")? {
            Some(true) => {
                println!("nothing inherited");
                return Ok(());
            }
            Some(false) => return Err("it answered a call that it never took".into()),
            None => {}
        }
    }
    println!("never the same number");
    Ok(())
}
