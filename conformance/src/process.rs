//! The stage's control of one actor: fork, orders, results with a timeout, and exit.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::actor::{MAX_THREADS, Order, WINDOW, become_actor};
use crate::arena::Arena;

/// How long a killed process may take to exit. Only a driver that does not release it takes that
/// long.
const DEATH_PATIENCE: Duration = Duration::from_secs(5);

/// A process that executes orders.
pub struct Process {
    /// Number of the process in the case, from 1.
    pub number: usize,
    pid: libc::pid_t,
    sockets: Vec<OwnedFd>,
    arenas: Vec<Arena>,
    window: OwnedFd,
    tids: RefCell<Vec<libc::pid_t>>,
    alive: Cell<bool>,
}

impl Process {
    /// Forks an actor. The caller must have no other thread.
    pub fn spawn(number: usize) -> io::Result<Self> {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..MAX_THREADS {
            let (a, b) = socket_pair()?;
            ours.push(a);
            theirs.push(b);
        }
        let arenas = (0..MAX_THREADS).map(|_| Arena::new()).collect::<io::Result<Vec<_>>>()?;
        // SAFETY: a literal name.
        let window = unsafe { libc::memfd_create(c"window".as_ptr(), libc::MFD_CLOEXEC) };
        let window = owned(window)?;
        let mut raw: [RawFd; MAX_THREADS] = [0; MAX_THREADS];
        for (slot, socket) in raw.iter_mut().zip(&theirs) {
            *slot = socket.as_raw_fd();
        }
        // SAFETY: the stage has one thread, so the child's copy of its memory is consistent.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => become_actor(&raw, window.as_raw_fd()),
            pid => Ok(Self {
                number,
                pid,
                sockets: ours,
                arenas,
                window,
                tids: RefCell::new(vec![pid]),
                alive: Cell::new(true),
            }),
        }
    }

    /// Process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The memory shared with thread `index`.
    pub fn arena(&self, index: usize) -> &Arena {
        &self.arenas[index]
    }

    /// The arena that contains `address`, if any.
    pub fn arena_of(&self, address: u64) -> Option<&Arena> {
        self.arenas.iter().find(|arena| arena.get(address, 0).is_some())
    }

    /// The id of thread `index`.
    pub fn tid(&self, index: usize) -> i32 {
        self.tids.borrow()[index]
    }

    /// Starts one more thread; the first must be idle.
    pub fn start_thread(&self) -> io::Result<usize> {
        let index = self.tids.borrow().len();
        if index == MAX_THREADS {
            return Err(io::Error::other(format!("an actor has at most {MAX_THREADS} threads")));
        }
        self.order(0, Order::Start(index))?;
        let tid = self.answer(0, DEATH_PATIENCE)?.filter(|tid| *tid > 0);
        let tid = tid.ok_or_else(|| io::Error::other("an actor could not start a thread"))?;
        self.tids.borrow_mut().push(tid as libc::pid_t);
        Ok(index)
    }

    /// Sends an order to a thread, which must be idle.
    pub fn order(&self, thread: usize, order: Order) -> io::Result<()> {
        let words = order.encode();
        let socket = self.sockets[thread].as_raw_fd();
        // SAFETY: the words are alive and have this length.
        let sent = unsafe {
            libc::send(socket, words.as_ptr().cast(), size_of_val(&words), libc::MSG_NOSIGNAL)
        };
        if sent == 64 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits for the result of the last order; `None` after the timeout.
    pub fn answer(&self, thread: usize, patience: Duration) -> io::Result<Option<i64>> {
        let socket = self.sockets[thread].as_raw_fd();
        if !readable(socket, patience)? {
            return Ok(None);
        }
        let mut result = 0i64;
        // SAFETY: eight bytes of a live value.
        let got = unsafe { libc::recv(socket, (&raw mut result).cast(), 8, 0) };
        if got == 8 { Ok(Some(result)) } else { Err(io::Error::other("the actor is gone")) }
    }

    /// Copies memory of the actor, which writes it to the window; the thread must be idle.
    pub fn peek(&self, thread: usize, address: u64, len: usize) -> Result<Vec<u8>, i32> {
        let arguments = [WINDOW as u64, address, len as u64, 0, 0, 0];
        let lost = |_| libc::ESRCH;
        self.order(thread, Order::Call(libc::SYS_pwrite64, arguments)).map_err(lost)?;
        let done = self.answer(thread, DEATH_PATIENCE).map_err(lost)?.ok_or(libc::ETIMEDOUT)?;
        if done < 0 {
            return Err(-done as i32);
        }
        if done as usize != len {
            return Err(libc::EFAULT);
        }
        let mut bytes = vec![0; len];
        // SAFETY: the buffer has this length.
        let got =
            unsafe { libc::pread(self.window.as_raw_fd(), bytes.as_mut_ptr().cast(), len, 0) };
        if got as usize == len { Ok(bytes) } else { Err(libc::EIO) }
    }

    /// Sends a signal to one thread.
    pub fn signal(&self, thread: usize, signal: i32) -> io::Result<()> {
        // SAFETY: a child of ours that has not been waited for.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, self.pid, self.tid(thread), signal) };
        if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Kills the process with `SIGKILL` and waits; false if it does not exit in time.
    pub fn kill(&self) -> bool {
        if !self.alive.get() {
            return true;
        }
        // SAFETY: a child of ours that has not been waited for, so its pid cannot have been reused.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        self.has_ended()
    }

    /// Waits for the exit of the process; false if it does not exit in time.
    pub fn has_ended(&self) -> bool {
        let until = Instant::now() + DEATH_PATIENCE;
        loop {
            // SAFETY: as above; no status is requested.
            match unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::WNOHANG) } {
                0 if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                0 => return false,
                _ => {
                    self.alive.set(false);
                    return true;
                }
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((owned(fds[0])?, owned(fds[1])?))
}

fn readable(fd: RawFd, patience: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live entry.
    match unsafe { libc::poll(&mut poll, 1, patience.as_millis() as i32) } {
        -1 => Err(io::Error::last_os_error()),
        count => Ok(count > 0),
    }
}
