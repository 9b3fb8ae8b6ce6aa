//! Reload of the configuration.
//!
//! If a file is invalid, nothing changes, and the status shows the error until the next reload.

use headroom_daemon::message::plain;
use memory_ledger::Margin;

use crate::config::enforcement::Enforcement;
use crate::config::notifications::NotificationConfig;
use crate::config::{Config, ConfigError, Files};
use crate::notifications::metrics::Exporter;
use crate::oom::reconfigure::reconfigure;
use crate::oom::{OomManager, Reconfigured};

/// Source of the configuration, and the degradations to be reported.
pub struct Reload {
    files: Files,
    ram_bytes: u64,
    margin: Option<Margin>,
    /// Overrides the files; `None`: the files apply.
    enforcement: Option<Enforcement>,
    degraded: Vec<String>,
    exporter: Option<Exporter>,
    notifications: NotificationConfig,
    /// Error of the last reload, if it failed.
    diagnostic: Option<String>,
}

impl Reload {
    /// Percentages in the files are of `ram_bytes`; soft limits that they omit are derived from
    /// `margin`. Reads nothing yet.
    pub fn new(files: Files, ram_bytes: u64, margin: Option<Margin>) -> Self {
        Self {
            files,
            ram_bytes,
            margin,
            enforcement: None,
            degraded: Vec::new(),
            exporter: None,
            notifications: NotificationConfig::default(),
            diagnostic: None,
        }
    }

    /// Overrides the `observe` key of the files.
    pub fn override_enforcement(&mut self, enforcement: Enforcement) {
        self.enforcement = Some(enforcement);
    }

    /// Reads the files.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let config = Config::load(&self.files, self.ram_bytes, self.margin)?;
        let enforcement = self.enforcement.unwrap_or(config.enforcement);
        Ok(Config { enforcement, ..config })
    }

    /// Sets the exporter of metrics.
    pub fn set_exporter(&mut self, exporter: Exporter) {
        self.exporter = Some(exporter);
    }

    /// Applies the configuration of notifications. Returns what could not be applied.
    pub fn notify(&mut self, config: &NotificationConfig, oom: &mut OomManager) -> Option<String> {
        self.notifications = config.clone();
        for hint in &config.obsolete {
            tracing::warn!("{hint}");
        }
        if let Some(notifications) = oom.records_mut().notifications() {
            notifications.configure(config);
        }
        let exported = self.exporter.as_mut()?.configure(&config.metrics);
        exported.err().map(|error| format!("metrics are not exported: {error}"))
    }

    /// Records degradations at start, a sentence each.
    pub fn started(&mut self, degraded: Vec<String>) {
        self.degraded = degraded.iter().map(|sentence| plain(sentence)).collect();
    }

    /// All degradations, a sentence each.
    pub fn degraded(&self) -> Vec<String> {
        self.degraded.iter().chain(&self.diagnostic).cloned().collect()
    }

    /// Reads the files again and applies them. Returns the changes and what could not be applied;
    /// an error means that a file is invalid and nothing changed.
    pub fn reload(&mut self, oom: &mut OomManager) -> Result<Reconfigured, String> {
        let config = match self.load() {
            Ok(config) => config,
            Err(error) => {
                let diagnostic = format!("{error}; the previous configuration stays in force");
                tracing::error!("{diagnostic}");
                self.diagnostic = Some(diagnostic.clone());
                return Err(diagnostic);
            }
        };
        let mut done = reconfigure(oom, &config);
        if self.notifications != config.notifications {
            done.changes.push("notifications".to_owned());
            done.problems.extend(self.notify(&config.notifications, oom));
        }
        self.diagnostic = (!done.problems.is_empty())
            .then(|| format!("configuration not applied completely: {}", done.problems.join("; ")));
        for problem in &done.problems {
            tracing::error!("{problem}");
        }
        tracing::info!(changes = done.changes.len(), "configuration reloaded");
        Ok(done)
    }
}
