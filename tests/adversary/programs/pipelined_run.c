/*
 * The limit is exceeded by shared memory that is not freed while its process is held at its exit; then requests to run the
 * OOM killer are pipelined, of which each waits for that memory. Argument: MiB to fill.
 */
#include "common.h"

#define REQUESTS 64

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes = atol(arguments[3]) * MIB;
	pid_t pid;
	int status, fds[4];

	must(count == 4, "arguments");
	pid = fork();
	if (pid == 0) {
		must(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0, "PTRACE_TRACEME");
		raise(SIGSTOP);
		touch(map(bytes, MAP_SHARED), bytes);
		for (;;)
			pause();
	}
	must(waitpid(pid, &status, 0) == pid, "waitpid");
	ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL);
	ptrace(PTRACE_CONT, pid, 0, 0);
	pause_ms(500);
	for (int i = 0; i < 4; i++)
		fds[i] = try_connect(arguments[1]);
	while (now() < end) {
		for (int i = 0; i < 4; i++) {
			swallow(fds[i]);
			for (int request = 0; request < REQUESTS; request++)
				if (send_request(fds[i], MSG_DONTWAIT, "{\"request\":\"run-oom-killer\",\"account\":{\"uid\":%d}}", (int)getuid()) != 0)
					break;
		}
		pause_ms(10);
	}
	return 0;
}
