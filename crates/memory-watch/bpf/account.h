/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/* Life cycle of an account: creation, changes, a new owner, removal. */
#pragma once

#include "crossing.h"
#include "resident.h"

#define OWNER(uid, slot) ((u64)(uid) << 32 | (slot))

/* These members are all 0 in the mm, even if an account that is updated in batches shows a remainder. */
static __always_inline bool is_empty(struct mm_struct *mm, u32 counted)
{
	for (u32 m = 0; m < MM_MEMBERS; m++)
		if (is_counted(counted, m) && exact_count(mm, m))
			return false;
	return true;
}

/* Removes an account from its user. The task that exchanges a member for 0 subtracts it: never twice. */
static __always_inline void forget(struct account *account, u64 mm)
{
	struct slot *slot = slot_at((u32)LOAD(account->owner));
	u32 counted = slot ? slot->counted : 0;
	s64 rest = 0;

	for (u32 m = 0; m < MM_MEMBERS; m++) {
		s64 had = __sync_lock_test_and_set(&account->pages[m], 0);

		rest += if_counted(counted, m, had);
	}
	bpf_map_delete_elem(&accounts, &mm);
	if (!slot)
		return;
	if (rest)
		__sync_fetch_and_sub(&slot->pages, rest);
	if (LOAD(slot->victim_mm) == mm && is_left_alone()) {
		slot->reported = 0;
		slot->latch = 0;
	}
	forget_mm(slot, mm);
}

/* Records a member's true value; returns by how much it changed. Not inlined: see exact_count. */
static __noinline s64 set_exact(struct account *account, struct mm_struct *mm, u32 member)
{
	s64 batched = batched_count(mm, member);
	s64 now = exact_from(mm, member, batched);

	account->seen[member] = batched;
	if (LOAD(account->pages[member]) == now)
		return 0;
	return now - __sync_lock_test_and_set(&account->pages[member], now);
}

enum first_sight { CHARGED, NOT_LIMITED, TABLE_FULL };

/* Charges a new mm, all members at once. */
static __always_inline enum first_sight first_sight(struct mm_struct *mm, struct payer *payer,
						    u32 tgid, struct cause *cause)
{
	u32 index = slot_index(payer);
	struct slot *slot = slot_at(index);
	struct account fresh;
	u64 key = (u64)mm;
	long failed;

	if (!slot)
		return NOT_LIMITED;
	__builtin_memset(&fresh, 0, sizeof(fresh));
	fresh.owner = OWNER(payer->uid, index);
	fresh.tgid = tgid;
	for (u32 m = 0; m < MM_MEMBERS; m++)
		set_exact(&fresh, mm, m);
	failed = bpf_map_update_elem(&accounts, &key, &fresh, BPF_NOEXIST);
	/* Another CPU has charged it: the next change finds the account. */
	if (failed == -EEXIST)
		return NOT_LIMITED;
	if (failed) {
		__sync_fetch_and_add(&slot->lost, 1);
		return TABLE_FULL;
	}
	note_charge(cause, &fresh, slot->counted);
	settle(slot, cause, cause->mm_pages);
	return CHARGED;
}

/*
 * The mm's task has changed its uid, or its user is in another group now: moves the charge. False: the new
 * user has no limit.
 */
static __always_inline bool change_owner(struct account *account, struct mm_struct *mm,
					 struct payer *payer, struct cause *cause)
{
	u64 old = LOAD(account->owner);
	s64 left = 0;
	u32 index = slot_index(payer);
	struct slot *from, *to;
	u32 counted;

	to = slot_at(index);
	if (!to) {
		forget(account, cause->mm);
		return false;
	}
	if (__sync_val_compare_and_swap(&account->owner, old, OWNER(payer->uid, index)) != old)
		return true;
	/* Another user of the same group. */
	if ((u32)old == index)
		return true;
	from = slot_at((u32)old);
	counted = from ? from->counted : 0;
	/* It may have been updated in batches; the new slot may require exact counts. */
	for (u32 m = 0; m < MM_MEMBERS; m++) {
		s64 error = set_exact(account, mm, m);

		left += if_counted(counted, m, LOAD(account->pages[m]) - error);
	}
	if (from) {
		__sync_fetch_and_sub(&from->pages, left);
		forget_mm(from, cause->mm);
	}
	note_charge(cause, account, to->counted);
	settle(to, cause, cause->mm_pages);
	return true;
}

/* Updates the batched part only; cheap, and corrected at the next exact read. */
static __always_inline s64 follow_batches(struct account *account, s64 batched, u32 member)
{
	s64 moved = batched - __sync_lock_test_and_set(&account->seen[member], batched);

	__sync_fetch_and_add(&account->pages[member], moved);
	return moved;
}
