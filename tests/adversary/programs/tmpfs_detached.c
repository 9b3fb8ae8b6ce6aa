/* A file of a tmpfs that is not mounted any more, or of a ramfs. Arguments: MiB, filesystem. */
#include "common.h"
#include <sys/mount.h>

static void write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	must(fd != -1 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
	close(fd);
}

static void map_root(const char *path, unsigned id)
{
	char text[32];

	snprintf(text, sizeof(text), "0 %u 1", id);
	write_text(path, text);
}

int main(int count, char **arguments)
{
	double end = now() + atof(arguments[2]);
	unsigned uid = getuid(), gid = getgid();
	static char block[1 << 20];
	long bytes;
	int fd;

	must(count == 5, "arguments");
	bytes = atol(arguments[3]) * MIB;
	must(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0, "unshare");
	write_text("/proc/self/setgroups", "deny");
	map_root("/proc/self/uid_map", uid);
	map_root("/proc/self/gid_map", gid);
	must(mount("attack", "/mnt", arguments[4], 0, NULL) == 0, "mount");
	fd = open("/mnt/file", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	must(fd != -1 && umount2("/mnt", MNT_DETACH) == 0, "umount");
	memset(block, 1, sizeof(block));
	for (long done = 0; done < bytes; done += sizeof(block))
		must(write(fd, block, sizeof(block)) == sizeof(block), "write");
	while (now() < end)
		pause_ms(20);
	return 0;
}
