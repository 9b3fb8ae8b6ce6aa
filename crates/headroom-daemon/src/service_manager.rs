//! The service manager: notifications to it (sd_notify(3)), of readiness, watchdog and status; and
//! signals, by which it stops and reloads the daemon.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::SigSet;
pub use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use sd_notify::NotifyState;

/// The service manager that `$NOTIFY_SOCKET` names, if any.
#[derive(Debug, Default)]
pub struct ServiceManager {
    /// Status lines for a thread that notifies the watchdog: a send blocks while the manager's
    /// socket is full, and the event loop must not.
    watchdog_status: Option<SyncSender<String>>,
}

impl ServiceManager {
    /// Connects. The second value is the reason why the manager that is named cannot be notified.
    pub fn from_environment() -> (Self, Option<String>) {
        if std::env::var_os("NOTIFY_SOCKET").is_none_or(|path| path.is_empty()) {
            return (Self::default(), None);
        }
        match Self::connect() {
            Ok(manager) => (manager, None),
            Err(error) => {
                let message = format!(
                    "$NOTIFY_SOCKET cannot be used ({error}): the service manager is not notified"
                );
                (Self::default(), Some(message))
            }
        }
    }

    fn connect() -> io::Result<Self> {
        notify(&[NotifyState::Status("starting")])?;
        // One status may wait; a newer one is equivalent.
        let (watchdog_status, queue) = sync_channel::<String>(1);
        thread::Builder::new().name("notify".into()).stack_size(64 * 1024).spawn(move || {
            for status in queue {
                let _ = notify(&[NotifyState::Watchdog, NotifyState::Status(&status)]);
            }
        })?;
        Ok(Self { watchdog_status: Some(watchdog_status) })
    }

    /// The time without a watchdog notification after which the manager restarts this process.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog_status.as_ref().and_then(|_| sd_notify::watchdog_enabled())
    }

    /// Whether a manager was found. It restarts this process when it fails.
    pub fn is_there(&self) -> bool {
        self.watchdog_status.is_some()
    }

    /// The service is ready.
    pub fn ready(&self, status: &str) {
        if self.is_there() {
            let _ = notify(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
        }
    }

    /// Notifies the watchdog, without blocking.
    pub fn alive(&self, status: &str) {
        if let Some(watchdog_status) = &self.watchdog_status {
            let _ = watchdog_status.try_send(one_line(status));
        }
    }

    /// The service is stopping, as requested. Waits until that is sent, up to a limit.
    pub fn stopping(&self) {
        /// For a manager that does not read its socket.
        const LIMIT: Duration = Duration::from_secs(1);
        if self.is_there() {
            let (done, sent) = channel();
            thread::spawn(move || {
                let _ = notify(&[NotifyState::Stopping]);
                let _ = done.send(());
            });
            let _ = sent.recv_timeout(LIMIT);
        }
    }
}

fn notify(state: &[NotifyState]) -> io::Result<()> {
    let socket = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
    match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => notify_abstract(OsStr::from_bytes(name), state),
        None => sd_notify::notify(state),
    }
}

/// `sd_notify` takes the name of an abstract socket for a path.
fn notify_abstract(name: &OsStr, state: &[NotifyState]) -> io::Result<()> {
    let address = SocketAddr::from_abstract_name(name.as_bytes())?;
    let message: String = state.iter().map(|state| format!("{state}\n")).collect();
    let socket = UnixDatagram::unbound()?;
    socket.send_to_addr(message.as_bytes(), &address).map(drop)
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

/// Blocked signals, readable for an event loop. Dropping it leaves them blocked.
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals in the calling thread and in the threads that it starts. Call it before
    /// any thread exists, or a thread that does not block them receives them.
    pub fn block(signals: &[Signal]) -> io::Result<Self> {
        let set: SigSet = signals.iter().copied().collect();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// The next signal that is pending, if any.
    pub fn next(&self) -> Option<Signal> {
        let info = self.0.read_signal().ok().flatten()?;
        Signal::try_from(info.ssi_signo as i32).ok()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_with_an_abstract_socket_is_notified() {
        let name = format!("headroom-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let state = [NotifyState::Ready, NotifyState::Status("x")];
        notify_abstract(OsStr::new(&name), &state).unwrap();
        let mut message = [0; 64];
        let len = manager.recv(&mut message).unwrap();
        assert_eq!(&message[..len], b"READY=1\nSTATUS=x\n");
        assert!(notify_abstract(OsStr::new("headroom-no-such-socket"), &state).is_err());
    }

    #[test]
    fn a_blocked_signal_is_read_once() {
        std::thread::spawn(|| {
            let signals = Signals::block(&[Signal::SIGUSR1, Signal::SIGUSR2]).unwrap();
            assert_eq!(signals.next(), None);
            // SAFETY: a signal to the calling thread, which has it blocked.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
            assert_eq!(signals.next(), Some(Signal::SIGUSR2));
            assert_eq!(signals.next(), None);
        })
        .join()
        .unwrap();
    }
}
