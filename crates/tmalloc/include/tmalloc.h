/* SPDX-License-Identifier: Apache-2.0 */
/*
 * malloc that promises: memory is granted before it is used, or refused in time.
 *
 * What tmalloc() returns can be touched, now or later, whatever other processes of the user do. Without
 * a daemon, and for users without a limit, it is plain malloc. All functions are safe to call from any
 * thread; a forked child starts without a lease. Blocks of tmalloc() are freed by tfree() only.
 */
#ifndef TMALLOC_H
#define TMALLOC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NULL with ENOMEM when it is not granted. */
void *tmalloc(size_t size);
void *tcalloc(size_t count, size_t size);
void *trealloc(void *block, size_t size);
void tfree(void *block);

/* A lease: memory reserved for allocations to come. 0: none. */
typedef uint64_t tm_lease;

/*
 * Reserves `bytes`, rounded up to pages, waiting up to `wait_ms` for others to give theirs back.
 * 0 with errno when refused: ENOMEM it does not fit, ETIMEDOUT not in time, EMFILE 1024 leases are
 * held.
 */
tm_lease tm_reserve(size_t bytes, unsigned int wait_ms);
/* Hands it to the allocator, for this process' next allocations. -1 with EINVAL: no such lease. */
int tm_commit(tm_lease lease);
/* Gives it back. -1 with EINVAL: no such lease. */
int tm_release(tm_lease lease);

/* How much could be granted now, bytes. 0 with errno set when nobody can say. */
size_t tm_headroom(void);
/* Why this thread's last tm_... or transaction_... call was refused. */
const char *tm_why(void);

/*
 * Five calls of the same names and meaning as in the course project from which the idea comes. -1 with
 * errno on failure: ENOTCONN without a daemon, EPERM when it refuses.
 */
int set_mm_limit(uid_t uid, unsigned long bytes); /* 0 bytes: no limit */
int get_mm_limit(uid_t *uids, unsigned long *limits, int count); /* returns how many there are */
int run_oom_killer(void); /* returns how many were killed */
int transaction_reserve(size_t bytes);
int transaction_commit(size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
