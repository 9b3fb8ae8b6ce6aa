//! The configuration once more, while running.
//!
//! Files that make no sense change nothing: what was in force stays in force, and the daemon says
//! so until they do.

use memory_ledger::Margin;

use crate::config::notifications::NotificationConfig;
use crate::config::{Config, ConfigError, Files};
use crate::notifications::metrics::Exporter;
use crate::oom::reconfigure::reconfigure;
use crate::oom::{OomManager, Reconfigured};

/// Where the configuration comes from, and what does not work.
pub struct Reload {
    files: Files,
    ram_bytes: u64,
    margin: Option<Margin>,
    degraded: Vec<String>,
    exporter: Option<Exporter>,
    told: NotificationConfig,
    /// Of the last try, if that failed.
    complaint: Option<String>,
}

impl Reload {
    /// Percentages of the files are of `ram_bytes`, soft limits that they leave out follow from
    /// `margin`. Nothing is read yet.
    pub fn new(files: Files, ram_bytes: u64, margin: Option<Margin>) -> Self {
        Self {
            files,
            ram_bytes,
            margin,
            degraded: Vec::new(),
            exporter: None,
            told: NotificationConfig::default(),
            complaint: None,
        }
    }

    /// Reads the files.
    pub fn load(&self) -> Result<Config, ConfigError> {
        Config::load(&self.files, self.ram_bytes, self.margin)
    }

    /// Metrics go where the files say, by this one.
    pub fn export_by(&mut self, exporter: Exporter) {
        self.exporter = Some(exporter);
    }

    /// Who is told, and how, from now on. Returns what could not be put into force.
    pub fn tell(&mut self, config: &NotificationConfig, oom: &mut OomManager) -> Option<String> {
        self.told = config.clone();
        for sentence in &config.obsolete {
            tracing::warn!("{sentence}");
        }
        if let Some(notifications) = oom.records_mut().notifications() {
            notifications.configure(config);
        }
        let exported = self.exporter.as_mut()?.configure(&config.metrics);
        exported.err().map(|error| format!("metrics are not exported: {error}"))
    }

    /// What turned out not to work at start, a sentence each.
    pub fn started(&mut self, degraded: Vec<String>) {
        self.degraded = degraded;
    }

    /// What does not work, a sentence each.
    pub fn degraded(&self) -> Vec<String> {
        self.degraded.iter().chain(&self.complaint).cloned().collect()
    }

    /// Reads the files anew and puts them into force. Returns what has changed and what could not
    /// be; the error is that of files which make no sense, with which nothing has changed.
    pub fn reload(&mut self, oom: &mut OomManager) -> Result<Reconfigured, String> {
        let config = match self.load() {
            Ok(config) => config,
            Err(error) => {
                let complaint = format!("{error}; the configuration before stays in force");
                tracing::error!("{complaint}");
                self.complaint = Some(complaint.clone());
                return Err(complaint);
            }
        };
        let mut done = reconfigure(oom, &config);
        if self.told != config.tell {
            done.changes.push("who is told".to_owned());
            done.problems.extend(self.tell(&config.tell, oom));
        }
        self.complaint = (!done.problems.is_empty())
            .then(|| format!("of the configuration is not in force: {}", done.problems.join("; ")));
        for problem in &done.problems {
            tracing::error!("{problem}");
        }
        tracing::info!(changes = done.changes.len(), "configuration reloaded");
        Ok(done)
    }
}
