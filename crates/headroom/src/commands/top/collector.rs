//! A thread that sends requests to the daemon, so that a slow reply does not delay the keys.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::{Duration, Instant};

use control::oomd::{Reply, Request};

use super::snapshot::{self, Snapshot};
use crate::helpers::client::{call_oomd, unexpected};

/// Maximum of snapshots that wait to be shown.
const WAITING: usize = 4;

/// Results of the thread's requests.
pub enum Update {
    /// A new snapshot.
    Snapshot(Box<Snapshot>),
    /// The daemon does not answer.
    Lost(String),
    /// Result of a request that the user made.
    Done(Result<String, String>),
}

/// Requests a snapshot at each interval, until dropped.
pub struct Collector {
    /// The results.
    pub updates: Receiver<Update>,
    requests: Sender<Request>,
}

impl Collector {
    /// Starts the thread.
    pub fn start(socket: PathBuf, interval: Duration) -> Self {
        let (results, updates) = sync_channel(WAITING);
        let (requests, pending) = channel();
        std::thread::spawn(move || {
            let mut due = Instant::now() + interval;
            loop {
                let wait = due.saturating_duration_since(Instant::now());
                let sent = match pending.recv_timeout(wait) {
                    Ok(request) => {
                        // Show the effect of the request immediately.
                        due = Instant::now();
                        results.send(Update::Done(execute(&socket, &request)))
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        due = Instant::now() + interval;
                        results.send(match snapshot::take(&socket) {
                            Ok(snapshot) => Update::Snapshot(Box::new(snapshot)),
                            Err(error) => Update::Lost(format!("{error:#}")),
                        })
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                if sent.is_err() {
                    return;
                }
            }
        });
        Self { updates, requests }
    }

    /// Sends a request; its result arrives as [`Update::Done`].
    pub fn send(&self, request: Request) {
        // The thread exits only after this value is dropped.
        let _ = self.requests.send(request);
    }
}

fn execute(socket: &std::path::Path, request: &Request) -> Result<String, String> {
    match call_oomd(socket, request) {
        Ok(Reply::Done) => Ok("done".to_owned()),
        Ok(reply) => Err(format!("{:#}", unexpected(&reply))),
        Err(error) => Err(format!("{error:#}")),
    }
}
