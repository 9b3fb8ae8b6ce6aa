/*
 * Fills SysV segments. "attached": all are attached by several processes, and marked for removal. "detached": no process has
 * them attached. Arguments: attached or detached; MiB.
 */
#include <sys/ipc.h>
#include <sys/shm.h>
#include "common.h"

#define SEGMENT (16 * MIB)
#define PROCESSES 4

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	int attached;

	must(count == 5, "arguments");
	attached = strcmp(arguments[3], "attached") == 0;
	for (int i = 1; attached && i < PROCESSES && fork() != 0; i++)
		;
	for (long left = atol(arguments[4]) * MIB; left > 0; left -= SEGMENT) {
		int segment = shmget(IPC_PRIVATE, SEGMENT, 0600);
		char *at;

		must(segment != -1, "shmget");
		at = shmat(segment, NULL, 0);
		must(at != (char *)-1, "shmat");
		if (attached)
			shmctl(segment, IPC_RMID, NULL);
		touch(at, SEGMENT);
		if (!attached)
			shmdt(at);
		pause_ms(10);
	}
	while (now() < end)
		pause_ms(20);
	return 0;
}
