//! Hearing of kills as they happen, and a word about one's own processes.
//!
//! ```no_run
//! use control::oomd::{Event, Importance};
//! use control::subscription::{Subscription, set_importance};
//!
//! # fn main() -> Result<(), control::ControlError> {
//! let socket = std::path::Path::new(control::OOMD_SOCKET);
//! // This process holds what cannot be had again: the user's other processes go first.
//! set_importance(socket, None, Importance::Avoid)?;
//! for event in Subscription::start(socket)? {
//!     match event? {
//!         Event::SoftLimitCrossed { used_bytes, hard_bytes, .. } => {
//!             println!("{used_bytes} of {hard_bytes}");
//!         }
//!         Event::Ended { why } => println!("{:?} is gone", why.victim),
//!         Event::Decided { .. } => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::path::{Path, PathBuf};

use crate::oomd::{Event, Importance, Reply, Request};
use crate::{Client, ControlError};

/// What happens, as it happens: of one's own user, for root of all.
///
/// It ends when the daemon ends, which is an error once; who wants to go on starts another.
pub struct Subscription {
    path: PathBuf,
    /// `None`: it has ended.
    client: Option<Client>,
}

impl Subscription {
    /// Subscribes at the daemon that listens on `path`. What happens after this is not missed.
    pub fn start(path: &Path) -> Result<Self, ControlError> {
        let mut client = Client::connect(path)?;
        match client.call(&Request::Subscribe)? {
            Reply::Subscribed => {}
            reply => return Err(unexpected(path, reply)),
        }
        client.set_patience(None)?;
        Ok(Self { path: path.to_owned(), client: Some(client) })
    }

    fn receive(&mut self) -> Option<Result<Event, ControlError>> {
        Some(match self.client.as_mut()?.receive() {
            Ok(Reply::Event(event)) => Ok(event),
            Ok(reply) => Err(unexpected(&self.path, reply)),
            Err(error) => Err(error),
        })
    }
}

impl Iterator for Subscription {
    type Item = Result<Event, ControlError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.receive()?;
        if next.is_err() {
            self.client = None;
        }
        Some(next)
    }
}

/// Says how the caller's user sees one of its own processes; `None` is the caller itself. It holds
/// until the process, or the daemon, ends.
pub fn set_importance(
    path: &Path,
    pid: Option<u32>,
    importance: Importance,
) -> Result<(), ControlError> {
    match Client::connect(path)?.call(&Request::SetImportance { pid, importance })? {
        Reply::Done => Ok(()),
        reply => Err(unexpected(path, reply)),
    }
}

fn unexpected(path: &Path, reply: Reply) -> ControlError {
    let path = path.to_owned();
    match reply {
        Reply::Error { message } => ControlError::Refused { path, message },
        reply => {
            let error = format!("it is the answer to another question: {reply:?}");
            ControlError::Garbled { path, error }
        }
    }
}
