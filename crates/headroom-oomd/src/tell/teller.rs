//! A thread that tells of decisions, and warns.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::oomd::Why;
use memory_ledger::{AccountId, Uid};

use super::be_ordinary;
use super::before::{PreKillHook, PreKillInfo};
use super::hooks::Running;
use super::kill_log::{facts, log_decision, log_outcome, log_warning};
use crate::config::notifications::NotificationConfig;

/// What may wait to be told; more is counted and left out.
const QUEUE: usize = 256;
/// How often is looked whether programs have ended, while some run.
const TICK: Duration = Duration::from_millis(100);
/// How long the last entries may take at the end.
const PATIENCE: Duration = Duration::from_secs(1);
/// Users whose last warning is remembered.
const USERS: usize = 4096;

/// A user has crossed its soft limit, or a group that which it shares, or a cgroup.
#[derive(Clone, Debug)]
pub struct Near {
    /// Whose.
    pub account: AccountId,
    /// The group's name.
    pub group: Option<String>,
    /// The cgroup's path.
    pub cgroup: Option<String>,
    /// The users of the group, or the owner of the cgroup.
    pub members: Vec<Uid>,
    /// Charged, bytes.
    pub used_bytes: u64,
    /// Hard limit, bytes.
    pub hard_bytes: u64,
}

enum News {
    Decided(Box<Why>),
    Ended(Box<Why>),
    Near(Near),
    Configure(Box<NotificationConfig>),
    End,
}

/// The event loop's end: nothing here waits, but for the program before a kill.
pub struct Teller {
    news: SyncSender<News>,
    lost: Arc<AtomicU64>,
    before: PreKillHook,
    thread: Option<JoinHandle<()>>,
}

impl Teller {
    /// Starts the threads.
    pub fn start() -> io::Result<Self> {
        let (news, queue) = sync_channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let work = Work {
            queue,
            lost: lost.clone(),
            config: NotificationConfig::default(),
            running: Running::default(),
            warned: BTreeMap::new(),
        };
        let before = PreKillHook::start()?;
        let thread = std::thread::Builder::new().name("tell".into()).spawn(move || work.run())?;
        Ok(Self { news, lost, before, thread: Some(thread) })
    }

    /// Who is told, and how, from now on.
    pub fn configure(&mut self, config: &NotificationConfig) {
        self.before.configure(&config.hooks);
        self.tell(News::Configure(Box::new(config.clone())));
    }

    fn tell(&self, news: News) {
        if self.news.try_send(news).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Somebody is about to be killed. Returns when the program before a kill has ended, or its
    /// budget is spent.
    pub fn run_pre_kill_hook(&self, info: PreKillInfo) {
        self.before.run(info);
    }

    /// A decision was made.
    pub fn decided(&self, why: &Why) {
        self.tell(News::Decided(Box::new(why.clone())));
    }

    /// Its end is known.
    pub fn ended(&self, why: &Why) {
        self.tell(News::Ended(Box::new(why.clone())));
    }

    /// A user has crossed its soft limit.
    pub fn near(&self, near: Near) {
        self.tell(News::Near(near));
    }
}

/// Waits until the last entries are written, up to a bound: journald may not read.
impl Drop for Teller {
    fn drop(&mut self) {
        let end = Instant::now() + PATIENCE;
        self.tell(News::End);
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

struct Work {
    queue: Receiver<News>,
    lost: Arc<AtomicU64>,
    config: NotificationConfig,
    running: Running,
    /// When a user was warned last.
    warned: BTreeMap<AccountId, Instant>,
}

impl Work {
    fn run(mut self) {
        be_ordinary();
        loop {
            let news = if self.running.is_empty() {
                self.queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                self.queue.recv_timeout(TICK)
            };
            match news {
                Ok(News::End) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(news) => self.tell(news),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.running.look();
            let lost = self.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                tracing::warn!(lost, "too much happened to tell of all of it; the records have it");
            }
        }
    }

    fn tell(&mut self, news: News) {
        match news {
            News::Configure(config) => self.config = *config,
            News::Decided(why) => log_decision(&why),
            News::Ended(why) => {
                log_outcome(&why);
                if !self.config.hooks.after.is_empty() {
                    self.running.start(&self.config.hooks.after, "after", &facts(&why));
                }
            }
            News::Near(near) => self.warn(&near),
            News::End => {}
        }
    }

    fn warn(&mut self, near: &Near) {
        let Near { account, group, cgroup, members, used_bytes, hard_bytes } = near;
        let pause = Duration::from_secs(self.config.warnings.interval_s);
        self.warned.retain(|_, at| at.elapsed() < pause);
        if self.warned.contains_key(account) || self.warned.len() >= USERS {
            return;
        }
        self.warned.insert(*account, Instant::now());
        let mut facts = vec![
            ("HEADROOM_BYTES", used_bytes.to_string()),
            ("HEADROOM_LIMIT_BYTES", hard_bytes.to_string()),
        ];
        let message = match (group, cgroup) {
            (_, Some(cgroup)) => {
                facts.push(("HEADROOM_CGROUP", cgroup.clone()));
                facts.extend(members.first().map(|uid| ("HEADROOM_UID", uid.to_string())));
                format!("cgroup {cgroup} nears its limit: {used_bytes} of {hard_bytes} bytes")
            }
            (Some(group), None) => {
                let uids: Vec<String> = members.iter().map(Uid::to_string).collect();
                facts.push(("HEADROOM_GROUP", group.clone()));
                facts.push(("HEADROOM_UIDS", uids.join(" ")));
                format!("group {group} nears its limit: {used_bytes} of {hard_bytes} bytes")
            }
            (None, None) => {
                facts.extend(account.user().map(|uid| ("HEADROOM_UID", uid.to_string())));
                format!("{account} nears its limit: {used_bytes} of {hard_bytes} bytes")
            }
        };
        if !self.config.hooks.warn.is_empty() {
            self.running.start(&self.config.hooks.warn, "warn", &facts);
        }
        log_warning(&message, &facts);
    }
}
