/* A memfd that is written to, and whose pages are in no page table. Arguments: MiB, and "mapped" to map it, without
 * touching it, and close it. */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes = atol(arguments[3]) * MIB;
	int fd = memfd_create("attack", MFD_CLOEXEC);
	static char block[1 << 20];

	must(count >= 4 && fd != -1, "memfd_create");
	memset(block, 1, sizeof(block));
	for (long done = 0; done < bytes; done += sizeof(block))
		must(write(fd, block, sizeof(block)) == sizeof(block), "write");
	if (count > 4) {
		must(mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED, "mmap");
		close(fd);
	}
	while (now() < end)
		pause_ms(20);
	return 0;
}
