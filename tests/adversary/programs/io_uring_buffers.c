/*
 * Registers buffers with io_uring and unmaps them: the ring keeps the pages, which are in no resident set. Each ring gets a
 * buffer until RLIMIT_MEMLOCK refuses it; a refused buffer stays mapped. Argument: MiB.
 */
#include <linux/io_uring.h>
#include <sys/uio.h>
#include "common.h"

#define BUFFER (4 * MIB)

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes = atol(arguments[3]) * MIB;

	must(count == 4, "arguments");
	for (long done = 0; done < bytes; done += BUFFER) {
		struct io_uring_params parameters = { 0 };
		int ring = syscall(SYS_io_uring_setup, 1, &parameters);
		struct iovec buffer = { map(BUFFER, MAP_PRIVATE), BUFFER };

		must(ring != -1, "io_uring_setup");
		touch(buffer.iov_base, BUFFER);
		if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1) == 0)
			munmap(buffer.iov_base, BUFFER);
		else
			close(ring);
		pause_ms(5);
	}
	while (now() < end)
		pause_ms(20);
	return 0;
}
