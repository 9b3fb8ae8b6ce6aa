//! A pseudo-terminal with a program on it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::process::{Pid, Signal, kill_process};

/// Limit for any wait.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval at which the reader checks whether to stop.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The controlling side; the program is killed on drop.
pub struct Pty {
    child: Child,
    /// `None`: hung up.
    ours: Option<File>,
    reader: Option<JoinHandle<()>>,
    hung_up: Arc<AtomicBool>,
    /// Kept open, so that its settings can be read after the program has exited.
    theirs: OwnedFd,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Pty {
    /// Starts the command on a terminal of this size, as leader of its session.
    pub fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        // SAFETY: two system calls on numbers.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    -1 => Err(std::io::Error::last_os_error()),
                    _ => Ok(()),
                }
            });
        }
        Self::start_apart(command, columns, rows)
    }

    /// As [`start`](Pty::start), in a session that the terminal does not control: it gets no
    /// SIGHUP.
    pub fn start_apart(mut command: Command, columns: u16, rows: u16) -> Self {
        let (mut ours, mut theirs) = (-1, -1);
        let size = window(columns, rows);
        let none = std::ptr::null_mut();
        // SAFETY: both numbers and the size are ours; no name is requested.
        let done = unsafe { libc::openpty(&mut ours, &mut theirs, none, std::ptr::null(), &size) };
        assert_eq!(done, 0, "no pseudo-terminal: {}", std::io::Error::last_os_error());
        // SAFETY: openpty has just made them for us.
        let (ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        // A program that inherits the controlling side would keep the terminal from being hung up.
        rustix::io::fcntl_setfd(&ours, FdFlags::CLOEXEC).unwrap();
        let end = || theirs.try_clone().unwrap();
        command.stdin(end()).stdout(end()).stderr(end());
        if command.get_envs().all(|(name, _)| name != "TERM") {
            command.env("TERM", "xterm-256color");
        }
        command.env_remove("NO_COLOR");
        let child = command.spawn().unwrap();
        drop(command);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, seen) = (ours.try_clone().unwrap(), screen.clone());
        let hung_up = Arc::new(AtomicBool::new(false));
        let end = hung_up.clone();
        // The thread ends when both ends of the other side are closed, or the terminal is hung up.
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while !end.load(Ordering::Acquire) {
                let mut fds = [PollFd::new(&reader, PollFlags::IN)];
                if poll(&mut fds, Some(&LOOK)).unwrap() == 0 {
                    continue;
                }
                let Ok(len @ 1..) = reader.read(&mut buffer) else { return };
                seen.lock().unwrap().extend_from_slice(&buffer[..len]);
            }
        });
        Self { child, ours: Some(ours), reader: Some(reader), hung_up, theirs, screen }
    }

    /// Everything that was written to the terminal so far.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// The visible screen: the lines, as far as `render` interprets the output.
    pub fn seen(&self) -> String {
        render(&self.written())
    }

    /// Waits until this text was written.
    pub fn wrote(&self, text: &str) {
        self.wait(&format!("{text:?} is written"), || self.written().contains(text).then_some(()));
    }

    /// Waits until this text is visible.
    pub fn shows(&self, text: &str) {
        self.wait(&format!("{text:?} is seen"), || self.seen().contains(text).then_some(()));
    }

    /// Sends input as if typed.
    pub fn types(&mut self, keys: &str) {
        self.ours.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Changes the size of the terminal.
    pub fn resize(&self, columns: u16, rows: u16) {
        let size = window(columns, rows);
        // SAFETY: the size is ours.
        let done = unsafe {
            libc::ioctl(self.ours.as_ref().unwrap().as_raw_fd(), libc::TIOCSWINSZ, &size)
        };
        assert_eq!(done, 0);
    }

    /// Waits until the program has exited.
    pub fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end: {}", self.seen());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Hangs the terminal up, as the end of a remote login does, and waits until the program has
    /// exited.
    pub fn hang_up(&mut self) -> ExitStatus {
        self.hung_up.store(true, Ordering::Release);
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.ours = None;
        self.ended()
    }

    /// The terminal echoes and works line by line, as shells expect.
    pub fn is_ordinary(&self) -> bool {
        let modes = rustix::termios::tcgetattr(&self.theirs).unwrap().local_modes;
        use rustix::termios::LocalModes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    fn wait<T>(&self, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(answer) = poll() {
                return answer;
            }
            assert!(start.elapsed() < PATIENCE, "it did not happen that {what}: {}", self.seen());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Interprets cursor positions and clearing; ignores colours and modes.
fn render(written: &str) -> String {
    let mut lines: Vec<Vec<char>> = Vec::new();
    let (mut line, mut column) = (0, 0);
    let mut rest = written.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' if rest.next_if_eq(&'[').is_some() => {
                // ESC [ parameters letter
                let mut parameters = String::new();
                let letter = loop {
                    match rest.next() {
                        Some(c) if c.is_ascii_alphabetic() => break c,
                        Some(c) => parameters.push(c),
                        None => break ' ',
                    }
                };
                let mut numbers =
                    parameters.split(';').map(|number| number.parse().unwrap_or(1usize) - 1);
                match letter {
                    'H' => {
                        line = numbers.next().unwrap_or(0);
                        column = numbers.next().unwrap_or(0);
                    }
                    'J' => lines.clear(),
                    _ => {}
                }
            }
            '\r' => column = 0,
            '\n' => line += 1,
            c => {
                if lines.len() <= line {
                    lines.resize(line + 1, Vec::new());
                }
                let text = &mut lines[line];
                if text.len() <= column {
                    text.resize(column + 1, ' ');
                }
                text[column] = c;
                column += 1;
            }
        }
    }
    let lines: Vec<String> = lines.into_iter().map(|line| line.into_iter().collect()).collect();
    lines.join("\n")
}

fn window(columns: u16, rows: u16) -> libc::winsize {
    libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
