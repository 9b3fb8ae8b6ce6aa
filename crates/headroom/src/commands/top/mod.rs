//! `headroom top`: users, their limits and their growth, updated continuously.
//!
//! * [`snapshot`]: the data of one update, and the thread that requests it;
//! * [`view`]: the state of the screen, and the effect of keys on it;
//! * [`draw`]: the view as a screen full of text; [`plain`]: the same for pipes.

mod draw;
mod plain;
mod snapshot;
mod view;

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::crossterm::event::{self, Event};
use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::arguments::{self, Globals};
use crate::helpers::output::{self, Format};
use crate::helpers::signals::{BlockedSignals, TERMINATION};
use draw::Look;
use snapshot::{Collector, Growth, Snapshot, Update};
use view::{Todo, View};

/// Maximum delay of the reaction to a key or a signal.
const TICK: Duration = Duration::from_millis(50);
/// Exit code after SIGHUP, when the terminal has gone away.
const HANGUP: i32 = 129;

/// Runs the command.
pub fn top(globals: &Globals, arguments: &arguments::Top) -> anyhow::Result<()> {
    let interval = Duration::from_secs_f64(arguments.interval);
    // The first snapshot is requested before the terminal is changed: without a daemon there is
    // nothing to show.
    let first = snapshot::take(&globals.oomd_socket)?;
    // A dumb terminal cannot be drawn on.
    let draws = std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    let on_terminal = draws && io::stdout().is_terminal() && io::stdin().is_terminal();
    let text = arguments.once || arguments.count.is_some() || arguments.plain;
    if text || globals.format() == Format::Json || !on_terminal {
        return in_text(globals, arguments, interval, first);
    }
    let signals = BlockedSignals::block(&TERMINATION).context("cannot block signals")?;
    exit_on_hangup();
    let collector = Collector::start(globals.oomd_socket.clone(), interval);
    let mut view = View::new(first, Look::from_environment());
    let mut screen = Screen::take().context("cannot use this terminal; try --plain")?;
    interact(&collector, &mut view, &mut screen, &signals).inspect_err(|_| exit_if_hung_up())
}

fn interact(
    collector: &Collector,
    view: &mut View,
    screen: &mut Screen,
    signals: &BlockedSignals,
) -> anyhow::Result<()> {
    let mut drawn = None;
    loop {
        loop {
            match collector.updates.try_recv() {
                Ok(Update::Snapshot(snapshot)) => view.update(*snapshot),
                Ok(Update::Lost(error)) => view.lost(error),
                Ok(Update::Done(message)) => view.set_message(message),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    anyhow::bail!("the thread that queries the daemon has exited")
                }
            }
            drawn = None;
        }
        // Also redrawn once per second: other programs may have written to the terminal.
        if drawn.is_none_or(|at: Instant| at.elapsed() >= Duration::from_secs(1)) {
            screen.draw(|frame| draw::draw(frame, view))?;
            drawn = Some(Instant::now());
        }
        if event::poll(TICK).context("cannot read the terminal")? {
            match event::read().context("cannot read the terminal")? {
                Event::Key(key) => match view.key(key) {
                    Todo::Nothing => {}
                    Todo::Quit => return Ok(()),
                    Todo::Send(request) => collector.send(request),
                },
                Event::Paste(text) => view.paste(&text),
                _ => {}
            }
            drawn = None;
        }
        if signals.termination_within(Duration::ZERO) {
            return Ok(());
        }
    }
}

/// Prints text, or a line of JSON, for each snapshot.
fn in_text(
    globals: &Globals,
    arguments: &arguments::Top,
    interval: Duration,
    first: Snapshot,
) -> anyhow::Result<()> {
    let mut growth = Growth::default();
    let mut snapshot = first;
    let mut left = if arguments.once { 1 } else { arguments.count.unwrap_or(u32::MAX) };
    let collector =
        if left > 1 { Some(Collector::start(globals.oomd_socket.clone(), interval)) } else { None };
    loop {
        growth.look(&snapshot);
        let rows = view::rows(&snapshot, &growth);
        let reader = match globals.format() {
            Format::Json => output::print_json_line(&plain::Document::of(&snapshot, &rows))?,
            Format::Text => output::print_on(&plain::text(&snapshot, &rows))?,
        };
        left -= 1;
        match &collector {
            Some(collector) if reader.is_continue() && left > 0 => snapshot = next(collector)?,
            _ => return Ok(()),
        }
    }
}

fn next(collector: &Collector) -> anyhow::Result<Snapshot> {
    loop {
        match collector.updates.recv_timeout(Duration::MAX) {
            Ok(Update::Snapshot(snapshot)) => return Ok(*snapshot),
            Ok(Update::Lost(error)) => anyhow::bail!(error),
            Ok(Update::Done(_)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                anyhow::bail!("the thread that queries the daemon has exited")
            }
        }
    }
}

/// The terminal in raw mode, with the alternate screen: both are left on drop, and before the
/// message of a panic.
struct Screen(DefaultTerminal);

impl Screen {
    /// Switches to it.
    fn take() -> io::Result<Self> {
        // Sets raw mode, the alternate screen, and a panic hook that resets both.
        ratatui::try_init().map(Self)
    }

    /// Draws one frame.
    fn draw(&mut self, paint: impl FnOnce(&mut Frame)) -> anyhow::Result<()> {
        self.0.draw(paint).context("cannot write to the terminal")?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone away cannot be restored.
        let _ = ratatui::try_restore();
    }
}

/// Exits when the terminal goes away. Processes in the terminal's session get SIGHUP then; for all
/// others reading it reports an end of file forever, in a loop of the library that nothing else
/// interrupts.
fn exit_on_hangup() {
    std::thread::spawn(|| {
        let stdin = io::stdin();
        loop {
            match wait_for_hangup(&stdin, None) {
                Ok(_) => exit_after_hangup(),
                Err(Errno::INTR) => {}
                // Without this thread, keys and signals still end the program.
                Err(_) => return,
            }
        }
    });
}

/// Exits if the terminal has gone away: a write to it may have failed before the thread of
/// [`exit_on_hangup`] runs.
fn exit_if_hung_up() {
    if wait_for_hangup(&io::stdout(), Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
        exit_after_hangup();
    }
}

/// Returns the number of terminals that have gone away: 1, or 0 after the timeout.
fn wait_for_hangup(terminal: &impl AsFd, timeout: Option<&Timespec>) -> rustix::io::Result<usize> {
    // No event is requested: a hangup and an error are always reported.
    poll(&mut [PollFd::new(terminal, PollFlags::empty())], timeout)
}

fn exit_after_hangup() -> ! {
    std::process::exit(HANGUP)
}
