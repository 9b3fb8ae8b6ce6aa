//! Where a case is played: its processes, its transcript, and the waiting with a bound.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::rc::Rc;
use std::time::Duration;

use crate::names::Names;
use crate::peer::Peer;
use crate::process::Process;

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
    lines: RefCell<Vec<String>>,
    muted: Cell<bool>,
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

/// One case at play.
pub struct Stage {
    shared: Rc<Shared>,
    processes: RefCell<Vec<Rc<Process>>>,
}

impl Stage {
    /// An empty stage on a device.
    pub fn new(device: CString, patience: Patience) -> Self {
        let shared = Shared {
            lines: RefCell::default(),
            muted: Cell::new(false),
            names: Names::default(),
            device,
            patience,
        };
        Self { shared: Rc::new(shared), processes: RefCell::default() }
    }

    /// Adds a remark to the transcript.
    pub fn note(&self, text: &str) {
        self.shared.log(format!("-- {text}"));
    }

    /// Plays what belongs to the setting and is the subject of another case: leaves no lines.
    pub fn quietly<T>(&self, play: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
        let before = self.shared.muted.replace(true);
        let result = play();
        self.shared.muted.set(before);
        result.map_err(|Stop(why)| Stop(format!("in the setting: {why}")))
    }

    /// A new process that has not opened the device.
    pub fn process(&self) -> Result<Peer, Stop> {
        let number = self.processes.borrow().len() + 1;
        let process = Rc::new(Process::spawn(number)?);
        self.shared.names.add_process(&process);
        self.processes.borrow_mut().push(process.clone());
        Ok(Peer::new(self.shared.clone(), process))
    }

    /// Ends all processes and returns the transcript.
    pub fn end(self, outcome: Outcome) -> Vec<String> {
        self.shared.muted.set(false);
        if let Err(Stop(why)) = outcome {
            self.shared.log(format!("!! ends here: {why}"));
        }
        for process in self.processes.borrow().iter() {
            if !process.kill() {
                self.shared.log(format!("!! P{} survives SIGKILL", process.number));
            }
        }
        self.shared.lines.take()
    }
}
