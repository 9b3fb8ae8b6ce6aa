/* Fills memory and keeps it. Argument: MiB. */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes = atol(arguments[3]) * MIB;

	must(count == 4, "arguments");
	touch(map(bytes, MAP_PRIVATE), bytes);
	while (now() < end)
		pause_ms(20);
	return 0;
}
