//! The bounded queue to the notification thread, which logs decisions and runs hooks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::oomd::{AccountRef, LimitLevel, SoftLimitWarning, Why};
use headroom_linux::clock::monotonic_ns;
use memory_ledger::limit::Bytes;
use memory_ledger::{NS_PER_MS, Uid};
use owners::{Owner, Quota, bounds};

use super::hooks::{Running, Start};
use super::kill_log::{LogShare, facts, log_decision, log_outcome, log_warning};
use super::pre_kill_hook::{PreKillHook, PreKillInfo};
use super::use_ordinary_priority;
use crate::config::notifications::NotificationConfig;

/// Capacity of the queue; notifications beyond it are counted and dropped. More than the bound, for
/// changes of the configuration.
const QUEUE: usize = bounds::NOTIFICATIONS.slots().slots + 8;
/// Interval of reaping hook programs while any of them runs.
const TICK: Duration = Duration::from_millis(100);
/// Timeout for the last entries at exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// A place among the notifications, which is returned when it is dropped.
pub struct Slot {
    /// The owner that is charged.
    pub owner: Owner,
    /// Its uid.
    pub uid: Uid,
    returned: Sender<(Owner, Uid)>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The event loop's side may have ended.
        let _ = self.returned.send((self.owner, self.uid));
    }
}

#[cfg(test)]
impl Slot {
    /// A slot of no quota.
    pub(super) fn of_nobody(owner: Owner) -> Self {
        Self { owner, uid: Uid::NONE, returned: std::sync::mpsc::channel().0 }
    }
}

enum Notification {
    Decided(Box<Why>, Slot),
    Ended(Box<Why>, Slot),
    SoftLimitCrossed(SoftLimitWarning, Slot),
    Configure(Box<NotificationConfig>),
    End,
}

/// The event loop's side. Nothing here blocks except the pre-kill hook.
pub struct NotificationQueue {
    sender: SyncSender<Notification>,
    slots: RefCell<Quota>,
    /// Slots on their way back.
    returned: Receiver<(Owner, Uid)>,
    returning: Sender<(Owner, Uid)>,
    dropped: Arc<AtomicU64>,
    pre_kill_hook: PreKillHook,
    thread: Option<JoinHandle<()>>,
}

impl NotificationQueue {
    /// Starts the threads.
    pub fn start() -> io::Result<Self> {
        let (sender, queue) = sync_channel(QUEUE);
        let (returning, returned) = channel();
        let slots = RefCell::new(Quota::new(bounds::NOTIFICATIONS.slots()));
        let dropped = Arc::new(AtomicU64::new(0));
        let work = NotificationThread {
            queue,
            dropped: dropped.clone(),
            config: NotificationConfig::default(),
            running: Running::default(),
            warned: Warned::default(),
            log: LogShare::default(),
        };
        let pre_kill_hook = PreKillHook::start()?;
        let thread =
            std::thread::Builder::new().name("notifications".into()).spawn(move || work.run())?;
        Ok(Self {
            sender,
            slots,
            returned,
            returning,
            dropped,
            pre_kill_hook,
            thread: Some(thread),
        })
    }

    /// Applies a configuration.
    pub fn configure(&mut self, config: &NotificationConfig) {
        self.pre_kill_hook.configure(&config.hooks);
        self.send(Notification::Configure(Box::new(config.clone())));
    }

    fn send(&self, notification: Notification) {
        if self.sender.try_send(notification).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A slot of the user. `None`: its owner has none left, and the notification is dropped.
    fn slot(&self, uid: Uid) -> Option<Slot> {
        let (owner, mut slots) = (Owner::User(uid), self.slots.borrow_mut());
        for (owner, uid) in self.returned.try_iter() {
            slots.give_back(owner, uid);
        }
        if slots.take(owner, uid).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Slot { owner, uid, returned: self.returning.clone() })
    }

    /// Runs the pre-kill hook. Returns when its program has exited or its budget is spent.
    pub fn run_pre_kill_hook(&self, info: PreKillInfo) {
        self.pre_kill_hook.run(info);
    }

    /// Logs a kill decision.
    pub fn decided(&self, why: &Why) {
        if let Some(slot) = self.slot(charged_user(why)) {
            self.send(Notification::Decided(Box::new(why.clone()), slot));
        }
    }

    /// Logs the outcome of a kill.
    pub fn ended(&self, why: &Why) {
        if let Some(slot) = self.slot(charged_user(why)) {
            self.send(Notification::Ended(Box::new(why.clone()), slot));
        }
    }

    /// Warns that a soft limit was crossed.
    pub fn soft_limit_crossed(&self, warning: SoftLimitWarning) {
        let member = warning.members.first().copied();
        if let Some(slot) = self.slot(warning.account.as_user().or(member).unwrap_or(Uid::NONE)) {
            self.send(Notification::SoftLimitCrossed(warning, slot));
        }
    }
}

/// The user of the account whose limit was exceeded, who may have processes with other uids; for a
/// group or a cgroup, the victim's.
fn charged_user(why: &Why) -> Uid {
    let victim = why.victim.as_ref().and_then(|victim| victim.uid);
    why.account.as_user().or(victim).unwrap_or(Uid::NONE)
}

