/* Secret memory that is unmapped again: only what is mapped counts as locked. Argument: MiB. */
#include "common.h"
#include <sys/syscall.h>

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes = atol(arguments[3]) * MIB;
	int fd = syscall(SYS_memfd_secret, O_CLOEXEC);

	must(count == 4 && fd != -1 && ftruncate(fd, bytes) == 0, "memfd_secret");
	for (long done = 0; done < bytes; done += MIB) {
		char *at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, done);

		must(at != MAP_FAILED, "mmap");
		memset(at, 1, MIB);
		munmap(at, MIB);
	}
	while (now() < end)
		pause_ms(20);
	return 0;
}
