//! Forked children of the test program, each with a single action.

/// Action of a child, after a number of turns of an idle loop.
#[derive(Clone, Copy)]
pub enum Deed {
    Exit,
    Exec,
    Wait,
}

/// A forked child; killed and waited for on drop.
pub struct Child(pub libc::pid_t);

impl Child {
    pub fn born(deed: Deed, turns: u32) -> Self {
        let sleep = c"/bin/sleep";
        let words = [sleep.as_ptr(), c"60".as_ptr(), std::ptr::null()];
        // SAFETY: the child calls nothing but what a child of a process with threads may.
        unsafe {
            let pid = libc::fork();
            assert!(pid >= 0, "{}", std::io::Error::last_os_error());
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                for turn in 0..turns {
                    std::hint::black_box(turn);
                }
                match deed {
                    Deed::Exit => libc::_exit(0),
                    Deed::Exec => libc::execv(sleep.as_ptr(), words.as_ptr()),
                    Deed::Wait => loop {
                        libc::pause();
                    },
                };
                libc::_exit(1);
            }
            Self(pid)
        }
    }

    pub fn pid(&self) -> u32 {
        self.0 as u32
    }

    /// Waits for its exit: `Ok(code)` or `Err(signal)`.
    pub fn end(mut self) -> Result<i32, i32> {
        let mut status = 0;
        // SAFETY: our own child, waited for once; the status is ours.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        self.0 = 0;
        if libc::WIFEXITED(status) {
            Ok(libc::WEXITSTATUS(status))
        } else {
            Err(libc::WTERMSIG(status))
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.0 > 0 {
            // SAFETY: our own child, not waited for yet: the pid is its own.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }
}
