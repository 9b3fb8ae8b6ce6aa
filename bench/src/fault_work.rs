//! Page-fault work: operations that change a process's memory accounts all the time.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use control::Uid;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::machine;
use crate::peer::{Peer, report_ready};

/// The argument that makes a peer a worker: `peer faults UID`.
pub const KIND: &str = "faults";
const PAGE: usize = 4096;
/// Size of a huge page on all supported architectures.
const HUGE_PAGE: usize = 2 << 20;
/// The C compiler.
const COMPILER: &str = "cc";

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Maps this number of pages, touches each, unmaps them.
    Faults(usize),
    /// As `Faults`, with memory that the kernel may back with huge pages.
    Huge(usize),
    /// Forks a child that touches this number of its parent's pages and exits.
    Forks(usize),
    /// Compiles a C program with this number of functions.
    Compile(usize),
}

impl Work {
    fn parse(line: &str) -> Result<(Self, usize)> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok());
        match (words.first(), number(1), number(2)) {
            (Some(&"faults"), Some(pages), Some(times)) => Ok((Self::Faults(pages), times)),
            (Some(&"huge"), Some(pages), Some(times)) => Ok((Self::Huge(pages), times)),
            (Some(&"forks"), Some(pages), Some(times)) => Ok((Self::Forks(pages), times)),
            (Some(&"compile"), Some(length), Some(times)) => Ok((Self::Compile(length), times)),
            _ => anyhow::bail!("\"{line}\" is no work"),
        }
    }

    fn order(self, times: usize) -> String {
        match self {
            Self::Faults(pages) => format!("faults {pages} {times}"),
            Self::Huge(pages) => format!("huge {pages} {times}"),
            Self::Forks(pages) => format!("forks {pages} {times}"),
            Self::Compile(length) => format!("compile {length} {times}"),
        }
    }
}

/// A process of some user that executes orders. Killed on drop.
pub struct Worker {
    _peer: Peer,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker of that user, on the caller's core and with its priority.
    pub fn start(uid: Uid) -> Result<Self> {
        let (peer, orders, answers) = Peer::start_talking(&[KIND, &uid.to_string()])?;
        Ok(Self { _peer: peer, orders, answers })
    }

    /// Has it do the work `times` times. Returns the CPU time used, including that of its children,
    /// nanoseconds.
    pub fn work(&mut self, work: Work, times: usize) -> Result<u64> {
        self.begin(work, times)?;
        self.finish()
    }

    /// The first half of [`work`](Worker::work): sends the order and does not wait.
    pub fn begin(&mut self, work: Work, times: usize) -> Result<()> {
        writeln!(self.orders, "{}", work.order(times)).context("the worker is gone")
    }

    /// The second half: waits for the result.
    pub fn finish(&mut self) -> Result<u64> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("the worker")?;
        line.trim_end()
            .parse()
            .with_context(|| format!("the worker printed \"{}\"", line.trim_end()))
    }
}

/// Whether there is a C compiler, for [`Work::Compile`].
pub fn can_compile() -> bool {
    let version = Command::new(COMPILER).arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// The worker's main function.
pub fn serve(uid: &str) -> Result<()> {
    let uid = uid.parse().context("which uid?")?;
    // SAFETY: a plain system call with integers.
    let done = unsafe { libc::setresuid(uid, uid, uid) };
    anyhow::ensure!(done == 0, "cannot become uid {uid}: {}", std::io::Error::last_os_error());
    report_ready();
    // The pages that forked children touch: present, and shared with them until they write to them.
    let mut pages = Pages::new(0, PageSize::Base)?;
    for line in stdin().lines() {
        let (work, times) = Work::parse(&line?)?;
        if let Work::Forks(wanted) = work
            && pages.count != wanted
        {
            pages = Pages::new(wanted, PageSize::Base)?;
            pages.touch();
        }
        let before = cpu_ns()?;
        for _ in 0..times {
            match work {
                Work::Faults(count) => Pages::new(count, PageSize::Base)?.touch(),
                Work::Huge(count) => Pages::new(count, PageSize::Huge)?.touch(),
                Work::Forks(_) => fork_and_touch(&pages)?,
                Work::Compile(length) => compile(length)?,
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum PageSize {
    Base,
    Huge,
}

/// Anonymous memory; unmapped on drop.
struct Pages {
    base: *mut u8,
    room: usize,
    at: *mut u8,
    count: usize,
}

impl Pages {
    fn new(count: usize, size: PageSize) -> Result<Self> {
        let huge = size == PageSize::Huge;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let length = count.max(1) * PAGE;
        // Huge pages are aligned; the unaligned ends cost nothing while they are untouched.
        let room = length + if huge { HUGE_PAGE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choice; at least a page long.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), room, prot, flags) };
        let base: *mut u8 = base.context("the worker gets no memory")?.cast();
        let before = if huge { base.align_offset(HUGE_PAGE) } else { 0 };
        let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: inside the mapping; the advice changes only its page size. A kernel without huge
        // pages refuses it, and small pages are used.
        let _ = unsafe { madvise(base.cast(), room, advice) };
        // SAFETY: less than a huge page, for which there is room.
        Ok(Self { base, room, at: unsafe { base.add(before) }, count })
    }

    fn touch(&self) {
        for page in 0..self.count {
            // SAFETY: inside the mapping, to which no other code has a reference.
            unsafe { self.at.add(page * PAGE).write_volatile(1) };
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, as long as this, and not used after.
        let _ = unsafe { munmap(self.base.cast(), self.room) };
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
    fn orders_are_read_as_they_are_written() {
        for work in [Work::Faults(7), Work::Huge(8), Work::Forks(9), Work::Compile(4)] {
            assert_eq!(Work::parse(&work.order(3)).unwrap(), (work, 3));
        }
        for wrong in ["", "faults", "faults 3", "sleep 1 2", "forks x 2"] {
            assert!(Work::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn programs_of_any_length_compile() {
        if !can_compile() {
            test_support::skip("no C compiler");
            return;
        }
        [0, 3].iter().for_each(|length| compile(*length).unwrap());
    }

    #[test]
    fn memory_for_huge_pages_is_aligned_and_as_long_as_wanted() {
        let pages = Pages::new(1025, PageSize::Huge).unwrap();
        assert_eq!(pages.at.align_offset(HUGE_PAGE), 0);
        pages.touch();
    }

    #[test]
    fn the_time_of_forked_children_counts() {
        let pages = Pages::new(4096, PageSize::Base).unwrap();
        pages.touch();
        let (own, all) = (machine::thread_cpu_ns().unwrap(), cpu_ns().unwrap());
        (0..20).for_each(|_| fork_and_touch(&pages).unwrap());
        let (own, all) = (machine::thread_cpu_ns().unwrap() - own, cpu_ns().unwrap() - all);
        assert!(all > own, "{all} <= {own}");
    }
}