/// Waits until the last entries are written, with a timeout, since journald may not read.
impl Drop for NotificationQueue {
    fn drop(&mut self) {
        let end = Instant::now() + EXIT_TIMEOUT;
        self.send(Notification::End);
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

struct NotificationThread {
    queue: Receiver<Notification>,
    dropped: Arc<AtomicU64>,
    config: NotificationConfig,
    running: Running,
    warned: Warned,
    log: LogShare,
}

impl NotificationThread {
    fn run(mut self) {
        use_ordinary_priority();
        loop {
            let received = if self.running.count() == 0 && self.log.has_reported() {
                self.queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                self.queue.recv_timeout(TICK)
            };
            match received {
                Ok(Notification::End) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(notification) => self.handle(notification),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.running.reap();
            for (owner, count) in self.log.left_out(monotonic_ns()) {
                tracing::warn!(
                    %owner,
                    count,
                    "kills or warnings were not logged: `headroom why` shows all kills"
                );
            }
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                tracing::warn!(
                    dropped,
                    "notifications were dropped: `headroom why` shows all kills"
                );
            }
        }
    }

    fn handle(&mut self, notification: Notification) {
        match notification {
            Notification::Configure(config) => self.config = *config,
            Notification::Decided(why, slot) => {
                if self.log.take(slot.owner, monotonic_ns()) {
                    log_decision(&why);
                }
            }
            Notification::Ended(why, slot) => {
                if self.log.take(slot.owner, monotonic_ns()) {
                    log_outcome(&why);
                }
                if !self.config.hooks.after.is_empty() {
                    let (program, facts) = (self.config.hooks.after.clone(), facts(&why));
                    self.running.start(Start { program, hook: "after", facts, slot });
                }
            }
            Notification::SoftLimitCrossed(warning, slot) => self.warn(&warning, slot),
            Notification::End => {}
        }
    }

    fn warn(&mut self, warning: &SoftLimitWarning, slot: Slot) {
        let SoftLimitWarning { account, group, cgroup, members, level, .. } = warning;
        let SoftLimitWarning { used_bytes, hard_bytes, grace_s, .. } = warning;
        // A grace is short, and root's request has caused it.
        if grace_s.is_none() {
            let pause_ns = self.config.warnings.interval_s.saturating_mul(1_000 * NS_PER_MS);
            if !self.warned.is_news((*account, *level), &slot, pause_ns, monotonic_ns()) {
                return;
            }
        }
        let mut facts = vec![
            ("HEADROOM_BYTES", used_bytes.to_string()),
            ("HEADROOM_LIMIT_BYTES", hard_bytes.to_string()),
            ("HEADROOM_LEVEL", level.name().to_owned()),
        ];
        facts.extend(grace_s.map(|seconds| ("HEADROOM_GRACE_S", seconds.to_string())));
        let what = match grace_s {
            Some(seconds) => format!("exceeds its lowered limit, which acts in {seconds} s"),
            None => format!("exceeds its {}", level.as_str()),
        };
        let usage = format!("{} of {}", Bytes(*used_bytes), Bytes(*hard_bytes));
        let message = match (group, cgroup) {
            (_, Some(cgroup)) => {
                facts.push(("HEADROOM_CGROUP", cgroup.clone()));
                facts.extend(members.first().map(|uid| ("HEADROOM_UID", uid.to_string())));
                format!("cgroup {cgroup} {what}: {usage}")
            }
            (Some(group), None) => {
                let uids: Vec<String> = members.iter().map(Uid::to_string).collect();
                facts.push(("HEADROOM_GROUP", group.clone()));
                facts.push(("HEADROOM_UIDS", uids.join(" ")));
                format!("group {group} {what}: {usage}")
            }
            (None, None) => {
                facts.push(("HEADROOM_UID", account.uid.to_string()));
                format!("uid {} {what}: {usage}", account.uid)
            }
        };
        if self.log.take(slot.owner, monotonic_ns()) {
            log_warning(&message, &facts);
        }
        if !self.config.hooks.warn.is_empty() {
            let program = self.config.hooks.warn.clone();
            self.running.start(Start { program, hook: "warn", facts, slot });
        }
    }
}

/// A level of an account's limit.
type Level = (AccountRef, LimitLevel);

/// The warnings of the last interval, which are not repeated within it.
struct Warned {
    /// When, nanoseconds, and for whom.
    at: BTreeMap<Level, (u64, Owner, Uid)>,
    slots: Quota,
}

impl Default for Warned {
    fn default() -> Self {
        let slots = Quota::new(bounds::REMEMBERED_WARNINGS.slots());
        Self { at: BTreeMap::new(), slots }
    }
}

impl Warned {
    /// Whether there was no such warning within the interval, and the owner may have one.
    fn is_news(&mut self, level: Level, slot: &Slot, pause_ns: u64, now_ns: u64) -> bool {
        self.at.retain(|_, (at_ns, owner, uid)| {
            let is_over = now_ns.saturating_sub(*at_ns) >= pause_ns;
            if is_over {
                self.slots.give_back(*owner, *uid);
            }
            !is_over
        });
        if self.at.contains_key(&level) || self.slots.take(slot.owner, slot.uid).is_err() {
            return false;
        }
        self.at.insert(level, (now_ns, slot.owner, slot.uid));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_repeated_after_the_interval_and_an_owner_has_a_part() {
        let mut warned = Warned::default();
        let slot = |uid| Slot::of_nobody(Owner::User(Uid(uid)));
        let level = |uid| (AccountRef::user(Uid(uid)), LimitLevel::Soft);
        assert!(warned.is_news(level(1), &slot(1), 10, 0));
        assert!(!warned.is_news(level(1), &slot(1), 10, 9));
        assert!(warned.is_news(level(1), &slot(1), 10, 10));
        let part = bounds::REMEMBERED_WARNINGS.slots().of_an_owner as u32;
        let granted = (0..2 * part).filter(|uid| warned.is_news(level(*uid), &slot(7), 10, 11));
        assert_eq!(granted.count() as u32, part);
        assert!(warned.is_news(level(9_999), &slot(8), 10, 12), "another owner");
        assert!(warned.is_news(level(9_998), &slot(7), 10, 21), "the interval is over");
    }
}
