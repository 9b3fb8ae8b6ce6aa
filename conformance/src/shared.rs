//! What the peers of a case share: its transcript, the names in it, and the bounds of waiting.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::time::Duration;

use crate::names::Names;

/// Why a case cannot go on: part of its transcript.
#[derive(Debug)]
pub struct Stop(pub String);

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Stop(error.to_string())
    }
}

/// How a case ends.
pub type Outcome = Result<(), Stop>;

/// How long to wait for what.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// A call that should block and has not returned for so long is said to block.
    pub blocks: Duration,
    /// A call that should return and has not for so long is said to hang, and ends its case.
    pub hangs: Duration,
}

/// What the peers of a case share.
pub struct Shared {
    /// The transcript so far.
    pub lines: RefCell<Vec<String>>,
    /// Lines are dropped.
    pub muted: Cell<bool>,
    /// Names given so far.
    pub names: Names,
    /// The device.
    pub device: CString,
    /// Bounds of waiting.
    pub patience: Patience,
}

impl Shared {
    /// Adds a line to the transcript.
    pub fn log(&self, line: String) {
        if !self.muted.get() {
            self.lines.borrow_mut().push(line);
        }
    }
}
