//! Processes that take memory when told to: this test program again, as another user.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;

use super::eventually;
use super::helper::Helper;

/// Name of the ignored test that has [`obey`] as its body, in each program that uses hogs.
const HELPER: &str = "hog_that_other_tests_start";
const VARIABLE: &str = "HEADROOM_TEST_HOG";

/// A process that obeys.
pub struct Hog {
    helper: Helper,
}

impl Hog {
    /// Starts one that has no memory to speak of yet.
    pub fn start(uid: u32) -> Self {
        let mut hog = Self { helper: Helper::start(HELPER, uid, &[(VARIABLE, "1")], "hog: ") };
        assert_eq!(hog.answer().as_deref(), Some("ready"));
        hog
    }

    pub fn pid(&self) -> u32 {
        self.helper.child.id()
    }

    /// Tells it to take so much more, without waiting.
    pub fn grow(&mut self, kib: u64) {
        // A dead one does not listen.
        let _ = writeln!(self.helper.orders, "grow {kib}");
    }

    /// Tells it to call itself `hog-NUMBER`, and waits.
    pub fn name(&mut self, number: u32) {
        writeln!(self.helper.orders, "name {number}").unwrap();
        assert_eq!(self.answer().as_deref(), Some("done"));
    }

    /// Tells it to fork so many children, which share its memory until they write, and waits.
    pub fn fork(&mut self, children: u32) {
        writeln!(self.helper.orders, "fork {children}").unwrap();
        assert_eq!(self.answer().as_deref(), Some("done"));
    }

    /// Tells it to have two children, each of which has two, so many generations of them, and waits
    /// until it is about to begin. Each has 2 MiB of its own, and ends by itself after a while.
    pub fn breed(&mut self, generations: u32) {
        writeln!(self.helper.orders, "breed {generations}").unwrap();
        assert_eq!(self.answer().as_deref(), Some("done"));
    }

    /// Tells it to have so many children, and another one for each that dies, and waits until it is
    /// about to begin. Each takes [`CHILD_BYTES`] within a tenth of a second. All end by themselves
    /// after a while.
    pub fn replace(&mut self, children: u32) {
        writeln!(self.helper.orders, "replace {children}").unwrap();
        assert_eq!(self.answer().as_deref(), Some("done"));
    }

    /// Waits until it has done what it was told; `false`: it was killed over it.
    pub fn survived(&mut self) -> bool {
        let answer = self.answer();
        if answer.is_none() {
            let status = self.helper.child.wait().unwrap();
            assert_eq!(status.signal(), Some(9), "it ended otherwise: {status}");
        }
        answer.is_some()
    }

    /// Waits until it has been killed.
    pub fn died(&mut self) {
        let status = eventually("the hog dies", || self.helper.child.try_wait().unwrap());
        assert_eq!(status.signal(), Some(9), "it ended otherwise: {status}");
    }

    pub fn is_alive(&mut self) -> bool {
        self.helper.child.try_wait().unwrap().is_none()
    }

    fn answer(&mut self) -> Option<String> {
        self.helper.answer()
    }
}

/// The hog's life: orders from standard input until it ends.
pub fn obey() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let say = |what: &str| println!("\nhog: {what}");
    let mut memory: Vec<Vec<u8>> = Vec::new();
    say("ready");
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        let (verb, number) = order.split_once(' ').unwrap();
        let number: usize = number.parse().unwrap();
        match verb {
            "grow" => {
                // Untouched at first: calloc's pages come with the writes.
                let mut more = vec![0u8; number << 10];
                for page in more.chunks_mut(4096) {
                    page[0] = 1;
                }
                memory.push(more);
                say("done");
            }
            "name" => {
                std::fs::write("/proc/self/comm", format!("hog-{number}")).unwrap();
                say("done");
            }
            "fork" => {
                for _ in 0..number {
                    fork_one();
                }
                say("done");
            }
            "breed" => {
                say("done");
                breed(number);
            }
            "replace" => {
                say("done");
                replace(number);
            }
            _ => panic!("{order:?}"),
        }
    }
    std::hint::black_box(&memory);
}

/// How long who was bred lives, if nobody ends it: it must not outlive a test that fails by much.
const LIFE_S: u32 = 30;

/// New memory, or the end of the process.
fn map(bytes: usize) -> *mut u8 {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice, or an end without anything that
    // is left to do.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), bytes, rights, kind, -1, 0);
        if memory == libc::MAP_FAILED {
            libc::_exit(1);
        }
        memory.cast()
    }
}

/// Takes memory, and has children that do the same, until the last generation.
fn breed(generations: usize) {
    let bytes = 2 << 20;
    // SAFETY: what is written to was just mapped, with that length; one thread goes on, in each
    // process, with system calls only.
    unsafe {
        // A job of its own, as one from a shell; where it leads one already, that stays so.
        libc::setpgid(0, 0);
        for left in (0..=generations).rev() {
            libc::alarm(LIFE_S);
            let memory = map(bytes);
            for page in 0..bytes / 4096 {
                memory.add(page * 4096).write_volatile(1);
            }
            let mut child = 1;
            for _ in 0..2 {
                if left > 0 && child != 0 {
                    child = libc::fork();
                }
            }
            if child != 0 {
                loop {
                    libc::pause();
                }
            }
            // What the parent had is the child's too, until then.
            libc::munmap(memory.cast(), bytes);
        }
        libc::_exit(0);
    }
}

/// What each child of [`Hog::replace`] has in the end.
pub const CHILD_BYTES: u64 = 16 << 20;
/// Between two steps of one MiB.
const STEP_MICROS: u32 = 5_000;

/// Has so many children at a time. No more processes of this user are possible than a few besides.
fn replace(children: usize) {
    let most = children as u64 + 8;
    // SAFETY: system calls with plain values, and what is written to was just mapped, with that
    // length; one thread goes on in each process.
    unsafe {
        libc::setpgid(0, 0);
        libc::alarm(LIFE_S);
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        libc::setrlimit(libc::RLIMIT_NPROC, &limit);
        let mut living = 0;
        loop {
            if living < children {
                match libc::fork() {
                    0 => break,
                    -1 => drop(libc::usleep(STEP_MICROS)),
                    _ => living += 1,
                }
            } else if libc::wait(std::ptr::null_mut()) > 0 {
                living -= 1;
            }
        }
        libc::alarm(LIFE_S);
        let bytes = CHILD_BYTES as usize;
        let memory = map(bytes);
        for page in 0..bytes / 4096 {
            memory.add(page * 4096).write_volatile(1);
            if page % 256 == 255 {
                libc::usleep(STEP_MICROS);
            }
        }
        loop {
            libc::pause();
        }
    }
}

/// A child that shares all memory, does nothing, and dies with its parent.
fn fork_one() {
    let parent = std::process::id() as i32;
    // SAFETY: the child calls only prctl, getppid, pause and _exit, which are safe after a fork
    // whatever other threads did.
    unsafe {
        if libc::fork() == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // The parent may have been killed before that took effect.
            if libc::getppid() != parent {
                libc::_exit(0);
            }
            loop {
                libc::pause();
            }
        }
    }
}
