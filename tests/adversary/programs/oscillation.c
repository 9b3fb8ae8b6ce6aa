/*
 * Sets its own soft limit low, where a few hundred pages are enough to cross it and to leave it clearly behind, and does that as
 * fast as it can. Arguments: MiB of the hard limit.
 */
#include "common.h"

#define SOFT (4 * MIB)
#define SWING MIB

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	char *memory = map(SOFT + SWING, MAP_PRIVATE), answer[1024];
	int fd = try_connect(arguments[1]);

	must(count == 4 && fd != -1, "connect");
	must(send_request(fd, 0, "{\"request\":\"set-limit\",\"account\":{\"uid\":%d},\"hard_bytes\":%ld,\"soft_bytes\":%ld}", (int)getuid(),
		 atol(arguments[3]) * MIB, SOFT) == 0, "set-limit");
	must(recv(fd, answer, sizeof(answer), 0) > 0 && strstr(answer, "done"), answer);
	touch(memory, SOFT - SWING);
	while (now() < end) {
		touch(memory + SOFT - SWING, 2 * SWING);
		madvise(memory + SOFT - SWING, 2 * SWING, MADV_DONTNEED);
	}
	return 0;
}
