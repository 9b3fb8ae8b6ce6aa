//! All bounds on resources that owners share, each with the part of one owner and of root.
//!
//! A daemon takes its sizes from here, so that `headroom status --bounds`, which is made from
//! [`ALL`], shows what it does.

use crate::{QuotaSize, Rate};

/// The program that keeps a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// headroom-binderd.
    Binderd,
    /// headroom-oomd.
    Oomd,
    /// Each of them keeps its own.
    Both,
}

impl Daemon {
    /// Name as in the tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Binderd => "binderd",
            Self::Oomd => "oomd",
            Self::Both => "both",
        }
    }
}

/// Unit of the tokens of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Pieces of work.
    Count,
    /// Microseconds of a thread's time.
    Microseconds,
    /// Nanoseconds of a thread's time.
    Nanoseconds,
}

/// Size of a bound, and how it is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Slots of a [`Quota`](crate::Quota).
    Slots(QuotaSize),
    /// Tokens per owner except root, and of all of these together if there is such a bound.
    Rate {
        /// Unit of the tokens.
        unit: Unit,
        /// Tokens of one owner.
        owner: Rate,
        /// Tokens of all owners except root.
        all: Option<Rate>,
    },
    /// Slots of a [`Quota`](crate::Quota): a part of the daemon's descriptors, a sixteenth of it
    /// for root.
    Descriptors {
        /// The number of descriptors divided by this is the number of slots.
        parts: usize,
        /// Maximum number of slots of one owner.
        of_an_owner: usize,
    },
    /// Sizes that are computed at the start, in words.
    Computed {
        /// All.
        all: &'static str,
        /// The part of one owner.
        owner: &'static str,
        /// The part that is reserved for root.
        root: &'static str,
    },
}

/// A bound on a shared resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Name in tables: lower case, with hyphens.
    pub name: &'static str,
    /// The program that keeps it.
    pub daemon: Daemon,
    /// The resource that is shared.
    pub resource: &'static str,
    /// Its size.
    pub share: Share,
    /// What happens to work beyond the bound.
    pub beyond: &'static str,
    /// Test, or attack of `tests/adversary`, in which one owner wants all of it.
    pub test: &'static str,
}

impl Bound {
    /// The quota's size of a bound on slots.
    ///
    /// # Panics
    ///
    /// If this is another kind of bound; in a constant, this fails the build.
    pub const fn slots(&self) -> QuotaSize {
        match self.share {
            Share::Slots(size) => size,
            _ => panic!("not a bound on slots"),
        }
    }

    /// The quota's size of a bound on a part of so many descriptors.
    ///
    /// # Panics
    ///
    /// If this is another kind of bound.
    pub fn slots_of(&self, descriptors: usize) -> QuotaSize {
        let Share::Descriptors { parts, of_an_owner } = self.share else {
            panic!("not a bound on a part of the descriptors")
        };
        let slots = descriptors / parts;
        QuotaSize { slots, reserved: slots / ROOTS_PART, of_an_owner: of_an_owner.min(slots) }
    }

    /// The rate of one owner.
    ///
    /// # Panics
    ///
    /// If this is another kind of bound; in a constant, this fails the build.
    pub const fn of_an_owner(&self) -> Rate {
        match self.share {
            Share::Rate { owner, .. } => owner,
            _ => panic!("not a bound on a rate of each owner"),
        }
    }

    /// The rate of all owners together.
    ///
    /// # Panics
    ///
    /// If there is none; in a constant, this fails the build.
    pub const fn of_all(&self) -> Rate {
        match self.share {
            Share::Rate { all: Some(rate), .. } => rate,
            _ => panic!("not a bound on a rate of all owners"),
        }
    }

