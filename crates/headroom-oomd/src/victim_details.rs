//! What tells a victim from other processes with its name, read outside of the event loop.
//!
//! A process is read when it is armed, or right before or after the signal: its command line is
//! part of the memory that a kill releases. A reader that a process's lock blocks is abandoned
//! ([`BoundedReader`]).

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use control::oomd::ProcessDetails;
use headroom_linux::clock::monotonic_ns;
use memory_ledger::{NS_PER_MS, Process, ProcessId, Uid};
use memory_watch::process::Details;
use owners::{Owner, Quota, bounds};

use crate::usage::BoundedReader;

/// Capacity of the queue; a request beyond it is dropped.
const QUEUE: usize = 64;
/// Number of processes whose details are kept; the oldest of the owner with most is dropped.
const KEPT: usize = bounds::VICTIM_DETAILS.slots().slots;
/// A process that stays armed is read again after this time, milliseconds: it may have executed
/// another program.
const RENEW_MS: u64 = 5_000;
/// Precedes programs that keep all CPUs busy: the victim may exit soon.
const NICE: i32 = -20;

type Known = Arc<Mutex<KnownDetails>>;

/// The details that were read, the oldest first.
#[derive(Default)]
struct KnownDetails(Vec<(Owner, ProcessId, Details)>);

impl KnownDetails {
    fn insert(&mut self, owner: Owner, id: ProcessId, details: Details) {
        let mut counts: BTreeMap<Owner, usize> = BTreeMap::new();
        for (owner, ..) in &self.0 {
            *counts.entry(*owner).or_default() += 1;
        }
        if self.0.len() >= KEPT
            && let Some((most, _)) = counts.into_iter().max_by_key(|(_, count)| *count)
            && let Some(oldest) = self.0.iter().position(|(of, ..)| *of == most)
        {
            self.0.remove(oldest);
        }
        self.0.push((owner, id, details));
    }
}

/// A process that was requested.
struct Requested {
    at_ns: u64,
    owner: Owner,
    uid: Uid,
}

impl Requested {
    fn is_recent(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.at_ns) < RENEW_MS * NS_PER_MS
    }
}

/// The event loop's side. Without a thread no details are known.
pub struct VictimDetails {
    requests: Option<SyncSender<(Owner, ProcessId)>>,
    known: Known,
    requested: BTreeMap<ProcessId, Requested>,
    slots: Quota,
}

impl Default for VictimDetails {
    fn default() -> Self {
        let slots = Quota::new(bounds::VICTIM_DETAILS.slots());
        Self { requests: None, known: Known::default(), requested: BTreeMap::new(), slots }
    }
}

impl VictimDetails {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let (requests, queue) = sync_channel(QUEUE);
        let known = Known::default();
        let results = Arc::clone(&known);
        std::thread::Builder::new()
            .name("victim-details".into())
            .spawn(move || run(&queue, &results))?;
        Ok(Self { requests: Some(requests), known, ..Self::default() })
    }

    /// Requests the details of a process that is or will be a victim, unless they are recent. Does
    /// not wait.
    pub(crate) fn request(&mut self, process: &Process) {
        let Some(requests) = &self.requests else { return };
        let (id, owner, uid) = (process.id, process.owner(), process.uid);
        let now_ns = monotonic_ns();
        if self.requested.get(&id).is_some_and(|before| before.is_recent(now_ns)) {
            return;
        }
        self.requested.retain(|_, before| {
            let is_recent = before.is_recent(now_ns);
            if !is_recent {
                self.slots.give_back(before.owner, before.uid);
            }
            is_recent
        });
        if self.slots.check(owner, uid).is_ok() && requests.try_send((owner, id)).is_ok() {
            // It was checked.
            let _ = self.slots.take(owner, uid);
            self.requested.insert(id, Requested { at_ns: now_ns, owner, uid });
        }
    }

    /// The details of a process, if they were read since it executed its program.
    pub(crate) fn of(&self, process: &Process) -> Option<ProcessDetails> {
        self.get(process.id).filter(|details| details.comm == process.comm).map(to_record)
    }

    /// The details of a process, as they were read last.
    fn get(&self, id: ProcessId) -> Option<Details> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.0.iter().find(|(_, of, _)| *of == id).map(|(.., details)| details.clone())
    }

    /// The details of a victim that were read after its record was written.
    pub(crate) fn late(&self, id: ProcessId, comm: &str) -> Option<ProcessDetails> {
        self.get(id).filter(|details| details.comm.to_string() == comm).map(to_record)
    }
}

fn to_record(details: Details) -> ProcessDetails {
    let Details { command, cgroup, folder, parent_pid, parent, comm: _ } = details;
    ProcessDetails { command, cgroup, folder, parent_pid, parent }
}

/// Reads processes until the event loop's side is dropped.
fn run(queue: &Receiver<(Owner, ProcessId)>, results: &Known) {
    headroom_linux::sched::leave_realtime(NICE);
    let mut reader = BoundedReader::default();
    while let Ok((owner, id)) = queue.recv() {
        let Some(details) = reader.details(owner, id) else { continue };
        let mut known = results.lock().unwrap_or_else(PoisonError::into_inner);
        known.0.retain(|(_, of, _)| *of != id);
        // The memory of a victim, and its command line with it, may have been released already.
        if details.command.is_empty() {
            continue;
        }
        known.insert(owner, id, details);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, uid: u32) -> Process {
        Process { id: ProcessId { pid, start_time: 1 }, ..Process::of(Uid(uid)) }
    }

    #[test]
    fn an_owner_with_many_victims_leaves_details_to_others() {
        let (requests, queue) = sync_channel(QUEUE);
        let mut details = VictimDetails { requests: Some(requests), ..VictimDetails::default() };
        for pid in 1..1_000 {
            details.request(&process(pid, 7));
        }
        details.request(&process(1_000, 8));
        let requested: Vec<Owner> = queue.try_iter().map(|(owner, _)| owner).collect();
        let (part, other) = (bounds::VICTIM_DETAILS.slots().of_an_owner, Owner::User(Uid(8)));
        assert_eq!((requested.len(), requested.last()), (part + 1, Some(&other)));

        let mut known = KnownDetails::default();
        let read = || Details {
            comm: memory_ledger::Comm::default(),
            command: String::new(),
            cgroup: String::new(),
            folder: String::new(),
            parent_pid: 1,
            parent: String::new(),
        };
        known.insert(other, process(1_000, 8).id, read());
        for pid in 1..1_000 {
            known.insert(Owner::User(Uid(7)), process(pid, 7).id, read());
        }
        assert_eq!((known.0.len(), known.0[0].0), (KEPT, other));
    }
}
