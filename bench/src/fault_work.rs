//! Page-fault work: operations that change a process's memory accounts all the time.

use std::fmt::Write as _;
use std::io::{Write, stdin};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::machine;
use crate::memory::{Memory, Pages};
use crate::peer::{Worker, report_ready};

/// The argument that makes a peer a worker.
pub const KIND: &str = "faults";
const PAGE: usize = 4096;
/// The C compiler.
const COMPILER: &str = "cc";

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Maps this number of pages of 4 KiB, in small or huge pages, touches each, unmaps them.
    Faults(usize, Pages),
    /// Forks a child that touches this number of its parent's pages and exits.
    Forks(usize),
    /// Compiles a C program with this number of functions.
    Compile(usize),
}

/// Has a worker do the work `times` times, and does not wait.
pub fn begin(worker: &mut Worker, work: Work, times: usize) -> Result<()> {
    worker.order(&serde_json::to_string(&(work, times))?)
}

/// Waits for the result: the CPU time used, including that of its children, nanoseconds.
pub fn finish(worker: &mut Worker) -> Result<u64> {
    let line = worker.answer()?;
    line.parse().with_context(|| format!("the worker printed \"{line}\""))
}

/// Whether there is a C compiler, for [`Work::Compile`].
pub fn can_compile() -> bool {
    let version = Command::new(COMPILER).arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// The worker's main function.
pub fn serve() -> Result<()> {
    report_ready();
    // The pages that forked children touch: present, and shared with them until they write to them.
    let (mut shared, mut count) = (Memory::map(0, Pages::Small)?, 0);
    for line in stdin().lines() {
        let (work, times): (Work, usize) = serde_json::from_str(&line?)?;
        if let Work::Forks(pages) = work
            && count != pages
        {
            (shared, count) = (Memory::map(pages * PAGE, Pages::Small)?, pages);
            shared.touch(0, 1);
        }
        let before = cpu_ns()?;
        for _ in 0..times {
            match work {
                Work::Faults(count, pages) => Memory::map(count * PAGE, pages)?.touch(0, 1),
                Work::Forks(_) => fork_and_touch(&shared)?,
                Work::Compile(length) => compile(length)?,
            }
        }
        println!("{}", cpu_ns()? - before);
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

fn fork_and_touch(pages: &Memory) -> Result<()> {
    // SAFETY: a worker has one thread, so the child may go on as it likes; it never returns.
    let pid = unsafe { libc::fork() };
    anyhow::ensure!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        pages.touch(0, 1);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: our own child; the status is ours.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    anyhow::ensure!(waited == pid && status == 0, "a forked child failed: status {status}");
    Ok(())
}

/// Compiles a program to assembler and discards both.
fn compile(length: usize) -> Result<()> {
    let mut command = Command::new(COMPILER);
    command.args(["-x", "c", "-O2", "-S", "-o", "-", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().context(COMPILER)?;
    let program = program(length);
    child.stdin.take().context("no stdin")?.write_all(program.as_bytes()).context(COMPILER)?;
    let status = child.wait().context(COMPILER)?;
    anyhow::ensure!(status.success(), "{COMPILER}: {status}");
    Ok(())
}

/// A C program with this number of functions, each a little different.
fn program(length: usize) -> String {
    let mut text = String::from("struct node { struct node *next; long key, value[8]; };\n");
    for n in 0..length {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "long f{n}(struct node *list, long key) {{\n\
             long sum = {n}, i;\n\
             for (; list; list = list->next) {{\n\
             if (list->key == key + {n})\n\
             {{ for (i = 0; i < 8; i++) sum += list->value[i] * (i ^ {n}); }}\n\
             else switch (list->key % 7) {{\n\
             case 0: sum ^= list->value[1]; break; case 1: sum <<= 1; break;\n\
             case 2: sum -= list->value[key & 7]; break; case 5: sum *= {n} + 3; break;\n\
             default: sum++; }}\n\
             }}\n\
             return sum;\n}}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_any_length_compile() {
        if !can_compile() {
            test_support::skip("no C compiler");
            return;
        }
        [0, 3].iter().for_each(|length| compile(*length).unwrap());
    }

    #[test]
    fn the_time_of_forked_children_counts() {
        let pages = Memory::map(4096 * PAGE, Pages::Small).unwrap();
        pages.touch(0, 1);
        let (own, all) = (machine::thread_cpu_ns().unwrap(), cpu_ns().unwrap());
        (0..20).for_each(|_| fork_and_touch(&pages).unwrap());
        let (own, all) = (machine::thread_cpu_ns().unwrap() - own, cpu_ns().unwrap() - all);
        assert!(all > own, "{all} <= {own}");
    }
}
