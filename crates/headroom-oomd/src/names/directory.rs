//! Threads that look up names in the user database (NSS), which may wait for a server, and the file
//! that keeps the last answers.
//!
//! One thread distributes the queries. Each query has a thread of its own, since nothing can end a
//! call into the database: after a time limit another thread takes the next query.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use headroom_linux::folders::replace_file;
use memory_ledger::Uid;
use nix::errno::Errno;
use nix::unistd::{Gid, Group, User, getgrouplist};
use rustix::event::{EventfdFlags, eventfd};

use crate::notifications::use_ordinary_priority;

/// A look-up that takes longer counts as failed. Its answer is used if there is one later.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Look-ups at a time that have not exceeded it.
const AT_A_TIME: usize = 4;
/// Look-ups at a time, with those that have.
const MOST_THREADS: usize = owners::bounds::DIRECTORY_THREADS.slots().slots;
/// The file is written when there was no answer for this time.
const SETTLED: Duration = Duration::from_millis(500);

/// The numbers, or the error.
type LookUpResult = Result<Vec<u32>, String>;

enum LookUpMessage {
    LookUp { query: Query, before: Vec<u32> },
    Done { number: u64, query: Query, answer: LookUpResult },
}

/// The event loop's side. When it is dropped, the distributor ends.
pub(super) struct Directory {
    queries: Sender<LookUpMessage>,
    answers: Receiver<(Query, LookUpResult)>,
    wake: Arc<OwnedFd>,
}

impl Directory {
    /// Starts the distributor. `known` are the answers in the file.
    pub(super) fn start(file: Option<PathBuf>, known: Answers) -> io::Result<Self> {
        let (queries, received) = channel();
        let (to_loop, answers) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let distributor = Distributor {
            received,
            done: queries.clone(),
            to_loop,
            wake: Arc::clone(&wake),
            queue: VecDeque::new(),
            in_progress: BTreeMap::new(),
            next_number: 0,
            file,
            known,
            is_file_current: true,
        };
        std::thread::Builder::new().name("names".into()).spawn(move || distributor.run())?;
        Ok(Self { queries, answers, wake })
    }

    /// Queues a look-up. `before` is the last answer.
    pub(super) fn look_up(&self, query: Query, before: Vec<u32>) {
        // The distributor ends after this side only.
        let _ = self.queries.send(LookUpMessage::LookUp { query, before });
    }

