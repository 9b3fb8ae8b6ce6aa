//! The terminal, taken over and given back whatever happens.

use std::io;

use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::helpers::exit_code;

/// The whole screen; given back on drop, and before the message of a panic.
pub struct Screen(DefaultTerminal);

impl Screen {
    /// Takes it over.
    pub fn take() -> io::Result<Self> {
        // Raw mode, the other screen, and a panic hook that leaves both.
        ratatui::try_init().map(Self)
    }

    /// Shows what `paint` paints.
    pub fn draw(&mut self, paint: impl FnOnce(&mut Frame)) -> anyhow::Result<()> {
        use anyhow::Context;
        self.0.draw(paint).context("cannot write to the terminal")?;
        Ok(())
    }
}

/// Ends the process when the terminal goes away. Who is in the terminal's session gets SIGHUP then;
/// for all others reading it reports an end of file forever, in a loop of the library that nothing
/// else interrupts.
pub fn exit_on_hangup() {
    std::thread::spawn(|| {
        let stdin = io::stdin();
        loop {
            // No event is asked for: a hangup and an error are always reported.
            let mut fds = [PollFd::new(&stdin, PollFlags::empty())];
            match poll(&mut fds, None) {
                Ok(_) => std::process::exit(exit_code::HANGUP.into()),
                Err(Errno::INTR) => {}
                // Without the watch keys and signals still end it.
                Err(_) => return,
            }
        }
    });
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone away needs nothing back.
        let _ = ratatui::try_restore();
    }
}
