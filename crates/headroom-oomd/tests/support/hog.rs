//! Memory hogs of other users.

use std::sync::{Arc, Mutex, Weak};

use control::Uid;
use test_support::helper::Helper;

use super::eventually;
use super::helper::Program;

/// A memory hog; its name is `hog`.
pub struct Hog {
    helper: Helper,
    _program: Arc<Program>,
}

impl Hog {
    /// Starts one that has no memory to speak of yet.
    pub fn start(uid: Uid) -> Self {
        static PROGRAM: Mutex<Weak<Program>> = Mutex::new(Weak::new());
        let program = Program::shared(&PROGRAM, test_support::programs::memory_hog(), "hog");
        Self { helper: program.start(uid, &[]), _program: program }
    }

    pub fn pid(&self) -> u32 {
        self.helper.pid()
    }

    /// Has it take so much more, without waiting.
    pub fn grow(&mut self, kib: u64) {
        self.helper.begin(&format!("grow {kib}"));
    }

    /// Has it call itself `hog-NUMBER`.
    pub fn name(&mut self, number: u32) {
        self.helper.tell(&format!("name hog-{number}"));
    }

    /// Has it fork so many children, which share its memory until they write.
    pub fn fork(&mut self, children: u32) {
        for _ in 0..children {
            self.helper.ask("fork").expect("the child's pid");
        }
    }

    /// Has it take so much shared memory, and fork so many children that touch all of it.
    pub fn share(&mut self, kib: u64, children: u32) {
        self.begin_share(kib);
        assert!(self.survived());
        for _ in 0..children {
            self.helper.ask("forkagain").expect("the child's pid");
        }
    }

    /// Has it take so much shared memory, without waiting.
    pub fn begin_share(&mut self, kib: u64) {
        self.helper.begin(&format!("shmem {}", kib >> 2));
    }

    /// Has it fork a child that writes to all pages that it shares, without waiting.
    pub fn break_sharing(&mut self) {
        self.helper.begin("forkagain");
    }

    /// Has it write so much to a file that it holds open and does not map, without waiting.
    pub fn write_memfd(&mut self, kib: u64) {
        self.helper.begin(&format!("memfd {kib}"));
    }

    /// Has it fork two children, each of which forks two, so many generations of them; returns when
    /// it is about to begin. Each has 2 MiB of its own, and exits by itself after a while.
    pub fn breed(&mut self, generations: u32) {
        self.helper.tell(&format!("breed {generations}"));
    }

    /// Has it keep so many children, with another one for each that dies; returns when it is about
    /// to begin. Each takes 16 MiB within a tenth of a second. All exit by themselves after a
    /// while.
    pub fn replace(&mut self, children: u32) {
        self.helper.tell(&format!("replace {children}"));
    }

    /// Waits until it has done what it was told; `false`: it was killed over it.
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
