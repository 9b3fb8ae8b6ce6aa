//! The terminal in raw mode, which is restored in any case.

use std::io;

use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::helpers::exit_code;

/// The alternate screen; left on drop, and before the message of a panic.
pub struct Screen(DefaultTerminal);

impl Screen {
    /// Switches to it.
    pub fn take() -> io::Result<Self> {
        // Sets raw mode, the alternate screen, and a panic hook that resets both.
        ratatui::try_init().map(Self)
    }

    /// Draws one frame.
    pub fn draw(&mut self, paint: impl FnOnce(&mut Frame)) -> anyhow::Result<()> {
        use anyhow::Context;
        self.0.draw(paint).context("cannot write to the terminal")?;
        Ok(())
    }
}

/// Exits when the terminal goes away. Processes in the terminal's session get SIGHUP then; for all
/// others reading it reports an end of file forever, in a loop of the library that nothing else
/// interrupts.
pub fn exit_on_hangup() {
    std::thread::spawn(|| {
        let stdin = io::stdin();
        loop {
            // No event is requested: a hangup and an error are always reported.
            let mut fds = [PollFd::new(&stdin, PollFlags::empty())];
            match poll(&mut fds, None) {
                Ok(_) => std::process::exit(exit_code::HANGUP.into()),
                Err(Errno::INTR) => {}
                // Without this thread, keys and signals still end the program.
                Err(_) => return,
            }
        }
    });
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone away cannot be restored.
        let _ = ratatui::try_restore();
    }
}
