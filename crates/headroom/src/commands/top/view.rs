//! The state of the screen, and the effect of keys on it.

use control::oomd::{AccountRef, Request, UserLimit};
use headroom_linux::machine_memory::size::SizeError;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::draw::Look;
use super::snapshot::{Growth, Snapshot, forecast};
use crate::helpers::quantity::Size;
use crate::helpers::user::{self, User};

/// Maximum length of the input in a prompt, characters.
const LONGEST_INPUT: usize = 80;

/// Sort key of the users; the first is at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Used share of the limit, largest first.
    Share,
    /// Memory, largest first.
    Used,
    /// Growth, fastest first.
    Growth,
    /// Limit, largest first.
    Limit,
    /// Name.
    Name,
}

impl Order {
    const ALL: [Self; 5] = [Self::Share, Self::Used, Self::Growth, Self::Limit, Self::Name];

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Name of the sort key.
    pub fn word(self) -> &'static str {
        match self {
            Self::Share => "share of the limit",
            Self::Used => "memory",
            Self::Growth => "growth",
            Self::Limit => "limit",
            Self::Name => "name",
        }
    }
}

/// Whether the order is reversed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    Reversed,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the user, or its number.
    pub name: String,
    /// The daemon's record of the limit.
    pub limit: UserLimit,
    /// Growth, bytes per second.
    pub growth: Option<i64>,
    /// Seconds until the hard limit is exceeded.
    pub limit_in: Option<u64>,
}

impl Row {
    /// Used share of the limit, in thousandths.
    pub fn share(&self) -> u64 {
        let share = u128::from(self.limit.used_bytes) * 1000;
        (share / u128::from(self.limit.hard_bytes.max(1))).try_into().unwrap_or(u64::MAX)
    }
}

/// Rows of all users, the one nearest to its limit first.
pub fn rows(snapshot: &Snapshot, growth: &Growth) -> Vec<Row> {
    let row = |limit: &UserLimit| {
        let growth = growth.of(limit.account);
        let left = limit.hard_bytes.saturating_sub(limit.used_bytes);
        let limit_in = growth.and_then(|rate| forecast(left, rate));
        Row {
            name: user::owner(limit.account, limit.group.as_deref(), limit.cgroup.as_deref()),
            limit: limit.clone(),
            growth,
            limit_in,
        }
    };
    let mut rows: Vec<Row> = snapshot.limits.iter().map(row).collect();
    sort(&mut rows, Order::Share, Direction::Forward);
    rows
}

fn sort(rows: &mut [Row], order: Order, direction: Direction) {
    use std::cmp::Reverse;
    match order {
        Order::Share => rows.sort_by_key(|row| (Reverse(row.share()), row.limit.account)),
        Order::Used => rows.sort_by_key(|row| (Reverse(row.limit.used_bytes), row.limit.account)),
        Order::Growth => rows.sort_by_key(|row| (Reverse(row.growth), row.limit.account)),
        Order::Limit => rows.sort_by_key(|row| (Reverse(row.limit.hard_bytes), row.limit.account)),
        Order::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
    }
    if direction == Direction::Reversed {
        rows.reverse();
    }
}

/// Overlay of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// None.
    Table,
    /// The help on keys.
    Help,
    /// Prompt for a new limit of this user.
    Limit { account: AccountRef, input: String },
    /// Prompt for a new limit of any user.
    NewLimit { input: String },
    /// Confirmation of clearing this user's limit.
    Clear { account: AccountRef },
}

/// Action that a key requests.
#[derive(Debug, PartialEq, Eq)]
pub enum Todo {
    /// None outside of the view.
    Nothing,
    /// Quit.
    Quit,
    /// A request to the daemon.
    Send(Request),
}

