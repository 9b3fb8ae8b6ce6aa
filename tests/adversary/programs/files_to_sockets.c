/* Sends TCP sockets whose close blocks to the control and the lease socket, and leaves their last references there.
   Arguments: control socket, seconds, lease socket. */
#include "common.h"

#include <netinet/in.h>

#define MOST_FILES 253
#define CONNECTIONS 12

/* Makes a connected pair of TCP sockets: the close of the first blocks for a minute, or until the other is closed. */
static void make(int listener, const struct sockaddr_in *address, int *socket_fd, int *end)
{
	static char data[4096];
	struct linger linger = { .l_onoff = 1, .l_linger = 60 };
	int bytes = 4096;

	*socket_fd = socket(AF_INET, SOCK_STREAM, 0);
	must(*socket_fd != -1, "socket");
	setsockopt(*socket_fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	must(connect(*socket_fd, (const struct sockaddr *)address, sizeof(*address)) == 0, "connect");
	*end = accept(listener, NULL, NULL);
	must(*end != -1, "accept");
	while (send(*socket_fd, data, sizeof(data), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		;
	must(setsockopt(*socket_fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0, "SO_LINGER");
}

static void pass(const char *path, const int *files, int count)
{
	char byte = '.', control[CMSG_SPACE(MOST_FILES * sizeof(int))] = { 0 };
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(count * sizeof(int)) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	int fd = try_connect(path);

	if (fd == -1)
		return;
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(count * sizeof(int));
	memcpy(CMSG_DATA(header), files, count * sizeof(int));
	/* The kernel may refuse it, or the daemon the connection. */
	sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int main(int argc, char **argv)
{
	must(argc > 3, "arguments");
	double end = now() + atof(argv[2]);
	const char *paths[] = { argv[1], argv[3] };
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), bytes = 4096, round = 0;
	int files[MOST_FILES], others[MOST_FILES];

	signal(SIGCHLD, SIG_IGN);
	setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
	must(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(listener, 8) == 0, "listen");
	must(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
	while (now() < end && round < 6) {
		int count = round < 4 ? MOST_FILES : CONNECTIONS;
		pid_t child = fork();

		must(child != -1, "fork");
		if (child == 0) {
			for (int i = 0; i < count; i++)
				make(listener, &address, &files[i], &others[i]);
			/* Keeps the other ends open. */
			pid_t keeper = fork();

			must(keeper != -1, "fork");
			if (keeper == 0) {
				for (int i = 0; i < count; i++)
					close(files[i]);
				pause_ms(60000);
				_exit(0);
			}
			/* In one packet, or in one for each connection, of which some are refused. */
			if (round < 4)
				pass(paths[round % 2], files, count);
			else
				for (int i = 0; i < count; i++)
					pass(paths[round % 2], &files[i], 1);
			/* Waits until the keeper's copies are closed. A process that exits does not wait for its sockets. */
			pause_ms(200);
			_exit(0);
		}
		round++;
		pause_ms(50);
	}
	while (now() < end)
		pause_ms(50);
	return 0;
}
