//! A server with idle memory, in the place of a `headroom-binderd`.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use control::Server;
use control::binderd::{Reclaimed, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Listens and releases memory until it is dropped.
pub struct Reclaimer {
    idle_pages: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

const BATCH: u64 = 32;

impl Reclaimer {
    /// Starts the server. It releases one batch per request, until nothing is left.
    pub fn start(socket: &Path, idle_pages: u64) -> Self {
        let mut server = Server::bind(socket, 0o600).unwrap();
        let idle_pages = Arc::new(AtomicU64::new(idle_pages));
        let stop = Arc::new(AtomicBool::new(false));
        let (left, stopped) = (idle_pages.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let turn = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            while !stopped.load(SeqCst) {
                let _ = poll(&mut [PollFd::new(&server.as_fd(), PollFlags::IN)], Some(&turn));
                server.serve(|peer, request: Result<Request, String>| {
                    assert!(peer.is_root());
                    let Ok(Request::Reclaim { pages }) = request else { panic!("{request:?}") };
                    let given = pages.min(BATCH).min(left.load(SeqCst));
                    left.fetch_sub(given, SeqCst);
                    Reply::Reclaimed(Reclaimed { pages: given, idle_pages: left.load(SeqCst) })
                });
            }
        });
        Self { idle_pages, stop, thread: Some(thread) }
    }

    /// Idle memory that is left, pages.
    pub fn idle_pages(&self) -> u64 {
        self.idle_pages.load(SeqCst)
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))));
    }
}
