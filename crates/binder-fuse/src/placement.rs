//! On which core those go on whom we wake.
//!
//! Who calls sleeps until it is answered: its core is free, and so is ours as soon as we have nothing more to do.
//! Left to itself, the scheduler sends whom we wake to an idle core, because ours is busy with us; a hand-over then
//! costs a wake-up from idle, several times as much as the call itself. So a sleeper is bound to our core while it is
//! woken, and unbound before it can run: it is an ordinary task and we are a real-time one, so it starts when we
//! have finished. Nobody is bound when no core is idle, as it gains nothing then, and with many callers at once: they
//! are to run side by side.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// So many requests at once are a caller and the one it calls; more are others beside them.
const ONE_PAIR: usize = 2;
/// From one look at the machine to the next, nanoseconds.
const LOOK_EVERY_NS: i64 = 10_000_000;

/// Binds sleepers for the moment in which they are woken.
pub(crate) struct Placement {
    /// Whom we wake cannot run here before we sleep, and would go to an idle core.
    useful: bool,
    looked: Timespec,
    /// Says how many tasks run or wait for a core.
    load: Option<File>,
    /// Requests that came together, so far.
    together: usize,
    /// Cores that the machine has.
    online: usize,
    all: CpuSet,
}

/// A thread that may run on our core only, until this is dropped.
pub(crate) struct Bound {
    thread: Pid,
    before: CpuSet,
}

impl Drop for Bound {
    fn drop(&mut self) {
        // It may have died.
        let _ = sched_setaffinity(Some(self.thread), &self.before);
    }
}

impl Placement {
    pub(crate) fn new() -> Self {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
        Self {
            useful: false,
            looked: Timespec::default(),
            load: File::open("/proc/loadavg").ok(),
            together: 0,
            online: online.ok().and_then(|list| cores_in(&list)).unwrap_or(usize::MAX),
            all,
        }
    }

    /// The next request is this one, from 0, of those that came together.
    pub(crate) fn serving(&mut self, number: usize) {
        self.together = number + 1;
    }

    fn look(&mut self) {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        if !is_later(now, self.looked) {
            return;
        }
        self.looked = now;
        let cores = sched_getaffinity(None).map_or(0, |cpus| cpus.count() as usize);
        self.useful =
            cores > 1 && is_real_time(None) && self.runnable().is_none_or(|it| it < cores);
    }

    /// With us among them.
    fn runnable(&self) -> Option<usize> {
        let mut line = [0; 64];
        let len = self.load.as_ref()?.read_at(&mut line, 0).ok()?;
        runnable_in(&line[..len])
    }

    /// Has this sleeper go on here, if that is good for it: the result is held while it is woken.
    pub(crate) fn bind(&mut self, tid: u32) -> Option<Bound> {
        self.look();
        if !self.useful || self.together > ONE_PAIR {
            return None;
        }
        let thread = Pid::from_raw(tid as i32)?;
        let cpus = sched_getaffinity(Some(thread)).ok()?;
        let here = sched_getcpu();
        let can_move = cpus.count() > 1 && here < CpuSet::MAX_CPU && cpus.is_set(here);
        // A real-time one would run at once, and its owner has a mind of his own.
        if !can_move || is_real_time(Some(thread)) {
            return None;
        }
        let mut only = CpuSet::new();
        only.set(here);
        sched_setaffinity(Some(thread), &only).ok()?;
        // Who may run anywhere may also do so on cores that are added later.
        let anywhere = cpus.count() as usize >= self.online;
        Some(Bound { thread, before: if anywhere { self.all } else { cpus } })
    }
}

fn is_later(now: Timespec, then: Timespec) -> bool {
    (now.tv_sec - then.tv_sec) * 1_000_000_000 + (now.tv_nsec - then.tv_nsec) >= LOOK_EVERY_NS
}

/// Tasks that run or wait for a core, of a line like `0.20 0.18 0.12 3/80 11206`.
fn runnable_in(line: &[u8]) -> Option<usize> {
    let field = std::str::from_utf8(line).ok()?.split(' ').nth(3)?;
    field.split_once('/')?.0.parse().ok()
}

