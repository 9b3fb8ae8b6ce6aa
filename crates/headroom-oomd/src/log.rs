//! Log lines that never hold up the daemon.
//!
//! Whoever reads our standard error may stop reading; a write would then block the thread that has
//! to kill. So lines are handed to a thread of their own, and dropped (and counted) while it is
//! stuck.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Lines that may wait.
const QUEUE: usize = 1024;
/// How long the last lines may take at the end.
const PATIENCE: Duration = Duration::from_secs(1);

enum Message {
    Line(Vec<u8>),
    End,
}

/// Sends log lines to standard error until dropped.
pub struct Log {
    lines: SyncSender<Message>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone)]
struct Lines {
    lines: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Message::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    /// Starts logging: `info` and above, or what `HEADROOM_LOG` says. To be called once.
    pub fn start() -> io::Result<Self> {
        let (lines, queue) = sync_channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = lost.clone();
        let thread = std::thread::Builder::new()
            .name("log".into())
            .stack_size(64 * 1024)
            .spawn(move || write_lines(&queue, &counted))?;
        // Words like "debug" or "headroom_oomd=debug,info". The richer filters of the library bring
        // half a megabyte of program along.
        let wanted = std::env::var("HEADROOM_LOG").ok().and_then(|words| words.parse().ok());
        let filter = wanted.unwrap_or(Targets::new().with_default(LevelFilter::INFO));
        let writer = Lines { lines: lines.clone(), lost };
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
        tracing_subscriber::registry().with(filter).with(layer).init();
        Ok(Self { lines, thread: Some(thread) })
    }
}

fn write_lines(queue: &Receiver<Message>, lost: &AtomicU64) {
    while let Ok(Message::Line(line)) = queue.recv() {
        let mut out = io::stderr().lock();
        // Nobody is left to be told that standard error is closed.
        let _ = out.write_all(&line);
        let lost = lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _ = writeln!(out, "{lost} log lines were lost: standard error was not read");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.lines.try_send(Message::End).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
