//! Users and groups of the configuration by name, and the groups of process owners.
//!
//! Names of `/etc/passwd` and `/etc/group` are known at once. Others are looked up by
//! [`directory`], whose threads may wait for a server; the event loop uses the last answer until
//! there is another one, also the answers that an earlier daemon has kept on disk.
//!
//! Members of a group are found by the groups of each user, since directories need not enumerate a
//! group's members.

mod directory;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use headroom_linux::clock::monotonic_ns;
use memory_ledger::{NS_PER_MS, Uid};

use directory::{Directory, Query};

/// Interval of looking up a name again that has an answer, milliseconds: users join groups rarely.
const REFRESH_MS: u64 = 3_600_000;
/// First pause before a name without an answer is looked up again, milliseconds. Each further pause
/// is twice as long.
const RETRY_MS: u64 = 5_000;
/// Longest such pause, milliseconds.
const LONGEST_RETRY_MS: u64 = 300_000;
const MOST: usize = owners::bounds::DIRECTORY_NAMES.slots().slots;

/// The number of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// A uid or gid.
    Number(u32),
    /// There is no such name.
    Missing,
    /// No answer yet; the last error.
    Unanswered(String),
}

/// Whether a limit depends on the groups of users that have a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupMembers {
    /// A limit of a group.
    Needed,
    /// No limit.
    NotNeeded,
}

/// What is known of a name, and when it is looked up.
struct NameEntry {
    /// The last answer.
    numbers: Option<Vec<u32>>,
    /// The error of the last look-up; empty: there was none.
    error: String,
    /// When to look it up, nanoseconds, CLOCK_MONOTONIC; `None`: that is in progress.
    due_ns: Option<u64>,
    retry_ms: u64,
}

impl NameEntry {
    fn new(numbers: Option<Vec<u32>>) -> Self {
        Self { numbers, error: String::new(), due_ns: Some(0), retry_ms: RETRY_MS }
    }
}

/// What happens to new answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// They are written to the file of the last answers.
    Answers,
    /// They are forgotten: a daemon may keep the file.
    Nothing,
}

/// The event loop's record of names.
pub struct Names {
    local: LocalFiles,
    entries: BTreeMap<Query, NameEntry>,
    directory: Directory,
    next_due_ns: u64,
    group_members: GroupMembers,
    changed: bool,
}

impl Names {
    /// Starts the threads. The last answers are in this folder.
    pub fn start(folder: Option<&Path>, keep: Keep) -> io::Result<Self> {
        let file = folder.map(directory::answers_path);
        let known = file.as_deref().map(directory::read_answers).unwrap_or_default();
        let directory = Directory::start(file.filter(|_| keep == Keep::Answers), known.clone())?;
        let entries = known.into_iter().map(|(query, it)| (query, NameEntry::new(Some(it))));
        Ok(Self {
            local: LocalFiles::read(Path::new("/etc")),
            entries: entries.collect(),
            directory,
            next_due_ns: 0,
            group_members: GroupMembers::NotNeeded,
            changed: false,
        })
    }

    /// Reads the local files again and looks up all other names again, without waiting.
    pub fn look_up_again(&mut self) {
        self.local = LocalFiles::read(Path::new("/etc"));
        for entry in self.entries.values_mut() {
            entry.due_ns = entry.due_ns.map(|_| 0);
            entry.retry_ms = RETRY_MS;
        }
        self.next_due_ns = 0;
    }

    /// The uid of a user.
    pub fn uid_of(&mut self, name: &str) -> Resolved {
        match self.local.uid_of(name) {
            Some(uid) => Resolved::Number(uid.0),
            None => self.number_of(Query::User(name.to_owned())),
        }
    }

    fn gid_of(&mut self, name: &str) -> Resolved {
        match self.local.gid_of(name) {
            Some(gid) => Resolved::Number(gid),
            None => self.number_of(Query::Group(name.to_owned())),
        }
    }

