//! Clients in subordinate uids of one user, each with areas of memory that never answer.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use binder_client::{Client, Options, Parcel, Payload, Session};
use binder_uapi::command::BC_ENTER_LOOPER;
use binder_uapi::{
    BINDER_TYPE_BINDER, BinderFdObject, BinderTransactionData, BinderWriteRead, Command,
    FLAT_BINDER_FLAG_ACCEPTS_FDS, FlatBinderObject, Return, ReturnReader,
};
use control::Uid;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::hung_mapping::{HungFile, LateContent, Server};

const PAGE: usize = 4096;
/// First subordinate uid of the user; no other process has any of them.
const FIRST_SUBORDINATE: u32 = 61_300_000;

type Outcome = Result<(), String>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Starts, as root, a user namespace of `user` with `uids` subordinate uids, and in it a client per
/// uid. All clients together have `areas` areas, each with an open and a thread whose commands are
/// in that area. Prints the pids of the accomplice and of the clients.
///
/// Root mounts the file system of the areas, as fusermount does for a user: a file system of a user
/// namespace refuses requests of uids that it does not map, such as the daemon's.
pub fn run(device: &str, user: Uid, areas: usize, uids: usize) -> Outcome {
    let hung = HungFile::new(areas * PAGE, Server::Accomplice)?;
    let accomplice = hung.accomplice.ok_or("no accomplice")?;
    println!("accomplice {accomplice}");
    let memory = Areas { first: hung.map(None)?, count: areas };
    let (mut unshared, mut report) = std::io::pipe().map_err(text)?;
    let (mut mapped, mut go) = std::io::pipe().map_err(text)?;
    // SAFETY: this process has one thread, so its children may do whatever it may.
    match unsafe { libc::fork() } {
        -1 => Err(text(std::io::Error::last_os_error())),
        0 => {
            become_user(user.0)?;
            // SAFETY: a plain number.
            if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
                return Err(text(std::io::Error::last_os_error()));
            }
            report.write_all(b"!").map_err(text)?;
            mapped.read_exact(&mut [0]).map_err(text)?;
            become_user(0)?;
            start_clients(device, &memory, uids)
        }
        child => {
            unshared.read_exact(&mut [0]).map_err(text)?;
            let map = format!("0 {user} 1\n1 {FIRST_SUBORDINATE} {uids}\n");
            for file in ["uid_map", "gid_map"] {
                std::fs::write(format!("/proc/{child}/{file}"), &map).map_err(text)?;
            }
            go.write_all(b"!").map_err(text)?;
            until_killed()
        }
    }
}

/// The process's files in `/proc` belong to the user, and it is killed with its parent.
fn become_user(id: u32) -> Outcome {
    // SAFETY: plain numbers. The C library changes the ids of all threads.
    let changed = unsafe {
        libc::setresgid(id, id, id) == 0
            && libc::setresuid(id, id, id) == 0
            && libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) == 0
    };
    if !changed {
        return Err(format!("cannot become uid {id}: {}", std::io::Error::last_os_error()));
    }
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(text)
}

fn until_killed() -> ! {
    loop {
        thread::park();
    }
}

/// Pages that never answer.
struct Areas {
    first: u64,
    count: usize,
}

fn start_clients(device: &str, areas: &Areas, uids: usize) -> Outcome {
    let mut pids = Vec::new();
    for uid in 1..=uids {
        // SAFETY: this process has one thread, so its children may do whatever it may.
        match unsafe { libc::fork() } {
            -1 => return Err(text(std::io::Error::last_os_error())),
            0 => {
                become_user(uid as u32)?;
                let own = (0..areas.count).filter(|area| area % uids == uid - 1);
                for address in own.map(|area| areas.first + (area * PAGE) as u64) {
                    let client = Client::open(Path::new(device), &Options::default());
                    let client = client.map_err(text)?;
                    thread::spawn(move || call_from(&client, address));
                }
                until_killed()
            }
            pid => pids.push(pid.to_string()),
        }
    }
    println!("clients {}", pids.join(" "));
    println!("ready");
    until_killed()
}

/// Makes a call with the commands of each page of a file, whose pages are read after `after`.
pub fn call_from_late_pages(device: &str, user: Uid, pages: usize, after: Duration) -> Outcome {
    let content = LateContent { after, word: BC_ENTER_LOOPER };
    let hung = HungFile::new(pages * PAGE, Server::Late(content))?;
    let first = hung.map(None)?;
    become_user(user.0)?;
    let client = Client::open(Path::new(device), &Options::default()).map_err(text)?;
    println!("ready");
    for page in 0..pages {
        let mut bwr = BinderWriteRead {
            write_size: PAGE as u64,
            write_buffer: first + (page * PAGE) as u64,
            ..Default::default()
        };
        // SAFETY: there is no read buffer.
        unsafe { client.write_read(&mut bwr) }.map_err(text)?;
        if bwr.write_consumed != PAGE as u64 {
            return Err(format!("{bwr:?}"));
        }
    }
    Ok(())
}

