//! The child process: threads that make one system call at a time, as ordered.
//!
//! An actor has no knowledge of binder. It reads an [`Order`] from its socket, executes it, and
//! writes the result back; while a call blocks, no result is written, which is how the stage
//! detects that.

use std::os::fd::RawFd;
use std::ptr;

use libc::c_long;

/// Maximum number of threads of an actor.
pub const MAX_THREADS: usize = 6;
/// First descriptor of the threads' sockets, above the descriptors that the script opens.
pub const FIRST_SOCKET: RawFd = 200;
/// Descriptor of the file through which the stage reads the actor's memory.
pub const WINDOW: RawFd = 199;

/// The system call that maps memory, with the offset as the sixth argument.
#[cfg(target_pointer_width = "64")]
pub const MMAP: c_long = libc::SYS_mmap;
/// Its offset is in pages; all offsets here are 0.
#[cfg(target_pointer_width = "32")]
pub const MMAP: c_long = libc::SYS_mmap2;

/// An order to a thread.
#[derive(Clone, Copy)]
pub enum Order {
    /// Make a system call.
    Call(c_long, [u64; 6]),
    /// Start the thread that receives from this socket.
    Start(usize),
    /// End this thread.
    Leave,
    /// Catch `SIGUSR1` from now on, with these `SA_` flags.
    CatchSignal(i32),
}

impl Order {
    /// The order as it is sent over the socket.
    pub fn encode(self) -> [u64; 8] {
        let mut words = [0; 8];
        match self {
            Order::Call(number, arguments) => {
                words[1] = number as u64;
                words[2..].copy_from_slice(&arguments);
            }
            Order::Start(index) => words[..2].copy_from_slice(&[1, index as u64]),
            Order::Leave => words[0] = 2,
            Order::CatchSignal(flags) => words[..2].copy_from_slice(&[3, flags as u64]),
        }
        words
    }

    fn decode(words: [u64; 8]) -> Self {
        match words[0] {
            1 => Order::Start(words[1] as usize),
            2 => Order::Leave,
            3 => Order::CatchSignal(words[1] as i32),
            _ => Order::Call(words[1] as c_long, [2, 3, 4, 5, 6, 7].map(|i| words[i])),
        }
    }
}

/// Becomes an actor. `sockets` and `window` are moved to their numbers, all other descriptors are
/// closed.
pub fn become_actor(sockets: &[RawFd; MAX_THREADS], window: RawFd) -> ! {
    // SAFETY: plain calls on descriptors of this freshly forked, single-threaded process.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        for (index, socket) in sockets.iter().enumerate() {
            libc::dup2(*socket, FIRST_SOCKET + index as RawFd);
        }
        libc::dup2(window, WINDOW);
        // musl's libc has no function for it.
        libc::syscall(libc::SYS_close_range, 3, WINDOW - 1, 0);
        let above = FIRST_SOCKET as usize + MAX_THREADS;
        libc::syscall(libc::SYS_close_range, above, -1, 0);
    }
    listen(FIRST_SOCKET);
    // SAFETY: ends the process at once, without running the stage's own destructors.
    unsafe { libc::_exit(0) }
}

fn listen(socket: RawFd) {
    loop {
        let mut words = [0u64; 8];
        // SAFETY: the buffer has this length.
        let got = unsafe {
            libc::recv(socket, words.as_mut_ptr().cast(), size_of_val(&words), libc::MSG_WAITALL)
        };
        match got {
            64 => {}
            -1 if last_errno() == libc::EINTR => continue,
            _ => return,
        }
        let result = match Order::decode(words) {
            Order::Call(number, arguments) => call(number, arguments),
            Order::Start(index) => start(index),
            Order::CatchSignal(flags) => catch_signal(flags),
            Order::Leave => {
                answer(socket, 0);
                return;
            }
        };
        answer(socket, result);
    }
}

fn answer(socket: RawFd, result: i64) {
    // SAFETY: eight bytes of a live value.
    unsafe { libc::send(socket, ptr::from_ref(&result).cast(), 8, libc::MSG_NOSIGNAL) };
}

/// The result, or the negative errno.
fn call(number: c_long, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments.map(|argument| argument as c_long);
    // SAFETY: the stage is responsible for its orders; the pointers are into the arena, invalid (on
    // purpose), or into mappings that the stage ordered.
    let result = unsafe {
        match number {
            // A library may be preloaded that replaces the C library's function.
            libc::SYS_ioctl => libc::ioctl(a as RawFd, b as _, c).into(),
            _ => libc::syscall(number, a, b, c, d, e, f),
        }
    };
    // An address of a 32-bit process may have the sign bit.
    if result == -1 { -i64::from(last_errno()) } else { result as libc::c_ulong as i64 }
}

fn start(index: usize) -> i64 {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // SAFETY: has no arguments.
        let _ = sender.send(unsafe { libc::gettid() });
        listen(FIRST_SOCKET + index as RawFd);
    });
    i64::from(receiver.recv().unwrap_or(-libc::EAGAIN))
}

fn catch_signal(flags: i32) -> i64 {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: a zeroed sigaction is valid, and the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        action.sa_flags = flags;
        i64::from(libc::sigaction(libc::SIGUSR1, &action, ptr::null_mut()))
    }
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
