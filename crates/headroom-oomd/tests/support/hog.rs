//! Processes of other users that allocate memory.

use std::sync::{Arc, Mutex, Weak};

use control::Uid;
use test_support::helper::Helper;

use super::eventually;
use super::helper::Program;

/// A process named `hog` that allocates memory on request.
pub struct Hog {
    helper: Helper,
    _program: Arc<Program>,
}

impl Hog {
    /// Starts a hog, which has hardly any memory yet.
    pub fn start(uid: Uid) -> Self {
        static PROGRAM: Mutex<Weak<Program>> = Mutex::new(Weak::new());
        let program = Program::shared(&PROGRAM, test_support::programs::memory_hog(), "hog");
        Self { helper: program.start(uid, &[]), _program: program }
    }

    pub fn pid(&self) -> u32 {
        self.helper.pid()
    }

    /// Requests it to allocate this amount, without waiting.
    pub fn grow(&mut self, kib: u64) {
        self.helper.begin(&format!("grow {kib}"));
    }

    /// Requests it to change its name to `hog-NUMBER`.
    pub fn name(&mut self, number: u32) {
        self.helper.execute(&format!("name hog-{number}"));
    }

    /// Requests it to fork this number of children, which share its memory until they write.
    pub fn fork(&mut self, children: u32) {
        for _ in 0..children {
            self.helper.request("fork").expect("the child's pid");
        }
    }

    /// Makes it allocate shared memory, and fork this number of children that touch all of it.
    pub fn share(&mut self, kib: u64, children: u32) {
        self.begin_share(kib);
        assert!(self.survived());
        for _ in 0..children {
            self.helper.request("forkagain").expect("the child's pid");
        }
    }

    /// Requests it to allocate shared memory, without waiting.
    pub fn begin_share(&mut self, kib: u64) {
        self.helper.begin(&format!("shmem {}", kib >> 2));
    }

    /// Requests it to fork a child that writes to all pages that it shares, without waiting.
    pub fn break_sharing(&mut self) {
        self.helper.begin("forkagain");
    }

    /// Makes it ignore SIGTERM.
    pub fn ignore_sigterm(&mut self) {
        self.helper.execute("ignoreterm");
    }

    /// Waits until it has ended by SIGTERM.
    pub fn ended_by_sigterm(&mut self) {
        eventually("the hog ends", || (!self.helper.is_alive()).then_some(()));
        assert_eq!(self.helper.signal(), Some(15), "it ended otherwise");
    }

    /// Makes it let the kernel take all of its memory (`MADV_FREE`).
    pub fn free_lazily(&mut self) {
        self.helper.execute("lazyfree");
    }

    /// Requests it to write to all of its memory, without waiting.
    pub fn touch_again(&mut self) {
        self.helper.begin("again");
    }

    /// Requests it to write to a file that it holds open and does not map, without waiting.
    pub fn write_memfd(&mut self, kib: u64) {
        self.helper.begin(&format!("memfd {kib}"));
    }

    /// Requests it to fork two children, each of which forks two, for this number of generations;
    /// returns when it is about to begin. Each has 2 MiB of its own, and exits by itself after a
    /// while.
    pub fn breed(&mut self, generations: u32) {
        self.helper.execute(&format!("breed {generations}"));
    }

    /// Requests it to keep this number of children, replacing each one that is killed; returns when
    /// it is about to begin. Each child allocates 16 MiB within a tenth of a second. All exit by
    /// themselves after a while.
    pub fn replace(&mut self, children: u32) {
        self.helper.execute(&format!("replace {children}"));
    }

    /// Waits until the last request is complete. `false`: the hog was killed meanwhile.
    pub fn survived(&mut self) -> bool {
        let answer = self.helper.answer();
        if answer.is_none() {
            assert_eq!(self.helper.signal(), Some(9), "it ended otherwise");
        }
        answer.is_some()
    }

    /// Waits until it has been killed.
    pub fn died(&mut self) {
        eventually("the hog dies", || (!self.helper.is_alive()).then_some(()));
        assert_eq!(self.helper.signal(), Some(9), "it ended otherwise");
    }

    pub fn is_alive(&mut self) -> bool {
        self.helper.is_alive()
    }
}
