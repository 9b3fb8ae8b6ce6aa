/* The main thread exits; another one fills the memory. Argument: MiB. */
#include "common.h"

static double end;
static long bytes;

static void *fill(void *unused)
{
	char *memory = map(bytes, MAP_PRIVATE);

	(void)unused;
	pause_ms(100);
	for (long at = 0; at < bytes; at += MIB) {
		touch(memory + at, MIB);
		pause_ms(2);
	}
	while (now() < end)
		pause_ms(20);
	exit(0);
}

int main(int count, char **arguments)
{
	pthread_t thread;

	must(count == 4, "arguments");
	end = now() + atof(arguments[2]);
	bytes = atol(arguments[3]) * MIB;
	must(pthread_create(&thread, NULL, fill, NULL) == 0, "pthread_create");
	/* Ends only this thread. */
	syscall(SYS_exit, 0);
}
