/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
#pragma once

#include "kernel.h"
#include "shared.h"

/*
 * The daemon sets the sizes of the tables from the machine's capacity. Their elements are allocated when they are
 * needed, from a stock that the kernel keeps for each CPU. An account that cannot be allocated when memory is short
 * is charged at a later event, or by the next scan.
 */

/* Accounts, by address of the mm. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct account);
} accounts SEC(".maps");

/* Limited users: uid to index of its slot, which the users of a group share. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} slot_of_uid SEC(".maps");

/* Mapped by the daemon, which reads usage and writes limits and victims without a system call. */
struct slot_chunk {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CHUNK_SLOTS);
	__uint(key_size, sizeof(u32));
	/* clang emits no type information for a type that is used in a map of a map only. */
	__uint(value_size, sizeof(struct slot));
};

/* The chunks are created by the daemon. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, u32);
	__array(values, struct slot_chunk);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct uid_filter);
} limited_uids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scan);
} scans SEC(".maps");

/*
 * The last mm on each CPU with an event that changed no account, the batched parts of its counters then, and
 * scan.changes. On a kernel with preemptible programs two tasks can mix their values; each mm's next batch ends that.
 */
struct unchanged {
	u64 mm;
	u64 changes;
	s64 batched[MM_MEMBERS];
};

/* The batched part is not known. */
#define NO_COUNT ((s64)1 << 62)

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct unchanged);
} unchanged SEC(".maps");

/* Crossings are rare (hysteresis, `reported`, latch): 8 pages hold 370. The daemon maps them twice. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 32 * 1024);
} events SEC(".maps");

#define LOAD(x) (*(volatile typeof(x) *)&(x))

static __always_inline struct slot *slot_at(u32 index)
{
	u32 chunk = index / CHUNK_SLOTS, at = index % CHUNK_SLOTS;
	void *slot_chunk = bpf_map_lookup_elem(&slots, &chunk);

	return slot_chunk ? bpf_map_lookup_elem(slot_chunk, &at) : NULL;
}

static __always_inline struct account *account_of(u64 mm)
{
	return bpf_map_lookup_elem(&accounts, &mm);
}

/* A process's user: single threads can have other uids, but /proc shows that of the leader. */
static __always_inline u32 uid_of(struct task_struct *task)
{
	return task->group_leader->real_cred->uid.val;
}

/*
 * uid_of by probe reads, for code that runs once per kill. A plain load through a kernel pointer is cheaper, but makes
 * the verifier search all of the kernel's types several times, on each path that leads to it.
 */
static __always_inline u32 probed_uid_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, group_leader, real_cred, uid.val);
}

static __always_inline bool is_counted(u32 counted, u32 member)
{
	return counted >> member & 1;
}

/* `pages` or 0; with a branch for each member the verifier would follow each combination. */
static __always_inline s64 if_counted(u32 counted, u32 member, s64 pages)
{
	return pages & -(s64)(counted >> member & 1);
}

/* The charge of an account to a slot that counts these members. */
static __always_inline s64 charged(struct account *account, u32 counted)
{
	s64 pages = 0;

	for (u32 m = 0; m < MM_MEMBERS; m++)
		pages += if_counted(counted, m, LOAD(account->pages[m]));
	return pages;
}

/*
 * A process that continues to grow as since the mark has this much in half a minute: an idle process
 * is not selected instead of the one that grows, unless it is far larger. The same weight as the daemon's.
 */
#define GROWTH_WEIGHT 8

static __always_inline s64 score(struct account *account, s64 pages)
{
	s64 grown = pages - LOAD(account->marked[0]);

	return grown > 0 ? pages + GROWTH_WEIGHT * grown : pages;
}
