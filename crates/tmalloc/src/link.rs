//! The connection to the daemon: one for the process, made when it is first needed, made again when
//! the daemon was restarted. Runs inside the allocator, so it uses plain system calls only.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use control::lease::{LEASE_SOCKET, REPLY_BYTES, Reply, Request, Status, VERSION};

use crate::gate::{self, Refused};
use crate::page::Page;
use crate::sys::{self, Socket};

/// Overrides where the daemon listens.
const SOCKET_VARIABLE: &CStr = c"HEADROOM_LEASE_SOCKET";
/// `off`: plain malloc, and the daemon is not even looked for.
const SWITCH_VARIABLE: &CStr = c"HEADROOM_TMALLOC";
/// First and smallest wish, bytes.
const LEAST_WISH: u64 = 1 << 20;
/// Largest wish, bytes: at 45 µs a round trip, 4 % of what it takes to touch so much.
const MOST_WISH: u64 = 16 << 20;
/// Who asks again within this time asks for more at a time, milliseconds.
const OFTEN_MS: u64 = 10;
/// How long an allocation waits for a daemon that is being restarted, milliseconds.
const RESTART_MS: u64 = 5_000;
/// How often it looks for it meanwhile, milliseconds.
const LOOK_MS: u64 = 5;
/// One request waits at most so long with the daemon, milliseconds; then other threads have a turn.
const WAIT_SLICE_MS: u32 = 50;

/// What is behind the lock.
struct Link {
    socket: Option<Socket>,
    /// There was a connection once, so the user may be limited.
    known: bool,
    /// Presented again to a daemon without a memory.
    base: u64,
    wish: u64,
    asked_ms: u64,
    /// Since then the daemon is known to be gone, and allocations do not wait for it any more.
    gone: bool,
    warned: bool,
    /// The request under way, bytes.
    asking: u64,
}

const UNLINKED: Link = Link {
    socket: None,
    known: false,
    base: 0,
    wish: LEAST_WISH,
    asked_ms: 0,
    gone: false,
    warned: false,
    asking: 0,
};

/// A lock that a forked child can make new.
struct Shared(UnsafeCell<Mutex<Link>>);

// SAFETY: the cell is written to by a forked child only, while it has one thread.
unsafe impl Sync for Shared {}

static LINK: Shared = Shared(UnsafeCell::new(Mutex::new(UNLINKED)));

fn with_link<R>(f: impl FnOnce(&mut Link) -> R) -> R {
    // SAFETY: written to only while there is one thread, in `forget_after_fork`.
    let link = unsafe { &*LINK.0.get() };
    // A panic cannot have left it half-changed: nothing panics while it is held.
    let mut link = link.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    f(&mut link)
}

/// Plain malloc was asked for.
pub(crate) fn is_switched_off() -> bool {
    sys::environment(SWITCH_VARIABLE).is_some_and(|value| value == c"off")
}

/// Everything may be taken, nobody is asked.
pub(crate) fn be_plain() {
    Page::plain().make_current();
}

/// Has the balance filled so that `need` bytes are there, or says why not. `deadline` is kept from
/// one call to the next of the same request, milliseconds.
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

/// One request that has an answer.
pub(crate) fn ask(request: &Request) -> Result<Reply, Refused> {
    with_link(|link| {
        link.asking = 0;
        link.connect()?;
        if Page::current() == Page::plain() {
            let headroom = control::lease::UNLIMITED_BYTES;
            return Ok(Reply { headroom, ..Reply::of(Status::Done) });
        }
        link.call(request)
    })
}

/// Tells the daemon that the balance has grown; needs no answer.
pub(crate) fn tell_given_back() {
    with_link(|link| {
        if let Some(socket) = &link.socket {
            socket.send(&Request::GivenBack.encode());
        }
    });
}

/// A forked child has neither lease nor connection: those are its parent's.
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
        // Another thread may have been here meanwhile.
        if Page::current().balance().load(Ordering::Acquire) >= need {
            return Ok(());
        }
        self.asking = need;
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

    /// Larger batches for who asks often.
    fn adapt_wish(&mut self) {
        let now_ms = sys::monotonic_ms();
        if now_ms.saturating_sub(self.asked_ms) < OFTEN_MS {
            self.wish = (self.wish * 2).min(MOST_WISH);
        } else {
            self.wish = (self.wish / 2).max(LEAST_WISH);
        }
        self.asked_ms = now_ms;
    }

    /// One request and its answer; once more over a new connection if the old one turns out broken.
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

    /// Sees to it that there is a connection, or that none is needed.
    fn connect(&mut self) -> Result<(), Refused> {
        if self.socket.as_ref().is_some_and(Socket::is_ours) || Page::current() == Page::plain() {
            return Ok(());
        }
        self.socket = None;
        if !self.known {
            return match self.hello() {
                Ok(()) => Ok(()),
                Err(why) => {
                    self.warn(&[c"no lease (", why, c"): memory is not promised, plain malloc"]);
                    be_plain();
                    Ok(())
                }
            };
        }
        // What is held stays ours; for more somebody has to be asked.
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

    /// Connects, presents what this process has, and maps the page it is given.
    fn hello(&mut self) -> Result<(), &'static CStr> {
        let path =
            sys::environment(SOCKET_VARIABLE).map_or(LEASE_SOCKET.as_bytes(), CStr::to_bytes);
        let socket = Socket::connect(path)?;
        let old = Page::current();
        // From here on nothing can be taken until the new page is there; it holds as much.
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
        // What is asked for counts as spent already, and is not.
        let spent = gate::spent().saturating_sub(self.asking);
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
                Status::NotYou => c"headroom-oomd cannot tell whose process this is",
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
