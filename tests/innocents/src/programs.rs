//! The programs, each a shell script: `sh -c SCRIPT sh FOLDER SECONDS`, as an ordinary user and the
//! leader of a session.
//!
//! A script runs its program under load for about so many seconds, and has one process grow at the
//! end, to the peak. It writes the pid of that process to `FOLDER/grower`, and succeeds if its
//! program did.

/// In which modes a program is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In all of them.
    Quick,
    /// With `--full`.
    Full,
}

/// An ordinary program.
pub struct Program {
    /// Name in tables.
    pub name: &'static str,
    /// What it needs: a file that is there where it is installed; the Debian package.
    pub needs: (&'static str, &'static str),
    /// What runs it.
    pub script: &'static str,
    /// The modes that it is part of.
    pub mode: Mode,
}

/// All programs.
pub const ALL: &[Program] = &[
    Program {
        name: "postgresql",
        needs: ("/usr/lib/postgresql", "postgresql"),
        script: include_str!("../programs/postgresql.sh"),
        // Measuring it takes longer than a kill waits on two busy CPUs, and not on idle ones: what
        // is known to fail there does not fail each time.
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