/// The state of the screen.
pub struct View {
    /// The latest snapshot.
    pub snapshot: Snapshot,
    /// Rows of the table, sorted.
    pub rows: Vec<Row>,
    /// Style of the drawing.
    pub look: Look,
    /// Overlay of the table.
    pub mode: Mode,
    /// Result of the last request: success or error.
    pub message: Option<Result<String, String>>,
    /// Why the snapshot is outdated.
    pub lost: Option<String>,
    /// Sort key.
    pub order: Order,
    /// Sort direction.
    direction: Direction,
    growth: Growth,
    /// Stays selected when rows move.
    selected: Option<AccountRef>,
    /// Lines of the table when it was last drawn.
    pub page: usize,
    /// Index of the first visible row.
    pub top: usize,
}

impl View {
    /// Creates a view of a first snapshot.
    pub fn new(snapshot: Snapshot, look: Look) -> Self {
        let mut view = Self {
            snapshot: snapshot.clone(),
            rows: Vec::new(),
            look,
            mode: Mode::Table,
            message: None,
            lost: None,
            order: Order::Share,
            direction: Direction::Forward,
            growth: Growth::default(),
            selected: None,
            page: 1,
            top: 0,
        };
        view.update(snapshot);
        view
    }

    /// Replaces the snapshot.
    pub fn update(&mut self, snapshot: Snapshot) {
        self.growth.look(&snapshot);
        let at = self.position();
        self.rows = rows(&snapshot, &self.growth);
        self.snapshot = snapshot;
        self.lost = None;
        self.sort();
        if self.selected.is_none_or(|account| self.row_of(account).is_none()) {
            self.select(at);
        }
    }

    /// Records that the daemon does not answer.
    pub fn lost(&mut self, error: String) {
        self.lost = Some(error);
    }

    /// Records the result of a request.
    pub fn set_message(&mut self, message: Result<String, String>) {
        self.message = Some(message);
    }

    fn sort(&mut self) {
        sort(&mut self.rows, self.order, self.direction);
    }

    /// Name in the row of this account.
    pub fn name_of(&self, account: AccountRef) -> String {
        self.row_of(account)
            .map_or_else(|| user::owner(account, None, None), |at| self.rows[at].name.clone())
    }

    fn row_of(&self, account: AccountRef) -> Option<usize> {
        self.rows.iter().position(|row| row.limit.account == account)
    }

    /// Index of the selected row.
    pub fn position(&self) -> usize {
        self.selected.and_then(|account| self.row_of(account)).unwrap_or(0)
    }

    fn select(&mut self, at: usize) {
        let at = at.min(self.rows.len().saturating_sub(1));
        self.selected = self.rows.get(at).map(|row| row.limit.account);
    }

    /// Scrolls so that the selected row is visible in a table of `lines` lines.
    pub fn fit(&mut self, lines: usize) {
        self.page = lines.max(1);
        let at = self.position();
        let last_top = self.rows.len().saturating_sub(self.page);
        self.top = self.top.min(at).max((at + 1).saturating_sub(self.page)).min(last_top);
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Todo {
        if key.kind == KeyEventKind::Release {
            return Todo::Nothing;
        }
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Todo::Quit;
        }
        match &mut self.mode {
            Mode::Table => return self.table_key(key.code),
            Mode::Help => self.mode = Mode::Table,
            Mode::Clear { account } => {
                let account = *account;
                self.mode = Mode::Table;
                if key.code == KeyCode::Char('y') {
                    return Todo::Send(Request::ClearLimit { account, grace_s: None });
                }
            }
            Mode::Limit { input, .. } | Mode::NewLimit { input } => match key.code {
                KeyCode::Esc => self.mode = Mode::Table,
                KeyCode::Backspace => drop(input.pop()),
                KeyCode::Enter => return self.enter(),
                KeyCode::Char(c) => type_in(input, c),
                _ => {}
            },
        }
        Todo::Nothing
    }

    /// Handles pasted text.
    pub fn paste(&mut self, text: &str) {
        if let Mode::Limit { input, .. } | Mode::NewLimit { input } = &mut self.mode {
            for c in text.chars() {
                type_in(input, c);
            }
        }
    }

