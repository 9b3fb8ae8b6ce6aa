/* Read faults on the zero page, one in each 2 MiB: each takes a page table and no other memory. Argument: MiB of tables. */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long tables = atol(arguments[3]) * MIB / PAGE, reach = 2 * MIB;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	volatile char *memory = mmap(NULL, tables * reach, PROT_READ, flags, -1, 0);
	volatile char sum = 0;

	must(count == 4 && memory != MAP_FAILED, "mmap");
	must(madvise((void *)memory, tables * reach, MADV_NOHUGEPAGE) == 0, "madvise");
	for (long i = 0; i < tables; i++)
		sum += memory[i * reach];
	while (now() < end)
		pause_ms(20);
	return sum;
}
