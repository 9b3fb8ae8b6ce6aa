/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/* Handling of an account that crosses its limits. */
#pragma once

#include "payer.h"

#define OOM_SCORE_ADJ_MIN (-1000)

/* The daemon checks its accounts every two seconds, with very many processes every ten. */
#define SILENCE_NS (30LL * 1000 * 1000 * 1000)

/*
 * No daemon releases the latch for the next victim: it was killed, or is stopped. A heartbeat on another CPU can be later
 * than the time that is read here, so the age is signed.
 */
static __always_inline bool is_left_alone(void)
{
	u32 zero = 0;
	struct scan *scan = bpf_map_lookup_elem(&scans, &zero);
	u64 beat_ns;

	if (!scan)
		return false;
	beat_ns = LOAD(scan->beat_ns);
	return (s64)(bpf_ktime_get_ns() - beat_ns) > SILENCE_NS;
}

/*
 * A soft crossing lasts this long at least: at each of them the daemon looks at all processes, and a program can cross the
 * soft limit a thousand times in a second.
 */
#define NEAR_NS (100LL * 1000 * 1000)

static __always_inline bool is_recent_crossing(struct slot *slot)
{
	return (s64)(bpf_ktime_get_ns() - LOAD(slot->near_ns)) < NEAR_NS;
}

/* From now on mms whose events changed nothing are looked up again. */
static __always_inline void count_change(void)
{
	u32 zero = 0;
	struct scan *scan = bpf_map_lookup_elem(&scans, &zero);

	if (scan)
		__sync_fetch_and_add(&scan->changes, 1);
}

/* The cause of a change of an account. */
struct cause {
	u64 mm;           /* the address space that changed */
	s64 mm_pages;     /* present charge of that mm */
	s64 mm_score;     /* its rank among the mms of its slot */
	bool own;         /* the current task changed its own mm */
	bool may_kill;    /* false while a scan corrects accounts */
	bool certain;     /* no other address space has the added pages */
	s64 unconfirmed;  /* of the slot, before its correction was read */
};

struct kill {
	u32 by;
	u32 tgid;
	u32 uid;
	u64 start_number;
	u64 mm;
	s64 pages;
	char comm[16]; /* of the process's leader */
};

static __always_inline bool report_event(struct slot *slot, u32 kind, s64 pages, struct kill *kill, bool stale)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&slot->lost, 1);
		return false;
	}
	event->kind = kind;
	event->key = slot->key;
	event->pages = pages;
	event->time_ns = bpf_ktime_get_ns();
	event->killed_by = kill ? kill->by : KILLED_NONE;
	event->killed_tgid = kill ? kill->tgid : 0;
	event->killed_start_number = kill ? kill->start_number : 0;
	event->killed_pages = kill ? kill->pages : 0;
	event->stale = stale;
	event->killed_uid = kill ? kill->uid : 0;
	if (kill)
		__builtin_memcpy(event->killed_comm, kill->comm, sizeof(event->killed_comm));
	else
		__builtin_memset(event->killed_comm, 0, sizeof(event->killed_comm));
	bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
	return true;
}

/* Notes the present charge of the account that changed. */
static __always_inline void note_charge(struct cause *cause, struct account *account, u32 counted)
{
	cause->mm_pages = charged(account, counted);
	cause->mm_score = score(account, cause->mm_pages);
}

/*
 * Keeps the slot's largest process, with a weight on growth, without a search: each change and each scan of an account
 * compares it. If the largest one shrinks or exits, an idle one is found again by the next scan.
 */
static __always_inline void compare_with_largest(struct slot *slot, struct cause *cause)
{
	if (LOAD(slot->largest_mm) == cause->mm || cause->mm_score > LOAD(slot->largest_score)) {
		slot->largest_score = cause->mm_score;
		slot->largest_mm = cause->mm;
	}
}

/* The mm is charged to the slot no more, and is not its victim or largest process. */
static __always_inline void forget_mm(struct slot *slot, u64 mm)
{
	if (LOAD(slot->victim_mm) == mm) {
		slot->victim_mm = 0;
		slot->dying_pages = 0;
	}
	if (LOAD(slot->largest_mm) == mm) {
		slot->largest_mm = 0;
		slot->largest_score = 0;
	}
}

static __always_inline bool is_armed_task(struct task_struct *task, struct slot *slot,
					  struct armed *victim)
{
	return BPF_CORE_READ(task, tgid) == (s32)victim->tgid &&
	       start_number(task) == victim->start_number &&
	       pays_into(task, slot);
}

