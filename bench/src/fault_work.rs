//! Page-fault work: what a process does whose accounts change all the time.

use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{ChildStdin, ChildStdout};

use anyhow::{Context, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::machine;
use crate::peer::{Peer, say_ready};

/// The word that turns a peer into a worker: `peer faults UID`.
pub const KIND: &str = "faults";
const PAGE: usize = 4096;

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Maps so many pages, touches each, unmaps them.
    Faults(usize),
    /// Forks a child that touches so many pages of its parent's and exits.
    Forks(usize),
}

impl Work {
    fn parse(line: &str) -> Result<(Self, usize)> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok());
        match (words.first(), number(1), number(2)) {
            (Some(&"faults"), Some(pages), Some(times)) => Ok((Self::Faults(pages), times)),
            (Some(&"forks"), Some(pages), Some(times)) => Ok((Self::Forks(pages), times)),
            _ => anyhow::bail!("\"{line}\" is no work"),
        }
    }

    fn order(self, times: usize) -> String {
        match self {
            Self::Faults(pages) => format!("faults {pages} {times}"),
            Self::Forks(pages) => format!("forks {pages} {times}"),
        }
    }
}

/// A process of some user that works when told to. Killed on drop.
pub struct Worker {
    _peer: Peer,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one of that user, on our core and with our priority.
    pub fn start(uid: u32) -> Result<Self> {
        let (peer, orders, answers) = Peer::start_talking(&[KIND, &uid.to_string()])?;
        Ok(Self { _peer: peer, orders, answers })
    }

    /// Has it do something so many times. Returns the CPU time that took, its children's included,
    /// nanoseconds.
    pub fn work(&mut self, work: Work, times: usize) -> Result<u64> {
        writeln!(self.orders, "{}", work.order(times)).context("the worker is gone")?;
        let mut line = String::new();
        self.answers.read_line(&mut line).context("the worker")?;
        line.trim_end().parse().with_context(|| format!("the worker says \"{}\"", line.trim_end()))
    }
}

/// The worker's main function.
pub fn serve(uid: &str) -> Result<()> {
    let uid: u32 = uid.parse().context("which uid?")?;
    // SAFETY: plain system calls with integers.
    let done = unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
        libc::setresuid(uid, uid, uid)
    };
    anyhow::ensure!(done == 0, "cannot become uid {uid}: {}", std::io::Error::last_os_error());
    say_ready();
    // What the forked children touch: present, and shared with them until they write to it.
    let mut pages = Pages::new(0)?;
    for line in stdin().lines() {
        let (work, times) = Work::parse(&line?)?;
        if let Work::Forks(wanted) = work
            && pages.count != wanted
        {
            pages = Pages::new(wanted)?;
            pages.touch();
        }
        let before = cpu_ns()?;
        for _ in 0..times {
            match work {
                Work::Faults(count) => Pages::new(count)?.touch(),
                Work::Forks(_) => fork_and_touch(&pages)?,
            }
        }
        let took = cpu_ns()? - before;
        let mut out = stdout();
        writeln!(out, "{took}")?;
        out.flush()?;
    }
    Ok(())
}

/// CPU time of this process and of its children that it has waited for.
fn cpu_ns() -> Result<u64> {
    // SAFETY: all zero bytes are an rusage; the kernel fills it in.
    let children = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    Ok(machine::thread_cpu_ns()? + ns(children.ru_utime) + ns(children.ru_stime))
}

/// Anonymous memory; unmapped on drop.
struct Pages {
    at: *mut u8,
    count: usize,
}

impl Pages {
    fn new(count: usize) -> Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice; at least a page long.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), count.max(1) * PAGE, prot, flags) };
        Ok(Self { at: at.context("the worker gets no memory")?.cast(), count })
    }

    fn touch(&self) {
        for page in 0..self.count {
            // SAFETY: inside the mapping, which nobody else knows.
            unsafe { self.at.add(page * PAGE).write_volatile(1) };
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, as long as this, and not used after.
        let _ = unsafe { munmap(self.at.cast(), self.count.max(1) * PAGE) };
    }
}

fn fork_and_touch(pages: &Pages) -> Result<()> {
    // SAFETY: a worker has one thread, so the child may go on as it likes; it never returns.
    let pid = unsafe { libc::fork() };
    anyhow::ensure!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        pages.touch();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: our own child; the status is ours.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    anyhow::ensure!(waited == pid && status == 0, "a forked child failed: status {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_are_written() {
        for work in [Work::Faults(7), Work::Forks(9)] {
            assert_eq!(Work::parse(&work.order(3)).unwrap(), (work, 3));
        }
        for wrong in ["", "faults", "faults 3", "sleep 1 2", "forks x 2"] {
            assert!(Work::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_time_of_forked_children_counts() {
        let pages = Pages::new(4096).unwrap();
        pages.touch();
        let (own, all) = (machine::thread_cpu_ns().unwrap(), cpu_ns().unwrap());
        (0..20).for_each(|_| fork_and_touch(&pages).unwrap());
        let (own, all) = (machine::thread_cpu_ns().unwrap() - own, cpu_ns().unwrap() - all);
        assert!(all > own, "{all} <= {own}");
    }
}
