//! Counters in a file, for node_exporter's textfile collector.
//!
//! A thread queries the control sockets of this daemon and of `headroom-binderd`, as
//! `headroom metrics` does.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use control::metrics::{NameOf, collect, text};
use headroom_daemon::user_database;

use super::use_ordinary_priority;
use crate::config::notifications::Metrics;

/// Passes the configuration to the thread, which is started when a file is configured first.
pub struct Exporter {
    sockets: [PathBuf; 2],
    thread: Option<Sender<Metrics>>,
}

impl Exporter {
    /// The control sockets are those of `headroom-oomd` and of a `headroom-binderd`. Nothing is
    /// exported before [`configure`](Self::configure).
    pub fn new(oomd: &Path, binderd: &Path) -> Self {
        Self { sockets: [oomd.to_owned(), binderd.to_owned()], thread: None }
    }

    /// Applies a configuration; starts the thread if needed.
    pub fn configure(&mut self, metrics: &Metrics) -> io::Result<()> {
        if self.thread.is_none() && metrics.textfile.is_some() {
            let (configs, queue) = channel();
            let [oomd, binderd] = self.sockets.clone();
            let work = Work { oomd, binderd, queue };
            std::thread::Builder::new().name("metrics".into()).spawn(move || work.run())?;
            self.thread = Some(configs);
        }
        if let Some(configs) = &self.thread {
            // The thread ends only after this sender is dropped, so the send succeeds.
            let _ = configs.send(metrics.clone());
        }
        Ok(())
    }
}

struct Work {
    oomd: PathBuf,
    binderd: PathBuf,
    queue: Receiver<Metrics>,
}

impl Work {
    fn run(self) {
        use_ordinary_priority();
        let Ok(mut metrics) = self.queue.recv() else { return };
        let mut failed = false;
        loop {
            let done = self.export(&metrics);
            // Only the first failure is logged, and the first success after it.
            match &done {
                Err(error) if !failed => {
                    tracing::error!("metrics are not exported: {error}; trying again");
                }
                Ok(()) if failed => tracing::info!("metrics are exported again"),
                _ => {}
            }
            failed = done.is_err();
            match self.queue.recv_timeout(Duration::from_secs(metrics.interval_s)) {
                Ok(next) => metrics = next,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn export(&self, metrics: &Metrics) -> Result<(), String> {
        let Some(file) = &metrics.textfile else { return Ok(()) };
        let name_of: NameOf = |uid| user_database::name_of(uid).ok().flatten();
        let names = metrics.user_names.then_some(name_of);
        let text = text(&collect(&self.oomd, &self.binderd), names);
        write(file, &text).map_err(|e| format!("{}: {e}", file.display()))
    }
}

/// Replaces the file atomically, with mode 644: the collector's user is not known.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let mut draft = file.as_os_str().to_owned();
    // The collector reads only files whose names end in .prom.
    draft.push(".new");
    let draft = PathBuf::from(draft);
    // Removes the name first, so that a symbolic link placed there is not followed.
    let _ = fs::remove_file(&draft);
    let mut options = fs::OpenOptions::new();
    let mut opened = options.write(true).create_new(true).open(&draft)?;
    opened.write_all(text.as_bytes())?;
    opened.set_permissions(fs::Permissions::from_mode(0o644))?;
    fs::rename(&draft, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("headroom.prom");
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, "mine").unwrap();
        std::os::unix::fs::symlink(&elsewhere, dir.path().join("headroom.prom.new")).unwrap();
        write(&file, "one").unwrap();
        write(&file, "two").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "mine");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(dir.path().read_dir().unwrap().count(), 2);
    }
}