    /// Cells of a table: all, the part reserved for root, one owner.
    pub fn cells(&self) -> [String; 3] {
        match self.share {
            Share::Slots(QuotaSize { slots, reserved, of_an_owner }) => {
                let reserved = if reserved == 0 { String::new() } else { reserved.to_string() };
                [slots.to_string(), reserved, of_an_owner.to_string()]
            }
            Share::Rate { unit, owner, all } => {
                let all = all.map(|rate| words(unit, rate)).unwrap_or_default();
                [all, "not limited".into(), words(unit, owner)]
            }
            Share::Descriptors { parts, of_an_owner } => {
                let part = match parts {
                    5 => "a fifth".to_owned(),
                    6 => "a sixth".to_owned(),
                    other => format!("1/{other}"),
                };
                let all = format!("{part} of the descriptors");
                [all, "a sixteenth of all".into(), of_an_owner.to_string()]
            }
            Share::Computed { all, owner, root } => [all.into(), root.into(), owner.into()],
        }
    }
}

/// One part in this of [`Share::Descriptors`] is for root.
const ROOTS_PART: usize = 16;

/// A rate in words, as in `20 ms/s, 20 ms at once`.
fn words(unit: Unit, rate: Rate) -> String {
    let amount = |tokens: u64| match unit {
        Unit::Count => tokens.to_string(),
        Unit::Microseconds => format!("{} ms", tokens / 1_000),
        Unit::Nanoseconds => format!("{} ms", tokens / 1_000_000),
    };
    format!("{}/s, {} at once", amount(rate.per_second), amount(rate.burst))
}

/// Connections to a control socket.
pub const CONTROL_CONNECTIONS: Bound = Bound {
    name: "control-connections",
    daemon: Daemon::Both,
    resource: "connections to the control socket",
    share: Share::Slots(QuotaSize { slots: 64, reserved: 8, of_an_owner: 8 }),
    beyond: "the connection is refused with the reason",
    test: "an_owner_gets_its_share_of_connections_and_the_rest_is_for_others",
};

/// Control connections that receive events, which desktop sessions keep open: eight for each user
/// of a computer lab.
pub const CONTROL_SUBSCRIPTIONS: Bound = Bound {
    name: "control-subscriptions",
    daemon: Daemon::Oomd,
    resource: "connections that receive events",
    share: Share::Slots(QuotaSize { slots: 1024, reserved: 64, of_an_owner: 8 }),
    beyond: "the subscription is refused with the reason; the connection stays",
    test: "subscribers_have_their_own_quota_and_leave_connections_to_others",
};

/// CPU time of the event loop for control requests: 2 % of a CPU for an owner, and 20 ms as a
/// burst, in which each request of root waits for one of the owner's; 5 % for all.
pub const CONTROL_TIME: Bound = Bound {
    name: "control-time",
    daemon: Daemon::Both,
    resource: "time of the event loop for control requests",
    share: Share::Rate {
        unit: Unit::Microseconds,
        owner: Rate { per_second: 20_000, burst: 20_000 },
        all: Some(Rate { per_second: 50_000, burst: 100_000 }),
    },
    beyond: "requests are not read until there is time again",
    test: "a_flood_is_served_at_the_rate_of_its_owner_and_root_does_not_wait_for_it",
};

/// New connections to a control socket of users except root. Each costs the event loop some 20 us,
/// also if it is refused, which the owner's time for requests pays. The owner is not known before:
/// one that connects all the time delays others by the connections that wait in front of theirs, 16
/// at most, so by 8 ms.
pub const CONTROL_ACCEPTS: Bound = Bound {
    name: "control-accepts",
    daemon: Daemon::Both,
    resource: "new connections to the control socket",
    share: Share::Rate {
        unit: Unit::Count,
        owner: Rate { per_second: 500, burst: 128 },
        all: Some(Rate { per_second: 2_000, burst: 256 }),
    },
    beyond: "an owner's are refused with the reason; all wait in the kernel, except root's socket",
    test: "connections_beyond_the_rate_of_their_owner_are_refused_and_others_are_served",
};

