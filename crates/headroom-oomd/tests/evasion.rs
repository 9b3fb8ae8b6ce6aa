//! Which memory of a user counts against its limit: each kind, held in each way.
//!
//! All are held at the same time, each by a user of its own. `docs/design/usage.md` has the result;
//! with `HEADROOM_WRITE_TABLES=1` this test writes it there.

mod support;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use control::Uid;
use control::oomd::UserLimit;
use support::daemon::Daemon;
use support::{MIB, PATIENCE, compile, privileged};
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
        compile("holder.c", &program, &["-std=gnu11", "-O1", "-pthread"]);
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
}

impl Holder {
    fn start(place: &Place, uid: Uid, row: (&'static str, &'static str)) -> Self {
        let (kind, way) = row;
        let is_locked = way == "locked"
            || kind == "buffers of io_uring"
            || (kind == "secret memory"
                && (way.starts_with("mapped") || way == "shared with another user"));
        let mib = if is_locked { LOCKED_MIB } else { HELD_MIB };
        let folder = if kind == "file on a disk" { &place.disk } else { &place.memory };
        let mut command = Command::new(&place.program);
        command.args([kind, way, &mib.to_string()]).arg(folder.path()).arg(uid.0.to_string());
        let helper = Helper::run(command.current_dir("/"));
        Self { kind, way, uid, held_bytes: mib * MIB, helper }
    }

    /// What counts of its memory.
    fn share(&self, limits: &[UserLimit]) -> Share {
        let limit = limits.iter().find(|limit| limit.account.uid == self.uid.0);
        Share::of(limit.map_or(0, |limit| limit.used_bytes), self.held_bytes)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It removes what would outlive it, and exits without an answer.
        self.helper.request("end");
    }
}

/// The table with what counts of each row.
fn table(rows: &[(&str, &str, Share, Share)]) -> String {
    let mut text =
        "| memory | held | counted (BPF) | counted (`/proc`) |\n|---|---|---|---|\n".to_owned();
    for (kind, way, by_bpf, by_proc) in rows {
        let (by_bpf, by_proc) = (by_bpf.as_str(), by_proc.as_str());
        writeln!(text, "| {kind} | {way} | {by_bpf} | {by_proc} |").unwrap();
    }
    text
}

/// What the document says of a row and a column.
fn documented(text: &str, kind: &str, way: &str, column: usize) -> Option<String> {
    let start = format!("| {kind} | {way} | ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start))?;
    line.split(" |").nth(column).map(|cell| cell.trim().to_owned())
}

#[test]
fn the_table_of_memory_that_counts_is_right() {
    if !privileged() {
        return;
    }
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/usage.md");
    let text = std::fs::read_to_string(&document).unwrap();
    let writes = std::env::var_os("HEADROOM_WRITE_TABLES").is_some();
    let place = Place::new();
    let files = FILES.iter().flat_map(|kind| WAYS.iter().map(|way| (*kind, *way)));
    let rows: Vec<(&str, &str)> = files.chain(OTHERS).collect();
    let mut shares: Vec<Vec<Share>> = Vec::new();
    for (column, arguments) in [[].as_slice(), &["--notifier", "proc"]].iter().enumerate() {
        let daemon = Daemon::start("", arguments);
        let uids = (FIRST + (column * rows.len()) as u32..).map(Uid);
        let start = |(uid, row)| {
            daemon.set_limit(uid, LIMIT_MIB * MIB);
            Holder::start(&place, uid, row)
        };
        let holders: Vec<Holder> = uids.zip(rows.iter().copied()).map(start).collect();
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
        shares.push(holders.iter().map(|holder| holder.share(&limits)).collect());
        for holder in &holders {
            assert_eq!(daemon.why(holder.uid), [], "{}, {}", holder.kind, holder.way);
        }
    }
    let found = rows.iter().zip(&shares[0]).zip(&shares[1]);
    let found: Vec<_> =
        found.map(|(((kind, way), bpf), proc)| (*kind, *way, *bpf, *proc)).collect();
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
