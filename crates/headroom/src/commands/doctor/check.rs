//! One check of the report.

use std::borrow::Cow;

use headroom_daemon::message::plain;
use serde::Serialize;

/// Result of one check.
#[derive(Debug, Serialize)]
pub struct Check {
    /// Name of the checked feature.
    pub capability: &'static str,
    /// The feature is available.
    pub present: bool,
    /// Details of the result.
    pub found: String,
    /// Consequence if it is missing; empty if it is present.
    pub lost: &'static str,
    /// Remedy for an operator; empty if it is present.
    pub remedy: Cow<'static, str>,
    /// The daemon that cannot work at all without it.
    pub disables: Option<&'static str>,
}

impl Check {
    /// `found` describes what is available (`Ok`) or why it is missing (`Err`).
    pub fn new(
        capability: &'static str,
        found: Result<String, String>,
        lost: &'static str,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        match found {
            Ok(found) => {
                let remedy = Cow::Borrowed("");
                Self { capability, present: true, found, lost: "", remedy, disables: None }
            }
            Err(error) => {
                let (found, remedy) = (plain(&error), remedy.into());
                Self { capability, present: false, found, lost, remedy, disables: None }
            }
        }
    }

    /// Marks the feature as required: if it is missing, `daemon` cannot work.
    pub fn needed_by(mut self, daemon: &'static str) -> Self {
        self.disables = (!self.present).then_some(daemon);
        self
    }
}