/// Connections for leases, and clients: a process holds one connection, and remains a client after
/// its connection is closed. The journal has a place for each.
pub const LEASE_CLIENTS: Bound = Bound {
    name: "lease-clients",
    daemon: Daemon::Oomd,
    resource: "lease connections, and lease clients",
    share: Share::Slots(QuotaSize { slots: 4096, reserved: 256, of_an_owner: 512 }),
    beyond: "the connection is refused; the program's allocator goes on without leases",
    test: "one_user_cannot_open_so_many_connections_that_others_get_none",
};

/// CPU time of the event loop for leases: 10 % of a CPU, with bursts of one second. Programs that
/// send a request for each page, which is the most that tmalloc does, use a tenth of it.
pub const LEASE_TIME: Bound = Bound {
    name: "lease-time",
    daemon: Daemon::Oomd,
    resource: "time of the event loop for leases",
    share: Share::Rate {
        unit: Unit::Microseconds,
        owner: Rate { per_second: 100_000, burst: 1_000_000 },
        all: Some(Rate { per_second: 100_000, burst: 1_000_000 }),
    },
    beyond: "requests are not read until there is time again",
    test: "a_user_that_floods_the_lease_socket_leaves_time_to_others",
};

/// New lease connections. Each takes the event loop about 20 us, also if it is refused, which the
/// owner's time for leases pays.
pub const LEASE_ACCEPTS: Bound = Bound {
    name: "lease-accepts",
    daemon: Daemon::Oomd,
    resource: "new lease connections",
    share: Share::Rate {
        unit: Unit::Count,
        owner: Rate { per_second: 1_000, burst: 512 },
        all: Some(Rate { per_second: 2_000, burst: 1_024 }),
    },
    beyond: "an owner's are refused, its allocators go on without leases; all wait in the kernel",
    test: "a_user_that_connects_all_the_time_leaves_lease_connections_to_others",
};

/// Limits that users set for themselves while there is no other limit for that user. Each takes one
/// of the slots in the notifier's map (1,024); the other slots are for root and the configuration.
pub const SELF_SET_LIMITS: Bound = Bound {
    name: "self-set-limits",
    daemon: Daemon::Oomd,
    resource: "limits that users set for themselves",
    share: Share::Slots(QuotaSize { slots: 256, reserved: 0, of_an_owner: 16 }),
    beyond: "the request is refused with the reason",
    test: "self-set-limits",
};

/// Threads that are blocked in a file of a process whose owner does not let it be read.
pub const USAGE_READERS: Bound = Bound {
    name: "usage-readers",
    daemon: Daemon::Oomd,
    resource: "threads that are blocked in files of processes",
    share: Share::Slots(QuotaSize { slots: 64, reserved: 8, of_an_owner: 4 }),
    beyond: "the owner's processes are not read, and count in full",
    test: "an_owner_blocks_its_part_of_the_readers_only",
};

/// Kills and warnings that wait to be logged, or for one of four programs of hooks that run at a
/// time. A program runs for 10 s at the most, and owners take turns.
pub const NOTIFICATIONS: Bound = Bound {
    name: "notifications",
    daemon: Daemon::Oomd,
    resource: "kills and warnings that wait for their log entry or hook",
    share: Share::Slots(QuotaSize { slots: 256, reserved: 32, of_an_owner: 32 }),
    beyond: "it is not logged, its hook is not run; the number of these is logged",
    test: "a_kill_loop_of_a_user_costs_others_no_after_hook",
};

/// Programs that run before a kill. A kill waits for its own.
pub const PRE_KILL_HOOKS: Bound = Bound {
    name: "pre-kill-hooks",
    daemon: Daemon::Oomd,
    resource: "programs of the `before` hook that run",
    share: Share::Slots(QuotaSize { slots: 4, reserved: 1, of_an_owner: 1 }),
    beyond: "the kill has no `before` hook",
    test: "an_owner_whose_program_runs_leaves_threads_to_others",
};

