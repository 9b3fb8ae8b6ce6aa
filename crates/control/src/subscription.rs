//! Notification of kills as they happen, and kill preferences of a user's own processes.
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

/// Events as they happen: those of the caller's own user; for root, all.
///
/// The iterator ends when the daemon exits, which is an error once; then start another
/// subscription.
pub struct Subscription {
    path: PathBuf,
    /// `None`: the connection has ended.
    client: Option<Client>,
}

impl Subscription {
    /// Subscribes at the daemon that listens on `path`. No event after this call is missed.
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

/// Sets the kill preference of one of the caller's own processes; `None` is the caller itself. It
/// is valid until the process, or the daemon, exits.
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
