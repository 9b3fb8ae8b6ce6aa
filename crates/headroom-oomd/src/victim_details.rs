//! What tells a victim from other processes with its name, read outside of the event loop.
//!
//! A process is read when it is armed, or right before or after the signal: its command line is
//! part of the memory that a kill releases. A reader that a process's lock blocks is abandoned
//! ([`BoundedReader`]).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use control::oomd::ProcessDetails;
use headroom_linux::clock::monotonic_ns;
use memory_ledger::{Process, ProcessId};
use memory_watch::process::Details;
use owners::Owner;

use crate::clock::NS_PER_MS;
use crate::usage::BoundedReader;

/// Capacity of the queue; a request beyond it is dropped.
const QUEUE: usize = 64;
/// Number of processes whose details are kept; the oldest is dropped.
const KEPT: usize = 256;
/// A process that stays armed is read again after this time, milliseconds: it may have executed
/// another program.
const RENEW_MS: u64 = 5_000;
/// Precedes programs that keep all CPUs busy: the victim may exit soon.
const NICE: i32 = -20;

type Known = Arc<Mutex<VecDeque<(ProcessId, Details)>>>;

/// The event loop's side. Without a thread no details are known.
#[derive(Default)]
pub struct VictimDetails {
    requests: Option<SyncSender<(Owner, ProcessId)>>,
    known: Known,
    /// When each process was requested, nanoseconds.
    requested: BTreeMap<ProcessId, u64>,
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
        Ok(Self { requests: Some(requests), known, requested: BTreeMap::new() })
    }

    /// Requests the details of a process that is or will be a victim, unless they are recent. Does
    /// not wait.
    pub(crate) fn request(&mut self, process: &Process) {
        let Some(requests) = &self.requests else { return };
        let id = process.id;
        let now_ns = monotonic_ns();
        let is_recent = |at_ns: &u64| now_ns.saturating_sub(*at_ns) < RENEW_MS * NS_PER_MS;
        if self.requested.get(&id).is_some_and(is_recent) {
            return;
        }
        if self.requested.len() >= KEPT {
            self.requested.retain(|_, at_ns| is_recent(at_ns));
        }
        if self.requested.len() < KEPT && requests.try_send((process.owner(), id)).is_ok() {
            self.requested.insert(id, now_ns);
        }
    }

    /// The details of a process, if they were read since it executed its program.
    pub(crate) fn of(&self, process: &Process) -> Option<ProcessDetails> {
        self.get(process.id).filter(|details| details.comm == process.comm).map(to_record)
    }

    /// The details of a process, as they were read last.
    fn get(&self, id: ProcessId) -> Option<Details> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(of, _)| *of == id).map(|(_, details)| details.clone())
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
        known.retain(|(of, _)| *of != id);
        // The memory of a victim, and its command line with it, may have been released already.
        if details.command.is_empty() {
            continue;
        }
        if known.len() >= KEPT {
            known.pop_front();
        }
        known.push_back((id, details));
    }
}
