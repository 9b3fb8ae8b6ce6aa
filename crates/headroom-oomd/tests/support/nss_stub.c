/*
 * A directory of users for tests: users u00 to u09 have the uids BASE to BASE + 9, and are members
 * of the group "nsstudents" by the list of their groups only. Nothing can be enumerated. Its state
 * is in the file that HEADROOM_NSS_STATE names:
 *   up, down, or "slow SECONDS" before each answer; "deleted NUMBER": up, without that user.
 * Each question is a line in the file with the suffix ".log".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <nss.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GROUP "nsstudents"
enum { USERS = 10, GID = 62995 };

static int deleted;

static unsigned base(void)
{
	const char *text = getenv("HEADROOM_NSS_BASE");
	return text ? (unsigned)strtoul(text, NULL, 10) : 0;
}

/* Logs the question and waits as long as the state says. Nonzero: there is an answer. */
static int answers(const char *question, int *error)
{
	const char *path = getenv("HEADROOM_NSS_STATE");
	char text[32] = "", log[256];
	unsigned seconds;
	FILE *file;

	deleted = -1;
	if (!path)
		return 0;
	snprintf(log, sizeof(log), "%s.log", path);
	file = fopen(log, "ae");
	if (file) {
		fprintf(file, "%s\n", question);
		fclose(file);
	}
	file = fopen(path, "re");
	if (file) {
		if (!fgets(text, sizeof(text), file))
			text[0] = 0;
		fclose(file);
	}
	if (sscanf(text, "slow %u", &seconds) == 1)
		sleep(seconds);
	sscanf(text, "deleted %d", &deleted);
	if (!strncmp(text, "down", 4)) {
		*error = ECONNREFUSED;
		return 0;
	}
	return 1;
}

static enum nss_status user(int number, struct passwd *entry, char *buffer, size_t size,
			    int *error)
{
	if (number < 0 || number >= USERS || number == deleted)
		return NSS_STATUS_NOTFOUND;
	if (size < 64) {
		*error = ERANGE;
		return NSS_STATUS_TRYAGAIN;
	}
	snprintf(buffer, 8, "u%02d", number);
	strcpy(buffer + 8, "x");
	strcpy(buffer + 16, "/");
	entry->pw_name = buffer;
	entry->pw_passwd = entry->pw_gecos = buffer + 8;
	entry->pw_dir = entry->pw_shell = buffer + 16;
	entry->pw_uid = base() + (unsigned)number;
	entry->pw_gid = entry->pw_uid;
	return NSS_STATUS_SUCCESS;
}

enum nss_status _nss_hrtest_getpwnam_r(const char *name, struct passwd *entry, char *buffer,
				       size_t size, int *error)
{
	int number;

	if (!answers(name, error))
		return NSS_STATUS_UNAVAIL;
	if (sscanf(name, "u%2d", &number) != 1)
		return NSS_STATUS_NOTFOUND;
	return user(number, entry, buffer, size, error);
}

enum nss_status _nss_hrtest_getpwuid_r(uid_t uid, struct passwd *entry, char *buffer, size_t size,
				       int *error)
{
	char question[16];

	snprintf(question, sizeof(question), "uid %u", uid);
	if (!answers(question, error))
		return NSS_STATUS_UNAVAIL;
	return user((int)(uid - base()), entry, buffer, size, error);
}

static enum nss_status group(struct group *entry, char *buffer, size_t size, int *error)
{
	if (size < 64) {
		*error = ERANGE;
		return NSS_STATUS_TRYAGAIN;
	}
	memset(buffer, 0, 8);
	strcpy(buffer + 16, GROUP);
	strcpy(buffer + 48, "x");
	entry->gr_name = buffer + 16;
	entry->gr_passwd = buffer + 48;
	entry->gr_gid = GID;
	entry->gr_mem = (char **)buffer;
	return NSS_STATUS_SUCCESS;
}

enum nss_status _nss_hrtest_getgrnam_r(const char *name, struct group *entry, char *buffer,
				       size_t size, int *error)
{
	if (!answers(name, error))
		return NSS_STATUS_UNAVAIL;
	return strcmp(name, GROUP) ? NSS_STATUS_NOTFOUND : group(entry, buffer, size, error);
}

enum nss_status _nss_hrtest_getgrgid_r(gid_t gid, struct group *entry, char *buffer, size_t size,
				       int *error)
{
	if (!answers("gid", error))
		return NSS_STATUS_UNAVAIL;
	return gid != GID ? NSS_STATUS_NOTFOUND : group(entry, buffer, size, error);
}

enum nss_status _nss_hrtest_initgroups_dyn(const char *name, gid_t skip, long *count, long *size,
					   gid_t **groups, long limit, int *error)
{
	int number;

	(void)skip;
	(void)limit;
	if (!answers("groups", error))
		return NSS_STATUS_UNAVAIL;
	if (sscanf(name, "u%2d", &number) != 1 || number >= USERS)
		return NSS_STATUS_NOTFOUND;
	if (*count == *size) {
		gid_t *larger = realloc(*groups, sizeof(gid_t) * (size_t)(*size + 8));

		if (!larger) {
			*error = ENOMEM;
			return NSS_STATUS_TRYAGAIN;
		}
		*groups = larger;
		*size += 8;
	}
	(*groups)[(*count)++] = GID;
	return NSS_STATUS_SUCCESS;
}
