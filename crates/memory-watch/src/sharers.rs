//! Finds processes that share their memory, where no BPF program reports it.
//!
//! `kcmp` waits for a process in `execve`, which it can delay without end, so a thread compares. An
//! owner whose processes block all threads that it may block has its own processes counted one by
//! one.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memory_ledger::ProcessId;
use owners::{Owner, Quota, Uid, bounds};

use crate::watch::ProcessSample;

/// Time of one comparison after which the thread is abandoned.
const PATIENCE: Duration = Duration::from_millis(50);

/// The address space of a process as its `status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceSize {
    /// Size, bytes.
    pub size_bytes: u64,
    /// Size of the program's code, bytes: set by `execve`; 0 in the midst of it.
    pub code_bytes: u64,
}

/// Processes that can share memory have the same key: their owner, and the size of their code.
type Key = (Owner, u64);

/// Work for the thread: processes by key.
type Pass = BTreeMap<Key, BTreeSet<ProcessId>>;

/// What the thread has found.
#[derive(Default)]
struct Found {
    /// The pid of the first process with the same address space.
    first: HashMap<(ProcessId, Key), u32>,
    /// The comparison in progress.
    comparing: Option<(Owner, [ProcessId; 2], Instant)>,
    /// The thread has a pass to do.
    busy: bool,
}

/// A thread that compares address spaces.
struct Comparer {
    passes: SyncSender<Pass>,
    found: Arc<Mutex<Found>>,
}

impl Comparer {
    fn start() -> io::Result<Self> {
        let (passes, queue) = sync_channel(1);
        let found = Arc::<Mutex<Found>>::default();
        let result = Arc::clone(&found);
        std::thread::Builder::new()
            .name("sharers".into())
            .stack_size(64 * 1024)
            .spawn(move || compare_all(&queue, &result))?;
        Ok(Self { passes, found })
    }
}

/// A thread that was abandoned in a comparison.
struct Abandoned {
    owner: Owner,
    pair: [ProcessId; 2],
    found: Arc<Mutex<Found>>,
}

/// The processes that share memory, as far as they are known.
pub struct Sharers {
    comparer: Option<Comparer>,
    abandoned: Vec<Abandoned>,
    blocked: Quota,
    first: HashMap<(ProcessId, Key), u32>,
}

impl Default for Sharers {
    fn default() -> Self {
        let blocked = Quota::new(bounds::USAGE_READERS.slots());
        Self { comparer: None, abandoned: Vec::new(), blocked, first: HashMap::new() }
    }
}

impl Sharers {
    /// Sets `mm_id` of processes that share an address space, to the pid of the first of them.
    /// `sizes` has the address space of each sample.
    ///
    /// Returns the processes that were not compared yet, and whose address space looks like that of
    /// their parent: the child of a `vfork` must not count. They are not killed together for that.
    pub fn name_shared(
        &mut self,
        samples: &mut [ProcessSample],
        sizes: &[SpaceSize],
    ) -> HashSet<u32> {
        self.take_results();
        let places: HashMap<u32, usize> =
            samples.iter().enumerate().map(|(at, sample)| (sample.tgid, at)).collect();
        self.begin_pass(samples, sizes, &places);
        let mut alike = HashSet::new();
        for at in 0..samples.len() {
            let sample = &samples[at];
            match self.first.get(&(sample.id(), key(sample, sizes[at]))) {
                Some(first) => {
                    if let Some(&first) = places.get(first).filter(|first| **first != at) {
                        let id = u64::from(samples[first].tgid);
                        (samples[first].mm_id, samples[at].mm_id) = (id, id);
                    }
                }
                None => {
                    let parent = places.get(&sample.parent.tgid);
                    if parent.is_some_and(|parent| sizes[*parent] == sizes[at]) {
                        alike.insert(sample.tgid);
                    }
                }
            }
        }
        alike
    }

