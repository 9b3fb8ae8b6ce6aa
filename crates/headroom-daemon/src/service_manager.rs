//! What a service manager is told: readiness, life signs, a line for people.
//!
//! It is one datagram of `NAME=value` lines to the socket that `$NOTIFY_SOCKET` names, as systemd defined it and
//! others took up.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager, if one has started us and wants to know.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// As the environment names it. Also what is wrong with that name, if something is.
    pub fn from_environment() -> (Self, Option<String>) {
        let deaf = |error| {
            let complaint = "the service manager hears nothing";
            (Self::default(), Some(format!("$NOTIFY_SOCKET cannot be used ({error}): {complaint}")))
        };
        Self::named().map_or_else(deaf, |manager| (manager, None))
    }

    fn named() -> io::Result<Self> {
        let variable = |name| std::env::var(name).ok();
        let Some(name) = variable("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Ok(Self::default());
        };
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold us up.
        socket.set_nonblocking(true)?;
        let meant = variable("WATCHDOG_PID");
        let for_us = meant.is_none_or(|pid| pid == std::process::id().to_string());
        let micros = variable("WATCHDOG_USEC").and_then(|micros| micros.parse().ok());
        let watchdog = micros.filter(|micros| for_us && *micros > 0).map(Duration::from_micros);
        Ok(Self { socket: Some((socket, address)), watchdog })
    }

    /// It waits so long for a life sign, and then ends us and starts another.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Somebody will start us again.
    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    fn tell(&self, message: &str) {
        if let Some((socket, address)) = &self.socket {
            // What is not taken now is said again soon; without a manager nobody misses it.
            let _ = socket.send_to_addr(message.as_bytes(), address);
        }
    }

    /// All that was promised is in force.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// A sign of life, with a line about how things are.
    pub fn alive(&self, status: &str) {
        self.tell(&format!("WATCHDOG=1\nSTATUS={}", one_line(status)));
    }

    /// The end is near, and wanted.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}
