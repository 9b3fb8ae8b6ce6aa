/*
 * A chain of processes that wait for their vfork children: all use one address space, which the last of them fills. Argument:
 * MiB.
 */
#include "common.h"

#define CHAIN 6

static void fill(double end, long bytes)
{
	char *memory = map(bytes, MAP_PRIVATE);

	for (long at = 0; at < bytes; at += MIB) {
		touch(memory + at, MIB);
		pause_ms(2);
	}
	while (now() < end)
		pause_ms(20);
	_exit(0);
}

static void start_chain(double end, long bytes)
{
	for (volatile int left = CHAIN; left > 0; left--) {
		pid_t pid = vfork();

		must(pid != -1, "vfork");
		if (pid != 0)
			_exit(0);
	}
	fill(end, bytes);
}

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);

	must(count == 4, "arguments");
	/* Another chain takes the place of one that was killed. */
	while (now() < end) {
		pid_t pid = fork();

		if (pid == 0)
			start_chain(end, atol(arguments[3]) * MIB);
		waitpid(pid, NULL, 0);
		pause_ms(10);
	}
	return 0;
}