    fn take_results(&mut self) {
        let blocked = &mut self.blocked;
        self.abandoned.retain(|abandoned| {
            let is_blocked = lock(&abandoned.found).busy;
            if !is_blocked {
                blocked.give_back(abandoned.owner, Uid::NONE);
            }
            is_blocked
        });
        let Some(comparer) = &self.comparer else { return };
        let mut found = lock(&comparer.found);
        if !found.busy {
            self.first = std::mem::take(&mut found.first);
        } else if let Some((owner, pair, since)) = found.comparing
            && since.elapsed() >= PATIENCE
        {
            drop(found);
            self.blocked.insert(owner, Uid::NONE);
            // The thread ends after its comparison, as the sender of its passes is dropped.
            if let Some(Comparer { found, .. }) = self.comparer.take() {
                self.abandoned.push(Abandoned { owner, pair, found });
            }
        }
    }

    /// Has the processes compared, unless the last pass has not ended.
    fn begin_pass(
        &mut self,
        samples: &[ProcessSample],
        sizes: &[SpaceSize],
        places: &HashMap<u32, usize>,
    ) {
        if self.comparer.is_none() {
            self.comparer = Comparer::start().ok();
        }
        let Some(comparer) = &self.comparer else { return };
        let mut found = lock(&comparer.found);
        if found.busy {
            return;
        }
        let mut pass = Pass::new();
        for (sample, size) in samples.iter().zip(sizes) {
            let id = sample.id();
            let is_silent =
                |id| self.abandoned.iter().any(|abandoned| abandoned.pair.contains(&id));
            let may_block = self.blocked.check(sample.owner(), Uid::NONE).is_ok();
            // A process in `execve` shares its memory with none.
            if size.code_bytes == 0 || is_silent(id) || !may_block {
                continue;
            }
            let group = pass.entry(key(sample, *size)).or_default();
            group.insert(id);
            // It may have changed its user since a `vfork`.
            if let Some(&parent) = places.get(&sample.parent.tgid)
                && sizes[parent].code_bytes == size.code_bytes
                && !is_silent(samples[parent].id())
            {
                group.insert(samples[parent].id());
            }
        }
        pass.retain(|_, processes| processes.len() > 1);
        found.busy = comparer.passes.try_send(pass).is_ok();
    }
}

/// Processes of one owner are compared, and their parents: the one that hangs is the owner's.
fn key(sample: &ProcessSample, size: SpaceSize) -> Key {
    (sample.owner(), size.code_bytes)
}

fn lock(found: &Mutex<Found>) -> MutexGuard<'_, Found> {
    found.lock().unwrap_or_else(PoisonError::into_inner)
}

fn compare_all(queue: &Receiver<Pass>, found: &Mutex<Found>) {
    while let Ok(pass) = queue.recv() {
        for (key, processes) in pass {
            let first = first_of_each(&processes, |a, b| {
                lock(found).comparing = Some((key.0, [a, b], Instant::now()));
                let order = compare(Part::Memory, a.pid, b.pid);
                lock(found).comparing = None;
                order
            });
            let all = processes.into_iter().zip(first);
            lock(found).first.extend(all.map(|(id, first)| ((id, key), first)));
        }
        lock(found).busy = false;
    }
    // An abandoned thread: it blocks no more.
    lock(found).busy = false;
}

/// The pid of the first process with the same address space, for each. Each is searched among the
/// known ones by bisection: the kernel orders address spaces. If that order changes meanwhile, a
/// process is missed until the next pass.
fn first_of_each(
    processes: &BTreeSet<ProcessId>,
    mut compare: impl FnMut(ProcessId, ProcessId) -> Option<Ordering>,
) -> Vec<u32> {
    // Sorted in the kernel's order.
    let mut known: Vec<ProcessId> = Vec::with_capacity(processes.len());
    let first = processes.iter().map(|process| {
        let mut comparable = true;
        let found = known.binary_search_by(|other| {
            let order = compare(*other, *process);
            comparable &= order.is_some();
            order.unwrap_or(Ordering::Less)
        });
        match found {
            Ok(first) if comparable => known[first].pid,
            Err(place) if comparable => {
                known.insert(place, *process);
                process.pid
            }
            _ => process.pid,
        }
    });
    first.collect()
}

