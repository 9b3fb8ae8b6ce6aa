/*
 * Address spaces whose processes have exited while others read their memory, in a system call that a file system of the
 * attacker blocks: the memory remains, although no process has it. The readers cannot be killed while that file system is
 * served.
 */
#include "common.h"
#include <linux/fuse.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>

/* Maximum number of readers; each reads another page of the file. */
#define READERS 64

static int fuse;
/* The requests of the blocked readers, by page; 0: none. */
static _Atomic __u64 blocked[READERS];

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

/* Answers all requests, but reads only when their readers are released. */
static void *serve(void *argument)
{
	static char request[256 * 1024];

	(void)argument;
	while (read(fuse, request, sizeof(request)) > 0) {
		const struct fuse_in_header *header = (void *)request;
		const struct fuse_read_in *wanted = (void *)(header + 1);
		struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = PAGE };
		struct fuse_attr_out attributes = { .attr = { .ino = 1, .size = READERS * PAGE, .mode = 0100600, .nlink = 1, .uid = getuid() } };
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
			blocked[wanted->offset / PAGE % READERS] = header->unique;
			break;
		default:
			break;
		}
	}
	return NULL;
}

static void block_on(pid_t pid, char *memory, int page)
{
	struct iovec local = { NULL, PAGE }, remote = { memory, PAGE };
	struct stat status;
	int file = open("/tmp/file", O_RDONLY | O_CLOEXEC);

	/* Makes the kernel request the size. */
	must(file != -1 && fstat(file, &status) == 0, "open");
	local.iov_base = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, (long)page * PAGE);
	/* Without reading ahead, so that no reader waits for another's page. */
	must(local.iov_base != MAP_FAILED && madvise(local.iov_base, PAGE, MADV_RANDOM) == 0, "mmap");
	process_vm_readv(pid, &local, 1, &remote, 1, 0);
	_exit(0);
}

/* Fills memory in a process that exits, and is read by another one. */
static void keep_dead(long bytes, int page)
{
	char byte, *memory = map(bytes, MAP_PRIVATE);
	int ready[2];
	pid_t pid;

	must(page < READERS && pipe(ready) == 0, "pipe");
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
		/* The connection ends with the server; otherwise the reader could not be killed. */
		close(fuse);
		block_on(pid, memory, page);
	}
	close(ready[0]);
	pause_ms(250);
	waitpid(pid, NULL, 0);
	munmap(memory, bytes);
}

/* Starts the file system; to be called once. */
static void start_blocking(void)
{
	pthread_t server;

	mount_fuse();
	must(pthread_create(&server, NULL, serve, NULL) == 0, "pthread_create");
}
