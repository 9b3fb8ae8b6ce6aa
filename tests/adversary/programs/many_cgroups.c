/*
 * Makes cgroups in one that is delegated to it, and moves from one to the next while it grows. Waits until it is in that one: a
 * byte on standard input. Arguments: the folder; how many; MiB.
 */
#include <sys/stat.h>
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	int cgroups;
	long bytes, filled = 0;
	char *memory, byte;

	must(count == 6 && read(0, &byte, 1) == 1, "arguments");
	cgroups = atoi(arguments[4]);
	bytes = atol(arguments[5]) * MIB;
	memory = map(bytes, MAP_PRIVATE);
	for (int i = 0; i < cgroups; i++) {
		char path[256];

		snprintf(path, sizeof(path), "%s/%d", arguments[3], i);
		must(mkdir(path, 0755) == 0, path);
	}
	for (int i = 0; now() < end; i++) {
		char path[256];
		int fd;

		snprintf(path, sizeof(path), "%s/%d/cgroup.procs", arguments[3], i % cgroups);
		fd = open(path, O_WRONLY | O_CLOEXEC);
		must(fd != -1 && write(fd, "0", 1) == 1, path);
		close(fd);
		if (filled < bytes) {
			touch(memory + filled, MIB);
			filled += MIB;
		}
	}
	return 0;
}
