//! Clients with late memory accesses, and for how long accesses to them are refused.
//!
//! A late access has delayed every client: accesses to its process are refused (`EFAULT`) for a
//! time that doubles each time, and so are those to all processes of a user after several late
//! accesses. Root and the server's own user could stop the server anyway: of these, only single
//! processes are refused.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use owners::Uid;

/// How long a process is refused after its first late access.
const FIRST_REFUSAL: Duration = Duration::from_secs(5);
/// How many times that time is doubled at most.
const MAX_DOUBLINGS: u32 = 6;
/// Records older than this are dropped.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Number of late accesses of a user before all its processes are refused.
const FREE_FOR_A_USER: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Record {
    times: u32,
    last: Instant,
    refused_until: Instant,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Lateness {
    own_uid: Uid,
    processes: HashMap<u32, Record>,
    users: HashMap<Uid, Record>,
}

impl Lateness {
    pub(crate) fn new() -> Self {
        let own_uid = Uid(rustix::process::geteuid().as_raw());
        Self { own_uid, ..Self::default() }
    }

    /// Whether no late access is recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Records a late access.
    pub(crate) fn note(&mut self, pid: u32, uid: Uid) {
        self.note_at(pid, uid, Instant::now());
    }

    fn note_at(&mut self, pid: u32, uid: Uid, now: Instant) {
        let process = note(&mut self.processes, pid, 0, now);
        tracing::warn!(
            "pid {pid} (uid {uid}): its memory does not answer; it is refused (EFAULT) for {:?}",
            process.refused_until.duration_since(now)
        );
        if uid == Uid::ROOT || uid == self.own_uid {
            return;
        }
        let user = note(&mut self.users, uid, FREE_FOR_A_USER, now);
        if user.refused_until > now {
            tracing::warn!(
                "uid {uid}: memory of its processes did not answer {} times; all are refused \
                 (EFAULT) for {:?}",
                user.times,
                user.refused_until.duration_since(now)
            );
        }
    }

    /// Whether accesses to this process are refused now.
    pub(crate) fn refuses(&mut self, pid: u32, uid: Uid) -> bool {
        !self.is_empty() && self.refuses_at(pid, uid, Instant::now())
    }

    fn refuses_at(&mut self, pid: u32, uid: Uid, now: Instant) -> bool {
        let remembered = |record: &Record| now.duration_since(record.last) < FORGOTTEN_AFTER;
        self.processes.retain(|_, record| remembered(record));
        self.users.retain(|_, record| remembered(record));
        let records = [self.processes.get(&pid), self.users.get(&uid)];
        records.into_iter().flatten().any(|record| record.refused_until > now)
    }
}

fn note<K: Eq + Hash>(records: &mut HashMap<K, Record>, key: K, free: u32, now: Instant) -> Record {
    let record = records.entry(key).or_insert(Record { times: 0, last: now, refused_until: now });
    record.times += 1;
    record.last = now;
    if let Some(doublings) = record.times.checked_sub(free + 1) {
        record.refused_until = now + FIRST_REFUSAL * 2_u32.pow(doublings.min(MAX_DOUBLINGS));
    }
    *record
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Uid = Uid(4_000_000_000);

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_late_process_is_refused_longer_each_time_and_the_others_are_not() {
        let (mut lateness, now) = (Lateness::new(), Instant::now());
        assert!(lateness.is_empty());
        lateness.note_at(7, USER, now);
        assert!(lateness.refuses_at(7, USER, now));
        assert!(!lateness.refuses_at(8, USER, now));
        assert!(!lateness.refuses_at(7, USER, now + seconds(5)));
        lateness.note_at(7, USER, now + seconds(5));
        assert!(lateness.refuses_at(7, USER, now + seconds(14)));
        assert!(!lateness.refuses_at(7, USER, now + seconds(15)));
        assert!(!lateness.refuses_at(7, USER, now + seconds(700)));
        assert!(lateness.is_empty(), "forgotten");
    }

    #[test]
    fn a_user_with_many_late_processes_is_refused() {
        let (mut lateness, now) = (Lateness::new(), Instant::now());
        (1..=3).for_each(|pid| lateness.note_at(pid, USER, now));
        assert!(!lateness.refuses_at(9, USER, now));
        lateness.note_at(4, USER, now);
        assert!(lateness.refuses_at(9, USER, now));
        assert!(!lateness.refuses_at(9, Uid(USER.0 + 1), now), "another user");
    }

    #[test]
    fn processes_of_root_are_refused_one_by_one() {
        let (mut lateness, now) = (Lateness::new(), Instant::now());
        (1..=9).for_each(|pid| lateness.note_at(pid, Uid::ROOT, now));
        assert!(!lateness.refuses_at(10, Uid::ROOT, now) && lateness.refuses_at(9, Uid::ROOT, now));
    }
}