    fn number_of(&mut self, query: Query) -> Resolved {
        self.want(query.clone());
        let Some(entry) = self.entries.get(&query) else {
            return Resolved::Unanswered("too many names".to_owned());
        };
        match entry.numbers.as_deref() {
            Some([number, ..]) => Resolved::Number(*number),
            Some([]) => Resolved::Missing,
            None => Resolved::Unanswered(entry.error.clone()),
        }
    }

    fn want(&mut self, query: Query) {
        if self.entries.len() < MOST && !self.entries.contains_key(&query) {
            self.entries.insert(query, NameEntry::new(None));
            self.next_due_ns = 0;
        }
    }

    /// The users of a group that are known, ascending.
    pub fn members_of(&mut self, group: &str) -> Result<Vec<Uid>, Resolved> {
        self.group_members = GroupMembers::Needed;
        let gid = match self.gid_of(group) {
            Resolved::Number(gid) => gid,
            unknown => return Err(unknown),
        };
        let mut members = self.local.members_of(gid);
        for name in self.local.names_in(group) {
            if let Resolved::Number(uid) = self.uid_of(&name) {
                members.push(Uid(uid));
            }
        }
        members.extend(self.entries.iter().filter_map(|(query, entry)| match query {
            Query::GroupsOf(uid) => entry.numbers.as_ref()?.contains(&gid).then_some(*uid),
            Query::User(_) | Query::Group(_) => None,
        }));
        members.sort_unstable();
        members.dedup();
        Ok(members)
    }

    /// Whether a limit needs the groups of process owners.
    pub fn group_members(&self) -> GroupMembers {
        self.group_members
    }

    /// Forgets which names the configuration needs; it is about to be read.
    pub fn begin_configuration(&mut self) {
        self.group_members = GroupMembers::NotNeeded;
    }

    /// Looks up the groups of a user, if a limit needs them and they are not known.
    pub fn look_up_groups_of(&mut self, uid: Uid) {
        if self.group_members == GroupMembers::Needed {
            self.want(Query::GroupsOf(uid));
        }
    }

    /// Takes answers and starts the look-ups that are due. Does not wait. `true`: an answer has
    /// changed since the last call.
    pub fn dispatch(&mut self) -> bool {
        let now_ns = monotonic_ns();
        for (query, answer) in self.directory.take_answers() {
            let Some(entry) = self.entries.get_mut(&query) else { continue };
            let pause_ms = match answer {
                Ok(numbers) => {
                    let new_group = matches!(query, Query::Group(_)) && !numbers.is_empty();
                    let is_missing = numbers.is_empty();
                    let changed = entry.numbers.as_ref() != Some(&numbers);
                    self.changed |= changed || !entry.error.is_empty();
                    entry.numbers = Some(numbers);
                    entry.error.clear();
                    let pause_ms = if is_missing { entry.retry_ms } else { REFRESH_MS };
                    if new_group && changed {
                        // The directory may not have answered for its members either.
                        self.look_up_members_again();
                    }
                    pause_ms
                }
                Err(error) => {
                    self.changed |= entry.error != error;
                    entry.error = error;
                    entry.retry_ms
                }
            };
            let Some(entry) = self.entries.get_mut(&query) else { continue };
            entry.retry_ms = match pause_ms {
                REFRESH_MS => RETRY_MS,
                _ => (entry.retry_ms * 2).min(LONGEST_RETRY_MS),
            };
            let due_ns = now_ns + pause_ms * NS_PER_MS;
            entry.due_ns = Some(due_ns);
            self.next_due_ns = self.next_due_ns.min(due_ns);
        }
        if now_ns >= self.next_due_ns {
            self.start_due(now_ns);
        }
        std::mem::take(&mut self.changed)
    }

    fn look_up_members_again(&mut self) {
        for (query, entry) in &mut self.entries {
            if matches!(query, Query::GroupsOf(_)) {
                entry.due_ns = entry.due_ns.map(|_| 0);
            }
        }
        self.next_due_ns = 0;
    }

