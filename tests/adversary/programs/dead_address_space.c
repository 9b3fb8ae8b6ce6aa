/* Memory of processes that have exited stays in use. Arguments: MiB of each; how many. */
#include "dead_address_spaces.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);

	must(count == 5, "arguments");
	start_blocking();
	for (int page = 0; page < atoi(arguments[4]); page++)
		keep_dead(atol(arguments[3]) * MIB, 0, page);
	while (now() < end)
		pause_ms(20);
	return 0;
}
