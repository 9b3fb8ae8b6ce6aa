//! Where its words go: standard output and error, or the system's log.

use std::ffi::CString;

/// Chosen at start.
pub struct Say {
    syslog: bool,
    debug: bool,
}

impl Say {
    /// `debug`: small talk as well.
    pub fn new(syslog: bool, debug: bool) -> Self {
        if syslog {
            // SAFETY: the name lives as long as the program.
            unsafe { libc::openlog(c"earlyoom".as_ptr(), libc::LOG_PID, libc::LOG_DAEMON) };
        }
        Self { syslog, debug }
    }

    fn log(&self, level: libc::c_int, line: &str) {
        let line = CString::new(line.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the format takes one text, which ends with a NUL.
        unsafe { libc::syslog(level, c"%s".as_ptr(), line.as_ptr()) };
    }

    /// What an operator should see.
    pub fn warn(&self, line: &str) {
        match self.syslog {
            true => self.log(libc::LOG_WARNING, line),
            false => eprintln!("{line}"),
        }
    }

    /// The state of things.
    pub fn info(&self, line: &str) {
        match self.syslog {
            true => self.log(libc::LOG_INFO, line),
            // A reader that has gone away is none of our business.
            false => drop(crate::helpers::output::print(&format!("{line}\n"))),
        }
    }

    /// Small talk.
    pub fn debug(&self, line: &str) {
        if self.debug {
            self.info(line);
        }
    }

    /// Small talk is wanted.
    pub fn is_debugging(&self) -> bool {
        self.debug
    }
}