    fn start_due(&mut self, now_ns: u64) {
        self.next_due_ns = u64::MAX;
        for (query, entry) in &mut self.entries {
            match entry.due_ns {
                Some(due_ns) if due_ns <= now_ns => {
                    let before = entry.numbers.clone().unwrap_or_default();
                    self.directory.look_up(query.clone(), before);
                    entry.due_ns = None;
                }
                Some(due_ns) => self.next_due_ns = self.next_due_ns.min(due_ns),
                None => {}
            }
        }
    }

    /// When [`dispatch`](Self::dispatch) is due even if the fd is not readable.
    pub fn next_deadline_ns(&self) -> u64 {
        self.next_due_ns
    }

    /// Waits until each name was looked up once, or for this time.
    pub fn settle(&mut self, patience: Duration) {
        let start = Instant::now();
        loop {
            self.dispatch();
            let waits = self.entries.values().any(|entry| entry.due_ns.is_none());
            if !waits || start.elapsed() >= patience {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The current degradation as a sentence; `None`: every look-up was answered.
    pub fn degraded(&self) -> Option<String> {
        let failed = self.entries.values().filter(|entry| !entry.error.is_empty());
        let with_answer = failed.clone().filter(|entry| entry.numbers.is_some()).count();
        let error = &failed.clone().next()?.error;
        let count = failed.count();
        Some(format!(
            "the user database does not answer for {count} users and groups ({error}); the last \
             answer is used for {with_answer} of them, and they are looked up again"
        ))
    }
}

/// Readable when there is an answer.
impl AsFd for Names {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

struct User {
    uid: Uid,
    gid: u32,
}

struct Group {
    gid: u32,
    members: Vec<String>,
}

/// The content of `/etc/passwd` and `/etc/group`, which are read without the user database.
#[derive(Default)]
struct LocalFiles {
    users: BTreeMap<String, User>,
    groups: BTreeMap<String, Group>,
}

impl LocalFiles {
    /// Reads both files in this folder. What cannot be read is left to the user database.
    fn read(etc: &Path) -> Self {
        let mut files = Self::default();
        let lines = |name: &str| std::fs::read_to_string(etc.join(name)).unwrap_or_default();
        for line in lines("passwd").lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, ..] = fields[..] else { continue };
            let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse()) else { continue };
            // The first entry of a name counts.
            files.users.entry(name.to_owned()).or_insert(User { uid: Uid(uid), gid });
        }
        for line in lines("group").lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, gid, members] = fields[..] else { continue };
            let Ok(gid) = gid.parse() else { continue };
            let members = members.split(',').filter(|name| !name.is_empty());
            let members = members.map(str::to_owned).collect();
            files.groups.entry(name.to_owned()).or_insert(Group { gid, members });
        }
        files
    }

    fn uid_of(&self, name: &str) -> Option<Uid> {
        self.users.get(name).map(|user| user.uid)
    }

    fn gid_of(&self, group: &str) -> Option<u32> {
        self.groups.get(group).map(|group| group.gid)
    }

    /// The users that have this primary group.
    fn members_of(&self, gid: u32) -> Vec<Uid> {
        self.users.values().filter(|user| user.gid == gid).map(|user| user.uid).collect()
    }

    /// The names that a group lists.
    fn names_in(&self, group: &str) -> Vec<String> {
        self.groups.get(group).map(|group| group.members.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_read_and_other_lines_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(LocalFiles::read(dir.path()).uid_of("root"), None);
        let passwd = "root:x:0:0::/:/bin/sh\n+::::::\nann:x:5001:700::/:/bin/sh\nann:x:6:7::/:\n";
        std::fs::write(dir.path().join("passwd"), passwd).unwrap();
        std::fs::write(dir.path().join("group"), "staff:x:700:ben,root\nempty:x:701:\n#\n")
            .unwrap();
        let files = LocalFiles::read(dir.path());
        assert_eq!((files.uid_of("ann"), files.gid_of("staff")), (Some(Uid(5001)), Some(700)));
        assert_eq!(files.members_of(700), [Uid(5001)]);
        assert_eq!(files.names_in("staff"), ["ben", "root"]);
        assert!(files.names_in("empty").is_empty() && files.gid_of("other").is_none());
    }
}
