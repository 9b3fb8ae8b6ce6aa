/* Processes that exceed the limit one after the other. Arguments: MiB of each, processes. */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes, kills;

	must(count == 5, "arguments");
	bytes = atol(arguments[3]) * MIB;
	kills = atol(arguments[4]);
	while (kills > 0 && now() < end) {
		int status;
		pid_t pid = fork();

		must(pid != -1, "fork");
		if (pid == 0) {
			touch(map(bytes, MAP_PRIVATE), bytes);
			pause_ms(500);
			_exit(0);
		}
		must(waitpid(pid, &status, 0) == pid, "waitpid");
		kills -= WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	}
	return kills > 0;
}