/// A part of a task, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `KCMP_VM`: the address space.
    Memory = 1,
    /// `KCMP_FILES`: the table of descriptors.
    Files = 2,
}

/// The kernel's order of this part of two tasks, by pid or tid; equal if they share it. `None`: it
/// does not report it.
pub fn compare(part: Part, a: u32, b: u32) -> Option<Ordering> {
    // SAFETY: kcmp takes numbers, and no memory of ours.
    match unsafe { libc::syscall(libc::SYS_kcmp, a, b, part as i32, 0, 0) } {
        0 => Some(Ordering::Equal),
        1 => Some(Ordering::Less),
        2 => Some(Ordering::Greater),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Parent;

    const SIZE: SpaceSize = SpaceSize { size_bytes: 1 << 20, code_bytes: 4096 };

    fn sample(pid: u32) -> ProcessSample {
        ProcessSample { tgid: pid, ..ProcessSample::default() }
    }

    /// A process that shares our memory, until it is dropped.
    struct Sharer(i32);

    impl Drop for Sharer {
        fn drop(&mut self) {
            // SAFETY: a child of ours, not waited for yet.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }

    fn sharer() -> Sharer {
        extern "C" fn wait(_: *mut libc::c_void) -> i32 {
            loop {
                // SAFETY: pause takes nothing and touches no memory.
                unsafe { libc::pause() };
            }
        }
        let stack = vec![0u128; 4096].leak();
        let top = stack.as_mut_ptr_range().end.cast();
        let flags = libc::CLONE_VM | libc::SIGCHLD;
        // SAFETY: the child runs on a stack of its own, which is never freed, and only waits.
        let pid = unsafe { libc::clone(wait, top, flags, std::ptr::null_mut()) };
        assert!(pid > 0, "{}", std::io::Error::last_os_error());
        Sharer(pid)
    }

    /// The `mm_id` of processes once those with the same size of code have been compared.
    fn compared(processes: [(u32, SpaceSize); 4]) -> [u64; 4] {
        let mut sharers = Sharers::default();
        let end = Instant::now() + Duration::from_secs(60);
        let (pids, sizes) = (processes.map(|it| it.0), processes.map(|it| it.1));
        loop {
            let mut samples = pids.map(sample);
            sharers.name_shared(&mut samples, &sizes);
            let alike = |size: &SpaceSize| sizes.iter().filter(|other| *other == size).count() > 1;
            if sharers.first.len() == sizes.iter().filter(|size| alike(size)).count() {
                return samples.map(|sample| sample.mm_id);
            }
            assert!(Instant::now() < end, "the thread does not compare them");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn processes_that_share_memory_have_the_name_of_the_first() {
        let sharers = [sharer(), sharer()];
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pids = [sharers[0].0 as u32, sharers[1].0 as u32, other.id(), std::process::id()];
        // That with the lowest pid.
        let first = u64::from(pids[0].min(pids[1]).min(pids[3]));
        assert_eq!(compared(pids.map(|pid| (pid, SIZE))), [first, first, 0, first]);
        let code = |at: usize, code_bytes| (pids[at], SpaceSize { code_bytes, ..SIZE });
        assert_eq!(compared([code(0, 7), code(1, 8), code(2, 7), code(3, 9)]), [0; 4]);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_process_that_was_not_compared_may_share_the_memory_of_its_parent() {
        let (parent, child) = (u32::MAX / 2, u32::MAX / 2 + 1);
        let alike = |of_child: SpaceSize| {
            let of = Parent { tgid: parent, is_copied: true };
            let mut samples = [sample(parent), ProcessSample { parent: of, ..sample(child) }];
            let alike = Sharers::default().name_shared(&mut samples, &[SIZE, of_child]);
            assert_eq!(samples.map(|sample| sample.mm_id), [0; 2], "not to be killed together");
            alike
        };
        assert_eq!(alike(SIZE), HashSet::from([child]));
        assert_eq!(alike(SpaceSize { size_bytes: 2 << 20, ..SIZE }), HashSet::new());
    }
}
