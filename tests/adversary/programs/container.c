/*
 * A container that root makes: fills memory as a subordinate uid. Waits until that has its maps: a byte on standard
 * input. Argument: MiB.
 */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes;
	char byte;

	must(count == 4, "arguments");
	bytes = atol(arguments[3]) * MIB;
	must(unshare(CLONE_NEWUSER) == 0, "unshare");
	must(write(1, "u", 1) == 1 && read(0, &byte, 1) == 1, "maps");
	must(setresgid(1, 1, 1) == 0 && setresuid(1, 1, 1) == 0, "setresuid");
	touch(map(bytes, MAP_PRIVATE), bytes);
	while (now() < end)
		pause_ms(20);
	return 0;
}
