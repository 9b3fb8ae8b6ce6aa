//! Colours.

use ratatui::style::{Color, Modifier, Style};

/// Whether colours may be used.
#[derive(Clone, Copy, Debug)]
pub enum Look {
    /// They may.
    Colored,
    /// Only bold, underlined and reversed text.
    Monochrome,
}

impl Look {
    /// Not where NO_COLOR says so, or on a terminal that has none.
    pub fn from_environment() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb" || term == "vt100");
        if set("NO_COLOR") || dumb { Self::Monochrome } else { Self::Colored }
    }

    /// In this colour, where colours may be used.
    pub fn in_color(self, color: Color) -> Style {
        match self {
            Self::Colored => Style::new().fg(color),
            Self::Monochrome => Style::new(),
        }
    }

    /// Of a user at this share of its limit, in thousandths; the daemon gets ready at `soft`.
    pub fn of_share(self, share: u64, soft: u64) -> Style {
        let (red, yellow) = (self.in_color(Color::Red), self.in_color(Color::Yellow));
        match share {
            _ if share >= 1000 => red.add_modifier(Modifier::BOLD),
            _ if share >= soft => yellow.add_modifier(Modifier::BOLD),
            _ => self.in_color(Color::Green),
        }
    }
}
