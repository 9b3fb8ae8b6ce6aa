//! The terminal, taken over and given back whatever happens.

use std::io;

use ratatui::{DefaultTerminal, Frame};

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

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone away needs nothing back.
        let _ = ratatui::try_restore();
    }
}