/// Calls the context manager, which returns the parcel, `calls` times with a read buffer and
/// `calls` times with a parcel in a page of a file that is read after `after`; `None`: never, and
/// the pid of the accomplice is printed.
pub fn call_with_late_parcels(
    device: &str,
    user: Uid,
    calls: usize,
    after: Option<Duration>,
) -> Outcome {
    let word = 0x1a7e_1a7e_u32;
    let late = |after| Server::Late(LateContent { after, word });
    let hung = HungFile::new(2 * calls * PAGE, after.map_or(Server::Accomplice, late))?;
    if let Some(accomplice) = hung.accomplice {
        println!("accomplice {accomplice}");
    }
    let parcels = hung.map(None)?;
    // Replaced by anonymous memory for each call, and then by the file again.
    let returns = hung.map(None)?;
    become_user(user.0)?;
    let client = Client::open(Path::new(device), &Options::default()).map_err(text)?;
    println!("ready");
    let prompt = [word; 2];
    for call in 0..calls {
        let read_buffer = returns + ((calls + call) * PAGE) as u64;
        replace_by_anonymous(returns, 2 * calls * PAGE)?;
        // The driver does not check the same read buffer again, so the second reply is taken before
        // the buffer is found to be late.
        call_manager(&client, prompt.as_ptr() as u64, read_buffer, word)?;
        hung.map(Some(returns))?;
        call_manager(&client, prompt.as_ptr() as u64, read_buffer, word)?;
        call_manager(&client, parcels + (call * PAGE) as u64, read_buffer, word)?;
    }
    Ok(())
}

fn replace_by_anonymous(at: u64, len: usize) -> Outcome {
    let at = std::ptr::with_exposed_provenance_mut(at as usize);
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
    // SAFETY: the place is a mapping of ours to which no reference exists.
    unsafe { mmap_anonymous(at, len, access, flags) }.map(drop).map_err(text)
}

/// Sends two words at `data` to the context manager, and expects `word` twice as its reply.
fn call_manager(client: &Client, data: u64, read_buffer: u64, word: u32) -> Outcome {
    let data_size = 2 * size_of::<u32>() as u64;
    let data = BinderTransactionData { buffer: data, data_size, ..Default::default() };
    let mut reply = None;
    let mut commands = vec![Command::Transaction { data, buffers_size: None }];
    while reply.is_none() {
        for value in write_read(client, &commands, read_buffer)? {
            match value {
                Return::Noop | Return::TransactionComplete | Return::SpawnLooper => {}
                Return::Reply(data) => reply = Some(data),
                other => return Err(format!("{other:?}")),
            }
        }
        commands.clear();
    }
    let Some(BinderTransactionData { buffer, data_size: 8, .. }) = reply else {
        return Err(format!("{reply:?}"));
    };
    let at = std::ptr::with_exposed_provenance::<[u32; 2]>(buffer as usize);
    // SAFETY: eight bytes of the reply, which the driver has put into the client's mapping.
    let words = unsafe { at.read_unaligned() };
    if words != [word; 2] {
        return Err(format!("{words:x?}"));
    }
    write_read(client, &[Command::FreeBuffer(buffer)], 0).map(drop)
}

/// Reads unless `read_buffer` is 0.
fn write_read(
    client: &Client,
    commands: &[Command],
    read_buffer: u64,
) -> Result<Vec<Return>, String> {
    // Too small for the installation of files, which leaves the buffer alone then.
    const READ_SIZE: u64 = 96;
    let mut bytes = Vec::new();
    commands.iter().for_each(|command| command.write_to(&mut bytes));
    let mut bwr = BinderWriteRead {
        write_size: bytes.len() as u64,
        write_buffer: bytes.as_ptr() as u64,
        read_size: if read_buffer == 0 { 0 } else { READ_SIZE },
        read_buffer,
        ..Default::default()
    };
    // SAFETY: the read buffer is a mapping of at least that size, to which no reference exists.
    unsafe { client.write_read(&mut bwr) }.map_err(text)?;
    let at = std::ptr::with_exposed_provenance::<[u8; READ_SIZE as usize]>(read_buffer as usize);
    // SAFETY: as above; without a read buffer nothing is read.
    let read = if read_buffer == 0 { [0; READ_SIZE as usize] } else { unsafe { at.read() } };
    ReturnReader::new(&read[..bwr.read_consumed as usize]).collect::<Result<_, _>>().map_err(text)
}

