//! Shared by the tests: processes under test, and waiting for conditions.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod blocked_read;
pub mod swap;

use std::process::Command;
use std::time::{Duration, Instant};

use libbpf_rs::ErrorKind;
use memory_ledger::{AccountId, Uid};
use memory_watch::process::Proc;
use memory_watch::{Correction, Notifier, NotifierError, Watch};
use test_support::helper::Helper;

pub const PAGE: u64 = 4096;
pub const MIB: u64 = (1 << 20) / PAGE;
/// A limit that no test reaches, for tests that need an account only.
pub const FAR_AWAY: u64 = 1 << 40;

/// The notifier, or `None` after printing why the test is skipped.
pub fn notifier() -> Option<Notifier> {
    if !test_support::privileged() {
        return None;
    }
    match Notifier::load() {
        Ok(notifier) => Some(notifier),
        Err(error) if is_refused(&error) => {
            test_support::skip(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The kernel lacks it or the container forbids it. A program that the verifier rejects is a bug
/// and not skipped.
fn is_refused(error: &NotifierError) -> bool {
    match error {
        NotifierError::Unsupported(_) => true,
        NotifierError::Bpf { source, .. } => {
            let judged_by_verifier = error.to_string().contains("processed ");
            source.kind() == ErrorKind::PermissionDenied && !judged_by_verifier
        }
        _ => false,
    }
}

/// Corrects an account like a measurement that finds no shared page: pages that processes had at
/// their start may be shared with their parent, and cause no kill before that.
#[allow(dead_code)] // Not by every test program.
pub fn confirm(notifier: &mut Notifier, account: AccountId) {
    let usage = notifier.usage(account).unwrap();
    let correction = Correction {
        pages: 0,
        summed_pages: usage.summed_pages(),
        unconfirmed_pages: usage.unconfirmed_pages,
        unlisted_pages: 0,
    };
    notifier.correct(account, correction).unwrap();
}

/// Before Linux 6.2 a thread reports its faults in batches of 64 only, so the account may be that
/// many pages per thread behind.
pub fn fault_batch() -> u64 {
    let types = libbpf_rs::btf::Btf::from_vmlinux().expect("the kernel's types");
    let batched = types.type_by_name::<libbpf_rs::btf::BtfType<'_>>("mm_rss_stat").is_some();
    if batched { 64 } else { 0 }
}

/// A helper process that allocates memory on command.
pub struct Hog(Helper);

impl Hog {
    /// Starts a hog as `uid` and waits until it has changed to that user.
    pub fn start(uid: Uid) -> Self {
        let mut command = Command::new(test_support::programs::memory_hog());
        let mut hog = Self(Helper::run(command.arg(uid.to_string())));
        // A change of uid is charged at the next fault (before Linux 6.2: at the next batch).
        hog.execute("touch 100");
        hog
    }

    /// The next reply of the hog; empty if it was killed.
    pub fn answer(&mut self) -> String {
        self.0.answer().unwrap_or_default()
    }

    /// Sends a command and waits for the reply.
    pub fn request(&mut self, command: &str) -> String {
        self.begin(command);
        self.answer()
    }

    /// Waits until the hog has exited; returns whether SIGKILL ended it.
    pub fn was_killed(&mut self) -> bool {
        eventually("the hog dies", || !self.is_alive());
        self.signal() == Some(libc::SIGKILL)
    }
}

impl std::ops::Deref for Hog {
    type Target = Helper;

    fn deref(&self) -> &Helper {
        &self.0
    }
}

impl std::ops::DerefMut for Hog {
    fn deref_mut(&mut self) -> &mut Helper {
        &mut self.0
    }
}

/// Waits for a condition, at most ten seconds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "still not so after 10 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The charge of a user's processes according to `/proc`, in pages.
pub fn pages_by_proc(uid: Uid) -> u64 {
    let mut proc = Proc::default();
    let mut pids = Vec::new();
    proc.pids(&mut pids).expect("list /proc");
    pids.into_iter()
        .filter_map(|pid| proc.status(pid).ok())
        .filter(|status| status.uid == Some(uid))
        .filter_map(|status| status.charged_bytes())
        .sum::<u64>()
        / PAGE
}
