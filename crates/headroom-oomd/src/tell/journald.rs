//! The system's journal, with a field for each fact: `journalctl HEADROOM_UID=1000`.
//!
//! One datagram an entry, in the journal's native protocol; what stands in the log stands there as
//! well, as text.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use control::oomd::{Outcome, Why};

/// Where systemd-journald listens.
pub const SOCKET: &str = "/run/systemd/journal/socket";
/// Of all entries about a kill.
pub const KILLED: &str = "f3a1c9d2b6e84f0795c3d81b2e6a4f10";
/// Of all entries about a victim's end.
pub const ENDED: &str = "0b7d5e92c8134a6fa2e1f6409d3c7b58";
/// Of all entries about a user that nears its limit.
pub const WARNED: &str = "5c2e8f41a9d7463eb0f4a7c61d93e285";

/// The journal.
pub struct Journal(UnixDatagram);

impl Journal {
    /// Connects, where there is one.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        // A journal that does not read holds nobody up.
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Writes an entry; what the journal does not take is lost to it, not to the log.
    pub fn write(&self, entry: &[(&str, String)]) {
        let _ = self.0.send(&encode(entry));
    }
}

/// `NAME=value`, or for a value of several lines its name, its length in 8 bytes, and itself.
fn encode(entry: &[(&str, String)]) -> Vec<u8> {
    let mut datagram = Vec::new();
    for (name, value) in entry {
        datagram.extend(name.as_bytes());
        if value.contains('\n') {
            datagram.push(b'\n');
            datagram.extend((value.len() as u64).to_le_bytes());
        } else {
            datagram.push(b'=');
        }
        datagram.extend(value.as_bytes());
        datagram.push(b'\n');
    }
    datagram
}

/// What every entry has. Priorities are those of syslog: 4 is a warning, 6 is information.
fn entry(message: String, id: &str, priority: u8) -> Vec<(&'static str, String)> {
    vec![
        ("MESSAGE", message),
        ("MESSAGE_ID", id.to_owned()),
        ("PRIORITY", priority.to_string()),
        ("SYSLOG_IDENTIFIER", "headroom-oomd".to_owned()),
    ]
}

/// The entry about a decision.
pub fn decided(why: &Why) -> Vec<(&'static str, String)> {
    let whose = match (&why.group, &why.cgroup) {
        (_, Some(cgroup)) => format!("cgroup {cgroup}"),
        (Some(group), None) => format!("group {group}"),
        (None, None) => format!("uid {}", why.account.uid),
    };
    let (name, pid) = match &why.victim {
        Some(victim) => (victim.comm.escape_default().to_string(), victim.pid),
        None => (String::new(), 0),
    };
    let message = match (&why.victim, &why.outcome) {
        (Some(_), _) => format!("killed {name} (pid {pid}) of {whose}: {}", why.rule),
        (None, Outcome::NoVictim { reason }) => {
            format!("{whose} is over its limit, and nobody can be killed: {reason}")
        }
        (None, _) => format!("{whose} is over its limit, and nobody was killed"),
    };
    let mut entry = entry(message, KILLED, 4);
    entry.extend(super::teller::facts(why));
    entry
}

/// The entry about its end.
pub fn ended(why: &Why) -> Vec<(&'static str, String)> {
    let pid = why.victim.as_ref().map_or(0, |victim| victim.pid);
    let (message, priority) = match &why.outcome {
        Outcome::Reclaimed { bytes_back, micros, .. } => {
            (format!("pid {pid} gave {bytes_back} bytes back in {micros} microseconds"), 6)
        }
        Outcome::Stuck { reason } => (format!("pid {pid} does not go: {reason}"), 4),
        other => (format!("pid {pid}: {other:?}"), 6),
    };
    let mut entry = entry(message, ENDED, priority);
    entry.extend(super::teller::facts(why));
    entry
}

/// The entry about a user that nears its limit.
pub fn warned(message: &str, facts: Vec<super::hooks::Fact>) -> Vec<(&'static str, String)> {
    let mut entry = entry(message.to_owned(), WARNED, 4);
    entry.extend(facts);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_written_as_the_journal_reads_it() {
        let entry = [("MESSAGE", "a=b".to_owned()), ("X", "1\n2".to_owned()), ("Y", String::new())];
        assert_eq!(encode(&entry), b"MESSAGE=a=b\nX\n\x03\0\0\0\0\0\0\x001\n2\nY=\n");
    }

    #[test]
    fn where_there_is_no_journal_that_is_an_error() {
        assert!(Journal::connect(Path::new("/nonexistent/socket")).is_err());
    }
}
