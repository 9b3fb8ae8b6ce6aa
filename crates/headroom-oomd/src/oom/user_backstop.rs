//! The backstop of each limited user, if the configuration has one: `MemoryMax=` and
//! `MemorySwapMax=` of the user's slice. A thread of its own sets them through systemd, since the
//! service manager may take long to answer.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use memory_ledger::{AccountId, Backstop, Limit, Uid};

use super::accounts::Accounts;
use crate::notifications::hooks::{self, MOST_RUN};
use crate::notifications::use_ordinary_priority;

/// The program that sets properties of units.
const SYSTEMCTL: &str = "systemctl";

/// Limits of the memory controller that follow users' limits.
#[derive(Default)]
pub(super) struct UserBackstop {
    /// `None`: switched off.
    worker: Option<BackstopWorker>,
}

impl UserBackstop {
    /// Whether users' limits have a backstop.
    pub(super) fn is_on(&self) -> bool {
        self.worker.is_some()
    }

    /// Sets the backstop of all limited users, now and at each change of a limit.
    pub(super) fn switch_on(&mut self, accounts: &Accounts) -> io::Result<()> {
        self.worker = Some(BackstopWorker::start(SYSTEMCTL)?);
        for account in accounts.ledger().accounts() {
            self.follow(account.id, Some(account.limit()));
        }
        Ok(())
    }

    /// Removes the backstop of all limited users.
    pub(super) fn switch_off(&mut self, accounts: &Accounts) {
        for account in accounts.ledger().accounts() {
            self.follow(account.id, None);
        }
        self.worker = None;
    }

    /// Follows a change of a limit; `None`: it has ended. An exempt user has no backstop.
    pub(super) fn follow(&self, account: AccountId, limit: Option<Limit>) {
        let limit = limit.filter(|limit| !limit.is_none());
        if let (Some(worker), Some(uid)) = (&self.worker, Backstop::user_of(account)) {
            worker.set(uid, limit.map(Backstop::of));
        }
    }

    /// The current degradation as a sentence.
    pub(super) fn degraded(&self) -> Option<String> {
        self.worker.as_ref()?.degraded()
    }
}

#[derive(Default)]
struct Pending {
    /// The latest backstop of each user that is not set yet; `None`: none any more.
    of_user: BTreeMap<Uid, Option<Backstop>>,
    /// Why the last one could not be set.
    failure: Option<String>,
    end: bool,
}

#[derive(Default)]
struct Mailbox {
    pending: Mutex<Pending>,
    changed: Condvar,
}

impl Mailbox {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The event loop's side. When it is dropped, the thread sets what is pending and ends.
struct BackstopWorker {
    mailbox: Arc<Mailbox>,
}

impl BackstopWorker {
    /// Starts the thread; `program` is [`SYSTEMCTL`].
    fn start(program: &str) -> io::Result<Self> {
        let mailbox = Arc::new(Mailbox::default());
        let (of_thread, program) = (Arc::clone(&mailbox), program.to_owned());
        let thread = std::thread::Builder::new().name("backstop".into());
        thread.spawn(move || run(&of_thread, &program))?;
        Ok(Self { mailbox })
    }

    /// Sets the backstop of a user, or removes it, as soon as possible. An earlier order for the
    /// same user that has not begun is replaced.
    fn set(&self, uid: Uid, backstop: Option<Backstop>) {
        self.mailbox.pending().of_user.insert(uid, backstop);
        self.mailbox.changed.notify_one();
    }

