// SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only
/*
 * Finds where each CPU keeps its per-CPU variables, without kallsyms: the kernel resolves an element
 * of a per-CPU array of ours for every CPU, and the array's own per-CPU pointer tells what it added to.
 * The verifier forbids the subtraction, so the loader does it.
 */
#include "kernel.h"
#include "shared.h"

#define SCRATCH 4096

struct addresses {
	u64 base;
	u32 count;
	u32 unused;
	u64 element[MAX_CPUS];
	u8 scratch[SCRATCH];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} probed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct addresses);
} addresses SEC(".maps");

SEC("raw_tp")
int find_percpu(void *ctx)
{
	u32 zero = 0, offset = bpf_core_field_offset(struct bpf_array, pptrs);
	struct addresses *found = bpf_map_lookup_elem(&addresses, &zero);

	if (!found || offset > SCRATCH - sizeof(u64))
		return 1;
	if (bpf_probe_read_kernel(found->scratch, offset + sizeof(u64), &probed))
		return 2;
	found->base = *(u64 *)(found->scratch + offset);
	for (u32 cpu = 0; cpu < MAX_CPUS; cpu++) {
		u64 *element = bpf_map_lookup_percpu_elem(&probed, &zero, cpu);

		if (!element)
			break;
		found->element[cpu] = (u64)element;
		found->count = cpu + 1;
	}
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
