//! The terminal in raw mode, which is restored in any case.

use std::io;
use std::os::fd::AsFd;

use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
pub fn exit_if_hung_up() {
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
    std::process::exit(exit_code::HANGUP.into())
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone away cannot be restored.
        let _ = ratatui::try_restore();
    }
}
