/*
 * Forks, enters a user namespace of its own, and fills memory under many subordinate uids. Waits until the namespace has its
 * maps: a byte on standard input. Arguments: MiB of each; how many.
 */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes;
	char byte;

	must(count == 5, "arguments");
	bytes = atol(arguments[3]) * MIB;
	must(unshare(CLONE_NEWUSER) == 0, "unshare");
	must(write(1, "u", 1) == 1 && read(0, &byte, 1) == 1, "maps");
	for (int uid = 1; uid <= atoi(arguments[4]); uid++) {
		pid_t pid = fork();

		must(pid != -1, "fork");
		if (pid == 0) {
			must(setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0, "setresuid");
			/* A nested namespace. */
			unshare(CLONE_NEWUSER);
			touch(map(bytes, MAP_PRIVATE), bytes);
			while (now() < end)
				pause_ms(20);
			_exit(0);
		}
		pause_ms(10);
	}
	must(write(1, "d", 1) == 1, "done");
	while (now() < end)
		pause_ms(20);
	return 0;
}
