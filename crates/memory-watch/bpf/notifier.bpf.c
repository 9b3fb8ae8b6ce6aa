// SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only
/*
 * Updates one account per address space of each limited user, and one sum per user, from the tracepoint
 * of the kernel's own resident-set counters. A change accesses one account and one user, never a list.
 * Levels are absolute, so the next event corrects a missed one; fork, exec and exit need no hooks:
 * they arrive as changes made to an mm from outside.
 */
#include "account.h"

/*
 * The user that an mm is charged to: the uid of the process that owns it, if it (still) has an owner. Not
 * that of the task which changes it: a thread can change its uid alone, and so can a child that shares the
 * mm until it executes a program of its own (vfork); either would charge the memory to another user.
 */
static __always_inline bool find_payer(struct mm_struct *mm, struct payer *payer)
{
	struct task_struct *owner;

	if (!bpf_core_field_exists(mm->owner))
		return false;
	owner = mm->owner;
	if (!owner)
		return false;
	*payer = payer_of(owner);
	return true;
}

/*
 * Of 32 events 31 change only a CPU's own part of a counter. Far from the soft limit they change no account, and nor do
 * those of a process without a limit: until the batched part, or a limit, changes, the owner of the mm and its account
 * are not searched again.
 */
static __always_inline bool is_unchanged(struct unchanged *last, u64 mm, u64 changes, u32 member,
					 s64 batched)
{
	return last->mm == mm && last->changes == changes && last->batched[member] == batched;
}

static __always_inline void note_unchanged(struct unchanged *last, u64 mm, u64 changes, u32 member,
					   s64 batched)
{
	if (last->mm != mm || last->changes != changes) {
		last->mm = mm;
		last->changes = changes;
		for (u32 m = 0; m < MM_MEMBERS; m++)
			last->batched[m] = NO_COUNT;
	}
	last->batched[member] = batched;
}

/* The current task changed its own address space, and did not borrow it. */
static __always_inline bool is_own(struct mm_struct *mm)
{
	struct task_struct *current = bpf_get_current_task_btf();

	return (u64)current->mm == (u64)mm && !(current->flags & PF_KTHREAD);
}

/*
 * Updates the account of an mm. Not inlined, so that an event that changes nothing does not initialize the variables.
 * `changes` was read before `batched` and everything else that it invalidates.
 */
static __noinline int update(struct mm_struct *mm, u32 member, s64 batched, u64 changes)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct cause cause = { .mm = (u64)mm, .own = is_own(mm), .may_kill = true };
	struct account *account;
	struct slot *slot;
	struct payer payer = {};
	struct unchanged *last;
	u32 zero = 0;
	s64 delta;
	bool owned;

	last = bpf_map_lookup_elem(&unchanged, &zero);
	if (!last)
		return 0;
	owned = find_payer(mm, &payer);
	if (!owned && cause.own) {
		payer = payer_of(current);
		owned = true;
	}
	/* The common case, where few users have a limit. An account that it has from before, with another uid, is left to a scan. */
	if (owned && !may_have_limit(&payer)) {
		if (cause.own)
			note_unchanged(last, cause.mm, changes, member, batched);
		return 0;
	}
	account = account_of(cause.mm);
	if (!owned) {
		if (!account)
			return 0;
		payer.uid = account->owner >> 32;
	}
	if (!account) {
		enum first_sight sight = TABLE_FULL;

		if (cause.own || mm->mm_users.counter > 0)
			sight = first_sight(mm, &payer, cause.own ? current->tgid : 0, &cause);
		if (cause.own && sight == NOT_LIMITED)
			note_unchanged(last, cause.mm, changes, member, batched);
		return 0;
	}
	if ((u32)(account->owner >> 32) != payer.uid && !change_owner(account, mm, &payer, &cause))
		return 0;
	slot = slot_at((u32)account->owner);
	if (!slot)
		return 0;

	if (cause.own && LOAD(slot->zone) == ZONE_FAR && !LOAD(slot->exact)) {
		note_unchanged(last, cause.mm, changes, member, batched);
		if (batched == LOAD(account->seen[member]))
			return 0;
		delta = follow_batches(account, batched, member);
	} else {
		delta = set_exact(account, mm, member);
	}
	if (cause.own && account->tgid != current->tgid)
		account->tgid = current->tgid; /* during fork the owner still has its parent's */
	if (is_counted(slot->counted, member) && delta) {
		note_charge(&cause, account, slot->counted);
		/* A fork gives its child pages of the parent's; a shared page may be mapped by others. */
		cause.certain = cause.own && member != MM_SHMEM;
		settle(slot, &cause, delta);
	}
	/* exit_mmap drives the counters to 0 after the last user is gone: the account's end. */
	if (!cause.own && mm->mm_users.counter == 0 && !LOAD(account->pages[member]) &&
	    is_empty(mm, slot->counted))
		forget(account, cause.mm);
	return 0;
}