    fn table_key(&mut self, code: KeyCode) -> Todo {
        let at = self.position();
        self.message = None;
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Todo::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Down | KeyCode::Char('j') => self.select(at + 1),
            KeyCode::Up | KeyCode::Char('k') => self.select(at.saturating_sub(1)),
            KeyCode::PageDown | KeyCode::Char(' ') => self.select(at + self.page),
            KeyCode::PageUp => self.select(at.saturating_sub(self.page)),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            KeyCode::Char('s') => {
                self.order = self.order.next();
                self.sort();
            }
            KeyCode::Char('r') => {
                self.direction = match self.direction {
                    Direction::Forward => Direction::Reversed,
                    Direction::Reversed => Direction::Forward,
                };
                self.sort();
            }
            KeyCode::Char('n') => self.mode = Mode::NewLimit { input: String::new() },
            KeyCode::Char('l') | KeyCode::Enter => {
                if let Some(account) = self.selected {
                    self.mode = Mode::Limit { account, input: String::new() };
                }
            }
            KeyCode::Char('c') => {
                if let Some(account) = self.selected {
                    self.mode = Mode::Clear { account };
                }
            }
            _ => {}
        }
        Todo::Nothing
    }

    /// Parses the prompt's input into a request; invalid input stays, to be corrected.
    fn enter(&mut self) -> Todo {
        let request = match &self.mode {
            Mode::Limit { account, input } => limit_request(*account, input),
            Mode::NewLimit { input } => match input.trim().split_once(' ') {
                Some((user, size)) => match user.parse::<User>() {
                    Ok(User::Uid(uid)) => limit_request(AccountRef::user(uid), size),
                    Ok(User::Group(_) | User::Cgroup(_)) => {
                        Err("select a group, and press 'l' for its limit".to_owned())
                    }
                    Err(error) => Err(error),
                },
                None => Err("write a user and a size: alice 2G".to_owned()),
            },
            _ => return Todo::Nothing,
        };
        match request {
            Ok(request) => {
                self.mode = Mode::Table;
                Todo::Send(request)
            }
            Err(error) => {
                self.message = Some(Err(error));
                Todo::Nothing
            }
        }
    }
}

fn type_in(input: &mut String, c: char) {
    if !c.is_control() && input.chars().count() < LONGEST_INPUT {
        input.push(c);
    }
}

fn limit_request(account: AccountRef, size: &str) -> Result<Request, String> {
    let size: Size = size.trim().parse().map_err(|error: SizeError| error.to_string())?;
    if size.0 == 0 {
        return Err("a limit of 0 would kill every process; 'c' clears a limit".to_owned());
    }
    Ok(Request::SetLimit { account, hard_bytes: size.0, soft_bytes: None, grace_s: None })
}

#[cfg(test)]
pub mod tests {
    use std::time::Instant;

    use control::Uid;
    use control::oomd::Status;
    use headroom_linux::machine_memory::Meminfo;

    use super::*;

    /// Users: uid, used, limit.
    pub fn snapshot(users: &[(u32, u64, u64)]) -> Snapshot {
        let limit = |(uid, used_bytes, hard_bytes): &(u32, u64, u64)| UserLimit {
            account: AccountRef::user(Uid(*uid)),
            group: None,
            cgroup: None,
            members: Vec::new(),
            counts: Vec::new(),
            hard_bytes: *hard_bytes,
            soft_bytes: hard_bytes / 10 * 9,
            used_bytes: *used_bytes,
            dying_bytes: 0,
            peak_bytes: *used_bytes,
            usage_source: None,
            leased_bytes: 0,
            leaseholders: 0,
            source: "runtime".into(),
            details: control::oomd::LimitDetails::default(),
        };
        Snapshot {
            at: Instant::now(),
            status: Status {
                version: "0.1.0".into(),
                protocol: 1,
                pid: 42,
                notifier: "bpf".into(),
                attached: true,
                limited_users: users.len() as u32,
                kills: 3,
                ..Default::default()
            },
            limits: users.iter().map(limit).collect(),
            decisions: Vec::new(),
            memory: Meminfo {
                total: Some(16 << 30),
                available: Some(4 << 30),
                swap_total: Some(0),
                swap_free: Some(0),
                ..Meminfo::default()
            },
            pressure: None,
        }
    }

