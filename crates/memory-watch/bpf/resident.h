/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/* Reading an address space's counters. The only place that knows their layout. */
#pragma once

#include "cpus.h"

/* Counts of the CPUs that are not folded into the counter yet. */
static __noinline s64 unfolded(const void *counters)
{
	s64 sum = 0;

	for (u32 cpu = 0; cpu < MAX_CPUS; cpu++) {
		s32 part = 0;

		if (cpu >= cpu_count)
			break;
		bpf_probe_read_kernel(&part, sizeof(part), counters + cpus.offset[cpu]);
		sum += part;
	}
	return sum;
}

/* By probe read: the verifier of those kernels refuses a plain load from an array of a typedef. */
#define FLAT_COUNT(value, flat, m) \
	bpf_core_read(&(value), sizeof(value), &(flat)->rss_stat.count[m].counter)

static __always_inline s64 flat_count(struct mm_struct *mm, u32 member)
{
	struct mm_struct___flat *flat = (void *)mm;
	s64 value = 0;

	/* Keeps clang from computing these addresses, unknown to newer kernels, ahead of the branch. */
	barrier_var(flat);
	switch (member) {
	case MM_FILE:
		FLAT_COUNT(value, flat, MM_FILE);
		break;
	case MM_ANON:
		FLAT_COUNT(value, flat, MM_ANON);
		break;
	case MM_SWAP:
		FLAT_COUNT(value, flat, MM_SWAP);
		break;
	default:
		FLAT_COUNT(value, flat, MM_SHMEM);
	}
	return value;
}

/* The part of a counter that moves in batches (a variable index is not allowed, hence the switch). */
static __always_inline s64 batched_count(struct mm_struct *mm, u32 member)
{
	if (flat_counters())
		return flat_count(mm, member);
	barrier_var(mm);
	switch (member) {
	case MM_FILE:
		return mm->rss_stat[MM_FILE].count;
	case MM_ANON:
		return mm->rss_stat[MM_ANON].count;
	case MM_SWAP:
		return mm->rss_stat[MM_SWAP].count;
	default:
		return mm->rss_stat[MM_SHMEM].count;
	}
}

/* As batched_count, for an address that may not be an mm any more. A macro: CO-RE requires a constant index. */
#define PROBED_COUNT(mm, member) ({ \
	struct mm_struct *probed_mm = (mm); \
	barrier_var(probed_mm); \
	flat_counters() ? flat_count(probed_mm, member) \
			: BPF_CORE_READ(probed_mm, rss_stat[member].count); \
})

static __always_inline const void *percpu_base(struct mm_struct *mm, u32 member)
{
	barrier_var(mm);
	switch (member) {
	case MM_FILE:
		return mm->rss_stat[MM_FILE].counters;
	case MM_ANON:
		return mm->rss_stat[MM_ANON].counters;
	case MM_SWAP:
		return mm->rss_stat[MM_SWAP].counters;
	default:
		return mm->rss_stat[MM_SHMEM].counters;
	}
}

/* The true value, given the batched part. */
static __always_inline s64 exact_from(struct mm_struct *mm, u32 member, s64 batched)
{
	s64 exact = batched;

	if (!flat_counters())
		exact += unfolded(percpu_base(mm, member));
	return exact > 0 ? exact : 0;
}

/*
 * Not inlined: clang would take the offsets of both layouts out of a loop over members, and the
 * unknown one out of its dead branch with them.
 */
static __noinline s64 exact_count(struct mm_struct *mm, u32 member)
{
	return exact_from(mm, member, batched_count(mm, member));
}

/* Adds the per-CPU parts of all members, where they are adjacent in memory. */
static __noinline int unfolded_together(const void *counters, s64 *pages)
{
	s32 parts[MM_MEMBERS];

	if (!pages)
		return 0;
	for (u32 cpu = 0; cpu < MAX_CPUS; cpu++) {
		if (cpu >= cpu_count)
			break;
		if (bpf_probe_read_kernel(parts, sizeof(parts), counters + cpus.offset[cpu]))
			continue;
		for (u32 m = 0; m < MM_MEMBERS; m++)
			pages[m] += parts[m];
	}
	return 0;
}

/*
 * The true values of all members. Since 6.6 an mm's counters are allocated as one, so that a CPU's parts of them are
 * in one place.
 */
static __always_inline void exact_counts(struct mm_struct *mm, s64 *pages)
{
	const void *parts[MM_MEMBERS];

	for (u32 m = 0; m < MM_MEMBERS; m++)
		pages[m] = batched_count(mm, m);
	if (!flat_counters()) {
		for (u32 m = 0; m < MM_MEMBERS; m++)
			parts[m] = percpu_base(mm, m);
		if (parts[1] == parts[0] + sizeof(s32) && parts[2] == parts[1] + sizeof(s32) &&
		    parts[3] == parts[2] + sizeof(s32)) {
			unfolded_together(parts[0], pages);
		} else {
			for (u32 m = 0; m < MM_MEMBERS; m++)
				pages[m] += unfolded(parts[m]);
		}
	}
	/* Sets negative counts to 0 by their sign bit; a branch for each would double the verifier's work four times. */
	for (u32 m = 0; m < MM_MEMBERS; m++)
		pages[m] &= ~(pages[m] >> 63);
}