/// Receives a file in each of `calls` calls, with a read buffer in a page of a file that is read
/// after `after`. A child makes the calls.
pub fn receive_files_late(device: &str, user: Uid, calls: usize, after: Duration) -> Outcome {
    let (starts, mut start_call) = std::io::pipe().map_err(text)?;
    // SAFETY: this process has one thread, so the child may do whatever the parent may.
    let caller = match unsafe { libc::fork() } {
        -1 => return Err(text(std::io::Error::last_os_error())),
        0 => {
            drop(start_call);
            let called =
                become_user(user.0).and_then(|()| call_with_and_without_file(device, starts));
            if let Err(error) = &called {
                eprintln!("the calling process: {error}");
            }
            std::process::exit(i32::from(called.is_err()));
        }
        pid => pid,
    };
    drop(starts);
    let content = LateContent { after, word: 0 };
    let hung = HungFile::new(calls * PAGE, Server::Late(content))?;
    let returns = hung.map(None)?;
    become_user(user.0)?;
    let manager = Client::open(Path::new(device), &Options::default()).map_err(text)?;
    let object = FlatBinderObject {
        ty: BINDER_TYPE_BINDER,
        flags: FLAT_BINDER_FLAG_ACCEPTS_FDS,
        ..Default::default()
    };
    manager.become_context_manager_ext(object).map_err(text)?;
    println!("ready");
    for call in 0..calls {
        let read_buffer = returns + (call * PAGE) as u64;
        replace_by_anonymous(read_buffer, PAGE)?;
        // The driver does not check the same read buffer again, so the second call is taken before
        // the buffer is found to be late.
        start_call.write_all(b"!").map_err(text)?;
        let transaction = next_call(&manager, read_buffer)?;
        reply(&manager, &transaction, read_buffer)?;
        hung.map_page(call, read_buffer)?;
        start_call.write_all(b"!").map_err(text)?;
        let transaction = next_call(&manager, read_buffer)?;
        let place = transaction.buffer as usize;
        let object = std::ptr::with_exposed_provenance::<BinderFdObject>(place);
        // SAFETY: the object of the parcel, which the driver has put into the client's mapping.
        let fd = unsafe { object.read_unaligned() }.fd;
        // SAFETY: the driver has installed this descriptor for this process.
        let mut file = unsafe { File::from_raw_fd(fd as i32) };
        file.write_all(b"seen").map_err(text)?;
        drop(file);
        reply(&manager, &transaction, read_buffer)?;
    }
    drop(start_call);
    let mut status = 0;
    // SAFETY: our child, and a live integer.
    if unsafe { libc::waitpid(caller, &mut status, 0) } != caller || status != 0 {
        return Err("the calling process has failed".into());
    }
    Ok(())
}

/// Makes a call for each byte, the second ones with a pipe that the manager writes to.
fn call_with_and_without_file(device: &str, mut starts: std::io::PipeReader) -> Outcome {
    let mut is_started = || starts.read(&mut [0]).is_ok_and(|len| len > 0);
    let client = Client::open(device, &Options::default()).map_err(text)?;
    let mut session = Session::new(&client);
    while is_started() {
        let reply = session.call(0, 1, Payload::bytes(b"")).map_err(text)?;
        session.free(reply);
        if !is_started() {
            break;
        }
        let (mut read, write) = std::io::pipe().map_err(text)?;
        let parcel = Parcel::new().fd(write.as_fd());
        let reply = session.call(0, 1, parcel.payload()).map_err(text)?;
        session.free(reply);
        session.flush().map_err(text)?;
        drop((parcel, write));
        let written = std::io::read_to_string(&mut read).map_err(text)?;
        if written != "seen" {
            return Err(format!("{written:?} was written to the pipe"));
        }
    }
    Ok(())
}

/// Receives a call.
fn next_call(manager: &Client, read_buffer: u64) -> Result<BinderTransactionData, String> {
    loop {
        for value in write_read(manager, &[], read_buffer)? {
            match value {
                Return::Transaction(data) => return Ok(data),
                Return::Noop | Return::TransactionComplete | Return::SpawnLooper => {}
                other => return Err(format!("{other:?}")),
            }
        }
    }
}

/// Replies, and takes the confirmation.
fn reply(manager: &Client, transaction: &BinderTransactionData, read_buffer: u64) -> Outcome {
    let data = BinderTransactionData::default();
    let mut commands =
        vec![Command::FreeBuffer(transaction.buffer), Command::Reply { data, buffers_size: None }];
    while !write_read(manager, &commands, read_buffer)?.contains(&Return::TransactionComplete) {
        commands.clear();
    }
    Ok(())
}

/// Makes calls with commands at this address, in an endless loop.
fn call_from(client: &Client, address: u64) {
    let bwr = BinderWriteRead { write_size: 64, write_buffer: address, ..Default::default() };
    loop {
        // SAFETY: there is no read buffer.
        let _ = unsafe { client.write_read(&mut bwr.clone()) };
        thread::sleep(Duration::from_millis(1));
    }
}
