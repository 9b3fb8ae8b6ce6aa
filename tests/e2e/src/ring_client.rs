//! Clients that use their rings by themselves, without the library.

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::thread::sleep;
use std::time::Duration;

use binder_client::{Client, Errno, Options};
use binder_ring::page::Page;
use binder_ring::turn::{Submitted, Turn, Watch};
use binder_ring::{Attach, RING_ATTACH, RING_BYTES, RING_INTERRUPT, VERSION};
use binder_uapi::{BinderWriteRead, command::BC_ENTER_LOOPER};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Signal, getpid, kill_process};

use crate::wait;

/// The number in the memory of these rings.
pub const TOKEN: u64 = 7;

/// A mapping of a ring's memory.
pub struct Ring(NonNull<Page>);

// SAFETY: a page consists of atomic words, and the mapping belongs to the value.
unsafe impl Send for Ring {}

impl Ring {
    /// The memory.
    pub fn page(&self) -> &Page {
        // SAFETY: the mapping is as large and lives as long as `self`.
        unsafe { self.0.as_ref() }
    }

    /// The same as words that may have any value.
    pub fn words(&self) -> *mut u32 {
        self.0.as_ptr().cast()
    }

    /// Wakes the daemon, whether there is a call or not.
    pub fn wake(&self) {
        let word = self.page().words.turn_word();
        // SAFETY: the call uses the address as a key only.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) };
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference to it is left.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), RING_BYTES) };
    }
}

/// Memory for a ring, of this size and with these seals.
pub fn memory(bytes: usize, seals: SealFlags) -> (OwnedFd, Ring) {
    let make = || {
        let memfd = memfd_create("ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memfd, bytes as u64)?;
        fcntl_add_seals(&memfd, seals)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(std::ptr::null_mut(), RING_BYTES, protection, flags, &memfd, 0) }?;
        Ok::<_, Errno>((memfd, at))
    };
    let (memfd, at) = make().expect("memory for a ring");
    let ring = Ring(NonNull::new(at.cast()).expect("no mapping at 0"));
    if bytes >= size_of::<Page>() {
        ring.page().set_token(TOKEN);
    }
    (memfd, ring)
}

/// Attaches memory as the calling thread's ring.
pub fn attach(client: &Client, version: u32, memfd: i32, token: u64) -> Result<i32, Errno> {
    let attach = Attach { version, memfd: memfd as u32, token };
    // SAFETY: the argument is a live value.
    unsafe { client.ioctl_raw(RING_ATTACH, &raw const attach as usize) }
}

/// Runs the action of a `peer` with these words; `None`: it is none of a ring.
pub fn act(device: &str, words: &[&str]) -> Option<Result<(), String>> {
    match words {
        ["ring", state, end] => Some(leave(device, state, end)),
        _ => None,
    }
}

/// Brings a ring into a state, prints `ready`, and ends in this way.
fn leave(device: &str, state: &str, end: &str) -> Result<(), String> {
    let client = Client::open(device, &Options::default()).map_err(|error| error.to_string())?;
    let (memfd, ring) = memory(RING_BYTES, SealFlags::SHRINK);
    let submit = |read_size| {
        let bwr = BinderWriteRead {
            write_size: 4,
            write_buffer: 0x1000,
            read_size,
            read_buffer: 0x2000,
            ..BinderWriteRead::default()
        };
        ring.page().write_call(bwr, &BC_ENTER_LOOPER.to_ne_bytes(), None, &[]);
        ring.page().words.submit()
    };
    let reached = || {
        if ring.page().words.watch() == Watch::Off || ring.page().words.watch() == Watch::Ended {
            attach(&client, VERSION, memfd.as_raw_fd(), TOKEN).ok()?;
        }
        let reached = match state {
            "idle" => return Some(()),
            // The daemon is not told.
            "submitted" => return (submit(0) == Submitted::WakeDaemon).then_some(()),
            "taken" => Turn::Taken,
            "done" => Turn::Done,
            _ => return None,
        };
        let read_size = if state == "taken" { 256 } else { 0 };
        match submit(read_size) {
            Submitted::Withdrawn(_) => return None,
            Submitted::Seen | Submitted::WakeDaemon => ring.wake(),
        }
        wait::until(wait::PATIENCE, || (ring.page().words.turn() == reached).then_some(()))
    };
    wait::until(wait::PATIENCE, reached).ok_or_else(|| format!("the ring is never {state}"))?;
    println!("ready");
    match end {
        "dies" => {
            let _ = kill_process(getpid(), Signal::KILL);
        }
        "stops" => {
            let _ = kill_process(getpid(), Signal::STOP);
        }
        "corrupts" => {
            for at in 0..RING_BYTES / size_of::<u32>() {
                // SAFETY: within the mapping, which nothing of ours refers to.
                unsafe { ring.words().add(at).write_volatile(u32::MAX - at as u32 % 5) };
            }
            ring.wake();
            let number = 0_u32;
            // SAFETY: the argument is a live value.
            let _ = unsafe { client.ioctl_raw(RING_INTERRUPT, &raw const number as usize) };
            sleep(Duration::from_millis(30));
        }
        _ => return Err(format!("{end} is no way to end")),
    }
    Ok(())
}
