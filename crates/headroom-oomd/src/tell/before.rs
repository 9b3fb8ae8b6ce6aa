//! The program that is run before a kill, and its budget.
//!
//! A thread stands ready to start it. Whoever kills leaves the facts in a few numbers, wakes the
//! thread, and waits until the program has ended or the budget is spent: three system calls, no
//! allocation, no lock. What the kernel kills by itself, in a page fault, has no such program
//! before it.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use control::oomd::Trigger;
use memory_ledger::Uid;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::be_ordinary;
use super::hooks::{self, MOST_RUN};
use crate::config::notifications::Hooks;

/// How often the thread looks whether a program has ended.
const TICK: Duration = Duration::from_millis(1);

/// What the program is told of the one who is about to die.
#[derive(Clone, Copy, Debug)]
pub struct PreKillInfo {
    /// Process id.
    pub pid: u32,
    /// Whose.
    pub uid: Uid,
    /// What it has, bytes.
    pub bytes: u64,
    /// The user's hard limit, bytes; 0: it is about the machine.
    pub hard_bytes: u64,
    /// What made the daemon look.
    pub trigger: Trigger,
}

/// Both sides' part.
struct Shared {
    pid: AtomicU32,
    uid: AtomicU32,
    bytes: AtomicU64,
    hard_bytes: AtomicU64,
    trigger: AtomicU32,
    /// A program runs, or is about to.
    busy: AtomicBool,
    budget_ms: AtomicU64,
    /// Empty: none. Locked by the thread, and by whoever configures; never by who kills.
    program: Mutex<Vec<String>>,
    asked: OwnedFd,
    done: OwnedFd,
}

/// The executor's end.
pub struct PreKillHook {
    shared: Arc<Shared>,
    wanted: bool,
}

const TRIGGERS: [Trigger; 6] = [
    Trigger::Notifier,
    Trigger::Timer,
    Trigger::Request,
    Trigger::Memory,
    Trigger::Forecast,
    Trigger::Stall,
];

impl PreKillHook {
    /// Starts the thread; no program is wanted yet.
    pub fn start() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC;
        let shared = Arc::new(Shared {
            pid: AtomicU32::new(0),
            uid: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            hard_bytes: AtomicU64::new(0),
            trigger: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            budget_ms: AtomicU64::new(0),
            program: Mutex::new(Vec::new()),
            asked: eventfd(0, flags)?,
            done: eventfd(0, flags | EventfdFlags::NONBLOCK)?,
        });
        let theirs = shared.clone();
        std::thread::Builder::new().name("before".into()).spawn(move || serve(&theirs))?;
        Ok(Self { shared, wanted: false })
    }

    /// Which program, and how long it may hold up a kill.
    pub fn configure(&mut self, hooks: &Hooks) {
        self.wanted = !hooks.before.is_empty();
        self.shared.budget_ms.store(hooks.budget_ms, Ordering::Relaxed);
        let mut program = self.shared.program.lock().unwrap_or_else(PoisonError::into_inner);
        program.clone_from(&hooks.before);
    }

    /// Runs the program, if there is one and the one before has ended, and waits for it as long as
    /// it may take.
    pub fn run(&self, info: PreKillInfo) {
        let shared = &*self.shared;
        if !self.wanted || shared.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        shared.pid.store(info.pid, Ordering::Relaxed);
        shared.uid.store(info.uid.0, Ordering::Relaxed);
        shared.bytes.store(info.bytes, Ordering::Relaxed);
        shared.hard_bytes.store(info.hard_bytes, Ordering::Relaxed);
        let trigger = TRIGGERS.iter().position(|trigger| *trigger == info.trigger);
        shared.trigger.store(trigger.unwrap_or(0) as u32, Ordering::Relaxed);
        let mut count = [0; 8];
        // What an earlier program left, which came too late.
        let _ = rustix::io::read(&shared.done, &mut count);
        if rustix::io::write(&shared.asked, &1u64.to_ne_bytes()).is_err() {
            return;
        }
        let ms = shared.budget_ms.load(Ordering::Relaxed);
        let budget =
            Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 };
        let _ = poll(&mut [PollFd::new(&shared.done, PollFlags::IN)], Some(&budget));
    }
}

fn serve(shared: &Shared) {
    be_ordinary();
    let mut count = [0; 8];
    while rustix::io::read(&shared.asked, &mut count).is_ok() {
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

/// Until it has ended, by itself or because it took far too long.
fn wait(mut child: Child, budget_ms: u64) {
    let begun = Instant::now();
    let mut said = false;
    while let Ok(None) = child.try_wait() {
        let took = begun.elapsed();
        if took > Duration::from_millis(budget_ms) && !said {
            tracing::warn!(
                budget_ms,
                "the program before a kill takes longer: nobody waits for it"
            );
            said = true;
        }
        if took > MOST_RUN {
            tracing::warn!("the program before a kill is ended: it ran for {MOST_RUN:?}");
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        std::thread::sleep(TICK);
    }
}
