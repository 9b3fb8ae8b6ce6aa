/* A memfd that is written to and never mapped. Argument: MiB. */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes = atol(arguments[3]) * MIB;
	int fd = memfd_create("attack", MFD_CLOEXEC);
	static char block[1 << 20];

	must(count == 4 && fd != -1, "memfd_create");
	memset(block, 1, sizeof(block));
	for (long done = 0; done < bytes; done += sizeof(block))
		must(write(fd, block, sizeof(block)) == sizeof(block), "write");
	while (now() < end)
		pause_ms(20);
	return 0;
}
