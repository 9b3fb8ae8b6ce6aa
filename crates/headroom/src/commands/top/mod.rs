//! `headroom top`: users, their limits and their growth, updated continuously.
//!
//! * [`snapshot`]: the data of one update;
//! * [`collector`]: a thread that sends requests, so that a slow daemon does not delay the keys;
//! * [`growth`]: growth of each user's memory;
//! * [`view`]: the state of the screen, and the effect of keys on it;
//! * [`draw`]: the view as a screen full of text; [`plain`]: the same for pipes; [`words`]: text
//!   that both use;
//! * [`terminal`]: the terminal, which is restored in any case.

mod collector;
mod draw;
mod growth;
mod look;
mod plain;
mod snapshot;
mod terminal;
mod view;
mod words;

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::crossterm::event::{self, Event};

use crate::arguments::{self, Globals};
use crate::helpers::output::{self, Format};
use crate::helpers::signals::{BlockedSignals, TERMINATION};
use collector::{Collector, Update};
use growth::Growth;
use look::Look;
use snapshot::Snapshot;
use terminal::Screen;
use view::{Todo, View};

/// Maximum delay of the reaction to a key or a signal.
const TICK: Duration = Duration::from_millis(50);

/// Runs the command.
pub fn top(globals: &Globals, arguments: &arguments::Top) -> anyhow::Result<()> {
    let interval = Duration::from_secs_f64(arguments.interval);
    // The first snapshot is requested before the terminal is changed: without a daemon there is
    // nothing to show.
    let first = snapshot::take(&globals.oomd_socket)?;
    let on_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let text = arguments.once || arguments.count.is_some() || arguments.plain;
    if text || globals.format() == Format::Json || !on_terminal {
        return in_text(globals, arguments, interval, first);
    }
    let signals = BlockedSignals::block(&TERMINATION).context("cannot block signals")?;
    terminal::exit_on_hangup();
    let collector = Collector::start(globals.oomd_socket.clone(), interval);
    let mut view = View::new(first, Look::from_environment());
    let mut screen = Screen::take().context("cannot use this terminal; try --plain")?;
    interact(&collector, &mut view, &mut screen, &signals)
        .inspect_err(|_| terminal::exit_if_hung_up())
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
