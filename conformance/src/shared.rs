//! State that the peers of a case share: its transcript, the names in it, and timeouts.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::time::Duration;

use crate::names::Names;

/// Why a case is aborted: part of its transcript.
#[derive(Debug)]
pub struct Stop(pub String);

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Stop(error.to_string())
    }
}

/// Result of a case or of one of its operations.
pub type Outcome = Result<(), Stop>;

/// Timeouts.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// A call that should block and has not returned after this time counts as blocking.
    pub blocks: Duration,
    /// A call that should return and has not after this time counts as hanging, and ends its case.
    pub hangs: Duration,
}

/// What threads are before their first command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Threads {
    /// Any thread reads. The kernel's driver in C gives work of the process to it, too.
    Plain,
    /// Each thread enters the looper, without a line in the transcript: the kernel's driver in
    /// Rust gives work of the process to no other thread.
    Looper,
}

/// State that the peers of a case share.
pub struct Shared {
    /// The transcript so far.
    pub lines: RefCell<Vec<String>>,
    /// New lines are dropped.
    pub muted: Cell<bool>,
    /// Names given so far.
    pub names: Names,
    /// The device.
    pub device: CString,
    /// Timeouts.
    pub patience: Patience,
    /// What threads are before their first command.
    pub threads: Threads,
}

impl Shared {
    /// Adds a line to the transcript.
    pub fn log(&self, line: String) {
        if !self.muted.get() {
            self.lines.borrow_mut().push(line);
        }
    }
}
