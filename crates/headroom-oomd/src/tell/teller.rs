//! A thread that tells of decisions, and warns.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use control::oomd::{AccountKind, Outcome, Why};
use memory_ledger::{AccountId, Uid};

use super::be_ordinary;
use super::before::{PreKillHook, PreKillInfo};
use super::hooks::{Fact, Running};
use super::journald::{self, Journal};
use crate::config::notifications::NotificationConfig;

/// What may wait to be told; more is counted and left out.
const QUEUE: usize = 256;
/// How often is looked whether programs have ended, while some run.
const TICK: Duration = Duration::from_millis(100);
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
}

/// The event loop's end: nothing here waits, but for the program before a kill.
pub struct Teller {
    news: SyncSender<News>,
    lost: Arc<AtomicU64>,
    before: PreKillHook,
}

impl Teller {
    /// Starts the threads. The journal need not be there.
    pub fn start(journal: Option<PathBuf>) -> io::Result<Self> {
        let (news, queue) = sync_channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let work = Work {
            journal,
            queue,
            lost: lost.clone(),
            config: NotificationConfig::default(),
            running: Running::default(),
            warned: BTreeMap::new(),
        };
        std::thread::Builder::new().name("tell".into()).spawn(move || work.run())?;
        Ok(Self { news, lost, before: PreKillHook::start()? })
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

struct Work {
    journal: Option<PathBuf>,
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
            let news = match self.running.is_empty() {
                true => self.queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => self.queue.recv_timeout(TICK),
            };
            match news {
                Ok(news) => self.tell(news),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
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
            News::Decided(why) => self.write(&journald::decided(&why)),
            News::Ended(why) => {
                self.write(&journald::ended(&why));
                if !self.config.hooks.after.is_empty() {
                    self.running.start(&self.config.hooks.after, "after", &facts(&why));
                }
            }
            News::Near(near) => self.warn(&near),
        }
    }

    fn write(&self, entry: &[(&'static str, String)]) {
        // Connected anew each time: the journal may have been started again.
        let journal = self.journal.as_deref().map(Journal::connect);
        if let Some(Ok(journal)) = journal {
            journal.write(entry);
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
        self.write(&journald::warned(&message, facts));
    }
}

/// A decision in single facts, for programs and for the journal.
pub fn facts(why: &Why) -> Vec<Fact> {
    let mut facts = vec![
        ("HEADROOM_DECISION", why.id.to_string()),
        ("HEADROOM_REASON", why.trigger.word().to_owned()),
        ("HEADROOM_LIMIT_BYTES", why.hard_bytes.to_string()),
        ("HEADROOM_USED_BYTES", why.used_bytes.to_string()),
        ("HEADROOM_RULE", why.rule.clone()),
    ];
    let owner = why.victim.as_ref().and_then(|victim| victim.uid);
    let uid = owner.or((why.account.kind == AccountKind::User).then_some(why.account.uid));
    facts.extend(uid.map(|uid| ("HEADROOM_UID", uid.to_string())));
    facts.extend(why.group.iter().map(|group| ("HEADROOM_GROUP", group.clone())));
    facts.extend(why.cgroup.iter().map(|cgroup| ("HEADROOM_CGROUP", cgroup.clone())));
    if let Some(victim) = &why.victim {
        facts.push(("HEADROOM_PID", victim.pid.to_string()));
        facts.push(("HEADROOM_NAME", victim.comm.clone()));
        facts.push(("HEADROOM_BYTES", (victim.rss_bytes + victim.swap_bytes).to_string()));
    }
    if let Some(killer) = why.killer {
        facts.push(("HEADROOM_KILLER", killer.word().to_owned()));
    }
    let outcome = match &why.outcome {
        Outcome::Dying => "dying",
        Outcome::Unknown => "unknown",
        Outcome::NoVictim { .. } => "no-victim",
        Outcome::Stuck { .. } => "stuck",
        Outcome::Reclaimed { bytes_back, .. } => {
            facts.push(("HEADROOM_BYTES_BACK", bytes_back.to_string()));
            "reclaimed"
        }
    };
    facts.push(("HEADROOM_OUTCOME", outcome.to_owned()));
    facts
}
