/*
 * Processes that hang in execve: the memory that they leave has a modified page of a file, and the file server, which is
 * the attacker's own, does not answer the write. Until then nobody can read much of what /proc has about them.
 */
#include "common.h"

#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#define FIRST_NODE 2
/* Of one argument, bytes: less than the kernel's bound of 32 pages. */
#define MAX_ARGUMENT 120000

static void write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		_exit(2);
	close(fd);
}

static void enter_namespaces(void)
{
	unsigned uid = getuid(), gid = getgid();
	char map[64];

	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		_exit(2);
	write_text("/proc/self/setgroups", "deny");
	snprintf(map, sizeof map, "0 %u 1", uid);
	write_text("/proc/self/uid_map", map);
	snprintf(map, sizeof map, "0 %u 1", gid);
	write_text("/proc/self/gid_map", map);
}

static struct fuse_attr attributes(unsigned long node)
{
	struct fuse_attr attr = {.ino = node, .size = PAGE, .blocks = 8, .nlink = 1, .blksize = PAGE};

	attr.mode = node == FUSE_ROOT_ID ? 040755 : 0100666;
	return attr;
}

/* Answers everything but writes. Files are named by their numbers. */
static void serve(int fuse)
{
	static union {
		struct fuse_in_header header;
		char bytes[1 << 20];
	} request;
	static struct {
		struct fuse_out_header header;
		union {
			struct fuse_init_out init;
			struct fuse_entry_out entry;
			struct fuse_attr_out attr;
			struct fuse_open_out open;
			char page[PAGE];
		};
	} reply;

	while (read(fuse, &request, sizeof request) > 0) {
		size_t size = 0;

		memset(&reply, 0, sizeof reply);
		reply.header.unique = request.header.unique;
		switch (request.header.opcode) {
		case FUSE_INIT:
			reply.init.major = FUSE_KERNEL_VERSION;
			reply.init.minor = 31;
			reply.init.max_write = PAGE;
			size = sizeof reply.init;
			break;
		case FUSE_LOOKUP:
			reply.entry.nodeid = FIRST_NODE + atoi(request.bytes + sizeof request.header);
			reply.entry.attr_valid = reply.entry.entry_valid = 1000;
			reply.entry.attr = attributes(reply.entry.nodeid);
			size = sizeof reply.entry;
			break;
		case FUSE_GETATTR:
			reply.attr.attr_valid = 1000;
			reply.attr.attr = attributes(request.header.nodeid);
			size = sizeof reply.attr;
			break;
		case FUSE_OPEN:
			size = sizeof reply.open;
			break;
		case FUSE_READ:
			size = PAGE;
			break;
		case FUSE_FLUSH:
		case FUSE_RELEASE:
			break;
		case FUSE_WRITE:
		case FUSE_FORGET:
		case FUSE_BATCH_FORGET:
		case FUSE_INTERRUPT:
			continue;
		default:
			reply.header.error = -38; /* ENOSYS */
		}
		reply.header.len = sizeof reply.header + size;
		if (write(fuse, &reply, reply.header.len) < 0)
			continue;
	}
	_exit(0);
}

/* The new memory has the arguments already, `kib` of them. */
static void hang(int number, long kib)
{
	static char *arguments[64] = { "sleep" }, argument[MAX_ARGUMENT];
	char path[32];
	char *page;
	int file;

	snprintf(path, sizeof path, "/mnt/%d", number);
	file = open(path, O_RDWR);
	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (file < 0 || page == MAP_FAILED)
		_exit(2);
	page[0] = 1;
	memset(argument, '0', sizeof argument - 1);
	for (int i = 0; i < kib * 1024 / MAX_ARGUMENT && i < 62; i++)
		arguments[1 + i] = argument;
	execv("/bin/true", arguments);
	_exit(2);
}

/* Arguments: processes that hang, KiB that each of them holds, and MiB that are filled beside them at last. */
int main(int argc, char **argv)
{
	struct rlimit stack = { 64 * MIB, 64 * MIB };
	double end = now() + atof(argv[2]);
	int processes, fuse;
	long kib, mib;
	char options[99];

	must(argc == 6, "arguments");
	processes = atoi(argv[3]);
	kib = atol(argv[4]);
	mib = atol(argv[5]);
	/* The arguments may take a quarter of it. */
	must(setrlimit(RLIMIT_STACK, &stack) == 0, "setrlimit");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	enter_namespaces();
	fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
	if (fuse < 0 || mount("hung", "/mnt", "fuse", 0, options))
		return 2;
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		serve(fuse);
	}
	for (int number = 0; number < processes; number++) {
		if (!fork()) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			close(fuse);
			hang(number, kib);
		}
	}
	pause_ms(1000);
	touch(map(mib * MIB, MAP_PRIVATE), mib * MIB);
	while (now() < end)
		pause_ms(10);
	return 0;
}
