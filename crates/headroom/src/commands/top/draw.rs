//! The view as a screen full of text.

use std::fmt::Write;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Widget};

use super::plain::{
    COLUMNS, Column, MemoryUse, NAME, bar, daemon_line, decision, memory_text, memory_use, percent,
    stall_text, swap_text, thousandths,
};
use super::snapshot::Snapshot;
use super::view::{Mode, View};
use crate::helpers::output::{fit, padded, printable};
use crate::helpers::user::Visibility;

/// Minimum width of a useful bar, columns.
const BAR: usize = 10;
/// Lines of the table that have priority over everything else: its header and two users.
const TABLE: u16 = 3;
/// Maximum of decisions below the table.
const DECISIONS: u16 = 6;
/// Lines above the table.
const HEAD: u16 = 5;

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
        let plain = std::env::var_os("TERM").is_some_and(|term| term == "vt100");
        if set("NO_COLOR") || plain { Self::Monochrome } else { Self::Colored }
    }

    /// A style with this colour, if colours may be used.
    fn in_color(self, color: Color) -> Style {
        match self {
            Self::Colored => Style::new().fg(color),
            Self::Monochrome => Style::new(),
        }
    }

    /// Style of a user at this share of its limit, in thousandths; `soft` is the soft limit.
    fn of_share(self, share: u64, soft: u64) -> Style {
        let (red, yellow) = (self.in_color(Color::Red), self.in_color(Color::Yellow));
        match share {
            _ if share >= 1000 => red.add_modifier(Modifier::BOLD),
            _ if share >= soft => yellow.add_modifier(Modifier::BOLD),
            _ => self.in_color(Color::Green),
        }
    }
}

const KEYS: &str = "\
Up Down PgUp PgDn Home End   select a user
s   sort by the next column      r   the other way round
l   set the limit of the selected user
n   set the limit of another user
c   clear the limit of the selected user
q   quit";

/// Layout for the terminal's width.
struct Plan {
    /// Number of columns of [`COLUMNS`] to show.
    columns: usize,
    /// Width of the bar in columns of text; 0: no bar.
    bar_width: usize,
}

fn plan(width: usize) -> Plan {
    let bare = NAME.min(width / 3) + 2;
    let bar_and_percent = BAR + 1 + 5;
    let mut columns = 0;
    let mut used = bare;
    for (at, column) in COLUMNS.iter().enumerate() {
        // Used and limit have priority over the bar, which has priority over the other columns.
        let reserve = if at < 2 { 0 } else { bar_and_percent + 2 };
        if used + column.width + 2 + reserve > width {
            break;
        }
        used += column.width + 2;
        columns += 1;
    }
    let left = width.saturating_sub(used + 7);
    Plan { columns, bar_width: if left >= BAR { left.min(40) } else { 0 } }
}

/// Draws everything.
pub fn draw(frame: &mut Frame, view: &mut View) {
    let area = frame.area();
    let foot = u16::from(area.height > TABLE);
    let head = HEAD.min(area.height.saturating_sub(TABLE + foot));
    let left = area.height.saturating_sub(TABLE + foot + head);
    let decisions = DECISIONS.min(view.snapshot.decisions.len() as u16).min(area.height / 4);
    // One line is for the title.
    let decisions = decisions.min(left.saturating_sub(1));
    let under = if decisions == 0 { 0 } else { decisions + 1 };
    let [head, table, under, foot] = Layout::vertical([
        Constraint::Length(head),
        Constraint::Min(0),
        Constraint::Length(under),
        Constraint::Length(foot),
    ])
    .areas(area);
    draw_head(frame.buffer_mut(), head, view);
    draw_table(frame.buffer_mut(), table, view);
    draw_decisions(frame.buffer_mut(), under, view);
    draw_foot(frame.buffer_mut(), foot, view);
    if view.mode == Mode::Help {
        draw_help(frame.buffer_mut(), area);
    }
}

