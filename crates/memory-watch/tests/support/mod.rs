//! What the tests share: watched processes and patience.

#![allow(dead_code, reason = "each test program uses a part of it")]

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
/// A limit no test reaches, for those that want an account only.
pub const FAR_AWAY: u64 = 1 << 40;

/// The notifier, or `None` after having said why the test is skipped.
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

/// The kernel lacks it or the container forbids it. A program that the verifier rejects is our
/// fault.
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

/// Does what a measurement does that finds no page shared: what processes were started with may be
/// their parent's, and kills nobody before that.
#[allow(dead_code)] // Not by every test program.
pub fn confirm(notifier: &mut Notifier, account: AccountId) {
    let usage = notifier.usage(account).unwrap();
    let correction = Correction {
        pages: 0,
        summed_pages: usage.summed_pages(),
        confirmed_pages: usage.unconfirmed_pages,
    };
    notifier.correct(account, correction).unwrap();
}

/// Before Linux 6.2 a thread tells of its faults in batches of 64 only, so the account may be that
/// many pages a thread behind.
pub fn fault_batch() -> u64 {
    let types = libbpf_rs::btf::Btf::from_vmlinux().expect("the kernel's types");
    let batched = types.type_by_name::<libbpf_rs::btf::BtfType<'_>>("mm_rss_stat").is_some();
    if batched { 64 } else { 0 }
}

/// A memory hog.
pub struct Hog(Helper);

impl Hog {
    /// Starts one as `uid` and waits until it is that user.
    pub fn start(uid: Uid) -> Self {
        let mut command = Command::new(test_support::programs::memory_hog());
        let mut hog = Self(Helper::run(command.arg(uid.to_string())));
        // A change of uid is charged at the next fault (before Linux 6.2: at the next batch).
        hog.tell("touch 100");
        hog
    }

    /// Its next answer; nothing when it is dead.
    pub fn answer(&mut self) -> String {
        self.0.answer().unwrap_or_default()
    }

    /// Gives a command and waits for its answer.
    pub fn ask(&mut self, command: &str) -> String {
        self.begin(command);
        self.answer()
    }

    /// Waits until it is dead; whether SIGKILL did it.
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

/// What `/proc` says a user's processes are charged, in pages.
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