SEC("tp_btf/rss_stat")
int BPF_PROG(on_rss_stat, struct mm_struct *mm, int changed)
{
	u32 member = changed, zero = 0;
	struct unchanged *last;
	struct scan *scan;
	s64 batched;
	u64 changes;

	if (member >= MM_MEMBERS)
		return 0;
	/* Redundant bound, in a form that clang keeps and the verifier understands. */
	barrier_var(member);
	member &= MM_MEMBERS - 1;
	scan = bpf_map_lookup_elem(&scans, &zero);
	last = bpf_map_lookup_elem(&unchanged, &zero);
	if (!scan || !last)
		return 0;
	changes = LOAD(scan->changes);
	batched = batched_count(mm, member);
	if (is_unchanged(last, (u64)mm, changes, member, batched) && is_own(mm))
		return 0;
	return update(mm, member, batched, changes);
}

/*
 * If the leader of a process has exited while other threads are running, each of those reports the mm (the
 * reader drops duplicates).
 */
static __always_inline struct mm_struct *mm_to_report(struct task_struct *task)
{
	if (task->flags & PF_KTHREAD)
		return NULL;
	if (task->pid != task->tgid && task->group_leader->mm)
		return NULL;
	return task->mm;
}

/* A name, in two reads. */
static __always_inline void copy_comm(u64 *to, struct task_struct *task)
{
	const u64 *name = (const u64 *)task->comm;

	to[0] = name[0];
	to[1] = name[1];
}

/* A core dump can take minutes. SIGKILL ends it, so the process is not exiting yet. */
static __always_inline bool dumps_core(struct signal_struct *signal, struct mm_struct *mm)
{
	if (bpf_core_field_exists(signal->core_state))
		return signal->core_state;
	return BPF_CORE_READ((struct mm_struct___core_dump *)mm, core_state);
}

static __always_inline bool is_exiting(struct task_struct *task, struct signal_struct *signal,
				       struct mm_struct *mm)
{
	/* A dump has set the flag of the group's exit, too. */
	return (task->flags & PF_EXITING || signal->flags & SIGNAL_GROUP_EXIT) &&
	       !dumps_core(signal, mm);
}

/* As start_number, for pointers that the verifier knows: without calls. */
static __always_inline u64 start_number_by_loads(struct task_struct *leader,
						 struct signal_struct *signal)
{
	if (!bpf_core_field_exists(struct pid, ino))
		return leader->start_boottime;
	return signal->pids[PIDTYPE_TGID]->ino;
}

/*
 * With thousands of processes nearly all fields of a process miss the caches. So reads that do not depend on other
 * reads come first, and calls last: the CPU then waits for many cache lines at a time, not for each.
 */
