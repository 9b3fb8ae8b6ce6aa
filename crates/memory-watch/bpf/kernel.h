/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/*
 * The kernel types that the programs access, reduced to the fields they read. libbpf moves each access to
 * the running kernel's own offset when it loads the object (CO-RE), so order and padding here mean nothing.
 */
#pragma once

#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

typedef __u8 u8;
typedef __s16 s16;
typedef __u16 u16;
typedef __s32 s32;
typedef __u32 u32;
typedef __s64 s64;
typedef __u64 u64;

#define PF_EXITING 0x00000004
#define PF_FORKNOEXEC 0x00000040
#define PF_KTHREAD 0x00200000
#define SIGNAL_GROUP_EXIT 0x00000004
#define SIGKILL 9
#define EEXIST 17

/* Members of an address space's resident set, as rss_stat numbers them. */
enum { MM_FILE = 0, MM_ANON = 1, MM_SWAP = 2, MM_SHMEM = 3, MM_MEMBERS = 4 };

enum pid_type { PIDTYPE_PID, PIDTYPE_TGID, PIDTYPE_PGID, PIDTYPE_SID, PIDTYPE_MAX };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

typedef struct {
	s64 counter;
} atomic_long_t;

struct percpu_counter {
	s64 count;
	s32 *counters;
};

struct task_struct;

/* From 6.2 on each member is a percpu_counter. */
struct mm_struct {
	struct percpu_counter rss_stat[4];
	atomic_t mm_users;
	atomic_long_t pgtables_bytes;
	struct task_struct *owner;
};

struct core_state;

/* Up to 5.15, where signal_struct has no such field. */
struct mm_struct___core_dump {
	struct core_state *core_state;
};

/* Up to 6.1: plain counters, fed in batches of 64 faults a thread. */
struct atomic_long___flat {
	s64 counter;
};

struct mm_rss_stat {
	struct atomic_long___flat count[4];
};

struct mm_struct___flat {
	struct mm_rss_stat rss_stat;
};

typedef struct {
	u32 val;
} kuid_t;

struct user_namespace {
	struct user_namespace *parent;
	s32 level;
	kuid_t owner;
};

struct cred {
	kuid_t uid;
	struct user_namespace *user_ns;
};

struct upid {
	s32 nr;
};

struct pid {
	u64 ino; /* since Linux 6.9 */
	struct upid numbers[1];
};

struct signal_struct {
	struct pid *pids[4];
	u32 flags;
	int leader; /* of its session */
	atomic_t live; /* threads that have not begun to exit */
	s16 oom_score_adj;
	struct core_state *core_state; /* while the process dumps core */
};

struct task_struct {
	u32 flags;
	s32 pid;
	s32 tgid;
	u64 start_boottime;
	char comm[16];
	struct mm_struct *mm;
	const struct cred *real_cred;
	struct signal_struct *signal;
	struct task_struct *group_leader;
	struct task_struct *real_parent;
};

struct bpf_array {
	void *pptrs[1];
};

#pragma clang attribute pop

/* Context of a task iterator: unchanged since its introduction. */
struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_map;

/* Context of an iterator over the elements of a map. */
struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	void *key;
	void *value;
};

/* Kernel functions newer than the oldest supported kernel; absent ones have address 0. */
extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym __weak;
extern void bpf_task_release(struct task_struct *p) __ksym __weak;
extern int bpf_send_signal_task(struct task_struct *task, int sig, enum pid_type type,
				u64 value) __ksym __weak;

/*
 * The same task as a read-only pointer. For a load through a pointer that is not read-only, the verifier searches all
 * of the kernel's types several times (a millisecond), again on each path that leads to it.
 */
static __always_inline struct task_struct *only_to_read(struct task_struct *task)
{
	return bpf_ksym_exists(bpf_rdonly_cast) ? bpf_core_cast(task, struct task_struct) : task;
}
