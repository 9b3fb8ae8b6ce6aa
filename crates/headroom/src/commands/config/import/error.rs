//! Errors for options that cannot be translated.

use std::fmt;

/// The option, the fact, and the remedy.
#[derive(Debug, PartialEq, Eq)]
pub struct ImportError {
    /// As it is written, with its dashes.
    pub option: String,
    pub fact: String,
    pub remedy: String,
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.option, self.fact, self.remedy)
    }
}

impl std::error::Error for ImportError {}
