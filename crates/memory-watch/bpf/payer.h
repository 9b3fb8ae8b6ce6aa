/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/*
 * The user that a process is charged to: its own; but a user that may map subordinate uids (newuidmap) can have processes
 * with these in a user namespace, which belong to that user. So those are charged to the creator of their outermost
 * namespace, if it has a limit. No process can be moved into a namespace of another user, and none can leave one.
 *
 * By probe reads: it is rare, and plain loads through these pointers cost the verifier 30 ms more.
 */
#pragma once

#include "maps.h"

/* Maximum nesting of user namespaces in the kernel. */
#define MAX_LEVELS 33
/* Subordinate uids are allocated from 100000 on, never among those that fit into 16 bits. */
#define FIRST_SUBORDINATE 65536

/* No slot has this index. */
#define NO_SLOT MAX_SLOTS

/* The creator of the outermost user namespace; the uid itself in the initial one. */
static __always_inline u32 namespace_owner(u64 credentials, u32 uid)
{
	struct user_namespace *ns = BPF_CORE_READ((const struct cred *)credentials, user_ns);
	s32 level = BPF_CORE_READ(ns, level);

	if (level <= 0)
		return uid;
	for (u32 i = 0; i < MAX_LEVELS && level > 1; i++) {
		ns = BPF_CORE_READ(ns, parent);
		level = BPF_CORE_READ(ns, level);
	}
	return BPF_CORE_READ(ns, owner.val);
}

/*
 * Index of the slot that a process of this uid and with these credentials (0: not known any more) is charged to.
 * Global: verified once, not with each of its callers.
 */
__noinline u32 find_slot(u64 credentials, u32 uid)
{
	u32 owner = credentials ? namespace_owner(credentials, uid) : uid;
	u32 *index = bpf_map_lookup_elem(&slot_of_uid, &owner);

	if (!index && owner != uid)
		index = bpf_map_lookup_elem(&slot_of_uid, &uid);
	return index ? *index : NO_SLOT;
}

/* As a number: a global function takes no pointers to kernel memory. 0: the uid alone is sufficient. */
static __always_inline u64 credentials_of(struct task_struct *task, u32 uid)
{
	if (!task || uid < FIRST_SUBORDINATE)
		return 0;
	return (u64)BPF_CORE_READ(task, group_leader, real_cred);
}

/* The user that a process is charged to. */
struct payer {
	u32 uid;
	struct task_struct *task; /* NULL if it is not known any more */
};

static __always_inline u32 slot_index(struct payer *payer)
{
	return find_slot(credentials_of(payer->task, payer->uid), payer->uid);
}

/* The process is charged to this slot. */
static __always_inline bool pays_into(struct task_struct *task, struct slot *slot)
{
	u32 uid = probed_uid_of(task);

	return find_slot(credentials_of(task, uid), uid) == slot->index;
}