fn draw_head(buffer: &mut Buffer, area: Rect, view: &View) {
    let Snapshot { status, memory, .. } = &view.snapshot;
    let width = usize::from(area.width);
    let bar_width = (width / 3).clamp(BAR, 40);
    let mut lines = vec![Line::from(daemon_line(status))];
    let MemoryUse { used, total } = memory_use(memory);
    let share = thousandths(used, total);
    let style = view.look.of_share(share, 900);
    let text = format!(" {}", memory_text(memory));
    lines.push(Line::from(vec![
        Span::raw("memory  "),
        Span::styled(bar(share, bar_width), style),
        Span::raw(text),
    ]));
    lines.push(Line::from(format!("swap    {}", swap_text(memory))));
    lines.push(Line::from(format!("stalled {}", stall_text(&view.snapshot))));
    if let Some(error) = &view.lost {
        let style = view.look.in_color(Color::Red).add_modifier(Modifier::BOLD);
        lines.push(Line::styled(format!("as it was: {}", printable(error)), style));
    }
    Paragraph::new(lines).render(area, buffer);
}

fn draw_table(buffer: &mut Buffer, area: Rect, view: &mut View) {
    if area.height < 2 {
        return;
    }
    view.fit(usize::from(area.height) - 1);
    let width = usize::from(area.width);
    let Plan { columns, bar_width } = plan(width);
    let name_width = NAME.min(width / 3);
    let mut title = format!("{:<name_width$}", "USER");
    for column in &COLUMNS[..columns.min(2)] {
        let _ = write!(title, "  {:>w$}", column.title, w = column.width);
    }
    if bar_width > 0 {
        let _ = write!(title, "  {:<w$}", "OF THE LIMIT", w = bar_width + 5);
    }
    for column in &COLUMNS[columns.min(2)..columns] {
        let _ = write!(title, "  {:>w$}", column.title, w = column.width);
    }
    let title_style = Style::new().add_modifier(Modifier::REVERSED);
    put(buffer, area, 0, Line::styled(format!("{title:<width$}"), title_style));
    let selected = view.position();
    for (line, at) in (view.top..view.rows.len()).take(view.page).enumerate() {
        let row = &view.rows[at];
        let mut spans = vec![Span::raw(padded(&fit(&row.name, name_width), name_width))];
        let cell = |column: &Column| {
            Span::raw(format!("  {:>w$}", fit(&(column.text)(row), column.width), w = column.width))
        };
        spans.extend(COLUMNS[..columns.min(2)].iter().map(cell));
        if bar_width > 0 {
            let soft = thousandths(row.limit.soft_bytes, row.limit.hard_bytes);
            let style = view.look.of_share(row.share(), soft);
            spans.push(Span::styled(format!("  {}", bar(row.share(), bar_width)), style));
            spans.push(Span::raw(format!("{:>5}", fit(&percent(row.share()), 5))));
        }
        spans.extend(COLUMNS[columns.min(2)..columns].iter().map(cell));
        let mut text = Line::from(spans);
        if at == selected {
            text = text.style(Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED));
        }
        put(buffer, area, line + 1, text);
    }
    if view.rows.is_empty() {
        let none = Visibility::ours().no_limit();
        put(buffer, area, 1, Line::raw(format!("{none}; n sets one")));
    }
}

/// Writes a line into an area, cut at its edge.
fn put(buffer: &mut Buffer, area: Rect, line: usize, text: Line) {
    let Ok(line) = u16::try_from(line) else { return };
    if line < area.height {
        buffer.set_line(area.x, area.y + line, &text, area.width);
    }
}

fn draw_decisions(buffer: &mut Buffer, area: Rect, view: &View) {
    if area.height == 0 {
        return;
    }
    let style = Style::new().add_modifier(Modifier::REVERSED);
    let width = usize::from(area.width);
    put(buffer, area, 0, Line::styled(format!("{:<width$}", "LATEST DECISIONS"), style));
    for (line, why) in view.snapshot.decisions.iter().enumerate() {
        put(buffer, area, line + 1, Line::raw(decision(why)));
    }
}

