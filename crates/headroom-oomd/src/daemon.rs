//! The event loop: one thread, one epoll.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use ::daemon::ServiceManager;
use anyhow::Context;
use control::oomd::{AccountRef, Reply};
use control::{Peer, Server};
use memory_ledger::Uid;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::account_ref::of_ref;
use crate::clock::until;
use crate::leases::Leases;
use crate::oom::{OomManager, control as oom_control};
use crate::reload::Reload;
use crate::requests;
use crate::watchdog::Pulse;

/// epoll's words.
const KILLER: u64 = 0;
const SERVER: u64 = 1;
const SIGNALS: u64 = 2;
const LEASES: u64 = 3;
const PULSE: u64 = 4;

/// SIGINT, SIGTERM and SIGHUP as something to read; to be made before any thread is started, which inherits
/// that they are blocked.
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals and opens the fd.
    pub fn block() -> std::io::Result<Self> {
        // SAFETY: the set is initialised by sigemptyset before it is used and lives through the
        // calls; signalfd's new fd is owned by nobody else.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGINT);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigaddset(&mut set, libc::SIGHUP);
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if error != 0 {
                return Err(std::io::Error::from_raw_os_error(error));
            }
            match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(std::io::Error::last_os_error()),
                fd => Ok(Self(OwnedFd::from_raw_fd(fd))),
            }
        }
    }
}

impl Signals {
    /// The next signal that has come; `None`: no more.
    fn next(&self) -> Option<i32> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        let read = rustix::io::read(&self.0, &mut info).ok()?;
        // Its first field is the number.
        let number = info.get(..read)?.first_chunk::<4>()?;
        Some(i32::from_ne_bytes(*number))
    }
}

/// Works until a signal says to end; SIGHUP says to read the configuration anew.
pub fn run(
    oom: &mut OomManager,
    server: &mut Server,
    leases: &mut Leases,
    signals: &Signals,
    signs: (&Pulse, &ServiceManager),
    reload: &mut Reload,
) -> anyhow::Result<()> {
    let (pulse, manager) = signs;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot make epoll")?;
    let fds = [
        (oom.as_fd(), KILLER),
        (server.as_fd(), SERVER),
        (signals.0.as_fd(), SIGNALS),
        (leases.as_fd(), LEASES),
        (pulse.as_fd(), PULSE),
    ];
    for (fd, word) in fds {
        epoll::add(&epoll, fd, epoll::EventData::new_u64(word), epoll::EventFlags::IN)
            .context("cannot watch")?;
    }
    loop {
        let deadlines = [oom.next_deadline_ns(), leases.next_deadline_ns()];
        let timeout = deadlines.into_iter().flatten().min().map(until);
        let mut ready = [MaybeUninit::uninit(); 5];
        let ready = match epoll::wait(&epoll, &mut ready, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno).context("cannot wait for events"),
        };
        // Whatever woke us: kills go first.
        oom.dispatch();
        for event in ready.iter() {
            match event.data.u64() {
                SERVER => {
                    let answer = |peer, request| {
                        let mut reply = requests::answer(oom, reload, peer, request);
                        leases.complete(&mut reply, oom);
                        reply
                    };
                    server.serve_subscribers(answer, |reply| matches!(reply, Reply::Subscribed));
                }
                PULSE => {
                    pulse.answer();
                    manager.alive(&oom_control::status_line(oom));
                }
                SIGNALS => {
                    while let Some(signal) = signals.next() {
                        if signal != libc::SIGHUP {
                            manager.stopping();
                            return Ok(());
                        }
                        // What came of it is in the log, and in the status.
                        let _ = reload.reload(oom);
                    }
                }
                _ => {}
            }
        }
        // After the requests, which may have changed limits.
        leases.dispatch(oom);
        publish(oom, server);
    }
}

/// Tells subscribers what has happened: users of themselves, root of all.
fn publish(oom: &mut OomManager, server: &mut Server) {
    let news = oom.records_mut().take_news();
    if news.is_empty() {
        return;
    }
    for event in news {
        let account = event.account();
        let shared = of_ref(account);
        let of_theirs = |peer: Peer| {
            AccountRef::user(peer.uid) == account
                || Some(oom.accounts().ledger().groups().account_of(Uid(peer.uid))) == shared
        };
        let may_hear = |peer: Peer| peer.is_root() || of_theirs(peer);
        server.publish(&Reply::Happened(event), may_hear);
    }
    oom.records_mut().collect_news(server.has_subscribers());
}