/// Names of users and groups, and users whose groups are known. A user of the system has one entry;
/// users in descendant user namespaces have none.
pub const DIRECTORY_NAMES: Bound = Bound {
    name: "directory-names",
    daemon: Daemon::Oomd,
    resource: "users and groups that are looked up",
    share: Share::Slots(QuotaSize { slots: 65_536, reserved: 0, of_an_owner: 1 }),
    beyond: "the user is not found to be in a group; the default limit applies",
    test: "two_hundred_slow_names_delay_no_other_limit",
};

/// Threads that look up names in the user database: four at a time, and those without an answer.
pub const DIRECTORY_THREADS: Bound = Bound {
    name: "directory-threads",
    daemon: Daemon::Oomd,
    resource: "threads that look up users and groups",
    share: Share::Slots(QuotaSize { slots: 16, reserved: 0, of_an_owner: 1 }),
    beyond: "names wait; their last answers, kept on disk, are used",
    test: "two_hundred_slow_names_delay_no_other_limit",
};

/// Time of the binder event loop for blocked accesses to clients' memory. Each access delays one
/// call of the other clients by some milliseconds; this bounds it to a few calls at once, and to
/// one call a second.
pub const BLOCKED_ACCESS_TIME: Bound = Bound {
    name: "blocked-access-time",
    daemon: Daemon::Binderd,
    resource: "time of the event loop in late memory of clients",
    share: Share::Rate {
        unit: Unit::Nanoseconds,
        owner: Rate { per_second: 3_000_000, burst: 24_000_000 },
        all: None,
    },
    beyond: "the owner's calls start once a thread has touched their memory",
    test: "time_and_threads_of_an_owner_are_bounded_whatever_its_clients_do",
};

/// Threads that are blocked in memory of clients. Each pins the address space of a client.
pub const BLOCKED_THREADS: Bound = Bound {
    name: "blocked-threads",
    daemon: Daemon::Binderd,
    resource: "threads that are blocked in memory of clients",
    share: Share::Slots(QuotaSize { slots: 128, reserved: 8, of_an_owner: 8 }),
    beyond: "further calls of the owner wait",
    test: "time_and_threads_of_an_owner_are_bounded_whatever_its_clients_do",
};

/// Further slices of ioctls that carry many commands. A slice takes 20 to 200 us; the batches of
/// libbinder end within the first one.
pub const CALL_SLICES: Bound = Bound {
    name: "call-slices",
    daemon: Daemon::Binderd,
    resource: "further slices of long ioctls",
    share: Share::Rate {
        unit: Unit::Count,
        owner: Rate { per_second: 1_000, burst: 2_048 },
        all: None,
    },
    beyond: "the ioctl continues when the owner has slices again",
    test: "further_slices_of_an_owner_have_a_rate",
};

/// Time of the binder event loop for calls of real-time threads that are served before others that
/// wait: a user with the right to real-time priority delays others by no more.
pub const REAL_TIME_CALLS: Bound = Bound {
    name: "real-time-calls",
    daemon: Daemon::Binderd,
    resource: "time of the event loop for real-time callers out of turn",
    share: Share::Rate {
        unit: Unit::Microseconds,
        owner: Rate { per_second: 250_000, burst: 10_000 },
        all: Some(Rate { per_second: 500_000, burst: 20_000 }),
    },
    beyond: "the calls wait for the owner's turn",
    test: "an_owner_that_has_used_its_share_takes_turns_and_others_do_not",
};

/// Memory areas that are read to find an open's mapping, once for an open: 40,000 take 20 ms of the
/// event loop. The burst lets 40 processes with 4,000 areas each start at once.
pub const AREA_LOOKUPS: Bound = Bound {
    name: "area-lookups",
    daemon: Daemon::Binderd,
    resource: "memory areas read to find a client's mapping",
    share: Share::Rate {
        unit: Unit::Count,
        owner: Rate { per_second: 20_000, burst: 160_000 },
        all: None,
    },
    beyond: "calls to the owner's processes wait",
    test: "long_lists_use_up_the_budget_of_their_owner_only",
};

