//! The environment of a case: its processes and its transcript.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::rc::Rc;

use crate::names::Names;
use crate::peer::Peer;
use crate::process::Process;
use crate::shared::{Outcome, Patience, Shared, Stop, Threads};

/// One running case.
pub struct Stage {
    shared: Rc<Shared>,
    processes: RefCell<Vec<Rc<Process>>>,
}

impl Stage {
    /// A stage without processes on a device.
    pub fn new(device: CString, patience: Patience, threads: Threads) -> Self {
        let shared = Shared {
            lines: RefCell::default(),
            muted: Cell::new(false),
            names: Names::default(),
            device,
            patience,
            threads,
        };
        Self { shared: Rc::new(shared), processes: RefCell::default() }
    }

    /// Adds a remark to the transcript.
    pub fn note(&self, text: &str) {
        self.shared.log(format!("-- {text}"));
    }

    /// Runs preparations that are the subject of another case: no lines are added to the
    /// transcript.
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