fn draw_foot(buffer: &mut Buffer, area: Rect, view: &View) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let line = match (&view.mode, &view.message) {
        (Mode::Limit { .. } | Mode::NewLimit { .. }, Some(Err(error))) => {
            // The error first, then the rejected input.
            let text = format!("{}  > {}", printable(error), input(&view.mode));
            Line::styled(text, view.look.in_color(Color::Red).add_modifier(Modifier::BOLD))
        }
        (Mode::Limit { account, input }, _) => Line::styled(
            format!("limit of {} (512M, 1.5G): {input}_", view.name_of(*account)),
            bold,
        ),
        (Mode::NewLimit { input }, _) => {
            Line::styled(format!("user and limit (alice 2G): {input}_"), bold)
        }
        (Mode::Clear { account }, _) => {
            Line::styled(format!("clear the limit of {}? y, n", view.name_of(*account)), bold)
        }
        (_, Some(Ok(message))) => Line::raw(printable(message)),
        (_, Some(Err(error))) => {
            let style = view.look.in_color(Color::Red).add_modifier(Modifier::BOLD);
            Line::styled(printable(error), style)
        }
        _ => {
            let (at, all) = (view.position() + 1, view.rows.len());
            let which = if all == 0 { String::new() } else { format!("; {at} of {all}") };
            let order = view.order.word();
            Line::raw(format!("q quit  s sort  l limit  c clear  ? help   by {order}{which}"))
        }
    };
    put(buffer, area, 0, line);
}

fn input(mode: &Mode) -> &str {
    match mode {
        Mode::Limit { input, .. } | Mode::NewLimit { input } => input,
        _ => "",
    }
}

fn draw_help(buffer: &mut Buffer, area: Rect) {
    let lines = KEYS.lines().count() as u16 + 2;
    let width = KEYS.lines().map(|line| line.chars().count()).max().unwrap_or(0) as u16 + 4;
    let (width, height) = (width.min(area.width), lines.min(area.height));
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    Clear.render(place, buffer);
    let block = Block::bordered().title(" keys ");
    Paragraph::new(KEYS).block(block).render(place, buffer);
}

#[cfg(test)]
pub mod tests {
    use control::Uid;
    use control::oomd::{AccountRef, Candidate, KilledBy, Outcome, Trigger, Why};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::view::tests::snapshot;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn killed() -> Why {
        Why {
            id: 1,
            at_micros: 0,
            account: AccountRef::user(Uid(4_000_000_001)),
            group: None,
            cgroup: None,
            trigger: Trigger::Notifier,
            state: String::new(),
            killer: Some(KilledBy::Kernel),
            hard_bytes: 1,
            used_bytes: 2,
            victim: Some(Candidate {
                uid: None,
                pid: 77,
                comm: "eater\x1b[2J".into(),
                rss_bytes: MIB,
                swap_bytes: 0,
                unmapped_bytes: 0,
                grown_bytes: 0,
                details: None,
            }),
            others: Vec::new(),
            runner_up: None,
            considered: 1,
            rule: String::new(),
            kept: String::new(),
            decide_micros: None,
            outcome: Outcome::Reclaimed { bytes_back: 64 * MIB, micros: 7000, mreleased: true },
        }
    }

    /// Three users, one of which grows, and a decision.
    pub fn view() -> View {
        let users = [
            (4_000_000_001, 50 * MIB, 100 * MIB),
            (4_000_000_002, 95 * MIB, 100 * MIB),
            (4_000_000_003, 2 * MIB, 1000 * MIB),
        ];
        let mut first = snapshot(&users);
        first.decisions.push(killed());
        let mut second = snapshot(&users);
        second.decisions.push(killed());
        second.limits[0].used_bytes += 10 * MIB;
        second.at = first.at + std::time::Duration::from_secs(2);
        let mut view = View::new(first, Look::Colored);
        view.update(second);
        view
    }