    /// Answers since the last call.
    pub(super) fn take_answers(&self) -> Vec<(Query, LookUpResult)> {
        // Resets the fd; the next answer makes it readable again.
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        self.answers.try_iter().collect()
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

struct LookUp {
    query: Query,
    start: Instant,
    /// The time limit is exceeded, and that was reported.
    is_late: bool,
}

struct Distributor {
    received: Receiver<LookUpMessage>,
    done: Sender<LookUpMessage>,
    to_loop: Sender<(Query, LookUpResult)>,
    wake: Arc<OwnedFd>,
    queue: VecDeque<(Query, Vec<u32>)>,
    /// By the number of the look-up: one that hangs does not prevent another for the same name.
    in_progress: BTreeMap<u64, LookUp>,
    next_number: u64,
    file: Option<PathBuf>,
    known: Answers,
    is_file_current: bool,
}

impl Distributor {
    fn run(mut self) {
        use_ordinary_priority();
        loop {
            let idle = self.in_progress.is_empty() && self.is_file_current;
            let received = if idle {
                self.received.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                self.received.recv_timeout(SETTLED)
            };
            match received {
                Ok(LookUpMessage::LookUp { query, before }) => {
                    self.queue.push_back((query, before))
                }
                Ok(LookUpMessage::Done { number, query, answer }) => {
                    self.in_progress.remove(&number);
                    self.keep(&query, &answer);
                    if !self.report(query, answer) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.write_file(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !self.report_late() {
                return;
            }
            self.start_next();
        }
    }

    fn keep(&mut self, query: &Query, answer: &LookUpResult) {
        let Ok(numbers) = answer else { return };
        let before = if numbers.is_empty() {
            self.known.remove(query)
        } else {
            self.known.insert(query.clone(), numbers.clone())
        };
        self.is_file_current &= before.unwrap_or_default() == *numbers;
    }

    fn write_file(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| !self.is_file_current) else { return };
        self.is_file_current = true;
        if let Err(error) = write_answers(file, &self.known) {
            tracing::warn!("cannot keep the answers of the user database: {error}");
        }
    }

    /// `false`: the event loop has ended.
    fn report(&self, query: Query, answer: LookUpResult) -> bool {
        let sent = self.to_loop.send((query, answer)).is_ok();
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        sent
    }

    fn report_late(&mut self) -> bool {
        let mut late = Vec::new();
        for look_up in self.in_progress.values_mut() {
            if !look_up.is_late && look_up.start.elapsed() >= TIME_LIMIT {
                look_up.is_late = true;
                late.push(look_up.query.clone());
            }
        }
        late.into_iter()
            .all(|query| self.report(query, Err(format!("no answer within {TIME_LIMIT:?}"))))
    }

    fn start_next(&mut self) {
        loop {
            let in_time = self.in_progress.values().filter(|look_up| !look_up.is_late).count();
            if in_time >= AT_A_TIME || self.in_progress.len() >= MOST_THREADS {
                return;
            }
            let Some((query, before)) = self.queue.pop_front() else { return };
            let number = self.next_number;
            self.next_number += 1;
            let (done, of_thread) = (self.done.clone(), query.clone());
            let run = move || {
                let answer = look_up(&of_thread, &before);
                let _ = done.send(LookUpMessage::Done { number, query: of_thread, answer });
            };
            match std::thread::Builder::new().name("name".into()).spawn(run) {
                Ok(_) => {
                    let start = Instant::now();
                    self.in_progress.insert(number, LookUp { query, start, is_late: false });
                }
                Err(error) => {
                    self.report(query, Err(format!("cannot start a thread: {error}")));
                }
            }
        }
    }
}

fn look_up(query: &Query, before: &[u32]) -> LookUpResult {
    let found = match query {
        Query::User(name) => {
            repeat(|| User::from_name(name)).map(|it| it.map(|user| vec![user.uid.as_raw()]))
        }
        Query::Group(name) => {
            repeat(|| Group::from_name(name)).map(|it| it.map(|group| vec![group.gid.as_raw()]))
        }
        Query::GroupsOf(uid) => groups_of(*uid, before),
    };
    found.map(Option::unwrap_or_default).map_err(|errno| errno.desc().to_owned())
}

fn groups_of(uid: Uid, before: &[u32]) -> nix::Result<Option<Vec<u32>>> {
    let uid = nix::unistd::Uid::from_raw(uid.0);
    let Some(user) = repeat(|| User::from_uid(uid))? else { return Ok(None) };
    let name = CString::new(user.name).map_err(|_| Errno::EINVAL)?;
    let groups = getgrouplist(&name, user.gid)?;
    let groups: Vec<u32> = groups.into_iter().map(Gid::as_raw).collect();
    // The list does not say that a directory is missing from it; a query for a group does.
    if let Some(lost) = before.iter().find(|gid| !groups.contains(gid)) {
        repeat(|| Group::from_gid(Gid::from_raw(*lost)))?;
    }
    Ok(Some(groups))
}

fn repeat<T>(query: impl Fn() -> nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    loop {
        match query() {
            Err(Errno::EINTR) => {}
            found => return found,
        }
    }
}

/// A question to the user database. The answer are numbers; none: there is no such user or group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Query {
    /// The uid of a user.
    User(String),
    /// The gid of a group.
    Group(String),
    /// The gids of a user.
    GroupsOf(Uid),
}

/// Answers that contain at least one number. In the file a line is a kind, numbers with commas
/// between them, and a name or uid, separated by tabs.
pub(super) type Answers = BTreeMap<Query, Vec<u32>>;

/// The file in the daemon's state folder.
pub(super) fn answers_path(folder: &Path) -> PathBuf {
    folder.join("names")
}

/// The answers in the file; none if it does not exist. A line that cannot be understood is left
/// out: its name is looked up again in any case.
pub(super) fn read_answers(path: &Path) -> Answers {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("{}: {error}; names are looked up again", path.display());
            }
            return Answers::new();
        }
    };
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<(Query, Vec<u32>)> {
    let mut parts = line.splitn(3, '\t');
    let (kind, numbers, name) = (parts.next()?, parts.next()?, parts.next()?);
    let query = match kind {
        "user" => Query::User(name.to_owned()),
        "group" => Query::Group(name.to_owned()),
        "groups-of" => Query::GroupsOf(Uid(name.parse().ok()?)),
        _ => return None,
    };
    let numbers: Option<Vec<u32>> = numbers.split(',').map(|number| number.parse().ok()).collect();
    Some((query, numbers?))
}

/// Replaces the file.
fn write_answers(path: &Path, known: &Answers) -> io::Result<()> {
    let mut text = String::new();
    for (query, numbers) in known {
        let (kind, name) = match query {
            Query::User(name) => ("user", name.clone()),
            Query::Group(name) => ("group", name.clone()),
            Query::GroupsOf(uid) => ("groups-of", uid.to_string()),
        };
        let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
        if !name.contains('\n') {
            text.push_str(&format!("{kind}\t{}\t{name}\n", numbers.join(",")));
        }
    }
    replace_file(path, 0o644, |file| file.write_all(text.as_bytes())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_other_lines_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = answers_path(dir.path());
        assert_eq!(read_answers(&path), Answers::new());
        let known = Answers::from([
            (Query::User("tina".into()), vec![1_682_401_104]),
            (Query::Group("domain users".into()), vec![700]),
            (Query::GroupsOf(Uid(5)), vec![700, 701]),
        ]);
        write_answers(&path, &known).unwrap();
        assert_eq!(read_answers(&path), known);
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("user\tx\tbob\nuser\nother\t1\tbob\n\n");
        std::fs::write(&path, text).unwrap();
        assert_eq!(read_answers(&path), known);
    }
}
