//! Which memory of a user counts against its limit: each kind, held in each way.
//!
//! All are held at the same time, each by a user of its own. `docs/design/usage.md` has the result;
//! with `HEADROOM_WRITE_TABLES=1` this test writes it there. Where the memory controller is
//! available (`lab/suite --only evasion`), it is the third source.

mod support;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use control::Uid;
use control::oomd::UserLimit;
use support::cgroup::Cgroup;
use support::daemon::Daemon;
use support::{MIB, PATIENCE, make_holder, privileged};
use tempfile::TempDir;
use test_support::helper::Helper;

/// The first of the users, one for each row and way to count: the kernel returns locked memory to
/// a user's limit some time after its ring is closed.
const FIRST: u32 = 62400;
/// Far from what is held: nobody is killed.
const LIMIT_MIB: u64 = 200;
/// Held by each; more than the growth of the machine's counters that starts a search.
const HELD_MIB: u64 = 24;
/// Of memory that cannot be paged out; less than the usual `RLIMIT_MEMLOCK`.
const LOCKED_MIB: u64 = 6;
/// Growth of the machine's shared memory that starts a search in any case, also for what is less.
const GROWTH: usize = 32 << 20;
/// How long usage is measured before the table is written.
const SETTLED: Duration = Duration::from_secs(5);

const FILES: [&str; 5] = [
    "memfd",
    "deleted file in /dev/shm",
    "file of a detached tmpfs",
    "secret memory",
    "file in a ramfs",
];
const WAYS: [&str; 8] = [
    "held",
    "mapped",
    "mapped, not touched",
    "in flight",
    "shared with another user",
    "in a user namespace",
    "a thread's own table",
    "main thread ended",
];
const OTHERS: [(&str, &str); 19] = [
    ("anonymous memory", "mapped"),
    ("anonymous memory", "with a child"),
    ("anonymous memory", "main thread ended"),
    ("anonymous memory", "locked"),
    ("anonymous memory", "lazily freed"),
    ("anonymous shared memory", "mapped"),
    ("anonymous shared memory", "with a child"),
    ("anonymous shared memory", "main thread ended"),
    ("file in /dev/shm", "mapped"),
    ("file in /dev/shm", "nobody"),
    ("SysV segment", "mapped"),
    ("SysV segment", "nobody"),
    ("page tables", "held"),
    ("buffers of io_uring", "mapped"),
    ("buffers of io_uring", "held"),
    ("file on a disk", "locked"),
    ("pipes", "held"),
    ("socket buffers", "held"),
    ("ring of a packet socket", "held"),
];

/// How usage is counted: by which daemon, and where the holders are. A column of the table each.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Bpf,
    Proc,
    /// BPF, and each user has a slice.
    Controller,
}

const SOURCES: [Source; 3] = [Source::Bpf, Source::Proc, Source::Controller];

impl Source {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Bpf | Self::Controller => &[],
            Self::Proc => &["--notifier", "proc"],
        }
    }

    fn is_available(self, uid: Uid) -> bool {
        self != Self::Controller || Cgroup::user_slice(uid).is_some()
    }
}

/// What counts of the memory that is held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    All,
    Part,
    Nothing,
}

impl Share {
    fn of(used_bytes: u64, held_bytes: u64) -> Self {
        // Programs have some memory of their own.
        match used_bytes as f64 / held_bytes as f64 {
            share if share >= 0.9 => Self::All,
            share if share >= 0.4 => Self::Part,
            _ => Self::Nothing,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Part => "part",
            Self::Nothing => "-",
        }
    }
}

/// Where the holders' files are.
struct Place {
    memory: TempDir,
    disk: TempDir,
    program: PathBuf,
}

impl Place {
    fn new() -> Self {
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let disk = tempfile::tempdir_in("/var/tmp").unwrap();
        for folder in [&memory, &disk] {
            let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(folder.path(), all).unwrap();
        }
        let program = disk.path().join("holder");
        make_holder(&program);
        Self { memory, disk, program }
    }
}

/// A process that holds memory until it is dropped.
struct Holder {
    kind: &'static str,
    way: &'static str,
    uid: Uid,
    held_bytes: u64,
    helper: Helper,
    /// Removed after the helper has ended.
    _slice: Option<Cgroup>,
}

impl Holder {
    fn start(
        place: &Place,
        uid: Uid,
        row: (&'static str, &'static str),
        slice: Option<Cgroup>,
    ) -> Self {
        let (kind, way) = row;
        let is_locked = way == "locked" || ["buffers of io_uring", "secret memory"].contains(&kind);
        let mib = if is_locked { LOCKED_MIB } else { HELD_MIB };
        let folder = if kind == "file on a disk" { &place.disk } else { &place.memory };
        let mut command = match &slice {
            Some(slice) => slice.command(&place.program),
            None => Command::new(&place.program),
        };
        command.args([kind, way, &mib.to_string()]).arg(folder.path()).arg(uid.0.to_string());
        let helper = Helper::run(command.current_dir("/"));
        Self { kind, way, uid, held_bytes: mib * MIB, helper, _slice: slice }
    }

    fn used_bytes(&self, limits: &[UserLimit]) -> u64 {
        let limit = limits.iter().find(|limit| limit.account.uid == self.uid.0);
        limit.map_or(0, |limit| limit.used_bytes)
    }

    /// What counts of its memory.
    fn share(&self, limits: &[UserLimit]) -> Share {
        Share::of(self.used_bytes(limits), self.held_bytes)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It removes what would outlive it, and exits without an answer.
        self.helper.request("end");
    }
}

/// A row of the table: what is held and how, and what counts by each source.
type Row = (&'static str, &'static str, Vec<String>);

