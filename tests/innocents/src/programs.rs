//! The programs, each a shell script: `sh -c SCRIPT sh FOLDER SECONDS`, as an ordinary user and the
//! leader of a session.
//!
//! A script runs its program under load for about SECONDS, and lets one process grow at the end, to
//! the peak. It writes the pid of that process to `FOLDER/grower`, and succeeds if its program did.

/// The modes in which a program is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All modes.
    Quick,
    /// Only with `--full`.
    Full,
}

/// An ordinary program.
pub struct Program {
    /// Name in tables.
    pub name: &'static str,
    /// A file that exists if the program is installed; its Debian package.
    pub needs: (&'static str, &'static str),
    /// The shell script that runs it.
    pub script: &'static str,
    /// The modes in which it is run.
    pub mode: Mode,
}

/// All programs.
pub const ALL: &[Program] = &[
    Program {
        name: "postgresql",
        needs: ("/usr/lib/postgresql", "postgresql"),
        script: include_str!("../programs/postgresql.sh"),
        // It fails on busy CPUs, but not on idle ones: known failures do not occur each time.
        mode: Mode::Full,
    },
    Program {
        name: "redis",
        needs: ("/usr/bin/redis-check-rdb", "redis-tools"),
        script: include_str!("../programs/redis.sh"),
        // Above its limit the child that saves is killed before the server in some runs.
        mode: Mode::Full,
    },
    Program {
        name: "gunicorn",
        needs: ("/usr/bin/gunicorn", "gunicorn"),
        script: include_str!("../programs/gunicorn.sh"),
        mode: Mode::Full,
    },
    Program {
        name: "chromium",
        needs: ("/usr/bin/chromium", "chromium"),
        script: include_str!("../programs/chromium.sh"),
        mode: Mode::Full,
    },
    Program {
        name: "ci-agent",
        needs: ("/usr/bin/python3", "python3"),
        script: include_str!("../programs/ci-agent.sh"),
        mode: Mode::Quick,
    },
    Program {
        name: "make",
        needs: ("/usr/bin/make", "make"),
        script: include_str!("../programs/make.sh"),
        mode: Mode::Full,
    },
    Program {
        name: "multiprocessing",
        needs: ("/usr/bin/python3", "python3"),
        script: include_str!("../programs/multiprocessing.sh"),
        mode: Mode::Full,
    },
    Program {
        name: "node",
        needs: ("/usr/bin/node", "nodejs"),
        script: include_str!("../programs/node.sh"),
        mode: Mode::Full,
    },
    Program {
        name: "jvm",
        needs: ("/usr/bin/java", "default-jdk-headless"),
        script: include_str!("../programs/jvm.sh"),
        mode: Mode::Full,
    },
];
