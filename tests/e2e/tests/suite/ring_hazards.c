/* A client in C that does what programs do beside a library that is preloaded into them.
 *
 *   ring_hazards DEVICE ACTION [ARGUMENT]
 *
 * The manager of the device echoes. Exit code 0: each call had its reply, and the action was possible.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/android/binder.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLS = 100, MAPPING = 128 << 10, STACK = 256 << 10, FILES = 200 };

static const char RING[] = "memfd:binder-ring";

typedef int ioctl_function(int, unsigned long, ...);
static ioctl_function *submit = ioctl;
static int device;

static void fail(const char *what)
{
    fprintf(stderr, "ring_hazards: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static int open_device(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        fail(path);
    if (mmap(NULL, MAPPING, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED)
        fail("mmap");
    return fd;
}

/* Makes one call with this number; returns the return that ends it, which is BR_REPLY if it was echoed. */
static uint32_t call(int fd, uint64_t number)
{
    struct {
        uint32_t command;
        struct binder_transaction_data data;
    } __attribute__((packed)) out = {
        .command = BC_TRANSACTION,
        .data = { .code = 1, .data_size = sizeof number, .data.ptr.buffer = (uintptr_t)&number },
    };
    char returns[256];
    struct binder_write_read both = { .write_buffer = (uintptr_t)&out, .write_size = sizeof out };
    uint32_t code = BR_NOOP;

    both.read_buffer = (uintptr_t)returns;
    both.read_size = sizeof returns;
    while (code == BR_NOOP) {
        both.read_consumed = 0;
        if (submit(fd, BINDER_WRITE_READ, &both) != 0)
            fail("BINDER_WRITE_READ");
        for (size_t at = 0; at < both.read_consumed && code == BR_NOOP;) {
            struct binder_transaction_data data;
            memcpy(&code, returns + at, sizeof code);
            memcpy(&data, returns + at + sizeof code, sizeof data);
            at += sizeof code + _IOC_SIZE(code);
            if (code == BR_TRANSACTION_COMPLETE)
                code = BR_NOOP;
            if (code != BR_REPLY)
                continue;
            if (data.data_size != sizeof number || memcmp((void *)(uintptr_t)data.data.ptr.buffer, &number, sizeof number))
                fail("the echo differs");
            struct {
                uint32_t command;
                binder_uintptr_t buffer;
            } __attribute__((packed)) freed = { BC_FREE_BUFFER, data.data.ptr.buffer };
            struct binder_write_read last = { .write_buffer = (uintptr_t)&freed, .write_size = sizeof freed };
            if (submit(fd, BINDER_WRITE_READ, &last) != 0)
                fail("BC_FREE_BUFFER");
        }
    }
    return code;
}

static void calls(int fd)
{
    for (uint64_t number = 1; number <= CALLS; number++)
        if (call(fd, number) != BR_REPLY)
            fail("no reply");
}

/* This process has mapped so many files with this in their names. */
static void expect_mapped(const char *name, int wanted)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");

    if (!maps)
        fail("/proc/self/maps");
    while (fgets(line, sizeof line, maps))
        count += strstr(line, name) != NULL;
    fclose(maps);
    if (count != wanted) {
        fprintf(stderr, "ring_hazards: %d mappings of %s instead of %d\n", count, name, wanted);
        _exit(1);
    }
}

static void *calls_in_thread(void *unused)
{
    calls(device);
    return unused;
}

static void plain(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, calls_in_thread, NULL))
            fail("pthread_create");
    calls(device);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    calls(device);
}

/* Other files get every number but those of the device and the standard ones: none receives a byte of ours. */
static void descriptors(void)
{
    int ends[2];
    char byte;

    if (pipe2(ends, O_NONBLOCK) != 0)
        fail("pipe2");
    for (int fd = 3; fd < FILES; fd++)
        if (fd != device && fd != ends[0] && fd != ends[1] && dup2(ends[1], fd) < 0)
            fail("dup2");
    calls(device);
    if (read(ends[0], &byte, 1) != -1 || errno != EAGAIN)
        fail("a file of the program received a byte");
    if (device > 3 && close_range(3, device - 1, 0) != 0)
        fail("close_range");
    if (close_range(device + 1, ~0U, 0) != 0)
        fail("close_range");
    calls(device);
}

