// SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only
/*
 * The baseline: at every change of a limited user's memory all processes are scanned, and the memory of the user's is
 * added up. It reads only what is cheap to read, and decides nothing.
 */
#include "../../crates/memory-watch/bpf/kernel.h"

struct bpf_iter_task {
	u64 opaque[3];
};

/* All processes, one task of each. */
#define ALL_PROCESSES 0

extern int bpf_iter_task_new(struct bpf_iter_task *it, struct task_struct *task, unsigned int flags) __ksym;
extern struct task_struct *bpf_iter_task_next(struct bpf_iter_task *it) __ksym;
extern void bpf_iter_task_destroy(struct bpf_iter_task *it) __ksym;

const volatile u32 limited_uid = 0;

/* Result of the last scan; number of scans, and of processes in all of them. */
struct {
	u64 pages;
	u64 looks;
	u64 processes;
} found = {};

SEC("tp_btf/rss_stat")
int scan_every_event(void *ctx)
{
	struct task_struct *task;
	u64 sum = 0, processes = 0;

	if ((u32)bpf_get_current_uid_gid() != limited_uid)
		return 0;
	bpf_for_each(task, task, NULL, ALL_PROCESSES) {
		struct task_struct *process = only_to_read(task);
		struct mm_struct *mm = process->mm;

		processes++;
		if (!mm || process->real_cred->uid.val != limited_uid)
			continue;
		sum += mm->rss_stat[MM_ANON].count + mm->rss_stat[MM_SHMEM].count;
	}
	found.pages = sum;
	found.looks++;
	found.processes += processes;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
