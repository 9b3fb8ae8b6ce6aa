//! Counters in a file, for node_exporter, and on a socket that speaks HTTP/1.0.
//!
//! A thread asks our own control socket, and that of a `headroom-binderd`, as `headroom metrics` does.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use control::metrics::{CONTENT_TYPE, ask, text};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::be_ordinary;
use crate::tell_config::Metrics;

/// How long a scraper may take over its request and over each part of the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest request, bytes.
const MAX_REQUEST: usize = 8 * 1024;

/// Tells the thread what to do; it is started by the first configuration that wants it.
pub struct Exporter {
    sockets: [PathBuf; 2],
    thread: Option<(Sender<Metrics>, OwnedFd)>,
    current: Option<Metrics>,
}

impl Exporter {
    /// Nothing is exported yet. The control sockets are those of `headroom-oomd` and of a `headroom-binderd`.
    pub fn new(oomd: &Path, binderd: &Path) -> Self {
        Self { sockets: [oomd.to_owned(), binderd.to_owned()], thread: None, current: None }
    }

    /// Exports as this says from now on. Returns whether anything is different.
    pub fn configure(&mut self, metrics: &Metrics) -> io::Result<bool> {
        let wanted = metrics.textfile.is_some() || metrics.socket.is_some();
        let same = match &self.current {
            Some(current) => current == metrics,
            None => !wanted,
        };
        if same {
            return Ok(false);
        }
        if self.thread.is_none() {
            let (wake, woken) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
                .map(|(reader, writer)| (writer, reader))?;
            let (orders, queue) = channel();
            let [oomd, binderd] = self.sockets.clone();
            let work = Work { oomd, binderd, queue, woken, listener: None };
            std::thread::Builder::new().name("metrics".into()).spawn(move || work.run())?;
            self.thread = Some((orders, wake));
        }
        if let Some((orders, wake)) = &self.thread {
            // The thread ends after us only.
            let _ = orders.send(metrics.clone());
            let _ = rustix::io::write(wake, &[1]);
        }
        if let Some(socket) = self.current.take().and_then(|current| current.socket)
            && metrics.socket.as_ref() != Some(&socket)
        {
            let _ = fs::remove_file(socket);
        }
        self.current = Some(metrics.clone());
        Ok(true)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Some(socket) = self.current.take().and_then(|current| current.socket) {
            let _ = fs::remove_file(socket);
        }
    }
}

struct Work {
    oomd: PathBuf,
    binderd: PathBuf,
    queue: Receiver<Metrics>,
    woken: OwnedFd,
    listener: Option<UnixListener>,
}

impl Work {
    fn run(mut self) {
        be_ordinary();
        let Ok(mut metrics) = self.queue.recv() else { return };
        let mut due = Instant::now();
        let mut failed = false;
        loop {
            match self.queue.try_recv() {
                Ok(next) => {
                    if next.socket != metrics.socket {
                        self.listener = None;
                    }
                    (metrics, due) = (next, Instant::now());
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return,
            }
            if Instant::now() >= due {
                let done = self.export(&metrics);
                // The first failure is worth a word, and so is the first success after it.
                match &done {
                    Err(error) if !failed => {
                        tracing::error!("metrics are not exported: {error}; trying again");
                    }
                    Ok(()) if failed => tracing::info!("metrics are exported again"),
                    _ => {}
                }
                failed = done.is_err();
                due = Instant::now() + Duration::from_secs(metrics.interval_s);
            }
            self.wait(due);
        }
    }

    fn text(&self) -> String {
        text(&ask(&self.oomd, &self.binderd))
    }

    /// The file, and the socket if it does not listen yet.
    fn export(&mut self, metrics: &Metrics) -> Result<(), String> {
        if let (Some(socket), None) = (&metrics.socket, &self.listener) {
            let listener = listen(socket).map_err(|e| format!("{}: {e}", socket.display()))?;
            self.listener = Some(listener);
        }
        if let Some(file) = &metrics.textfile {
            write(file, &self.text()).map_err(|e| format!("{}: {e}", file.display()))?;
        }
        Ok(())
    }

    /// Until something is due, there is another order, or a scraper has come, who is answered.
    fn wait(&self, due: Instant) {
        let left = due.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let woken = self.woken.as_fd();
        let asked = self.listener.as_ref().map_or(woken, |listener| listener.as_fd());
        let mut fds = [woken, asked].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let _ = poll(&mut fds, Some(&timeout));
        let mut orders = [0; 64];
        let _ = rustix::io::read(&self.woken, &mut orders);
        let Some(listener) = &self.listener else { return };
        while let Ok((scraper, _)) = listener.accept() {
            // Who goes away in the middle misses the rest.
            let _ = self.answer(scraper);
        }
    }

    fn answer(&self, mut scraper: UnixStream) -> io::Result<()> {
        scraper.set_nonblocking(false)?;
        scraper.set_write_timeout(Some(PATIENCE))?;
        let request = read_request(&mut scraper)?;
        let mut words = request.split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let (status, kind, body) = match (method, path) {
            ("GET", "/metrics") => ("200 OK", CONTENT_TYPE, self.text()),
            ("GET", _) => ("404 Not Found", "text/plain", "there is /metrics\n".to_owned()),
            _ => ("405 Method Not Allowed", "text/plain", "GET /metrics\n".to_owned()),
        };
        let head = format!(
            "HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        scraper.write_all(head.as_bytes())?;
        scraper.write_all(body.as_bytes())
    }
}

/// The first line of a request, when all of it is there.
fn read_request(scraper: &mut UnixStream) -> io::Result<String> {
    let end = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > MAX_REQUEST {
            return Err(ErrorKind::TimedOut.into());
        }
        scraper.set_read_timeout(Some(left))?;
        match scraper.read(&mut part)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            len => request.extend_from_slice(&part[..len]),
        }
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}

/// Whoever reaches the socket may read. One that a dead daemon has left is replaced.
fn listen(path: &Path) -> io::Result<UnixListener> {
    if UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// As a whole or not at all; readable by the collector, whoever that is.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let mut draft = file.as_os_str().to_owned();
    // The collector takes names that end in .prom only.
    draft.push(".new");
    let draft = PathBuf::from(draft);
    // A link that somebody has put there is not followed.
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

    #[test]
    fn a_socket_that_a_dead_daemon_left_is_replaced_and_a_living_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        let first = listen(&path).unwrap();
        assert!(listen(&path).is_err());
        drop(first);
        let _second = listen(&path).unwrap();
        UnixStream::connect(&path).unwrap();
    }
}
