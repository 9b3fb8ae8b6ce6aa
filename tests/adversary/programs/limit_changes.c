/* Changes its own limit all the time, while its processes exceed it. Arguments: MiB of the limit that root set; MiB. */
#include "common.h"

#define PROCESSES 4

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long hard, bytes;
	pid_t pids[PROCESSES] = { 0 };
	int fd = try_connect(arguments[1]);

	must(count == 5 && fd != -1, "connect");
	hard = atol(arguments[3]) * MIB;
	bytes = atol(arguments[4]) * MIB / PROCESSES;
	for (int turn = 0; now() < end; turn++) {
		pid_t dead = waitpid(-1, NULL, WNOHANG);

		for (int i = 0; i < PROCESSES; i++) {
			if (pids[i] != 0 && pids[i] != dead)
				continue;
			pids[i] = fork();
			must(pids[i] != -1, "fork");
			if (pids[i] == 0) {
				char *memory = map(bytes, MAP_PRIVATE);

				for (long at = 0; at < bytes; at += MIB) {
					touch(memory + at, MIB);
					pause_ms(2);
				}
				while (now() < end)
					pause_ms(20);
				_exit(0);
			}
		}
		swallow(fd);
		send_request(fd, MSG_DONTWAIT, "{\"request\":\"set-limit\",\"account\":{\"uid\":%d},\"hard_bytes\":%ld,\"soft_bytes\":null}",
		    (int)getuid(), turn % 2 ? hard : hard / 2);
		pause_ms(2);
	}
	return 0;
}
