/*
 * Memory of processes that have exited stays in use, and is released bit by bit, by slightly more than a fourth every
 * 0.8 s, as if the kernel were freeing it slowly. Meanwhile a living process fills as much again. Argument: MiB that the
 * dead ones have together.
 */
#include "dead_address_spaces.h"

#define STEPS 12

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	static const char data[PAGE];
	long left;

	must(count == 4, "arguments");
	left = atol(arguments[3]) * MIB;
	start_blocking();
	for (int page = 0; page < STEPS; page++) {
		long bytes = page + 1 < STEPS ? left * 27 / 100 : left;

		keep_dead(bytes & ~(PAGE - 1L), page);
		left -= bytes;
	}
	if (fork() == 0) {
		long bytes = atol(arguments[3]) * MIB;

		close(fuse);
		touch(map(bytes, MAP_PRIVATE), bytes);
		while (now() < end)
			pause_ms(20);
		_exit(0);
	}
	for (int page = 0; page < STEPS && now() < end; page++) {
		pause_ms(800);
		reply(blocked[page], data, sizeof(data));
	}
	while (now() < end)
		pause_ms(20);
	return 0;
}
