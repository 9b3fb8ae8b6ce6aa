/*
 * Decoys share the address space of the process that fills it, each in a process group of its own. They are newer, and
 * seem to hold all of the memory; a new one takes the place of each that is killed. Argument: MiB to fill.
 */
#include "common.h"

#define DECOYS 8
#define STACK (64 * 1024)

static int decoy(void *unused)
{
	(void)unused;
	setpgid(0, 0);
	while (pause())
		;
	return 0;
}

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes = atol(arguments[3]) * MIB, filled = 0;
	char *stacks = map(DECOYS * STACK, MAP_PRIVATE), *memory = map(bytes, MAP_PRIVATE);
	pid_t decoys[DECOYS] = { 0 };

	must(count == 4, "arguments");
	while (now() < end) {
		pid_t dead = waitpid(-1, NULL, WNOHANG);

		for (int i = 0; i < DECOYS; i++) {
			if (decoys[i] == 0 || decoys[i] == dead) {
				decoys[i] = clone(decoy, stacks + (i + 1) * STACK, CLONE_VM | SIGCHLD, NULL);
				must(decoys[i] != -1, "clone");
			}
		}
		if (filled < bytes) {
			touch(memory + filled, MIB / 2);
			filled += MIB / 2;
		}
		pause_ms(1);
	}
	return 0;
}
