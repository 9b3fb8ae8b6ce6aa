/* Many processes, each of which locks as much as RLIMIT_MEMLOCK allows. Argument: MiB altogether. */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long left = atol(arguments[3]) * MIB, each = 6 * MIB;
	struct rlimit limit = { each, each };

	must(count == 4 && setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit");
	for (; left > 0; left -= each) {
		pid_t pid = fork();

		must(pid != -1, "fork");
		if (pid == 0) {
			char *at = map(each, MAP_PRIVATE);

			setpgid(0, 0);
			must(mlock(at, each) == 0, "mlock");
			touch(at, each);
			while (now() < end)
				pause_ms(20);
			_exit(0);
		}
		pause_ms(5);
	}
	while (now() < end)
		pause_ms(20);
	return 0;
}
