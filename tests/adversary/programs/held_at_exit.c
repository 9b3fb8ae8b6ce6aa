/*
 * Small children set the preference to be killed first; their tracer holds each at its exit, with shared memory, which
 * process_mrelease does not free. Meanwhile other processes grow. Argument: MiB to fill.
 */
#include "common.h"

#define CHILDREN 24

static void child(const char *socket_path)
{
	char answer[1024];
	int fd;

	must(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0, "PTRACE_TRACEME");
	raise(SIGSTOP);
	setpgid(0, 0);
	touch(map(MIB, MAP_SHARED), MIB);
	fd = try_connect(socket_path);
	if (fd != -1 && send_request(fd, 0, "{\"request\":\"set-importance\",\"pid\":null,\"importance\":\"prefer\"}") == 0)
		recv(fd, answer, sizeof(answer), 0);
	close(fd);
	for (;;)
		pause();
}

static pid_t start(const char *socket_path)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		child(socket_path);
	must(pid > 0, "fork");
	/* The stop at the start; another at the exit, which is never continued. */
	if (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
		ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL);
		ptrace(PTRACE_CONT, pid, 0, 0);
	}
	return pid;
}

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes = atol(arguments[3]) * MIB;
	int started = 0;

	must(count == 4, "arguments");
	for (; started < CHILDREN; started++)
		start(arguments[1]);
	pause_ms(300);
	for (int i = 0; i < 4; i++) {
		if (fork() == 0) {
			char *memory = map(bytes / 4, MAP_PRIVATE);

			setpgid(0, 0);
			for (long at = 0; at < bytes / 4; at += MIB / 4) {
				touch(memory + at, MIB / 4);
				pause_ms(3);
			}
			pause_ms(60000);
		}
	}
	while (now() < end)
		pause_ms(20);
	/* The held processes exit with their tracer. */
	return 0;
}
