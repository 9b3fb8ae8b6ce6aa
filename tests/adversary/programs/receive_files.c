/*
 * A program of another user that keeps the files that it receives. Arguments: its abstract socket; "hold", or how many
 * processes map them.
 */
#include <sys/stat.h>
#include "common.h"

static void map_file(int file, int processes, double end)
{
	struct stat status;

	must(fstat(file, &status) == 0, "fstat");
	for (int i = 0; i < processes; i++) {
		if (fork() == 0) {
			volatile char sum = 0;
			char *at = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED, file, 0);

			must(at != MAP_FAILED, "mmap");
			for (long page = 0; page < status.st_size; page += PAGE)
				sum += at[page];
			while (now() < end)
				pause_ms(20);
			_exit(sum & 0);
		}
	}
}

int main(int count, char **arguments)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), peer;
	double end = now() + atof(arguments[2]);

	must(count == 5 && listener != -1, "arguments");
	strcpy(address.sun_path + 1, arguments[3]);
	must(bind(listener, (struct sockaddr *)&address, sizeof(sa_family_t) + 1 + strlen(arguments[3])) == 0, "bind");
	must(listen(listener, 1) == 0 && write(1, "l", 1) == 1, "listen");
	peer = accept(listener, NULL, NULL);
	must(peer != -1, "accept");
	for (;;) {
		char byte, control[CMSG_SPACE(sizeof(int))] = { 0 };
		struct iovec data = { &byte, 1 };
		struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
		int file;

		if (recvmsg(peer, &message, 0) != 1)
			break;
		memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
		if (strcmp(arguments[4], "hold") != 0)
			map_file(file, atoi(arguments[4]), end);
	}
	while (now() < end)
		pause_ms(20);
	return 0;
}
