//! The connection to the daemon: one per process, established when it is first needed, and again
//! after a restart of the daemon. Runs inside the allocator, so it uses plain system calls only.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use control::lease::{LEASE_SOCKET, REPLY_BYTES, Reply, Request, Status, VERSION};

use crate::gate::{self, Page, Refused};
use crate::sys::{self, Socket};

/// Overrides the path of the daemon's socket.
const SOCKET_VARIABLE: &CStr = c"HEADROOM_LEASE_SOCKET";
/// `off`: plain malloc, without a connection to the daemon.
const SWITCH_VARIABLE: &CStr = c"HEADROOM_TMALLOC";
/// First and smallest requested batch, bytes.
const LEAST_WISH: u64 = 1 << 20;
/// Largest requested batch, bytes: at 45 µs per round trip, 4 % of the time to touch that much.
const MOST_WISH: u64 = 16 << 20;
/// A request within this time after the last one doubles the batch, milliseconds.
const OFTEN_MS: u64 = 10;
/// Maximum time that an allocation waits for a daemon that is being restarted, milliseconds.
const RESTART_MS: u64 = 5_000;
/// Interval of connection attempts meanwhile, milliseconds.
const LOOK_MS: u64 = 5;
/// Maximum time that one request waits in the daemon, milliseconds; then other threads can take the
/// lock.
const WAIT_SLICE_MS: u32 = 50;

/// State that the lock protects.
struct Link {
    socket: Option<Socket>,
    /// A connection has been established before, so the user may be limited.
    known: bool,
    /// Sent again to a daemon that does not know this process, bytes.
    base: u64,
    wish: u64,
    requested_ms: u64,
    /// The daemon is known to have exited, and allocations do not wait for it any more.
    gone: bool,
    warned: bool,
    /// Size of the request in progress, bytes.
    pending_bytes: u64,
}

const UNLINKED: Link = Link {
    socket: None,
    known: false,
    base: 0,
    wish: LEAST_WISH,
    requested_ms: 0,
    gone: false,
    warned: false,
    pending_bytes: 0,
};

/// A lock that a forked child can replace.
struct Shared(UnsafeCell<Mutex<Link>>);

// SAFETY: the cell is written to by a forked child only, while it has one thread.
unsafe impl Sync for Shared {}

static LINK: Shared = Shared(UnsafeCell::new(Mutex::new(UNLINKED)));

fn with_link<R>(f: impl FnOnce(&mut Link) -> R) -> R {
    // SAFETY: written to only while there is one thread, in `forget_after_fork`.
    let link = unsafe { &*LINK.0.get() };
    // A panic cannot have left it inconsistent: no code panics while it is held.
    let mut link = link.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    f(&mut link)
}

/// Plain malloc is configured.
pub(crate) fn is_switched_off() -> bool {
    sys::environment(SWITCH_VARIABLE).is_some_and(|value| value == c"off")
}

/// Any amount may be taken without a request.
pub(crate) fn be_plain() {
    Page::plain().make_current();
}

/// Requests a larger balance until it is at least `need` bytes, or returns the reason for refusing.
/// `deadline`, milliseconds, is kept between the calls of the same request.
#[cold]
pub(crate) fn refill(need: u64, wait_ms: u32, deadline: &mut Option<u64>) -> Result<(), Refused> {
    let now_ms = sys::monotonic_ms();
    let until_ms = *deadline.get_or_insert(now_ms + u64::from(wait_ms));
    loop {
        let slice = until_ms.saturating_sub(sys::monotonic_ms()).min(WAIT_SLICE_MS.into()) as u32;
        match with_link(|link| link.refill(need, slice)) {
            Err(Refused::By(Status::TimedOut)) if sys::monotonic_ms() < until_ms => {}
            other => return other,
        }
    }
}

/// Sends a request and waits for the reply.
pub(crate) fn request(request: &Request) -> Result<Reply, Refused> {
    with_link(|link| {
        link.pending_bytes = 0;
        link.connect()?;
        if Page::current() == Page::plain() {
            let headroom = control::lease::UNLIMITED_BYTES;
            return Ok(Reply { headroom, ..Reply::of(Status::Done) });
        }
        link.call(request)
    })
}

/// Notifies the daemon that the balance has grown; without a reply.
pub(crate) fn report_released() {
    with_link(|link| {
        if let Some(socket) = &link.socket {
            socket.send(&Request::GivenBack.encode());
        }
    });
}

/// Resets the state in a forked child, which has neither lease nor connection: those are its
/// parent's.
pub(crate) fn forget_after_fork() {
    // SAFETY: the child has one thread, this one, which is not inside the lock: it was in fork.
    let old = unsafe { std::ptr::replace(LINK.0.get(), Mutex::new(UNLINKED)) };
    let old = old.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    drop(old.socket);
    let page = Page::current();
    if page != Page::plain() {
        Page::none().make_current();
    }
    if let Some(at) = page.address() {
        sys::unmap_page(at);
    }
}

