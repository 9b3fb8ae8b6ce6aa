/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/*
 * Structs that the programs and the daemon exchange. Mirrored field by field in src/notifier/wire.rs;
 * Notifier::load compares the sizes with the loaded object's maps.
 */
#pragma once

#define MAX_CPUS 1024
/* Slots are allocated in chunks, 16 KiB each, as users get limits. */
#define CHUNK_SLOTS 64
/* No slot has this index. */
#define NO_SLOT 0xffffffff
/* Bits of the filter of limited users. */
#define FILTER_BITS 65536

/* One address space of a limited user. `owner` is uid << 32 | slot, changed only as a whole. */
struct account {
	u64 owner;
	s64 pages[4]; /* by member; the slot's `counted` selects those that are charged */
	s64 seen[4];  /* the batched part of the counter at the last update */
	s64 marked[2]; /* the charge at the last two marks, the older one first */
	u32 tgid;
	u32 round; /* the last scan that found it */
};

enum { ZONE_FAR = 0, ZONE_NEAR = 1 };

struct armed {
	u32 tgid;
	u32 unused;
	u64 start_number;
};

/* One limited user, or several that share a limit. */
struct slot {
	/* Written by the daemon. */
	u64 soft_pages;
	u64 hard_pages;
	u64 clear_pages; /* below this the soft crossing is over */
	u32 key; /* of the account: a user's uid, or a number above all uids for a group */
	u32 spare_unarmed;
	u32 armed_index; /* 0: no process; 1, 2: armed[index - 1] */
	u32 exact; /* counters are read exactly below the soft limit, too */
	struct armed armed[2];
	u64 memo; /* a value of the daemon, for the next one that takes over */
	u32 index; /* its own index in the slots */
	u32 counted; /* bit mask of the members that are charged */
	s64 correction; /* actual usage - sum, as last measured: shared pages, page tables, files held open */
	u64 unused_line[4];
	/* Written at each change near the limit, by each CPU: one cache line. */
	s64 pages;
	s64 peak_pages;
	s64 dying_pages;
	u64 events;
	u32 zone;
	u32 latch;
	u32 reported;
	u32 unused_word;
	u64 largest_mm;
	s64 largest_score; /* of largest_mm, at its last change or scan */
	/* Read at each change, written rarely. */
	u64 victim_mm;
	u64 soft_crossings;
	u64 hard_crossings;
	u64 kills;
	u64 lost;
	s64 unconfirmed; /* part of pages that may be shared, or lazily freed; not measured yet */
	u64 near_ns; /* time of the last soft crossing */
	u64 unused_tail; /* slots are aligned to cache lines, and sixteen fill a page */
};

enum { EVENT_SOFT_CROSSED = 1, EVENT_SOFT_CLEARED = 2, EVENT_HARD_CROSSED = 3 };
enum {
	KILLED_NONE = 0,
	KILLED_ARMED_SELF = 1,
	KILLED_ARMED_OTHER = 2,
	KILLED_UNARMED_SELF = 3,
	KILLED_UNARMED_OTHER = 4,
};

struct event {
	u32 kind;
	u32 key; /* of the account */
	u64 pages;
	u64 time_ns;
	u32 killed_by;
	u32 killed_tgid;
	u64 killed_start_number;
	u64 killed_pages;
	u32 stale;
	u32 killed_uid;
	char killed_comm[16]; /* the daemon may read the event when the process is gone */
};

#define SAMPLE_EXITING 1
#define SAMPLE_SESSION_LEADER 2
#define SAMPLE_COPY 4 /* it has executed no program since its fork */

/* One process, as the snapshot iterator writes it. */
struct sample {
	u64 mm;
	u64 start_number;
	s64 pages[4];
	u32 tgid;
	u32 parent_tgid;
	u32 uid;
	s16 oom_score_adj;
	u16 state; /* bits of SAMPLE_... */
	char comm[16];
	u32 group;
	u32 namespace_owner; /* uid if it is in the initial namespace */
	u64 page_table_bytes;
};

/* The running scan: set by the daemon, counted by the reconcile iterator. */
struct scan {
	u32 round;
	u32 mark; /* nonzero: this scan marks the charges of all accounts */
	u64 processes;
	u64 added;
	u64 drift_pages;
	u64 uncounted; /* address spaces of limited users that found the table of accounts full */
	u64 beat_ns; /* the daemon's last heartbeat, CLOCK_MONOTONIC */
	u64 changes; /* of limits, and soft crossings */
};

/*
 * A bit for each uid with a limit, by the uid's low 16 bits: without its bit a uid has none. Bits are cleared when no
 * limit is left, so a bit that is set has no meaning.
 */
struct uid_filter {
	u64 bits[FILTER_BITS / 64];
};

/* Larger than the part of a BPF array before its per-CPU pointers. */
#define CPU_SCRATCH 4096

/* Written by find_cpus: its base, and addresses in place of offsets; base 0: plain counters, nothing to find. */
struct cpu_layout {
	u64 base;
	u64 offset[MAX_CPUS];
	u8 scratch[CPU_SCRATCH];
};