/// Time of the thread that finds whether reads are non-blocking.
pub const FLAG_LOOKUPS: Bound = Bound {
    name: "flag-lookups",
    daemon: Daemon::Binderd,
    resource: "time of the thread that reads the flags of descriptors",
    share: Share::Rate {
        unit: Unit::Nanoseconds,
        owner: Rate { per_second: 100_000_000, burst: 100_000_000 },
        all: None,
    },
    beyond: "the owner's reads wait as if they were blocking",
    test: "an_owner_without_time_is_deferred_and_others_are_not",
};

/// Threads that read the flags of a descriptor and do not return: what a client has put in its
/// place waits for the client.
pub const FLAG_THREADS: Bound = Bound {
    name: "flag-threads",
    daemon: Daemon::Binderd,
    resource: "threads that are blocked in the flags of descriptors",
    share: Share::Slots(QuotaSize { slots: 16, reserved: 0, of_an_owner: 1 }),
    beyond: "the owner's reads wait as if they were blocking, and those of all beyond the sum",
    test: "a_lookup_that_does_not_return_delays_its_owner_only",
};

/// Warnings that a client can cause; one costs [`WARNING_TOKENS`].
pub const WARNINGS: Bound = Bound {
    name: "warnings",
    daemon: Daemon::Binderd,
    resource: "warnings in the log, 60 tokens each",
    share: Share::Rate {
        unit: Unit::Count,
        owner: Rate { per_second: 1, burst: 5 * WARNING_TOKENS },
        all: None,
    },
    beyond: "the warning is left out",
    test: "warnings_of_one_owner_are_bounded_and_do_not_suppress_those_of_another",
};

/// Tokens that a warning costs: one warning a minute.
pub const WARNING_TOKENS: u64 = 60;

/// Opens of devices, whoever holds them. Android's busiest user has some hundred; each takes up to
/// three descriptors of the daemon.
pub const OPENS: Bound = Bound {
    name: "opens",
    daemon: Daemon::Binderd,
    resource: "opens of devices, 3 descriptors each",
    // Its buffer, its address space and the process that made it: half of the descriptors.
    share: Share::Descriptors { parts: 6, of_an_owner: 16 << 10 },
    beyond: "the open fails (EMFILE)",
    test: "unbounded_opens_are_refused",
};

/// Threads that call, whoever's they are: charged to the owner of the open. Android's busiest
/// process has some hundred.
pub const THREADS: Bound = Bound {
    name: "threads",
    daemon: Daemon::Binderd,
    resource: "threads that have called, for each open; one descriptor each",
    // As many as opens: each has a thread.
    share: Share::Descriptors { parts: 6, of_an_owner: 16 << 10 },
    beyond: "the system call fails (ENOMEM)",
    test: "threads_of_one_owner_leave_descriptors_to_others",
};

/// Files of clients that the binder daemon holds.
pub const CLIENT_FILES: Bound = Bound {
    name: "client-files",
    daemon: Daemon::Binderd,
    resource: "files of clients in transit or to be closed",
    share: Share::Descriptors { parts: 5, of_an_owner: 4096 },
    beyond: "the call that carries them fails",
    test: "an_owner_gets_a_share_and_another_one_is_served",
};

/// Threads that close files of clients. The binder daemon has as many again for connections.
pub const CLOSING_THREADS: Bound = Bound {
    name: "closing-threads",
    daemon: Daemon::Both,
    resource: "threads that close files of clients, or connections with files",
    share: Share::Slots(QuotaSize { slots: 64, reserved: 0, of_an_owner: 2 }),
    beyond: "files wait to be closed",
    test: "a_blocking_close_does_not_delay_others_and_keeps_its_quota",
};