    fn frame(view: &mut View, width: u16, height: u16) -> (Vec<String>, Buffer) {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| {
            let text: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
            text.trim_end().to_owned()
        };
        ((0..height).map(line).collect(), buffer)
    }

    #[test]
    fn a_wide_screen_shows_everything() {
        let (mut lines, _) = frame(&mut view(), 120, 14);
        // In the local time zone: 1970-01-01 00:00:00.
        let decision = lines[12].split_off(19);
        assert_eq!(
            decision,
            " killed eater\\u{1b}[2J (pid 77) of user 4000000001; 64.0 MiB back in 7.0 ms, \
             with process_mrelease"
        );
        lines.remove(12);
        let expected = "\
headroom-oomd 0.1.0: BPF notifier, 3 users with a limit, 3 kills
memory  [||||||||||||||||||||||||||||          ] 4.0 GiB available of 16.0 GiB
swap    none
stalled not reported by this kernel

USER                    USED       LIMIT  OF THE LIMIT            \
TIME TO LIMIT         GROWTH      LEASED        PEAK
4000000002          95.0 MiB   100.0 MiB  [|||||||||||||| ]  \
95%                                              95.0 MiB
4000000001          60.0 MiB   100.0 MiB  [|||||||||      ]  60%            8 s     +5.0 \
MiB/s                50.0 MiB
4000000003           2.0 MiB  1000.0 MiB  [|              ]   \
0%                                               2.0 MiB


LATEST DECISIONS
q quit  s sort  l limit  c clear  ? help   by share of the limit; 1 of 3";
        assert_eq!(lines.join("\n"), expected, "\n{}", lines.join("\n"));
    }

    #[test]
    fn a_narrow_screen_shows_the_main_columns_and_a_tiny_one_does_not_panic() {
        let (lines, _) = frame(&mut view(), 44, 12);
        assert_eq!(lines[6], "4000000002        95.0 MiB   100.0 MiB", "{lines:#?}");
        for width in 1..30 {
            for height in 1..12 {
                let mut view = view();
                view.mode = if width % 2 == 0 { Mode::Help } else { Mode::Table };
                frame(&mut view, width, height);
            }
        }
        for (width, height) in [(39, 7), (30, 6), (30, 4), (30, 3), (30, 2)] {
            let lines = frame(&mut view(), width, height).0;
            let user = lines.iter().position(|line| line.starts_with("40000000"));
            assert!(user.is_some_and(|at| lines[at - 1].starts_with("USER")), "{lines:#?}");
        }
    }

    #[test]
    fn colours_mark_users_near_their_limit_and_can_be_disabled() {
        let colours = |look: Look| {
            let mut view = view();
            view.look = look;
            let (_, buffer) = frame(&mut view, 120, 14);
            let mut found: Vec<Color> = buffer.content.iter().map(|cell| cell.fg).collect();
            found.sort_by_key(|color| format!("{color:?}"));
            found.dedup();
            found
        };
        assert_eq!(colours(Look::Colored), [Color::Green, Color::Reset, Color::Yellow]);
        assert_eq!(colours(Look::Monochrome), [Color::Reset]);
    }

    #[test]
    fn a_lost_daemon_a_prompt_and_an_error_are_shown() {
        let mut view = view();
        view.lost("cannot query headroom-oomd".into());
        view.mode =
            Mode::Limit { account: AccountRef::user(Uid(4_000_000_001)), input: "51".into() };
        let (lines, _) = frame(&mut view, 80, 14);
        assert_eq!(lines[4], "as it was: cannot query headroom-oomd");
        assert_eq!(lines[13], "limit of 4000000001 (512M, 1.5G): 51_");
        view.set_message(Err("'51x' is not a size".into()));
        assert_eq!(frame(&mut view, 80, 14).0[13], "'51x' is not a size  > 51");
        view.mode = Mode::Help;
        let text = frame(&mut view, 80, 14).0.join("\n");
        assert!(text.contains("clear the limit of the selected user"), "{text}");
    }
}
