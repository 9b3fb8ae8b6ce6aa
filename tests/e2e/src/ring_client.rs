//! Clients that use their rings by themselves, without the library.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::ptr::NonNull;
use std::thread::sleep;
use std::time::Duration;

use binder_client::{Client, Errno, Options};
use binder_ring::page::Page;
use binder_ring::turn::{Doorbell, Submitted, Turn, Watch};
use binder_ring::{Attach, DOORBELL_BYTES, RING_ATTACH, RING_BYTES, RING_INTERRUPT, VERSION};
use binder_uapi::{BinderWriteRead, command::BC_ENTER_LOOPER};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Signal, getpid, kill_process};

use crate::wait;

/// The number in the memory of these rings.
pub const TOKEN: u64 = 7;

/// A mapping of memory that is shared with the daemon.
struct Shared<T> {
    at: NonNull<T>,
    bytes: usize,
}

// SAFETY: what is mapped consists of atomic words, and the mapping belongs to the value.
unsafe impl<T> Send for Shared<T> {}

impl<T> Shared<T> {
    fn new(memfd: &OwnedFd, bytes: usize) -> Result<Self, Errno> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, memfd, 0) }?;
        Ok(Self { at: NonNull::new(at.cast()).expect("no mapping at 0"), bytes })
    }

    fn get(&self) -> &T {
        // SAFETY: the mapping is as large and lives as long as `self`.
        unsafe { self.at.as_ref() }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference to it is left.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// A ring's memory, and the doorbell once it is attached.
pub struct Ring {
    memfd: OwnedFd,
    page: Shared<Page>,
    doorbell: Option<Shared<Doorbell>>,
    doorbell_inode: u64,
}

impl Ring {
    /// Memory of this size and with these seals.
    pub fn new(bytes: usize, seals: SealFlags) -> Self {
        let make = || {
            let memfd = memfd_create("ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&memfd, bytes as u64)?;
            fcntl_add_seals(&memfd, seals)?;
            let page = Shared::new(&memfd, RING_BYTES)?;
            Ok::<_, Errno>(Self { memfd, page, doorbell: None, doorbell_inode: 0 })
        };
        let ring = make().expect("memory for a ring");
        if bytes >= size_of::<Page>() {
            ring.page().set_token(TOKEN);
        }
        ring
    }

    /// Attaches it as the calling thread's ring.
    pub fn attach(&mut self, client: &Client) -> Result<(), Errno> {
        self.attach_as(client, VERSION, TOKEN)
    }

    /// The same, with another version or token.
    pub fn attach_as(&mut self, client: &Client, version: u32, token: u64) -> Result<(), Errno> {
        let doorbell = attach(client, version, self.memfd.as_raw_fd(), token)?;
        self.doorbell = Some(Shared::new(&doorbell, DOORBELL_BYTES)?);
        self.doorbell_inode = fstat(&doorbell)?.st_ino;
        Ok(())
    }

    /// The memory.
    pub fn page(&self) -> &Page {
        self.page.get()
    }

    /// The same as words that may have any value.
    pub fn words(&self) -> *mut u32 {
        self.page.at.as_ptr().cast()
    }

    /// The doorbell of a ring that was attached.
    pub fn doorbell(&self) -> &Doorbell {
        self.doorbell.as_ref().expect("the ring was attached").get()
    }

    /// Submits the call that the memory contains. The daemon is not woken.
    pub fn submit(&self) -> Submitted {
        self.page().words.submit(self.doorbell())
    }

    /// Makes all that wait for the doorbell wait for a word of the ring instead.
    pub fn take_wake_ups(&self) {
        let (from, to, all) = (self.doorbell().word(), self.words(), i32::MAX as u64);
        // SAFETY: the call uses the addresses as keys only.
        unsafe { libc::syscall(libc::SYS_futex, from, libc::FUTEX_REQUEUE, 0, all, to) };
    }

    /// Wakes the daemon, whether there is a call or not.
    pub fn wake(&self) {
        let word = self.doorbell().word();
        // SAFETY: the call uses the address as a key only.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) };
    }
}

/// Attaches this memory as the calling thread's ring. Returns the doorbell's.
pub fn attach(client: &Client, version: u32, memfd: i32, token: u64) -> Result<OwnedFd, Errno> {
    let (ours, theirs) = UnixDatagram::pair().expect("sockets");
    let socket = theirs.as_raw_fd() as u32;
    let attach = Attach { version, memfd: memfd as u32, token, socket, reserved: 0 };
    // SAFETY: the argument is a live value.
    unsafe { client.ioctl_raw(RING_ATTACH, &raw const attach as usize) }?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    recvmsg(&ours, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    let doorbell = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    doorbell.ok_or(Errno::BADF)
}

/// Runs the action of a `peer` with these words; `None`: it is none of a ring.
pub fn act(device: &str, words: &[&str]) -> Option<Result<(), String>> {
    match words {
        ["ring", state, end] => Some(leave(device, state, end)),
        ["doorbell"] => Some(take_wake_ups(device)),
        _ => None,
    }
}

/// Prints which doorbell it has, and then takes all wake-ups that are meant for the daemon.
fn take_wake_ups(device: &str) -> Result<(), String> {
    let client = Client::open(device, &Options::default()).map_err(|error| error.to_string())?;
    let mut ring = Ring::new(RING_BYTES, SealFlags::SHRINK);
    ring.attach(&client).map_err(|error| error.to_string())?;
    println!("{}", ring.doorbell_inode);
    loop {
        ring.take_wake_ups();
        sleep(Duration::from_micros(100));
    }
}

/// Brings a ring into a state, prints `ready`, and ends in this way.
fn leave(device: &str, state: &str, end: &str) -> Result<(), String> {
    let client = Client::open(device, &Options::default()).map_err(|error| error.to_string())?;
    let mut ring = Ring::new(RING_BYTES, SealFlags::SHRINK);
    let submit = |ring: &Ring, read_size| {
        let bwr = BinderWriteRead {
            write_size: 4,
            write_buffer: 0x1000,
            read_size,
            read_buffer: 0x2000,
            ..BinderWriteRead::default()
        };
        ring.page().write_call(bwr, &BC_ENTER_LOOPER.to_ne_bytes(), None, &[]);
        ring.submit()
    };
    let reach = || {
        if ring.page().words.watch() == Watch::Off || ring.page().words.watch() == Watch::Ended {
            ring.attach(&client).ok()?;
        }
        let reached = match state {
            "idle" => return Some(()),
            // The daemon is not told.
            "submitted" => return (submit(&ring, 0) == Submitted::WakeDaemon).then_some(()),
            "taken" => Turn::Taken,
            "done" => Turn::Done,
            _ => return None,
        };
        let read_size = if state == "taken" { 256 } else { 0 };
        match submit(&ring, read_size) {
            Submitted::Withdrawn(_) => return None,
            Submitted::Seen | Submitted::WakeDaemon => ring.wake(),
        }
        wait::until(wait::PATIENCE, || (ring.page().words.turn() == reached).then_some(()))
    };
    wait::until(wait::PATIENCE, reach).ok_or_else(|| format!("the ring is never {state}"))?;
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
