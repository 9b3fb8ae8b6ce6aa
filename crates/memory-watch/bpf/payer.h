/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/*
 * The user that a process is charged to: its own; but a user that may map subordinate uids (newuidmap) can have processes
 * with these in a user namespace, which belong to that user. So those are charged to the creator of their outermost
 * namespace, if it has a limit. No process can be moved into a namespace of another user, and none can leave one.
 */
#pragma once

#include "maps.h"

/* Maximum nesting of user namespaces in the kernel. */
#define MAX_LEVELS 33
/* Subordinate uids are allocated from 100000 on, never among those that fit into 16 bits. */
#define FIRST_SUBORDINATE 65536

/* The creator of the outermost namespace above a nested one. By probe reads: nested namespaces are rare. */
static __always_inline u32 creator_of_outermost(struct user_namespace *ns, s32 level)
{
	for (u32 i = 0; i < MAX_LEVELS && level > 1; i++) {
		ns = BPF_CORE_READ(ns, parent);
		level = BPF_CORE_READ(ns, level);
	}
	return BPF_CORE_READ(ns, owner.val);
}

/*
 * The creator of the process's outermost user namespace; its uid in the initial one. By plain loads, for each change of
 * an address space.
 */
static __always_inline u32 namespace_owner(struct task_struct *task, u32 uid)
{
	struct user_namespace *ns;
	s32 level;

	if (uid < FIRST_SUBORDINATE)
		return uid;
	ns = task->group_leader->real_cred->user_ns;
	level = ns->level;
	if (level <= 0)
		return uid;
	return level == 1 ? ns->owner.val : creator_of_outermost(ns, level);
}

/* The same by probe reads, see probed_uid_of. */
static __always_inline u32 probed_namespace_owner(struct task_struct *task, u32 uid)
{
	struct user_namespace *ns;
	s32 level;

	if (uid < FIRST_SUBORDINATE)
		return uid;
	ns = BPF_CORE_READ(task, group_leader, real_cred, user_ns);
	level = BPF_CORE_READ(ns, level);
	return level <= 0 ? uid : creator_of_outermost(ns, level);
}

/*
 * Identifies a process together with its pid, and increases with each start: the number that its pidfd shows, which the
 * daemon can read while the process hangs in execve; its start time before Linux 6.9. By probe reads.
 */
static __always_inline u64 start_number(struct task_struct *task)
{
	if (!bpf_core_field_exists(struct pid, ino))
		return BPF_CORE_READ(task, group_leader, start_boottime);
	return BPF_CORE_READ(task, signal, pids[PIDTYPE_TGID], ino);
}

/* The user that a process is charged to: the owner of its namespace if that has a limit, else the uid. */
struct payer {
	u32 uid;
	u32 namespace_owner;
};

static __always_inline struct payer payer_of(struct task_struct *task)
{
	struct payer payer = {};

	task = only_to_read(task);
	payer.uid = uid_of(task);
	payer.namespace_owner = namespace_owner(task, payer.uid);
	return payer;
}

static __always_inline bool has_bit(struct uid_filter *filter, u32 uid)
{
	u32 bit = uid % FILTER_BITS;

	return filter->bits[bit / 64] >> (bit % 64) & 1;
}

/* False: the payer has no limit. Much cheaper than a search for its slot. */
static __always_inline bool may_have_limit(struct payer *payer)
{
	u32 zero = 0;
	struct uid_filter *filter = bpf_map_lookup_elem(&limited_uids, &zero);

	return !filter || has_bit(filter, payer->uid) || has_bit(filter, payer->namespace_owner);
}

/* Index of the payer's slot. Global: verified once, not with each of its callers. */
__noinline u32 find_slot(u32 namespace_owner, u32 uid)
{
	u32 *index = bpf_map_lookup_elem(&slot_of_uid, &namespace_owner);

	if (!index && namespace_owner != uid)
		index = bpf_map_lookup_elem(&slot_of_uid, &uid);
	return index ? *index : NO_SLOT;
}

static __always_inline u32 slot_index(struct payer *payer)
{
	return find_slot(payer->namespace_owner, payer->uid);
}

/* The process is charged to this slot. */
static __always_inline bool pays_into(struct task_struct *task, struct slot *slot)
{
	u32 uid = probed_uid_of(task);

	return find_slot(probed_namespace_owner(task, uid), uid) == slot->index;
}