/*
 * Another process may use the same memory (CLONE_VM, vfork): killing one of them frees nothing, so the daemon, which can
 * find all, has to do it. Each thread that has not begun to exit holds the mm, so mm_users of shared memory is larger.
 * A reader of the memory in another process raises it too, like the daemon when it measures sharing: one user more
 * is therefore no reason to wait. If that one is a sharer, nothing is freed, and the daemon kills it with its next kill.
 * Not by MMF_MULTIPROCESS: its bit has no name in BTF and is another one in older kernels, and vfork does not set it.
 * With no daemon running they are killed one after the other.
 */
static __always_inline bool is_shared(struct task_struct *task)
{
	return BPF_CORE_READ(task, mm, mm_users.counter) > BPF_CORE_READ(task, signal, live.counter) + 1 &&
	       !is_left_alone();
}

/* Notes the process of a task that is to be killed. */
static __always_inline void note_victim(struct kill *kill, struct task_struct *task, u32 by)
{
	kill->by = by;
	kill->tgid = BPF_CORE_READ(task, tgid);
	kill->uid = probed_uid_of(task);
	kill->start_number = start_number(task);
	kill->mm = (u64)BPF_CORE_READ(task, mm);
	BPF_CORE_READ_INTO(&kill->comm, task, group_leader, comm);
}

/* Kills the current task's process. */
static __always_inline long kill_current(struct task_struct *current, u32 by, struct kill *kill)
{
	if (is_shared(current))
		return -1;
	note_victim(kill, current, by);
	return bpf_send_signal(SIGKILL);
}

enum { OTHER_CANNOT = 0, OTHER_STALE = 1, OTHER_KILLED = 2, OTHER_REFUSED = 3 };

/* Signals a process while another one is running, where the kernel can (6.13 and later). */
static __always_inline int signal_other(struct task_struct *task, u32 by, struct kill *kill)
{
	if (is_shared(task))
		return OTHER_REFUSED;
	note_victim(kill, task, by);
	return bpf_send_signal_task(task, SIGKILL, PIDTYPE_TGID, 0) ? OTHER_REFUSED : OTHER_KILLED;
}

static __always_inline bool can_signal_others(void)
{
	return bpf_ksym_exists(bpf_send_signal_task) && bpf_ksym_exists(bpf_task_from_pid);
}

static __always_inline int kill_other_armed(struct slot *slot, struct armed *victim,
					    struct kill *kill)
{
	struct task_struct *task;
	int result = OTHER_STALE;

	if (!can_signal_others())
		return OTHER_CANNOT;
	task = bpf_task_from_pid(victim->tgid);
	if (!task)
		return OTHER_STALE;
	if (is_armed_task(task, slot, victim))
		result = signal_other(task, KILLED_ARMED_OTHER, kill);
	bpf_task_release(task);
	return result;
}

/* The account's tgid may be old (fork, reuse of a pid), so the process must have that very mm now. */
static __always_inline int kill_other_largest(struct slot *slot, struct kill *kill)
{
	u64 mm = LOAD(slot->largest_mm);
	struct account *largest = account_of(mm);
	struct task_struct *task;
	int result = OTHER_STALE;

	if (!can_signal_others())
		return OTHER_CANNOT;
	if (!largest)
		return OTHER_STALE;
	task = bpf_task_from_pid(largest->tgid);
	if (!task)
		return OTHER_STALE;
	if ((u64)BPF_CORE_READ(task, mm) == mm &&
	    pays_into(task, slot) &&
	    BPF_CORE_READ(task, signal, oom_score_adj) != OOM_SCORE_ADJ_MIN)
		result = signal_other(task, KILLED_UNARMED_OTHER, kill);
	bpf_task_release(task);
	return result;
}

/* No process is armed: kills the user's largest one, unless the daemon forbids it or it is protected. */
static __always_inline bool kill_unarmed(struct slot *slot, struct cause *cause,
					 struct task_struct *current, struct kill *kill)
{
	if (!cause->own || LOAD(slot->spare_unarmed))
		return false;
	if (LOAD(slot->largest_mm) != cause->mm)
		return kill_other_largest(slot, kill) == OTHER_KILLED;
	return BPF_CORE_READ(current, signal, oom_score_adj) != OOM_SCORE_ADJ_MIN &&
	       !kill_current(current, KILLED_UNARMED_SELF, kill);
}

/*
 * The part of these pages that is certainly in use now. The daemon may have corrected the slot since the pages were read:
 * the larger number of unconfirmed pages belongs to them or is too large.
 */
static __always_inline s64 certain(struct slot *slot, struct cause *cause, s64 live)
{
	s64 correction = LOAD(slot->correction), unconfirmed = LOAD(slot->unconfirmed);

	if (unconfirmed < cause->unconfirmed)
		unconfirmed = cause->unconfirmed;
	return live - (correction > 0 ? correction : 0) - (unconfirmed > 0 ? unconfirmed : 0);
}

