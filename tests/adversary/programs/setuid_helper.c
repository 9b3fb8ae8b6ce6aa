/* Runs a setuid program of root that fills memory. Arguments: the program; MiB of each; how many. */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);

	must(count == 6, "arguments");
	for (int left = atoi(arguments[5]); left > 0; left--) {
		pid_t pid = fork();

		must(pid != -1, "fork");
		if (pid == 0) {
			execl(arguments[3], arguments[3], arguments[1], arguments[2], arguments[4], NULL);
			_exit(2);
		}
		pause_ms(50);
	}
	while (now() < end)
		pause_ms(20);
	return 0;
}
