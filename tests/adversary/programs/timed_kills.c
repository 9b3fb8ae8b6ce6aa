/*
 * Processes that exceed the limit one after the other, until the time is over. Prints the nanoseconds from the start
 * of each to its end. Argument: MiB of each.
 */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes;

	must(count == 4, "arguments");
	bytes = atol(arguments[3]) * MIB;
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (now() < end) {
		double begun = now();
		int status;
		pid_t pid = fork();

		must(pid != -1, "fork");
		if (pid == 0) {
			touch(map(bytes, MAP_PRIVATE), bytes);
			pause_ms(5000);
			_exit(0);
		}
		must(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status), "waitpid");
		printf("%.0f\n", (now() - begun) * 1e9);
		pause_ms(20);
	}
	return 0;
}
