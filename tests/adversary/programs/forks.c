/* A program that forks again and again, with memory that its children share: nothing to kill it for. Argument: MiB. */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);

	must(count == 4, "arguments");
	touch(map(atol(arguments[3]) * MIB, MAP_PRIVATE), atol(arguments[3]) * MIB);
	while (now() < end) {
		pid_t pid = fork();
		int status;

		must(pid != -1, "fork");
		if (pid == 0) {
			pause_ms(1500);
			_exit(0);
		}
		must(waitpid(pid, &status, 0) == pid && status == 0, "a child was killed");
	}
	return 0;
}