/* The number of the device means another open: of a device without a manager, then of the same device. */
static void reopened(const char *path, const char *other)
{
    int first = dup(device), second = open_device(other), third = open(path, O_RDWR | O_CLOEXEC);

    if (dup2(second, device) < 0)
        fail("dup2");
    for (int i = 0; i < CALLS; i++)
        if (call(device, 1) != BR_DEAD_REPLY)
            fail("a call went to the device that the number meant before");
    if (dup2(first, device) < 0)
        fail("dup2");
    calls(device);
    /* It has no mapping, so no reply can be delivered to it. */
    if (dup2(third, device) < 0)
        fail("dup2");
    if (call(device, 1) == BR_REPLY)
        fail("a call was made by the open that the number meant before");
    if (dup2(first, device) < 0)
        fail("dup2");
    calls(device);
}

static void in_vfork(void)
{
    pid_t child = vfork();
    int status;

    if (child == 0) {
        calls(device);
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("the child of vfork");
    calls(device);
}

/* The child has neither the ring nor the receive buffer. */
static void in_fork(const char *path)
{
    expect_mapped(path, 1);
    pid_t child = fork();
    int status;

    if (child == 0) {
        expect_mapped(RING, 0);
        expect_mapped(path, 0);
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("the child of fork");
    calls(device);
}

static int calls_in_clone(void *unused)
{
    (void)unused;
    calls(device);
    syscall(SYS_exit, 0);
    return 0;
}

/* Threads and processes that the C library does not know; they share its storage of our thread, which waits. */
static void in_clone(void)
{
    static volatile pid_t alive = 1;
    char *stack = malloc(STACK);
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, status;
    pid_t child = clone(calls_in_clone, stack + STACK, flags, NULL);

    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        fail("a process by clone");
    flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
    if (clone(calls_in_clone, stack + STACK, flags, NULL, NULL, NULL, &alive) < 0)
        fail("a thread by clone");
    while (alive)
        usleep(1000);
    calls(device);
}

static void *reads(void *unused)
{
    static char returns[256];
    struct binder_write_read both = { .read_buffer = (uintptr_t)returns, .read_size = sizeof returns };

    calls(device);
    /* Not before: to end in the middle of a call is undefined, in this library as in the C library. */
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    submit(device, BINDER_WRITE_READ, &both);
    return unused;
}

/* No call is a point at which a thread that is to be cancelled ends. */
static void *calls_before_its_end(void *made)
{
    pthread_cancel(pthread_self());
    calls(device);
    *(int *)made = 1;
    pthread_testcancel();
    return NULL;
}

/* Threads that are cancelled while they wait leave nothing that harms others. */
static void cancelled(void)
{
    pthread_t early;
    int made = 0;

    if (pthread_create(&early, NULL, calls_before_its_end, &made) || pthread_join(early, NULL))
        fail("pthread_create");
    if (!made)
        fail("a call ended the thread");
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        void *result;
        if (pthread_create(&thread, NULL, reads, NULL))
            fail("pthread_create");
        usleep(i * 1000);
        pthread_cancel(thread);
        if (pthread_join(thread, &result) || result != PTHREAD_CANCELED)
            fail("the thread was not cancelled");
        calls(device);
    }
}

/* The library is unloaded while rings exist. */
static void unloaded(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!library)
        fail(dlerror());
    submit = (ioctl_function *)dlsym(library, "ioctl");
    calls(device);
    expect_mapped(RING, 1);
    if (dlclose(library) != 0)
        fail("dlclose");
    calls(device);
    submit = ioctl;
    calls(device);
}

int main(int count, char **words)
{
    if (count < 3)
        fail("usage: DEVICE ACTION [ARGUMENT]");
    const char *action = words[2], *argument = count > 3 ? words[3] : "";
    device = open_device(words[1]);
    if (!strcmp(action, "unloaded")) {
        unloaded(argument);
        return 0;
    }
    calls(device);
    expect_mapped(RING, 1);
    if (!strcmp(action, "plain"))
        plain();
    else if (!strcmp(action, "descriptors"))
        descriptors();
    else if (!strcmp(action, "reopened"))
        reopened(words[1], argument);
    else if (!strcmp(action, "vfork"))
        in_vfork();
    else if (!strcmp(action, "fork"))
        in_fork(words[1]);
    else if (!strcmp(action, "clone"))
        in_clone();
    else if (!strcmp(action, "cancelled"))
        cancelled();
    else
        fail(action);
    return 0;
}
