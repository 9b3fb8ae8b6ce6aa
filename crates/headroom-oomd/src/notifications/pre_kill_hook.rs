//! The program that runs before a kill, within a time budget.
//!
//! Waiting threads start it, one for each owner whose program runs, maybe beyond its budget. The
//! executor stores the facts in atomics, wakes a thread, and waits until the program has exited or
//! the budget is spent: three system calls, no allocation, no lock. A kill by the kernel program,
//! in a page fault, has no pre-kill hook.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::oomd::Trigger;
use memory_ledger::Uid;
use owners::{QuotaSize, bounds};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::hooks::{self, MOST_RUN};
use super::use_ordinary_priority;
use crate::config::notifications::Hooks;

/// The bound on programs that run.
const BOUND: QuotaSize = bounds::PRE_KILL_HOOKS.slots();

/// Facts about the victim, for the program's environment.
#[derive(Clone, Copy, Debug)]
pub struct PreKillInfo {
    /// Thread group of the victim, in the initial namespace.
    pub pid: u32,
    /// Real uid of the victim.
    pub uid: Uid,
    /// Its owner.
    pub owner: Uid,
    /// Memory and swap of the victim, bytes.
    pub bytes: u64,
    /// The account's hard limit, bytes; 0 if the system is short of memory.
    pub hard_bytes: u64,
    /// Cause of the kill.
    pub trigger: Trigger,
}

/// Shared by the executor and the thread. The numbers are published by the write to `requested`.
struct Shared {
    pid: AtomicU32,
    uid: AtomicU32,
    owner: AtomicU32,
    bytes: AtomicU64,
    hard_bytes: AtomicU64,
    trigger: AtomicU32,
    /// A program runs or is about to be started: further kills of this owner have none.
    busy: AtomicBool,
    budget_ms: AtomicU64,
    /// Empty: no program. Locked by the thread and by a reload, never on the kill path.
    program: Mutex<Vec<String>>,
    requested: OwnedFd,
    done: OwnedFd,
}

/// The executor's side.
pub struct PreKillHook {
    threads: Vec<Arc<Shared>>,
    enabled: bool,
}

const TRIGGERS: [Trigger; 8] = [
    Trigger::Notifier,
    Trigger::Timer,
    Trigger::Request,
    Trigger::LimitSet,
    Trigger::SoftLimit,
    Trigger::Memory,
    Trigger::Forecast,
    Trigger::Stall,
];

impl PreKillHook {
    /// Starts the threads; no program is configured yet.
    pub fn start() -> io::Result<Self> {
        let threads = (0..BOUND.slots).map(|_| Self::start_thread()).collect::<io::Result<_>>()?;
        Ok(Self { threads, enabled: false })
    }

    fn start_thread() -> io::Result<Arc<Shared>> {
        let flags = EventfdFlags::CLOEXEC;
        let shared = Arc::new(Shared {
            pid: AtomicU32::new(0),
            uid: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            hard_bytes: AtomicU64::new(0),
            trigger: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            budget_ms: AtomicU64::new(0),
            program: Mutex::new(Vec::new()),
            requested: eventfd(0, flags)?,
            done: eventfd(0, flags | EventfdFlags::NONBLOCK)?,
        });
        let for_thread = shared.clone();
        std::thread::Builder::new()
            .name("pre-kill-hook".into())
            .stack_size(64 * 1024)
            .spawn(move || serve(&for_thread))?;
        Ok(shared)
    }

    /// Sets the program and its time budget.
    pub fn configure(&mut self, hooks: &Hooks) {
        self.enabled = !hooks.before.is_empty();
        for shared in &self.threads {
            shared.budget_ms.store(hooks.budget_ms, Ordering::Relaxed);
            let mut program = shared.program.lock().unwrap_or_else(PoisonError::into_inner);
            program.clone_from(&hooks.before);
        }
    }