fn is_real_time(thread: Option<Pid>) -> bool {
    let tid = thread.map_or(0, |thread| thread.as_raw_nonzero().get());
    // SAFETY: a plain number; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(tid) } & !libc::SCHED_RESET_ON_FORK;
    matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE)
}

/// How many cores a list like `0-3,8` names.
fn cores_in(list: &str) -> Option<usize> {
    let cores = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    list.split(',').map(cores).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Whatever else the machine does.
    fn idle_machine() -> Placement {
        Placement { load: None, ..Placement::new() }
    }

    fn of(tid: u32) -> CpuSet {
        sched_getaffinity(Pid::from_raw(tid as i32)).unwrap()
    }

    fn be_real_time() -> bool {
        let parameter = libc::sched_param { sched_priority: 1 };
        // SAFETY: the structure is live; 0 is this thread.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameter) == 0 }
    }

    /// `test` in a real-time thread, with the number of one that sleeps, real-time too where `both`.
    fn with_a_sleeper(both: bool, test: impl FnOnce(u32) + Send) {
        let several = sched_getaffinity(None).is_ok_and(|cpus| cpus.count() > 1);
        std::thread::scope(|scope| {
            let (tell, told) = channel();
            let (end, ended) = channel::<()>();
            scope.spawn(move || {
                let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
                tell.send((tid, !both || be_real_time())).unwrap();
                let _ = ended.recv();
            });
            scope.spawn(move || {
                let (tid, ready) = told.recv().unwrap();
                if several && ready && be_real_time() {
                    test(tid);
                } else {
                    eprintln!("skipped: one core, or no real-time priority for us");
                }
                drop(end);
            });
        });
    }

    #[test]
    fn a_sleeper_is_bound_to_our_core_and_then_free_again() {
        with_a_sleeper(false, |tid| {
            let before = of(tid);
            let mut placement = idle_machine();
            let bound = placement.bind(tid).expect("it can be bound");
            assert_eq!(of(tid).count(), 1);
            drop(bound);
            assert_eq!(of(tid), before);
        });
    }

    #[test]
    fn who_may_run_on_some_cores_only_may_not_run_on_others_afterwards() {
        with_a_sleeper(false, |tid| {
            let before = of(tid);
            // As on a machine with more cores than it may use.
            let mut placement = Placement { online: usize::MAX, ..idle_machine() };
            drop(placement.bind(tid).expect("it can be bound"));
            assert_eq!(of(tid), before);
        });
    }

    #[test]
    fn who_is_bound_already_is_real_time_or_one_of_many_is_left_alone() {
        with_a_sleeper(false, |tid| {
            let mut placement = idle_machine();
            placement.serving(ONE_PAIR);
            assert!(placement.bind(tid).is_none(), "there are others");
            placement.serving(ONE_PAIR - 1);
            assert!(placement.bind(tid).is_some());
            let mut one = CpuSet::new();
            one.set(sched_getcpu());
            sched_setaffinity(Pid::from_raw(tid as i32), &one).unwrap();
            assert!(placement.bind(tid).is_none(), "it has one core");
            assert_eq!(of(tid), one);
        });
        with_a_sleeper(true, |tid| assert!(idle_machine().bind(tid).is_none()));
    }

    #[test]
    fn nobody_is_bound_by_an_ordinary_thread() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(idle_machine().bind(tid).is_none());
    }

    #[test]
    fn nobody_is_bound_where_no_core_is_idle() {
        assert_eq!(runnable_in(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(runnable_in(b"0.20 0.18"), None);
        let busy = tempfile::tempfile().unwrap();
        busy.write_at(b"99.0 99.0 99.0 99999/99999 1\n", 0).unwrap();
        let mut placement = Placement { load: Some(busy), ..Placement::new() };
        with_a_sleeper(false, move |tid| assert!(placement.bind(tid).is_none()));
    }

    #[test]
    fn lists_of_cores_are_counted() {
        assert_eq!(cores_in("0\n"), Some(1));
        assert_eq!(cores_in("0-3,8\n"), Some(5));
        assert_eq!(cores_in(""), None);
        assert_eq!(cores_in("3-1"), None);
    }
}
