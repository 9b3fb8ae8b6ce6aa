//! A thread that asks the daemon, so that a slow answer does not make the keys slow.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::{Duration, Instant};

use control::oomd::{Reply, Request};

use super::snapshot::{self, Snapshot};
use crate::helpers::client::{ask_oomd, unexpected};

/// Looks that nobody has taken yet.
const WAITING: usize = 4;

/// What came of asking.
pub enum News {
    /// How things are.
    Snapshot(Box<Snapshot>),
    /// The daemon does not answer.
    Lost(String),
    /// What came of a request of the person's.
    Done(Result<String, String>),
}

/// Asks every so often until dropped.
pub struct Collector {
    /// What came of it.
    pub news: Receiver<News>,
    requests: Sender<Request>,
}

impl Collector {
    /// Begins.
    pub fn start(socket: PathBuf, interval: Duration) -> Self {
        let (tell, news) = sync_channel(WAITING);
        let (requests, orders) = channel();
        std::thread::spawn(move || {
            let mut due = Instant::now() + interval;
            loop {
                let wait = due.saturating_duration_since(Instant::now());
                let told = match orders.recv_timeout(wait) {
                    Ok(request) => {
                        // What has changed is to be seen at once.
                        due = Instant::now();
                        tell.send(News::Done(obey(&socket, &request)))
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        due = Instant::now() + interval;
                        tell.send(match snapshot::take(&socket) {
                            Ok(snapshot) => News::Snapshot(Box::new(snapshot)),
                            Err(error) => News::Lost(format!("{error:#}")),
                        })
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                if told.is_err() {
                    return;
                }
            }
        });
        Self { news, requests }
    }

    /// Has something done; what came of it is news.
    pub fn ask(&self, request: Request) {
        // It ends only after us.
        let _ = self.requests.send(request);
    }
}

fn obey(socket: &std::path::Path, request: &Request) -> Result<String, String> {
    match ask_oomd(socket, request) {
        Ok(Reply::Done) => Ok("done".to_owned()),
        Ok(reply) => Err(format!("{:#}", unexpected(&reply))),
        Err(error) => Err(format!("{error:#}")),
    }
}
