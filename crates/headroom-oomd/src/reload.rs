//! Reload of the configuration.
//!
//! If a file is invalid, nothing changes, and the status shows the error until the next reload.
//!
//! Names of users and groups are filled in when they are known: the configuration is built again
//! from the same texts, and applied.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use control::configuration::ConfiguredLimit;
use control::oomd::Reloaded;
use headroom_daemon::message::plain;
use headroom_linux::clock::monotonic_ns;
use memory_ledger::{NS_PER_MS, Uid};

use crate::config::Enforcement;
use crate::config::notifications::NotificationConfig;
use crate::config::{Config, ConfigError, Files, Texts};
use crate::names::Names;
use crate::oom::OomManager;
use crate::oom::reconfigure::{Lowering, reconfigure};

/// Shortest pause between two times that the configuration is built with new answers, milliseconds.
const BUILD_MS: u64 = 100;
/// That takes at most 1/20 of one CPU.
const BUILD_SHARE: u64 = 20;

/// Source of the configuration, and the degradations to be reported.
pub struct Reload {
    files: Files,
    /// The files that are in force.
    texts: Texts,
    names: Names,
    /// When the configuration may be built again, nanoseconds, CLOCK_MONOTONIC.
    next_build_ns: u64,
    /// Answers for names have changed since it was built.
    is_outdated: bool,
    grace_s: u32,
    default_limits: Vec<ConfiguredLimit>,
    /// Limits and rules that do not act, a sentence each.
    idle: Vec<String>,
    ram_bytes: u64,
    /// Overrides the files; `None`: the files apply.
    enforcement: Option<Enforcement>,
    degraded: Vec<String>,
    notifications: NotificationConfig,
    /// Error of the last reload, if it failed.
    diagnostic: Option<String>,
}

impl Reload {
    /// Percentages in the files are of `ram_bytes`. Reads nothing yet.
    pub fn new(files: Files, names: Names, ram_bytes: u64) -> Self {
        Self {
            files,
            texts: Texts::default(),
            names,
            next_build_ns: 0,
            is_outdated: false,
            grace_s: 0,
            default_limits: Vec::new(),
            idle: Vec::new(),
            ram_bytes,
            enforcement: None,
            degraded: Vec::new(),
            notifications: NotificationConfig::default(),
            diagnostic: None,
        }
    }

    /// Overrides the `observe` key of the files.
    pub fn override_enforcement(&mut self, enforcement: Enforcement) {
        self.enforcement = Some(enforcement);
    }

    /// Reads the files. Names that are not known yet are looked up meanwhile.
    pub fn load(&mut self) -> Result<Config, ConfigError> {
        let texts = self.files.read()?;
        let config = self.build(&texts)?;
        self.texts = texts;
        Ok(config)
    }

    fn build(&mut self, texts: &Texts) -> Result<Config, ConfigError> {
        let config = Config::build(texts, self.ram_bytes, &mut self.names)?;
        self.grace_s = config.grace_s;
        self.default_limits = config.default_limits();
        self.idle = config.idle.clone();
        let enforcement = self.enforcement.unwrap_or(config.enforcement);
        Ok(Config { enforcement, ..config })
    }

    /// Waits until all names were looked up, or for this time, and builds the configuration again.
    pub fn settle(&mut self, patience: Duration) -> Result<Config, ConfigError> {
        let texts = std::mem::take(&mut self.texts);
        // A group's number has to be known before its members are looked up.
        for _ in 0..2 {
            self.names.settle(patience);
            self.build(&texts)?;
        }
        self.names.settle(patience);
        self.build(&texts)
    }

    /// How long a lowered limit does not act, seconds.
    pub fn grace_s(&self) -> u32 {
        self.grace_s
    }

    /// The limits that apply to each of several users by itself.
    pub fn default_limits(&self) -> &[ConfiguredLimit] {
        &self.default_limits
    }