/// Connections that may carry files, which is possible before Linux 6.16 only. Each occupies a
/// descriptor until a thread has closed it. Those of one owner can fill it: the owner is known only
/// once a connection is accepted.
pub const CLOSING_CONNECTIONS: Bound = Bound {
    name: "closing-connections",
    daemon: Daemon::Both,
    resource: "connections that are in use or to be closed, before Linux 6.16",
    share: Share::Computed {
        all: "a quarter of the descriptors",
        owner: "no part",
        root: "the rest of the descriptors",
    },
    beyond: "connections wait in the kernel; root has a socket of its own",
    test: "files_that_a_kernel_accepts_are_closed_by_threads_and_delay_nobody",
};

/// Shared-memory rings. Each occupies a descriptor and locks its memory.
pub const RINGS: Bound = Bound {
    name: "rings",
    daemon: Daemon::Binderd,
    resource: "rings of threads",
    share: Share::Slots(QuotaSize { slots: 2048, reserved: 0, of_an_owner: 512 }),
    beyond: "calls go by requests",
    test: "owners_of_rings_that_take_what_they_can_leave_some_to_the_next",
};

/// Processes whose command lines the OOM daemon keeps for records.
pub const VICTIM_DETAILS: Bound = Bound {
    name: "victim-details",
    daemon: Daemon::Oomd,
    resource: "processes near a kill whose command lines are read within five seconds",
    share: Share::Slots(QuotaSize { slots: 256, reserved: 16, of_an_owner: 16 }),
    beyond: "a record has no command line, cgroup, folder and parent",
    test: "an_owner_with_many_victims_leaves_details_to_others",
};

/// Warnings of levels of limits that are not repeated within an interval.
pub const REMEMBERED_WARNINGS: Bound = Bound {
    name: "remembered-warnings",
    daemon: Daemon::Oomd,
    resource: "levels of limits whose warning is not repeated for a while",
    share: Share::Slots(QuotaSize { slots: 4096, reserved: 64, of_an_owner: 64 }),
    beyond: "the user is not warned",
    test: "a_warning_is_repeated_after_the_interval_and_an_owner_has_a_part",
};

/// Kills and warnings in the log.
pub const LOG_LINES: Bound = Bound {
    name: "log-lines",
    daemon: Daemon::Oomd,
    resource: "kills, their ends, and warnings in the log",
    share: Share::Rate { unit: Unit::Count, owner: Rate { per_second: 4, burst: 200 }, all: None },
    beyond: "they are counted, and the number is logged; `headroom why` has all kills",
    test: "a_flood_is_counted_and_leaves_lines_to_others",
};

/// Programs of the `after` hook that run.
pub const AFTER_HOOKS: Bound = Bound {
    name: "after-hooks",
    daemon: Daemon::Oomd,
    resource: "programs of the `after` hook that run",
    share: Share::Computed { all: "4", owner: "takes turns", root: "takes turns" },
    beyond: "they wait",
    test: "a_few_programs_run_at_a_time_and_owners_take_turns",
};

/// Kills that `headroom why` shows.
pub const HISTORY: Bound = Bound {
    name: "history",
    daemon: Daemon::Oomd,
    resource: "decisions in the history",
    share: Share::Computed { all: "1000", owner: "what others leave", root: "as of an owner" },
    beyond: "the oldest of the account with most of them goes first",
    test: "history-eviction",
};

/// Requests that the binder daemon has read and not begun, at most 64 KiB each. It reads all: in
/// the kernel's queue, which knows no owners, those of one wait in front of all others'.
pub const WAITING_REQUESTS: Bound = Bound {
    name: "waiting-requests",
    daemon: Daemon::Binderd,
    resource: "requests that wait for the turn of their owner, one of a thread",
    share: Share::Slots(QuotaSize { slots: 16 << 10, reserved: 1 << 10, of_an_owner: 4 << 10 }),
    beyond: "the system call fails (EAGAIN), but for closes and signals",
    test: "an_owner_with_many_waiting_requests_gets_no_more_in_and_others_do",
};

