//! Log lines that never block the daemon.
//!
//! If the reader of standard error stops reading, a write blocks, and the thread that has to kill
//! must not block. So lines are passed to a dedicated thread, and dropped (and counted) while it is
//! blocked.
//!
//! If standard error goes to the journal, entries about kills are sent natively, with fields, and
//! not to standard error as well: each is in the journal once.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use headroom_daemon::message::PlainWriter;
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt;

use crate::clock::end_thread;
use crate::notifications::kill_log::MESSAGE_IDS;

/// Capacity of the queue to the thread, lines.
const QUEUE: usize = 1024;
/// Timeout for writing the last lines at exit.
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
    /// Starts logging: level `info` and above, or the filter in `HEADROOM_LOG`. Must be called
    /// once.
    pub fn start() -> io::Result<Self> {
        let (lines, queue) = sync_channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = lost.clone();
        let thread = std::thread::Builder::new()
            .name("log".into())
            .stack_size(64 * 1024)
            .spawn(move || write_lines(&queue, &counted))?;
        // Targets such as "debug" or "headroom_oomd=debug,info". The library's `EnvFilter` is more
        // expressive, but adds half a megabyte to the binary.
        let wanted = std::env::var("HEADROOM_LOG").ok().and_then(|words| words.parse().ok());
        let mut filter = wanted.unwrap_or(Targets::new().with_default(LevelFilter::INFO));
        let (journal, error) = match stderr_is_journal().then(journal_layers).transpose() {
            Ok(layers) => (layers, None),
            Err(error) => (None, Some(error)),
        };
        if journal.is_some() {
            let native = MESSAGE_IDS.map(|(target, _)| (target, LevelFilter::OFF));
            filter.extend(native);
        }
        let writer = Lines { lines: lines.clone(), lost };
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
        tracing_subscriber::registry().with(journal).with(layer.with_filter(filter)).init();
        if let Some(error) = error {
            tracing::warn!(
                "the journal's socket cannot be used ({error}): entries about kills have no fields"
            );
        }
        Ok(Self { lines, thread: Some(thread) })
    }
}

/// systemd has connected standard error to the journal (`$JOURNAL_STREAM`, systemd.exec(5)), and
/// it has not been redirected since.
fn stderr_is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let stat = rustix::fs::fstat(rustix::stdio::stderr());
    stat.is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// One layer per kind of entry about kills, since the `MESSAGE_ID` is a property of a layer.
fn journal_layers() -> io::Result<Vec<BoxedLayer>> {
    let layer = |(target, id)| {
        let mappings =
            PriorityMappings { info: Priority::Informational, ..PriorityMappings::new() };
        let layer = tracing_journald::layer()?
            .with_field_prefix(Some("HEADROOM".to_owned()))
            .with_syslog_identifier("headroom-oomd".to_owned())
            .with_priority_mappings(mappings)
            .with_custom_fields([("MESSAGE_ID", id)]);
        let filter = Targets::new().with_target(target, LevelFilter::INFO);
        Ok(layer.with_filter(filter).boxed())
    };
    MESSAGE_IDS.into_iter().map(layer).collect()
}

fn write_lines(queue: &Receiver<Message>, lost: &AtomicU64) {
    loop {
        let line = match queue.recv() {
            Ok(Message::Line(line)) => line,
            Ok(Message::End) | Err(_) => return,
        };
        let mut out = PlainWriter(io::stderr().lock());
        // If standard error is closed, there is no other place to report that.
        let _ = out.write_all(&line);
        let lost = lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _ = writeln!(out, "{lost} log lines were lost: standard error was not read");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        end_thread(&self.lines, [Message::End], self.thread.take(), PATIENCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_reads_block_nobody_and_are_counted() {
        // The thread is blocked in the write of an earlier line.
        let (lines, queue) = sync_channel(QUEUE);
        let mut writer = Lines { lines, lost: Arc::default() };
        for _ in 0..QUEUE + 10 {
            writer.write_all(b"killed\n").unwrap();
        }
        assert_eq!(writer.lost.load(Ordering::Relaxed), 10);
        assert_eq!(queue.try_iter().count(), QUEUE);
    }
}