SEC("iter/task")
int snapshot(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task, *leader;
	struct signal_struct *signal;
	struct sample sample = {};
	struct mm_struct *mm;
	struct pid *group;

	if (!task)
		return 0;
	task = only_to_read(task);
	mm = mm_to_report(task);
	if (!mm)
		return 0;
	/* The CPU predicts a branch, but waits for a pointer. */
	leader = task->pid == task->tgid ? task : task->group_leader;
	signal = task->signal;
	group = signal->pids[PIDTYPE_PGID];
	sample.mm = (u64)mm;
	sample.start_number = start_number_by_loads(leader, signal);
	sample.tgid = task->tgid;
	sample.parent_tgid = leader->real_parent->tgid;
	sample.uid = leader->real_cred->uid.val;
	sample.oom_score_adj = signal->oom_score_adj;
	if (signal->leader)
		sample.state |= SAMPLE_SESSION_LEADER;
	if (leader->flags & PF_FORKNOEXEC)
		sample.state |= SAMPLE_COPY;
	if (is_exiting(task, signal, mm))
		sample.state |= SAMPLE_EXITING;
	copy_comm((u64 *)sample.comm, leader);
	sample.page_table_bytes = mm->pgtables_bytes.counter;
	/* As the initial pid namespace sees it. */
	sample.group = group ? group->numbers[0].nr : 0;
	exact_counts(mm, sample.pages);
	sample.namespace_owner = namespace_owner(leader, sample.uid);
	bpf_seq_write(ctx->meta->seq, &sample, sizeof(sample));
	return 0;
}

/*
 * Charges mms that are not charged yet and corrects the others. It runs concurrently with on_rss_stat: both
 * store absolute values and add the difference to the previous value, so neither can count a page twice.
 */
SEC("iter/task")
int reconcile(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct cause cause = {};
	struct account *account;
	struct mm_struct *mm;
	struct scan *scan;
	struct slot *slot;
	struct payer payer = {};
	u32 zero = 0;
	s64 delta = 0;

	scan = bpf_map_lookup_elem(&scans, &zero);
	if (!task || !scan)
		return 0;
	task = only_to_read(task);
	mm = mm_to_report(task);
	if (!mm)
		return 0;
	scan->processes++;
	cause.mm = (u64)mm;
	if (!find_payer(mm, &payer))
		payer = payer_of(task);
	account = account_of(cause.mm);
	if (!account) {
		enum first_sight sight = NOT_LIMITED;

		if (may_have_limit(&payer))
			sight = first_sight(mm, &payer, task->tgid, &cause);
		scan->uncounted += sight == TABLE_FULL;
		if (sight != CHARGED)
			return 0;
		scan->added++;
		account = account_of(cause.mm);
		if (!account)
			return 0;
		slot = slot_at((u32)account->owner);
		/* The time of its allocations is unknown, so it counts as not grown. */
		if (slot)
			account->marked[0] = account->marked[1] = charged(account, slot->counted);
	}
	account->round = scan->round;
	/* It may have exited before it was charged; on_rss_stat sees later exits. */
	if (mm->mm_users.counter == 0) {
		forget(account, cause.mm);
		return 0;
	}
	if (account->owner != OWNER(payer.uid, slot_index(&payer)) &&
	    !change_owner(account, mm, &payer, &cause))
		return 0;
	slot = slot_at((u32)account->owner);
	if (!slot)
		return 0;
	if (scan->mark) {
		account->marked[0] = account->marked[1];
		account->marked[1] = charged(account, slot->counted);
	}
	for (u32 m = 0; m < MM_MEMBERS; m++) {
		s64 error = set_exact(account, mm, m);

		error = if_counted(slot->counted, m, error);
		scan->drift_pages += error < 0 ? -error : error;
		delta += error;
	}
	note_charge(&cause, account, slot->counted);
	/* The error is from batches of its own faults; changes from outside were read exactly. */
	cause.certain = true;
	settle(slot, &cause, delta);
	return 0;
}

/*
 * Lists the address spaces that have users, by address: threads, a fork in progress, and system calls of other processes,
 * which can outlive the threads. Without a user the kernel is freeing it, or has. Memory that was an mm and is freed may
 * contain anything, but not counters as at the account's last event.
 */
SEC("iter/bpf_map_elem")
int used_spaces(struct bpf_iter__bpf_map_elem *ctx)
{
	struct account *account = ctx->value;
	struct mm_struct *mm;
	u64 *key = ctx->key;
	u64 address;

	if (!key || !account)
		return 0;
	address = *key;
	mm = (void *)address;
	if (BPF_CORE_READ(mm, mm_users.counter) <= 0)
		return 0;
	if (PROBED_COUNT(mm, MM_ANON) == account->seen[MM_ANON] &&
	    PROBED_COUNT(mm, MM_SHMEM) == account->seen[MM_SHMEM])
		bpf_seq_write(ctx->meta->seq, &address, sizeof(address));
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
