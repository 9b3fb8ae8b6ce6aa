//! The report of an upgrade that has succeeded.

use std::time::Duration;

use control::RequestId;
use headroom_linux::clock::monotonic_ns;
use serde::Serialize;

use super::VERSION;

/// Reports the upgrade to the client that has requested it.
pub struct Completion {
    /// `None`: it has closed its connection.
    pub requester: Option<RequestId>,
    /// Version of the program before this one.
    pub from: String,
    /// Start of the pause, nanoseconds of `CLOCK_MONOTONIC`.
    pub paused_ns: u64,
    /// Number of opens or kills that were taken over.
    pub taken_over: usize,
}

/// An upgrade that has succeeded.
pub struct Upgraded {
    /// Version of the program before this one.
    pub from: String,
    /// Version of this program.
    pub to: String,
    /// Number of opens or kills that were taken over.
    pub taken_over: u32,
    /// Duration of the pause, microseconds.
    pub pause_us: u64,
}

impl Completion {
    /// Logs the upgrade and sends the reply, immediately before the daemon serves again. `what` was
    /// taken over, in the plural.
    pub fn report<R: Serialize>(
        self,
        server: &mut control::Server,
        what: &str,
        reply: impl FnOnce(Upgraded) -> R,
    ) {
        let Self { requester, from, paused_ns, taken_over } = self;
        let pause = Duration::from_nanos(monotonic_ns().saturating_sub(paused_ns));
        tracing::info!(
            "upgraded from {from} to {VERSION}: {taken_over} {what} continue after a pause of \
             {:.1} ms",
            pause.as_secs_f64() * 1000.0
        );
        let reply = reply(Upgraded {
            from,
            to: VERSION.to_owned(),
            taken_over: u32::try_from(taken_over).unwrap_or(u32::MAX),
            pause_us: u64::try_from(pause.as_micros()).unwrap_or(u64::MAX),
        });
        if let Some(requester) = requester {
            server.reply(requester, &reply);
        }
    }
}
