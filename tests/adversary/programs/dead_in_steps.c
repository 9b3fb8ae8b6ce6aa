/*
 * Memory of processes that have exited stays in use. It grows by a seventh every 300 ms, as that of a fork in progress
 * does, and nearly a half of it is released every 0.9 s, as if the kernel were freeing it. Meanwhile a living process fills
 * as much again. Argument: MiB that the dead ones have together.
 */
#include "dead_address_spaces.h"

/* Number of dead address spaces, and of steps of each between two releases. */
#define DEAD 8
#define STEPS_A_RELEASE 3
#define RELEASED_PERCENT 47

static void fill(long bytes, double end)
{
	close(fuse);
	touch(map(bytes, MAP_PRIVATE), bytes);
	while (now() < end)
		pause_ms(20);
	_exit(0);
}

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long left;

	must(count == 4, "arguments");
	left = atol(arguments[3]) * MIB;
	start_blocking();
	for (int dead = 0; dead < DEAD; dead++) {
		long bytes = dead + 1 < DEAD ? left * RELEASED_PERCENT / 100 : left;

		keep_dead(bytes & ~(PAGE - 1L), bytes / 7 & ~(PAGE - 1L), dead);
		left -= bytes;
	}
	if (fork() == 0)
		fill(atol(arguments[3]) * MIB, end);
	for (int step = 1; now() < end; step++) {
		int released = step / STEPS_A_RELEASE;

		pause_ms(300);
		if (step % STEPS_A_RELEASE == 0 && released <= DEAD)
			release(&writers[released - 1]);
		for (int dead = 0; dead < DEAD; dead++)
			advance(&writers[dead]);
	}
	return 0;
}
