/*
 * A user with subordinate uids takes the resources that all users share. Waits until its namespace has its maps: a byte on
 * standard input. Arguments: connections, limits or leases; the lease socket; the first subordinate uid outside.
 */
#include "common.h"

static void become(int uid)
{
	must(setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0, "setresuid");
}

/* Opens and keeps `connections` connections as a subordinate uid. */
static void hold(const char *path, int uid, int connections, double end)
{
	if (fork() != 0)
		return;
	become(uid);
	for (int i = 0; i < connections; i++)
		if (try_connect(path) == -1)
			break;
	while (now() < end)
		pause_ms(20);
	_exit(0);
}

/* Makes a subordinate uid set its own limit. */
static void limit(const char *path, int uid, long outside)
{
	pid_t pid = fork();
	char answer[1024];
	int fd;

	if (pid == 0) {
		become(uid);
		fd = try_connect(path);
		if (fd != -1 && send_request(fd, 0, "{\"request\":\"set-limit\",\"account\":{\"uid\":%ld},\"hard_bytes\":%ld,\"soft_bytes\":null}",
				    outside, 1L << 30) == 0)
			recv(fd, answer, sizeof(answer), 0);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long first;
	char byte;

	must(count == 6, "arguments");
	first = atol(arguments[5]);
	must(unshare(CLONE_NEWUSER) == 0, "unshare");
	must(write(1, "u", 1) == 1 && read(0, &byte, 1) == 1, "maps");
	if (strcmp(arguments[3], "connections") == 0) {
		for (int uid = 1; uid <= 16; uid++)
			hold(arguments[1], uid, 8, end);
	} else if (strcmp(arguments[3], "leases") == 0) {
		for (int uid = 1; uid <= 9; uid++)
			hold(arguments[4], uid, 512, end);
	} else {
		for (int uid = 1; uid <= 1100 && now() < end; uid++)
			limit(arguments[1], uid, first + uid - 1);
	}
	must(write(1, "d", 1) == 1, "done");
	while (now() < end)
		pause_ms(20);
	return 0;
}
