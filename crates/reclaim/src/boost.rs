//! Speeds up the exit of a killed process: nice -20 for its threads, and removal from a frozen
//! control group.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use headroom_linux::sched::SchedAttr;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::cgroup;
use crate::victim::Victim;

const HIGHEST: i32 = -20;
/// Room for the names of some twenty threads.
const LISTED_BYTES: usize = 512;

/// Result of boosting a victim that had not exited after `process_mrelease`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boost {
    /// Number of threads with a raised priority.
    pub threads: usize,
    /// The victim was moved out of a frozen control group.
    pub thawed: bool,
    /// The last error, if any.
    pub refused: Option<Errno>,
}

impl Boost {
    /// Raises and thaws a process that was sent SIGKILL, so there is nothing to undo.
    pub fn new(victim: &Victim) -> Self {
        let mut boost = Self::default();
        if let Some(tasks) = open_tasks(victim) {
            let mut buffer = [MaybeUninit::uninit(); LISTED_BYTES];
            let mut entries = RawDir::new(tasks.as_fd(), &mut buffer);
            while let Some(Ok(entry)) = entries.next() {
                let tid = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
                match tid.and_then(Pid::from_raw).map(|tid| raise(&tasks, tid)) {
                    Some(Ok(Raise::Done)) => boost.threads += 1,
                    Some(Err(errno)) => boost.refused = Some(errno),
                    Some(Ok(Raise::NotNeeded)) | None => {}
                }
            }
        }
        match cgroup::leave_frozen(victim) {
            Ok(thawed) => boost.thawed = thawed == cgroup::Thawed::Yes,
            Err(errno) => boost.refused = Some(errno),
        }
        boost
    }
}

/// The `task` folder of the victim; `None` once it has exited.
fn open_tasks(victim: &Victim) -> Option<OwnedFd> {
    let path = format!("/proc/{}/task", victim.pid());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let tasks = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    // The pid was still the victim's after the folder was opened, so the folder is the victim's.
    (!victim.has_exited() && victim.has_its_pid()).then_some(tasks)
}

enum Raise {
    Done,
    /// The thread has exited, or is real-time.
    NotNeeded,
}

/// The system calls identify threads by tid only, and a thread may exit between two of them: if it
/// has exited afterwards, its previous attributes are applied to the thread that may have got its
/// tid.
fn raise(tasks: &OwnedFd, tid: Pid) -> Result<Raise, Errno> {
    let Ok(before) = SchedAttr::of(Some(tid)) else { return Ok(Raise::NotNeeded) };
    let ordinary = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE];
    if !ordinary.contains(&(before.policy as i32)) || !has(tasks, tid) {
        return Ok(Raise::NotNeeded);
    }
    let done = SchedAttr::other(HIGHEST).apply(Some(tid));
    if !has(tasks, tid) {
        // That thread may have exited as well.
        let _ = before.apply(Some(tid));
        return Ok(Raise::NotNeeded);
    }
    done.map(|()| Raise::Done)
}

fn has(tasks: &OwnedFd, tid: Pid) -> bool {
    rustix::fs::statat(tasks, tid.to_string().as_str(), AtFlags::empty()).is_ok()
}