/// The table with what counts: kinds with the same cells in one row.
fn table(rows: &[Row]) -> String {
    let mut ways: Vec<(&str, String, Vec<&str>)> = Vec::new();
    for (kind, way, shares) in rows {
        let shares = shares.join(" | ");
        match ways.iter_mut().find(|row| row.0 == *kind && row.1 == shares) {
            Some((_, _, ways)) => ways.push(way),
            None => ways.push((kind, shares, vec![way])),
        }
    }
    let mut kinds: Vec<(Vec<&str>, String)> = Vec::new();
    for (kind, shares, ways) in ways {
        let cells = format!("{} | {shares}", ways.join(BETWEEN));
        match kinds.iter_mut().find(|row| row.1 == cells) {
            Some((kinds, _)) => kinds.push(kind),
            None => kinds.push((vec![kind], cells)),
        }
    }
    let mut text = "| memory | held | counted (BPF) | counted (`/proc`) | counted (controller) |\n\
        |---|---|---|---|---|\n"
        .to_owned();
    for (kinds, cells) in kinds {
        writeln!(text, "| {} | {cells} |", kinds.join(BETWEEN)).unwrap();
    }
    text
}

/// Between kinds, and between ways, of one row.
const BETWEEN: &str = "; ";

/// What the document says of a kind, a way and a column.
fn documented(text: &str, kind: &str, way: &str, column: usize) -> Option<String> {
    let has = |cell: &str, name: &str| cell.split(BETWEEN).any(|one| one == name);
    let mut rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
        <[&str; 5]>::try_from(cells).ok()
    });
    let row = rows.find(|row| has(row[0], kind) && has(row[1], way))?;
    row[2..].get(column).map(|&cell| cell.to_owned())
}

/// Of what counts in full by both, the two sources differ by less than 1 % of the limit. Not what a
/// process shares with its child: far from the limit it is not measured, and counts for both.
fn agree(rows: &[Row], by_bpf: &[u64], by_controller: &[u64]) {
    for ((kind, way, shares), (a, b)) in rows.iter().zip(by_bpf.iter().zip(by_controller)) {
        let difference = *b as i64 - *a as i64;
        println!("{kind}, {way}: {} KiB, by the controller {difference:+} B", a >> 10);
        if shares[0] == "all" && shares[2] == "all" && *way != "with a child" {
            let most = LIMIT_MIB * MIB / 100;
            assert!(difference.unsigned_abs() <= most, "{kind}, {way}: {a} and {b} B");
        }
    }
}

#[test]
fn the_table_of_memory_that_counts_is_right() {
    if !privileged() {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let document = root.join("docs/design/usage.md");
    let text = std::fs::read_to_string(&document).unwrap();
    let writes = std::env::var_os("HEADROOM_WRITE_TABLES").is_some();
    let place = Place::new();
    let files = FILES.iter().flat_map(|kind| WAYS.iter().map(|way| (*kind, *way)));
    let rows: Vec<(&str, &str)> = files.chain(OTHERS).collect();
    let mut found: Vec<Row> = rows.iter().map(|(kind, way)| (*kind, *way, Vec::new())).collect();
    let mut used_bytes: Vec<Vec<u64>> = Vec::new();
    for (column, source) in SOURCES.into_iter().enumerate() {
        let first = FIRST + (column * rows.len()) as u32;
        if !source.is_available(Uid(first)) {
            for (kind, way, shares) in &mut found {
                shares.push(documented(&text, kind, way, column).unwrap_or_default());
            }
            continue;
        }
        let daemon = Daemon::start("", source.arguments());
        let start = |(uid, row)| {
            daemon.set_limit(uid, LIMIT_MIB * MIB);
            let slice = (source == Source::Controller).then(|| Cgroup::user_slice(uid).unwrap());
            Holder::start(&place, uid, row, slice)
        };
        let holders: Vec<Holder> =
            (first..).map(Uid).zip(rows.iter().copied()).map(start).collect();
        let growth = rustix::fs::memfd_create("growth", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        std::fs::File::from(growth.try_clone().unwrap()).write_all(&vec![1; GROWTH]).unwrap();
        let begun = Instant::now();
        let is_settled = |limits: &[UserLimit]| {
            holders.iter().all(|holder| {
                let expected = documented(&text, holder.kind, holder.way, column);
                expected.as_deref() == Some(holder.share(limits).as_str())
            })
        };
        let limits = loop {
            let limits = daemon.limits();
            let is_over = if writes { begun.elapsed() > SETTLED } else { is_settled(&limits) };
            if is_over || begun.elapsed() > PATIENCE {
                break limits;
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        for (holder, (_, _, shares)) in holders.iter().zip(&mut found) {
            shares.push(holder.share(&limits).as_str().to_owned());
        }
        used_bytes.push(holders.iter().map(|holder| holder.used_bytes(&limits)).collect());
        for holder in &holders {
            assert_eq!(daemon.why(holder.uid), [], "{}, {}", holder.kind, holder.way);
        }
    }
    if let [by_bpf, _, by_controller] = &used_bytes[..] {
        agree(&found, by_bpf, by_controller);
    }
    let found = table(&found);
    let head = found.lines().next().unwrap();
    let before = text.split_once(head).map_or(text.as_str(), |(before, _)| before);
    let after = text.split_once(head).map_or("", |(_, table)| {
        let end = table.find("\n\n").map_or(table.len(), |end| end + 1);
        &table[end..]
    });
    if writes {
        std::fs::write(&document, format!("{before}{found}{after}")).unwrap();
    }
    let written = std::fs::read_to_string(&document).unwrap();
    assert!(written.contains(&found), "docs/design/usage.md has another table than\n{found}");
}