/*
 * The account is above the hard limit. One victim per user at a time: the task that takes the latch may kill;
 * only the daemon releases the latch. A failed signal releases it too, and the next event tries again.
 *
 * Armed: kills only the armed process, identified by tgid, start number and uid, whatever task is running.
 * Not armed (or the armed process has exited): kills the user's largest process, in its own fault or,
 * where the kernel can, in another's. A change made from outside (fork, exec, reclaim) never kills
 * a process that is not armed.
 *
 * A crossing by pages that may be counted already (a fork, a mapping of shared memory), or by a correction
 * of the sum (files held open can be closed), never kills: the daemon measures first.
 */
static __always_inline void hard_crossing(struct slot *slot, struct cause *cause, s64 live)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct kill kill = {};
	struct account *account;
	bool stale = false, killed = false;
	u32 armed_index;

	if (certain(slot, cause, live) <= (s64)LOAD(slot->hard_pages) && !is_left_alone()) {
		cause->may_kill = false;
		if (LOAD(slot->reported))
			return;
	}
	if (LOAD(slot->latch) || __sync_val_compare_and_swap(&slot->latch, 0, 1) != 0)
		return;
	armed_index = LOAD(slot->armed_index);
	if (!cause->may_kill) {
		armed_index = 0;
	} else if (armed_index == 1 || armed_index == 2) {
		struct armed victim = slot->armed[armed_index - 1];

		if (is_armed_task(current, slot, &victim)) {
			killed = !kill_current(current, KILLED_ARMED_SELF, &kill);
		} else {
			int result = kill_other_armed(slot, &victim, &kill);

			killed = result == OTHER_KILLED;
			stale = result == OTHER_STALE;
		}
	}
	if (cause->may_kill && (!armed_index || stale))
		killed = kill_unarmed(slot, cause, current, &kill);
	if (!killed) {
		slot->latch = 0;
		if (!LOAD(slot->reported) && !__sync_val_compare_and_swap(&slot->reported, 0, 1)) {
			__sync_fetch_and_add(&slot->hard_crossings, 1);
			if (!report_event(slot, EVENT_HARD_CROSSED, live, NULL, stale))
				slot->reported = 0;
		}
		return;
	}
	account = account_of(kill.mm);
	kill.pages = account ? charged(account, slot->counted) : 0;
	slot->victim_mm = account ? kill.mm : 0;
	slot->dying_pages = kill.pages;
	__sync_fetch_and_add(&slot->kills, 1);
	__sync_fetch_and_add(&slot->hard_crossings, 1);
	report_event(slot, EVENT_HARD_CROSSED, live, &kill, stale);
}

/* Applies a change to the user's sum and checks the limits. Not static: the verifier checks it once. */
__noinline int settle(struct slot *slot, struct cause *cause, s64 delta)
{
	s64 pages, live, correction;

	if (!slot || !cause)
		return 0;
	pages = __sync_fetch_and_add(&slot->pages, delta) + delta;
	slot->events++;
	compare_with_largest(slot, cause);
	if (LOAD(slot->victim_mm) == cause->mm)
		slot->dying_pages = cause->mm_pages;
	if (delta > 0 && !cause->certain)
		__sync_fetch_and_add(&slot->unconfirmed, delta);
	cause->unconfirmed = LOAD(slot->unconfirmed);
	live = pages - LOAD(slot->dying_pages);
	correction = LOAD(slot->correction);
	/* Without a daemon that measures again, a negative correction does not count above the hard limit. */
	if (correction >= 0 || live <= (s64)LOAD(slot->hard_pages) || !is_left_alone())
		live += correction;
	if (live > slot->peak_pages)
		slot->peak_pages = live;

	if (live >= (s64)LOAD(slot->soft_pages)) {
		if (LOAD(slot->zone) == ZONE_FAR &&
		    __sync_val_compare_and_swap(&slot->zone, ZONE_FAR, ZONE_NEAR) == ZONE_FAR) {
			count_change();
			slot->near_ns = bpf_ktime_get_ns();
			__sync_fetch_and_add(&slot->soft_crossings, 1);
			if (!report_event(slot, EVENT_SOFT_CROSSED, live, NULL, false))
				slot->zone = ZONE_FAR;
		}
	} else if (live < (s64)LOAD(slot->clear_pages)) {
		if (LOAD(slot->zone) == ZONE_NEAR && !is_recent_crossing(slot) &&
		    __sync_val_compare_and_swap(&slot->zone, ZONE_NEAR, ZONE_FAR) == ZONE_NEAR) {
			slot->reported = 0;
			report_event(slot, EVENT_SOFT_CLEARED, live, NULL, false);
		}
	}
	if (live > (s64)LOAD(slot->hard_pages)) {
		if (delta > 0 || !cause->may_kill)
			hard_crossing(slot, cause, live);
	} else if (LOAD(slot->reported) && live < (s64)(slot->hard_pages - slot->hard_pages / 64)) {
		slot->reported = 0;
	}
	return 0;
}
