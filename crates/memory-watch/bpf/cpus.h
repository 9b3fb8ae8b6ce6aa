/* SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only */
/*
 * Offsets of each CPU's per-CPU variables, found without kallsyms: the kernel resolves an element of a per-CPU
 * array of the program for every CPU, and the array's own per-CPU pointer is the base. The verifier forbids the
 * subtraction, so the daemon does it, after it has run find_cpus and before it attaches anything.
 */
#pragma once

#include "kernel.h"
#include "shared.h"

/* One more than the highest number of a CPU; set before the programs are loaded, so that it is a constant to them. */
const volatile u32 cpu_count = 0;

struct cpu_layout cpus = {};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} probed SEC(".maps");

/* Up to 6.1 an mm's counters are plain ones. */
static __always_inline bool flat_counters(void)
{
	return bpf_core_type_exists(struct mm_rss_stat);
}

SEC("raw_tp")
int find_cpus(void *ctx)
{
	u32 zero = 0, offset = bpf_core_field_offset(struct bpf_array, pptrs);

	if (flat_counters())
		return 0;
	if (offset > sizeof(cpus.scratch) - sizeof(u64))
		return 1;
	if (bpf_probe_read_kernel(cpus.scratch, offset + sizeof(u64), &probed))
		return 2;
	cpus.base = *(u64 *)(cpus.scratch + offset);
	for (u32 cpu = 0; cpu < MAX_CPUS; cpu++) {
		u64 *element;

		if (cpu >= cpu_count)
			break;
		element = bpf_map_lookup_percpu_elem(&probed, &zero, cpu);
		if (!element)
			return 3;
		cpus.offset[cpu] = (u64)element;
	}
	return 0;
}
