/* Sends explain requests repeatedly, on as many connections as it gets. Argument: number of additional idle processes. */
#include "common.h"

#define CONNECTIONS 8

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	int fds[CONNECTIONS];

	must(count == 4, "arguments");
	for (int i = 0; i < atoi(arguments[3]); i++) {
		pid_t pid = fork();

		must(pid != -1, "fork");
		if (pid == 0) {
			while (now() < end)
				pause_ms(1000);
			_exit(0);
		}
	}
	for (int i = 0; i < CONNECTIONS; i++)
		fds[i] = try_connect(arguments[1]);
	while (now() < end) {
		for (int i = 0; i < CONNECTIONS; i++) {
			swallow(fds[i]);
			while (send_request(fds[i], MSG_DONTWAIT, "{\"request\":\"explain\",\"account\":{\"uid\":%d}}", (int)getuid()) == 0)
				;
		}
		pause_ms(1);
	}
	return 0;
}
