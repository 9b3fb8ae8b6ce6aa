//! Colours.

use ratatui::style::{Color, Modifier, Style};

/// Whether colours may be used.
#[derive(Clone, Copy, Debug)]
pub enum Look {
    /// Colours may be used.
    Colored,
    /// Only bold, underlined and reversed text.
    Monochrome,
}

impl Look {
    /// Monochrome if NO_COLOR is set, or on a terminal without colours.
    pub fn from_environment() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb" || term == "vt100");
        if set("NO_COLOR") || dumb { Self::Monochrome } else { Self::Colored }
    }

    /// A style with this colour, if colours may be used.
    pub fn in_color(self, color: Color) -> Style {
        match self {
            Self::Colored => Style::new().fg(color),
            Self::Monochrome => Style::new(),
        }
    }

    /// Style of a user at this share of its limit, in thousandths; `soft` is the soft limit.
    pub fn of_share(self, share: u64, soft: u64) -> Style {
        let (red, yellow) = (self.in_color(Color::Red), self.in_color(Color::Yellow));
        match share {
            _ if share >= 1000 => red.add_modifier(Modifier::BOLD),
            _ if share >= soft => yellow.add_modifier(Modifier::BOLD),
            _ => self.in_color(Color::Green),
        }
    }
}
