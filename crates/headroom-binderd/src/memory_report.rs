//! Reports the memory of receive buffers to `headroom-oomd`. It is in this daemon's resident set,
//! and in a client's as far as the client has mapped it.
//!
//! The event loop lists it; a thread of ordinary priority sends it, so neither a slow nor a missing
//! `headroom-oomd` delays a call.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use binder_fuse::{BufferHolder, Server};
use control::oomd::{HeldMemory, MappedFile, Reply, Request};
use control::{Client, ControlError};
use headroom_linux::sched::leave_realtime;
use owners::Owner;

/// Entries of a report, the largest ones: they fit in a request.
const ENTRIES: usize = 400;
/// Smaller entries are not reported, bytes.
const SMALLEST_BYTES: u64 = 64 << 10;
/// Interval of repeating a report: `headroom-oomd` may have been restarted.
const REPEAT: Duration = Duration::from_secs(2);

/// Sends reports. Dropping it ends the thread after the pending report.
pub struct MemoryReports {
    reports: SyncSender<Vec<HeldMemory>>,
    sent: Vec<HeldMemory>,
}

impl MemoryReports {
    /// Starts the thread, which reports to the control socket of `headroom-oomd`.
    pub fn start(socket: PathBuf) -> io::Result<Self> {
        // A report that finds the queue full is made again at the next tick.
        let (reports, queue) = sync_channel(1);
        std::thread::Builder::new().name("memory-report".into()).spawn(move || {
            leave_realtime(0);
            Reporter { socket, client: None, warned: None }.run(&queue);
        })?;
        Ok(Self { reports, sent: Vec::new() })
    }

    /// Reports the memory if it has changed.
    pub fn update(&mut self, server: &Server) {
        let held = list(server);
        if held != self.sent && self.reports.try_send(held.clone()).is_ok() {
            self.sent = held;
        }
    }
}

fn list(server: &Server) -> Vec<HeldMemory> {
    let entry = |held: binder_fuse::HeldMemory| {
        let uid = match (held.owner, held.holder) {
            (Owner::User(uid), _) => uid,
            (Owner::Namespace(_), Some(holder)) => holder.euid,
            (Owner::Namespace(_), None) => return None,
        };
        let BufferHolder { pid, file: (device, inode), .. } = match held.holder {
            Some(holder) => holder,
            None => return Some(HeldMemory { uid, pid: None, bytes: held.bytes, file: None }),
        };
        let file = MappedFile { major: device.major, minor: device.minor, inode };
        Some(HeldMemory { uid, pid, bytes: held.bytes, file: Some(file) })
    };
    let mut entries: Vec<HeldMemory> =
        server.held_memory(SMALLEST_BYTES).filter_map(entry).collect();
    entries.sort_unstable_by_key(|held| std::cmp::Reverse(held.bytes));
    entries.truncate(ENTRIES);
    entries
}

struct Reporter {
    socket: PathBuf,
    /// The connection on which the last report was made.
    client: Option<Client>,
    /// The last error that was logged.
    warned: Option<String>,
}

impl Reporter {
    fn run(mut self, queue: &Receiver<Vec<HeldMemory>>) {
        let mut held = Vec::new();
        loop {
            match queue.recv_timeout(REPEAT) {
                Ok(report) => held = report,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if held.is_empty() && self.client.is_none() {
                continue;
            }
            match self.send(&held) {
                // Without headroom-oomd there are no limits.
                Ok(()) | Err(ControlError::NotListening { .. }) => self.warned = None,
                Err(error) => self.warn_once(error.to_string()),
            }
        }
    }

    fn send(&mut self, held: &[HeldMemory]) -> Result<(), ControlError> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.socket)?,
        };
        let request = Request::ReportHeldMemory { held: held.to_vec() };
        match client.call(&request)? {
            Reply::Error { message } => self.warn_once(message),
            _ => self.client = Some(client),
        }
        Ok(())
    }

    fn warn_once(&mut self, error: String) {
        if self.warned.as_ref() != Some(&error) {
            tracing::warn!("cannot report the memory of receive buffers: {error}");
            self.warned = Some(error);
        }
    }
}
