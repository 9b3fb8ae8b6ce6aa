/* Swaps out what it fills, so that little of it is resident. Argument: MiB. */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes = atol(arguments[3]) * MIB;
	char *memory = map(bytes, MAP_PRIVATE);

	must(count == 4, "arguments");
	for (long at = 0; at < bytes; at += MIB) {
		touch(memory + at, MIB);
		must(madvise(memory + at, MIB, MADV_PAGEOUT) == 0, "MADV_PAGEOUT");
	}
	while (now() < end)
		pause_ms(20);
	return 0;
}
