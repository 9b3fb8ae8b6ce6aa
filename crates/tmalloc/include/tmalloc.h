/* SPDX-License-Identifier: Apache-2.0 */
/*
 * malloc with reservation: memory is granted before it is used, or refused in time.
 *
 * Memory of tmalloc() can be touched, now or later, whatever other processes of the user do. Without
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

/* NULL with ENOMEM if the memory is not granted. */
void *tmalloc(size_t size);
void *tcalloc(size_t count, size_t size);
void *trealloc(void *block, size_t size);
void tfree(void *block);

/* A lease: memory reserved for later allocations. 0: none. */
typedef uint64_t tm_lease;

/*
 * Reserves `bytes`, rounded up to pages; waits up to `wait_ms` for other processes to return some.
 * 0 with errno if refused: ENOMEM it does not fit, ETIMEDOUT not free in time, EMFILE 1024 leases are
 * held.
 */
tm_lease tm_reserve(size_t bytes, unsigned int wait_ms);
/* Assigns a lease to the allocator, for this process's allocations. -1 with EINVAL: no such lease. */
int tm_commit(tm_lease lease);
/* Returns the memory of a lease. -1 with EINVAL: no such lease. */
int tm_release(tm_lease lease);

/* Memory that could be granted now, bytes. 0 with errno if the daemon is unreachable. */
size_t tm_headroom(void);
/* Reason why this thread's last tm_... or transaction_... call was refused. */
const char *tm_why(void);

/*
 * Five calls with the names and meaning of the course project that had this idea first. -1 with
 * errno on failure: ENOTCONN without a daemon, EPERM if it refuses.
 */
int set_mm_limit(uid_t uid, unsigned long bytes); /* 0 bytes: no limit */
int get_mm_limit(uid_t *uids, unsigned long *limits, int count); /* returns the number of limits */
int run_oom_killer(void); /* returns the number of kills */
int transaction_reserve(size_t bytes);
int transaction_commit(size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