    /// The current degradation as a sentence.
    fn degraded(&self) -> Option<String> {
        self.mailbox.pending().failure.clone()
    }
}

impl Drop for BackstopWorker {
    fn drop(&mut self) {
        self.mailbox.pending().end = true;
        self.mailbox.changed.notify_one();
    }
}

fn run(mailbox: &Mailbox, program: &str) {
    use_ordinary_priority();
    loop {
        let mut pending = mailbox.pending();
        let (uid, backstop) = loop {
            if let Some(first) = pending.of_user.pop_first() {
                break first;
            }
            if pending.end {
                return;
            }
            pending = mailbox.changed.wait(pending).unwrap_or_else(PoisonError::into_inner);
        };
        drop(pending);
        let failure = set(program, uid, backstop).err();
        if let Some(failure) = &failure {
            tracing::warn!(%uid, "{failure}");
        }
        mailbox.pending().failure = failure;
    }
}

/// The command that sets the backstop: lost at a reboot, but not at a logout.
fn command(program: &str, uid: Uid, backstop: Option<Backstop>) -> Vec<String> {
    let value = |bytes: Option<u64>| bytes.map_or("infinity".to_owned(), |it| it.to_string());
    let memory = value(backstop.map(|it| it.memory_max_bytes));
    let swap = value(backstop.map(|it| it.swap_max_bytes));
    vec![
        program.to_owned(),
        "set-property".to_owned(),
        "--runtime".to_owned(),
        format!("user-{uid}.slice"),
        format!("MemoryMax={memory}"),
        format!("MemorySwapMax={swap}"),
    ]
}

fn set(program: &str, uid: Uid, backstop: Option<Backstop>) -> Result<(), String> {
    let failed = |why: String| {
        format!("the backstop of user {uid} is not set: {why}; it needs systemd as service manager")
    };
    let child = hooks::start(&command(program, uid, backstop), "backstop", &[]).map_err(failed)?;
    match hooks::wait(child, |_| ()) {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(failed(format!("{program}: {status}"))),
        Ok(None) => Err(failed(format!("{program} has not exited after {MOST_RUN:?}"))),
        Err(error) => Err(failed(format!("{program}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use super::*;

    const BACKSTOP: Backstop = Backstop { memory_max_bytes: 300, swap_max_bytes: 200 };

    /// A program in place of systemctl, which records its arguments.
    fn fake(folder: &Path, then: &str) -> String {
        let path = folder.join("systemctl");
        let log = folder.join("log");
        let script = format!("#!/bin/sh\necho \"$@\" >> {}\n{then}\n", log.display());
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn lines(folder: &Path, count: usize) -> Vec<String> {
        let log: PathBuf = folder.join("log");
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if text.lines().count() >= count {
                return text.lines().map(str::to_owned).collect();
            }
            assert!(Instant::now() < end, "{text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn limits_of_slices_are_set_and_removed_by_systemctl() {
        let folder = tempfile::tempdir().unwrap();
        let worker = BackstopWorker::start(&fake(folder.path(), "")).unwrap();
        worker.set(Uid(1000), Some(BACKSTOP));
        let set = "set-property --runtime user-1000.slice MemoryMax=300 MemorySwapMax=200";
        assert_eq!(lines(folder.path(), 1), [set]);
        worker.set(Uid(1000), None);
        let removed =
            "set-property --runtime user-1000.slice MemoryMax=infinity MemorySwapMax=infinity";
        assert_eq!(lines(folder.path(), 2), [set, removed]);
        assert_eq!(worker.degraded(), None);
    }

    #[test]
    fn pending_limits_are_set_before_the_thread_ends() {
        let folder = tempfile::tempdir().unwrap();
        let worker = BackstopWorker::start(&fake(folder.path(), "")).unwrap();
        (0..5).for_each(|user| worker.set(Uid(1000 + user), Some(BACKSTOP)));
        drop(worker);
        assert_eq!(lines(folder.path(), 5).len(), 5);
    }

    #[test]
    fn a_failure_is_reported_until_the_next_success() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("systemd");
        let then = format!("test -e {}", there.display());
        let worker = BackstopWorker::start(&fake(folder.path(), &then)).unwrap();
        let degraded_is = |wanted: bool| {
            let end = Instant::now() + Duration::from_secs(20);
            while worker.degraded().is_some() != wanted {
                assert!(Instant::now() < end, "{:?}", worker.degraded());
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        worker.set(Uid(1000), Some(BACKSTOP));
        degraded_is(true);
        let failure = worker.degraded().unwrap();
        assert!(failure.contains("user 1000") && failure.contains("exit status: 1"), "{failure}");
        std::fs::write(there, "").unwrap();
        worker.set(Uid(1000), Some(BACKSTOP));
        degraded_is(false);
    }
}