    /// A thread for a kill of this owner: it has none that is busy, and root has one left.
    fn thread_for(&self, owner: Uid) -> Option<&Shared> {
        let is_busy = |thread: &&Arc<Shared>| thread.busy.load(Ordering::Acquire);
        let own = |thread: &Arc<Shared>| thread.owner.load(Ordering::Relaxed) == owner.0;
        let busy = || self.threads.iter().filter(is_busy);
        let open = BOUND.slots - if owner == Uid::ROOT { 0 } else { BOUND.reserved };
        if busy().count() >= open || busy().any(own) {
            return None;
        }
        self.threads.iter().find(|thread| !is_busy(thread)).map(|thread| &**thread)
    }

    /// Runs the program, unless an earlier one of this owner still runs, and waits for it within
    /// the budget.
    pub fn run(&self, info: PreKillInfo) {
        if !self.enabled {
            return;
        }
        let Some(shared) = self.thread_for(info.owner) else { return };
        shared.owner.store(info.owner.0, Ordering::Relaxed);
        shared.busy.store(true, Ordering::Release);
        shared.pid.store(info.pid, Ordering::Relaxed);
        shared.uid.store(info.uid.0, Ordering::Relaxed);
        shared.bytes.store(info.bytes, Ordering::Relaxed);
        shared.hard_bytes.store(info.hard_bytes, Ordering::Relaxed);
        let trigger = TRIGGERS.iter().position(|trigger| *trigger == info.trigger);
        shared.trigger.store(trigger.unwrap_or(0) as u32, Ordering::Relaxed);
        let mut count = [0; 8];
        // Discards the completion of an earlier program that exceeded its budget.
        let _ = rustix::io::read(&shared.done, &mut count);
        if rustix::io::write(&shared.requested, &1u64.to_ne_bytes()).is_err() {
            return;
        }
        let ms = shared.budget_ms.load(Ordering::Relaxed);
        let budget =
            Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 };
        let _ = poll(&mut [PollFd::new(&shared.done, PollFlags::IN)], Some(&budget));
    }
}

fn serve(shared: &Shared) {
    use_ordinary_priority();
    let mut count = [0; 8];
    while rustix::io::read(&shared.requested, &mut count).is_ok() {
        let program = shared.program.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let trigger = TRIGGERS[shared.trigger.load(Ordering::Relaxed) as usize % TRIGGERS.len()];
        let facts = [
            ("HEADROOM_PID", shared.pid.load(Ordering::Relaxed).to_string()),
            ("HEADROOM_UID", shared.uid.load(Ordering::Relaxed).to_string()),
            ("HEADROOM_BYTES", shared.bytes.load(Ordering::Relaxed).to_string()),
            ("HEADROOM_LIMIT_BYTES", shared.hard_bytes.load(Ordering::Relaxed).to_string()),
            ("HEADROOM_REASON", trigger.word().to_owned()),
        ];
        match hooks::start(&program, "before", &facts) {
            Ok(child) => wait(child, shared.budget_ms.load(Ordering::Relaxed)),
            Err(error) => tracing::error!("{error}"),
        }
        shared.busy.store(false, Ordering::Release);
        let _ = rustix::io::write(&shared.done, &1u64.to_ne_bytes());
    }
}

/// Returns when the program has exited or was killed.
fn wait(child: Child, budget_ms: u64) {
    let mut logged = false;
    let status = hooks::wait(child, |took| {
        if took > Duration::from_millis(budget_ms) && !logged {
            tracing::warn!(
                budget_ms,
                "the pre-kill program exceeds its budget: the kill does not wait for it"
            );
            logged = true;
        }
    });
    if let Ok(None) = status {
        tracing::warn!("the pre-kill program was killed: it ran for {MOST_RUN:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_whose_program_runs_leaves_threads_to_others() {
        let hook = PreKillHook::start().unwrap();
        let begin = |owner| {
            let thread = hook.thread_for(Uid(owner))?;
            thread.owner.store(owner, Ordering::Relaxed);
            thread.busy.store(true, Ordering::Release);
            Some(())
        };
        assert!(begin(1000).is_some() && begin(1000).is_none(), "one of each owner");
        assert!(begin(1001).is_some() && begin(1002).is_some());
        assert!(begin(1003).is_none() && begin(0).is_some(), "the last one is root's");
        assert!(begin(0).is_none());
    }
}