/// Objects of the binder driver: nodes, references, notifications.
pub const OBJECTS: Bound = Bound {
    name: "objects",
    daemon: Daemon::Binderd,
    resource: "nodes, references, death and freeze notifications",
    share: Share::Computed { all: "no bound", owner: "4194304", root: "as of an owner" },
    beyond: "the command fails, as when the kernel's driver has no memory",
    test: "an_owner_has_a_number_of_objects_and_others_have_their_own",
};

/// Memory of messages.
pub const MESSAGES: Bound = Bound {
    name: "messages",
    daemon: Daemon::Binderd,
    resource: "memory of messages, sent and received",
    share: Share::Computed {
        all: "no bound",
        owner: "a quarter of the machine's memory",
        root: "no bound",
    },
    beyond: "the call fails",
    test: "a_sender_above_its_quota_sends_no_more_and_others_do",
};

/// Threads that install files by ptrace.
pub const FILE_INSTALLERS: Bound = Bound {
    name: "file-installers",
    daemon: Daemon::Binderd,
    resource: "threads that install files in receivers by ptrace",
    share: Share::Slots(QuotaSize { slots: 32, reserved: 2, of_an_owner: 15 }),
    beyond: "the owner's files wait",
    test: "an_owner_whose_receivers_block_leaves_workers_to_others",
};

/// Rings whose threads need no request to call. The kernel waits for 128 words at most.
pub const WATCHED_RINGS: Bound = Bound {
    name: "watched-rings",
    daemon: Daemon::Binderd,
    resource: "rings that are watched",
    share: Share::Slots(QuotaSize { slots: 127, reserved: 0, of_an_owner: 48 }),
    beyond: "the thread's calls go by requests",
    test: "owners_of_rings_that_take_what_they_can_leave_some_to_the_next",
};

/// Open files of `binder_logs`, whose texts the daemon keeps.
pub const LOGS: Bound = Bound {
    name: "logs",
    daemon: Daemon::Binderd,
    resource: "open files of `binder_logs`, 1 MiB each at most",
    share: Share::Slots(QuotaSize { slots: 64, reserved: 8, of_an_owner: 8 }),
    beyond: "the open fails (ENFILE)",
    test: "an_owner_that_opens_logs_leaves_files_and_time_to_others",
};

/// Time of the event loop for the texts of `binder_logs`.
pub const LOG_TIME: Bound = Bound {
    name: "log-time",
    daemon: Daemon::Binderd,
    resource: "time of the event loop for files of `binder_logs`",
    share: Share::Rate {
        unit: Unit::Nanoseconds,
        owner: Rate { per_second: 20_000_000, burst: 20_000_000 },
        all: None,
    },
    beyond: "the open fails (EAGAIN)",
    test: "an_owner_that_opens_logs_leaves_files_and_time_to_others",
};

/// Every bound, in the order of the tables.
pub const ALL: &[Bound] = &[
    CONTROL_CONNECTIONS,
    CONTROL_SUBSCRIPTIONS,
    CONTROL_TIME,
    CONTROL_ACCEPTS,
    LEASE_CLIENTS,
    LEASE_TIME,
    LEASE_ACCEPTS,
    SELF_SET_LIMITS,
    USAGE_READERS,
    NOTIFICATIONS,
    PRE_KILL_HOOKS,
    DIRECTORY_NAMES,
    DIRECTORY_THREADS,
    VICTIM_DETAILS,
    REMEMBERED_WARNINGS,
    LOG_LINES,
    AFTER_HOOKS,
    HISTORY,
    BLOCKED_ACCESS_TIME,
    BLOCKED_THREADS,
    CALL_SLICES,
    REAL_TIME_CALLS,
    AREA_LOOKUPS,
    FLAG_LOOKUPS,
    FLAG_THREADS,
    WARNINGS,
    OPENS,
    THREADS,
    CLIENT_FILES,
    CLOSING_THREADS,
    CLOSING_CONNECTIONS,
    RINGS,
    WATCHED_RINGS,
    FILE_INSTALLERS,
    WAITING_REQUESTS,
    OBJECTS,
    MESSAGES,
    LOGS,
    LOG_TIME,
];
