/*
 * Holds memory of one kind in one way until a byte comes, or the end, on standard input. Arguments: the kind, the way, MiB,
 * a folder for files, and the user.
 * Prints "ready", or "cannot: REASON" where the kernel or its settings do not offer the kind.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/io_uring.h>
#include <net/ethernet.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MIB (1L << 20)
#define PAGE 4096
/* The other user's uid less the user's. */
#define PARTNER 1000

static long bytes;
static const char *kind, *way, *folder;
static uid_t user;
static char block[MIB];

static void must(int done, const char *what)
{
	if (!done) {
		printf("cannot: %s: %s\n", what, strerror(errno));
		fflush(stdout);
		exit(1);
	}
}

static void wait_for_end(void)
{
	char byte;

	must(read(0, &byte, 1) >= 0, "read");
}

static void report_ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

static void hold(void)
{
	report_ready();
	wait_for_end();
	_exit(0);
}

/* Writes the file's memory. */
static void fill(int fd)
{
	for (long done = 0; done < bytes; done += MIB)
		must(write(fd, block, MIB) == MIB, "write");
}

static void touch(char *at)
{
	for (long done = 0; done < bytes; done += PAGE)
		at[done] = 1;
}

static char *map(int flags, int fd)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

	must(at != MAP_FAILED, "mmap");
	return at;
}

static void write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	must(fd != -1 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
	close(fd);
}

static void enter_namespaces(int others)
{
	unsigned uid = getuid(), gid = getgid();
	char text[32];

	must(unshare(CLONE_NEWUSER | others) == 0, "unshare");
	write_text("/proc/self/setgroups", "deny");
	snprintf(text, sizeof(text), "0 %u 1", uid);
	write_text("/proc/self/uid_map", text);
	snprintf(text, sizeof(text), "0 %u 1", gid);
	write_text("/proc/self/gid_map", text);
}

/* A file of the kind with its memory allocated, that nothing maps. */
static int file(void)
{
	char path[256];
	int fd;

	if (!strcmp(kind, "memfd")) {
		fd = memfd_create("held", MFD_CLOEXEC);
	} else if (!strcmp(kind, "secret memory")) {
		fd = syscall(SYS_memfd_secret, 0);
		must(fd != -1 && ftruncate(fd, bytes) == 0, "memfd_secret");
		/* Only what is mapped counts as locked. */
		for (long done = 0; done < bytes; done += MIB) {
			char *at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, done);

			must(at != MAP_FAILED, "mmap");
			memset(at, 1, MIB);
			munmap(at, MIB);
		}
		return fd;
	} else if (!strcmp(kind, "deleted file in /dev/shm") || !strcmp(kind, "file in /dev/shm")) {
		snprintf(path, sizeof(path), "%s/%d", folder, getpid());
		fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
		if (kind[0] == 'd')
			unlink(path);
	} else {
		int is_ramfs = !strcmp(kind, "file in a ramfs");

		enter_namespaces(CLONE_NEWNS);
		must(mount("held", "/mnt", is_ramfs ? "ramfs" : "tmpfs", 0, NULL) == 0, "mount");
		fd = open("/mnt/file", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
		if (!is_ramfs)
			must(umount2("/mnt", MNT_DETACH) == 0, "umount");
	}
	must(fd != -1, "open");
	fill(fd);
	return fd;
}

static void *keep_table(void *kept)
{
	must(unshare(CLONE_FILES) == 0, "unshare");
	*(volatile int *)kept = 1;
	for (;;)
		pause();
	return NULL;
}

static void *go_on(void *unused)
{
	(void)unused;
	/* After the main thread has ended. */
	usleep(50000);
	hold();
	return NULL;
}

static void after_main(void)
{
	pthread_t thread;

	must(pthread_create(&thread, NULL, go_on, NULL) == 0, "thread");
	pthread_exit(NULL);
}

static void send_file(int to, int fd)
{
	char control[CMSG_SPACE(sizeof(fd))] = { 0 }, byte = 0;
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	must(sendmsg(to, &message, 0) == 1, "sendmsg");
}

