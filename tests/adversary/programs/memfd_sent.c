/*
 * Writes memfds and sends them to a program of another user. Arguments: the name of its abstract socket; "keep" or "close";
 * MiB.
 */
#include "common.h"

#define FILE_BYTES (16 * MIB)

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	static char block[1 << 20];
	long bytes;
	int receiver;

	must(count == 6, "arguments");
	bytes = atol(arguments[5]) * MIB;
	receiver = connect_abstract(arguments[3]);
	memset(block, 1, sizeof(block));
	for (long done = 0; done < bytes; done += FILE_BYTES) {
		int file = memfd_create("attack", MFD_CLOEXEC);

		for (long written = 0; written < FILE_BYTES; written += sizeof(block))
			must(write(file, block, sizeof(block)) == sizeof(block), "write");
		send_file(receiver, file);
		if (strcmp(arguments[4], "close") == 0)
			close(file);
		pause_ms(10);
	}
	while (now() < end)
		pause_ms(20);
	return 0;
}