    /// Looks up the groups of users that have a process, takes answers, and applies the
    /// configuration with them. Does not wait.
    pub fn dispatch(&mut self, oom: &mut OomManager) {
        oom.collect_owners(self.names.group_members());
        for uid in oom.take_owners() {
            self.look_up_groups_of(uid);
        }
        self.is_outdated |= self.names.dispatch();
        let now_ns = monotonic_ns();
        if !self.is_outdated || now_ns < self.next_build_ns {
            return;
        }
        self.is_outdated = false;
        let texts = std::mem::take(&mut self.texts);
        match self.build(&texts) {
            Ok(config) => {
                let Reloaded { changes, problems } =
                    reconfigure(oom, &config, Lowering::AfterGrace(config.grace_s));
                for problem in &problems {
                    tracing::error!("{problem}");
                }
                if !changes.is_empty() {
                    tracing::info!("names of the configuration are known: {}", changes.join("; "));
                }
            }
            Err(error) => {
                let diagnostic = format!("{error}; the previous configuration stays in force");
                if self.diagnostic.as_ref() != Some(&diagnostic) {
                    tracing::error!("{diagnostic}");
                }
                self.diagnostic = Some(diagnostic);
            }
        }
        self.texts = texts;
        let took_ns = monotonic_ns() - now_ns;
        self.next_build_ns = now_ns + (BUILD_MS * NS_PER_MS).max(took_ns * BUILD_SHARE);
    }

    /// Looks up the groups of a user, if a limit depends on them and they are not known.
    pub fn look_up_groups_of(&mut self, uid: Uid) {
        self.names.look_up_groups_of(uid);
    }

    /// When [`dispatch`](Self::dispatch) is due even if the fd is not readable.
    pub fn next_deadline_ns(&self) -> u64 {
        let build_ns = if self.is_outdated { self.next_build_ns } else { u64::MAX };
        build_ns.min(self.names.next_deadline_ns())
    }

    /// Applies the configuration of notifications.
    pub fn notify(&mut self, config: &NotificationConfig, oom: &mut OomManager) {
        self.notifications = config.clone();
        if let Some(notifications) = oom.records_mut().notifications() {
            notifications.configure(config);
        }
    }

    /// Records degradations at start, a sentence each.
    pub fn started(&mut self, degraded: Vec<String>) {
        self.degraded = degraded.iter().map(|sentence| plain(sentence)).collect();
    }

    /// All degradations, a sentence each.
    pub fn degraded(&self) -> Vec<String> {
        let names = self.names.degraded();
        self.degraded
            .iter()
            .chain(&self.idle)
            .chain(&names)
            .chain(&self.diagnostic)
            .cloned()
            .collect()
    }

    /// Reads the files again and applies them. Returns the changes and what could not be applied;
    /// an error means that a file is invalid and nothing changed.
    pub fn reload(&mut self, oom: &mut OomManager) -> Result<Reloaded, String> {
        self.names.look_up_again();
        let before = self.idle.clone();
        let config = match self.load() {
            Ok(config) => config,
            Err(error) => {
                let diagnostic = format!("{error}; the previous configuration stays in force");
                tracing::error!("{diagnostic}");
                self.diagnostic = Some(diagnostic.clone());
                return Err(diagnostic);
            }
        };
        let mut done = reconfigure(oom, &config, Lowering::AfterGrace(config.grace_s));
        if self.notifications != config.notifications {
            done.changes.push("notifications".to_owned());
            self.notify(&config.notifications, oom);
        }
        self.diagnostic = (!done.problems.is_empty())
            .then(|| format!("configuration not applied completely: {}", done.problems.join("; ")));
        for problem in &done.problems {
            tracing::error!("{problem}");
        }
        for row in self.idle.iter().filter(|row| !before.contains(row)) {
            tracing::warn!("{row}");
        }
        tracing::info!(changes = done.changes.len(), "configuration reloaded");
        Ok(done)
    }
}

/// Readable when a name is known: [`dispatch`](Reload::dispatch) is due.
impl AsFd for Reload {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.names.as_fd()
    }
}
