/* Code that the attacks share. Each takes a control socket and a number of seconds, then arguments of its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1L << 20)
#define PAGE 4096

static void must(int done, const char *what)
{
	if (!done) {
		perror(what);
		exit(2);
	}
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static inline void pause_ms(long ms)
{
	struct timespec time = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&time, NULL);
}

static inline char *map(long bytes, int flags)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);

	must(at != MAP_FAILED, "mmap");
	return at;
}

static inline void touch(char *at, long bytes)
{
	for (long done = 0; done < bytes; done += PAGE)
		at[done] = 1;
}

/* -1: the daemon has no free connection. */
static inline int try_connect(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd == -1)
		return -1;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == -1) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Sends a request without waiting for the reply. */
static inline int send_request(int fd, int flags, const char *format, ...)
{
	char packet[512] = ".";
	va_list values;
	int length;

	va_start(values, format);
	length = vsnprintf(packet + 1, sizeof(packet) - 1, format, values);
	va_end(values);
	return send(fd, packet, length + 1, flags | MSG_NOSIGNAL) == -1 ? -1 : 0;
}

/* Receives and discards replies. */
static inline void swallow(int fd)
{
	char packet[70000];

	while (recv(fd, packet, sizeof(packet), MSG_DONTWAIT) > 0)
		;
}

/* Connects to the abstract socket of this name. */
static inline int connect_abstract(const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strcpy(address.sun_path + 1, name);
	must(fd != -1 && connect(fd, (struct sockaddr *)&address, sizeof(sa_family_t) + 1 + strlen(name)) == 0, "connect");
	return fd;
}

/* Sends a file descriptor. */
static inline void send_file(int to, int file)
{
	char byte = 'f', control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &file, sizeof(int));
	must(sendmsg(to, &message, MSG_NOSIGNAL) == 1, "sendmsg");
}
