//! One check of the report.

use headroom_daemon::message::plain;
use serde::Serialize;

/// One capability that we use.
#[derive(Debug, Serialize)]
pub struct Check {
    /// What it is called.
    pub capability: &'static str,
    /// It is there.
    pub present: bool,
    /// What was found.
    pub found: String,
    /// What is lost when it is missing; empty when it is there.
    pub lost: &'static str,
    /// What an operator can do; empty when it is there.
    pub remedy: &'static str,
    /// Without it this daemon cannot work at all.
    pub disables: Option<&'static str>,
}

impl Check {
    /// `found` says what is there (`Ok`) or how it is missing (`Err`).
    pub fn new(
        capability: &'static str,
        found: Result<String, String>,
        lost: &'static str,
        remedy: &'static str,
    ) -> Self {
        match found {
            Ok(found) => {
                Self { capability, present: true, found, lost: "", remedy: "", disables: None }
            }
            Err(error) => {
                let found = plain(&error);
                Self { capability, present: false, found, lost, remedy, disables: None }
            }
        }
    }

    /// If it is missing, `daemon` cannot work.
    pub fn needed_by(mut self, daemon: &'static str) -> Self {
        self.disables = (!self.present).then_some(daemon);
        self
    }
}
