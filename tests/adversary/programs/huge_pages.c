/* Takes reserved huge pages, and ordinary memory on top of them. Arguments: MiB of huge pages; MiB of ordinary memory. */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long huge = atol(arguments[3]) * MIB, ordinary = atol(arguments[4]) * MIB;

	must(count == 5, "arguments");
	touch(map(huge, MAP_PRIVATE | MAP_HUGETLB), huge);
	for (int i = 0; i < 4; i++) {
		if (fork() == 0) {
			touch(map(ordinary / 4, MAP_PRIVATE), ordinary / 4);
			break;
		}
		pause_ms(50);
	}
	while (now() < end)
		pause_ms(20);
	return 0;
}