impl Link {
    fn refill(&mut self, need: u64, wait_ms: u32) -> Result<(), Refused> {
        // Another thread may have filled the balance meanwhile.
        if Page::current().balance().load(Ordering::Acquire) >= need {
            return Ok(());
        }
        self.pending_bytes = need;
        self.connect()?;
        if Page::current().balance().load(Ordering::Acquire) >= need {
            return Ok(());
        }
        self.adapt_wish();
        let wish = self.wish.max(need);
        let reply = self.call(&Request::Grow { need, wish, wait_ms })?;
        match reply.status {
            Status::Done => Ok(()),
            status => Err(Refused::By(status)),
        }
    }

    /// Larger batches for frequent requests.
    fn adapt_wish(&mut self) {
        let now_ms = sys::monotonic_ms();
        if now_ms.saturating_sub(self.requested_ms) < OFTEN_MS {
            self.wish = (self.wish * 2).min(MOST_WISH);
        } else {
            self.wish = (self.wish / 2).max(LEAST_WISH);
        }
        self.requested_ms = now_ms;
    }

    /// Sends a request and waits for the reply; reconnects once if the connection is broken.
    fn call(&mut self, request: &Request) -> Result<Reply, Refused> {
        for _ in 0..2 {
            self.connect()?;
            let Some(socket) = &self.socket else { break };
            let mut packet = [0; REPLY_BYTES];
            if socket.send(&request.encode())
                && let Some(len) = socket.receive(&mut packet)
                && let Some(reply) = packet.get(..len).and_then(Reply::decode)
            {
                return Ok(reply);
            }
            self.socket = None;
        }
        Err(Refused::Unreachable)
    }

    /// Establishes a connection, unless none is needed.
    fn connect(&mut self) -> Result<(), Refused> {
        if self.socket.as_ref().is_some_and(Socket::is_ours) || Page::current() == Page::plain() {
            return Ok(());
        }
        self.socket = None;
        if !self.known {
            return match self.hello() {
                Ok(()) => Ok(()),
                Err(why) => {
                    self.warn(&[c"no lease (", why, c"): memory is not reserved, plain malloc"]);
                    be_plain();
                    Ok(())
                }
            };
        }
        // Granted memory stays available; only growth needs the daemon.
        let start_ms = sys::monotonic_ms();
        loop {
            match self.hello() {
                Ok(()) => {
                    self.gone = false;
                    return Ok(());
                }
                Err(_) if self.gone || sys::monotonic_ms() - start_ms >= RESTART_MS => break,
                Err(_) => sys::sleep_ms(LOOK_MS),
            }
        }
        if !self.gone {
            self.gone = true;
            self.warn(&[
                c"headroom-oomd is gone: no growth beyond what was granted until it is back",
            ]);
        }
        Err(Refused::Unreachable)
    }

    /// Connects, sends the state of this process, and maps the page that the daemon returns.
    fn hello(&mut self) -> Result<(), &'static CStr> {
        let path =
            sys::environment(SOCKET_VARIABLE).map_or(LEASE_SOCKET.as_bytes(), CStr::to_bytes);
        let socket = Socket::connect(path)?;
        let old = Page::current();
        // From here on no memory can be taken until the new page is mapped, which has the same
        // balance.
        let unspent = match old.address() {
            Some(_) => old.balance().swap(0, Ordering::AcqRel),
            None => 0,
        };
        let done = self.present(&socket, unspent, old);
        match done {
            Ok(()) => {
                self.socket = Some(socket);
                self.known = true;
            }
            Err(_) if old.address().is_some() => {
                old.balance().fetch_add(unspent, Ordering::AcqRel);
            }
            Err(_) => {}
        }
        done
    }

    fn present(&mut self, socket: &Socket, unspent: u64, old: Page) -> Result<(), &'static CStr> {
        // The requested bytes are included in the spent ones already, but were not granted.
        let spent = gate::spent().saturating_sub(self.pending_bytes);
        let hello = Request::Hello { version: VERSION, spent, unspent, base: self.base };
        if !socket.send(&hello.encode()) {
            return Err(c"headroom-oomd does not listen");
        }
        let mut packet = [0; REPLY_BYTES];
        let Some((len, file)) = socket.receive_with_file(&mut packet) else {
            return Err(c"headroom-oomd does not answer");
        };
        let reply = packet.get(..len).and_then(Reply::decode);
        let Some(reply) = reply else { return Err(c"headroom-oomd speaks another version") };
        let Some(file) = file.filter(|_| reply.status == Status::Done) else {
            return Err(match reply.status {
                Status::TooManyClients => c"the user, or headroom-oomd, has too many clients",
                Status::NotYou => c"headroom-oomd cannot find the user of this process",
                _ => c"headroom-oomd refuses",
            });
        };
        let at = sys::map_page(&file, old.address()).ok_or(c"cannot map the lease")?;
        self.base = reply.base;
        Page::mapped(at).make_current();
        Ok(())
    }

    fn warn(&mut self, parts: &[&CStr]) {
        if !self.warned {
            self.warned = true;
            sys::warn(parts);
        }
    }
}
