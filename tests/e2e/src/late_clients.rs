//! Clients in subordinate uids of one user, each with areas of memory that never answer.

use std::io::{Read, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use binder_client::{Client, Options};
use binder_uapi::BinderWriteRead;
use binder_uapi::command::BC_ENTER_LOOPER;
use control::Uid;
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

/// Makes calls with commands at this address, in an endless loop.
fn call_from(client: &Client, address: u64) {
    let bwr = BinderWriteRead { write_size: 64, write_buffer: address, ..Default::default() };
    loop {
        // SAFETY: there is no read buffer.
        let _ = unsafe { client.write_read(&mut bwr.clone()) };
        thread::sleep(Duration::from_millis(1));
    }
}