    fn press(view: &mut View, keys: &str) -> Todo {
        let mut last = Todo::Nothing;
        for c in keys.chars() {
            let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
            last = view.key(code.into());
        }
        last
    }

    fn uids(view: &View) -> Vec<u32> {
        view.rows.iter().map(|row| row.limit.account.uid).collect()
    }

    #[test]
    fn users_are_sorted_by_the_selected_key() {
        let users = [(4_000_000_001, 50, 100), (4_000_000_002, 60, 1000), (4_000_000_003, 1, 10)];
        let mut view = View::new(snapshot(&users), Look::Colored);
        let short = |view: &View| uids(view).iter().map(|u| u % 10).collect::<Vec<_>>();
        assert_eq!(short(&view), [1, 3, 2]);
        press(&mut view, "s");
        assert_eq!((view.order, short(&view)), (Order::Used, vec![2, 1, 3]));
        press(&mut view, "r");
        assert_eq!(short(&view), [3, 1, 2]);
        press(&mut view, "rssssj");
        assert_eq!((view.order, view.position()), (Order::Share, 1));
    }

    #[test]
    fn the_selected_user_stays_selected_while_others_pass_it() {
        let mut view = View::new(snapshot(&[(1, 50, 100), (2, 40, 100)]), Look::Colored);
        press(&mut view, "j");
        assert_eq!(view.position(), 1);
        view.update(snapshot(&[(1, 50, 100), (2, 90, 100)]));
        assert_eq!((uids(&view), view.position()), (vec![2, 1], 0));
        view.update(snapshot(&[(1, 50, 100)]));
        assert_eq!(view.position(), 0);
        view.update(snapshot(&[]));
        assert_eq!(press(&mut view, "l512M\n"), Todo::Nothing);
    }

    #[test]
    fn a_thousand_users_scroll() {
        let users: Vec<_> = (1..=1000).map(|uid| (uid, 1000 - u64::from(uid), 1000)).collect();
        let mut view = View::new(snapshot(&users), Look::Colored);
        view.fit(10);
        press(&mut view, "G");
        view.fit(10);
        assert_eq!((view.position(), view.top), (999, 990));
        press(&mut view, "kkkkkkkkkkkk");
        view.fit(10);
        assert_eq!((view.position(), view.top), (987, 987));
        view.fit(2000);
        assert_eq!(view.top, 0);
    }

    #[test]
    fn a_prompt_sets_a_limit_or_reports_the_error() {
        let mut view = View::new(snapshot(&[(7, 50, 100)]), Look::Colored);
        let set = |uid, hard_bytes| {
            let account = AccountRef::user(Uid(uid));
            Todo::Send(Request::SetLimit { account, hard_bytes, soft_bytes: None, grace_s: None })
        };
        assert_eq!(press(&mut view, "l512M\n"), set(7, 512 << 20));
        assert_eq!(view.mode, Mode::Table);
        assert_eq!(press(&mut view, "llots\n"), Todo::Nothing);
        assert!(matches!(&view.message, Some(Err(e)) if e.contains("is not an amount of memory")));
        view.key(KeyCode::Esc.into());
        assert_eq!(press(&mut view, "n4000000001 1G\n"), set(4_000_000_001, 1 << 30));
        assert_eq!(press(&mut view, "n0\n"), Todo::Nothing);
        view.key(KeyCode::Esc.into());
        assert_eq!(press(&mut view, "l0\n"), Todo::Nothing);
        view.key(KeyCode::Esc.into());
        assert_eq!(press(&mut view, "cn"), Todo::Nothing);
        assert_eq!(
            press(&mut view, "cy"),
            Todo::Send(Request::ClearLimit { account: AccountRef::user(Uid(7)), grace_s: None })
        );
        press(&mut view, "l");
        view.paste(&"9\x1b".repeat(500));
        assert!(matches!(&view.mode, Mode::Limit { input, .. } if input.len() == LONGEST_INPUT));
        let end = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.key(end), Todo::Quit);
    }
}