static int receive_file(int from)
{
	char control[CMSG_SPACE(sizeof(int))], byte;
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	int fd;

	must(recvmsg(from, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message), "recvmsg");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

static void become(uid_t uid)
{
	must(setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0, "setresuid");
	/* A process that has changed its user may not write its own maps of users. */
	must(prctl(PR_SET_DUMPABLE, 1) == 0, "prctl");
}

/* A process of another user, which maps the file that it gets by the socket, until the socket is closed. */
static int start_partner(void)
{
	int pair[2];

	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
	if (fork() != 0) {
		close(pair[1]);
		return pair[0];
	}
	close(pair[0]);
	become(user + PARTNER);
	touch(map(MAP_SHARED, receive_file(pair[1])));
	must(write(pair[1], "", 1) == 1, "write");
	must(read(pair[1], block, 1) == 0, "read");
	_exit(0);
}

static void hold_file(void)
{
	int partner = -1;

	if (!strcmp(way, "shared with another user"))
		partner = start_partner();
	become(user);
	if (!strcmp(way, "in a user namespace"))
		enter_namespaces(0);
	int fd = file();

	if (!strcmp(way, "mapped")) {
		touch(map(MAP_SHARED, fd));
		close(fd);
	} else if (!strcmp(way, "mapped, not touched")) {
		map(MAP_SHARED, fd);
		close(fd);
	} else if (!strcmp(way, "in flight")) {
		int pair[2];

		must(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
		send_file(pair[0], fd);
		close(fd);
	} else if (!strcmp(way, "a thread's own table")) {
		volatile int kept = 0;
		pthread_t thread;

		must(pthread_create(&thread, NULL, keep_table, (void *)&kept) == 0, "thread");
		while (!kept)
			usleep(1000);
		close(fd);
	} else if (!strcmp(way, "main thread ended")) {
		after_main();
	} else if (!strcmp(way, "nobody")) {
		close(fd);
	} else if (partner != -1) {
		send_file(partner, fd);
		must(read(partner, block, 1) == 1, "partner");
	}
	hold();
}

static void hold_anonymous(void)
{
	char *at = map(MAP_ANONYMOUS | (strstr(kind, "shared") ? MAP_SHARED : MAP_PRIVATE), -1);

	touch(at);
	if (!strcmp(way, "locked"))
		must(mlock(at, bytes) == 0, "mlock");
	if (!strcmp(way, "lazily freed"))
		must(madvise(at, bytes, MADV_FREE) == 0, "madvise");
	if (!strcmp(way, "with a child") && fork() == 0) {
		wait_for_end();
		_exit(0);
	}
	if (!strcmp(way, "main thread ended"))
		after_main();
	hold();
}

static void hold_page_tables(void)
{
	long step = 2 * MIB, count = bytes / PAGE;
	char *at = mmap(NULL, step * count, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	volatile char sum = 0;

	must(at != MAP_FAILED, "mmap");
	madvise(at, step * count, MADV_NOHUGEPAGE);
	for (long n = 0; n < count; n++)
		sum += at[n * step];
	hold();
}

static void more_descriptors(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static void hold_pipes(void)
{
	more_descriptors();
	for (long done = 0; done < bytes; done += MIB) {
		int ends[2];

		must(pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0, "pipe");
		must(fcntl(ends[1], F_SETPIPE_SZ, MIB) != -1, "F_SETPIPE_SZ");
		must(write(ends[1], block, MIB) == MIB, "write");
	}
	hold();
}

static void hold_sockets(void)
{
	const long piece = 16 << 10;
	long done = 0;

	more_descriptors();
	while (done < bytes) {
		int pair[2];

		must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
		while (write(pair[0], block, piece) > 0)
			done += piece;
	}
	hold();
}

static void hold_ring(void)
{
	struct tpacket_req request = { .tp_block_size = MIB, .tp_block_nr = bytes / MIB, .tp_frame_size = 2048, .tp_frame_nr = bytes / 2048 };

	enter_namespaces(CLONE_NEWNET);
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL));
	must(fd != -1, "packet socket");
	must(setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof(request)) == 0, "ring");
	hold();
}

static void hold_io_uring(void)
{
	struct io_uring_params parameters = { 0 };
	int ring = syscall(SYS_io_uring_setup, 8, &parameters);
	char *at = map(MAP_ANONYMOUS | MAP_PRIVATE, -1);
	struct iovec buffer = { at, bytes };

	must(ring != -1, "io_uring_setup");
	touch(at);
	must(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1) == 0, "buffers");
	if (strcmp(way, "mapped"))
		munmap(at, bytes);
	hold();
}

static void hold_segment(void)
{
	int id = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
	char *at = shmat(id, NULL, 0);

	must(id != -1 && at != (char *)-1, "shmat");
	touch(at);
	if (!strcmp(way, "nobody")) {
		shmdt(at);
		report_ready();
		wait_for_end();
	}
	shmctl(id, IPC_RMID, NULL);
	if (!strcmp(way, "mapped"))
		hold();
	_exit(0);
}

static void hold_locked_file(void)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/locked-%d", folder, getpid());
	int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	must(fd != -1, "open");
	unlink(path);
	fill(fd);
	must(mlock(map(MAP_SHARED, fd), bytes) == 0, "mlock");
	hold();
}

static const struct {
	const char *kind;
	void (*hold)(void);
} KINDS[] = {
	{ "anonymous memory", hold_anonymous },
	{ "anonymous shared memory", hold_anonymous },
	{ "page tables", hold_page_tables },
	{ "pipes", hold_pipes },
	{ "socket buffers", hold_sockets },
	{ "ring of a packet socket", hold_ring },
	{ "buffers of io_uring", hold_io_uring },
	{ "SysV segment", hold_segment },
	{ "file on a disk", hold_locked_file },
};

int main(int count, char **arguments)
{
	must(count == 6, "arguments");
	kind = arguments[1];
	way = arguments[2];
	bytes = atol(arguments[3]) * MIB;
	folder = arguments[4];
	user = atoi(arguments[5]);
	for (unsigned long n = 0; n < sizeof(KINDS) / sizeof(*KINDS); n++)
		if (!strcmp(kind, KINDS[n].kind)) {
			become(user);
			KINDS[n].hold();
		}
	hold_file();
	return 2;
}
