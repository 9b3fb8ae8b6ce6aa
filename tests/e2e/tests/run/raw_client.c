/* A client of linux/android/binder.h that needs nothing but a C library.
 *
 *   raw_client DEVICE serve   becomes the context manager: it replies to each call, writes to the file that a call
 *                             contains, and replies with another file
 *   raw_client DEVICE manage  becomes the context manager by BINDER_SET_CONTEXT_MGR with NULL
 *   raw_client DEVICE prctl|syscall  makes calls, and more of them after it has installed a filter by that function,
 *                             which kills it unless it calls ioctl, write or exit_group
 *   raw_client DEVICE call    makes a call without files and one with a file
 */

#include <errno.h>
#include <fcntl.h>
#include <linux/android/binder.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EMPTY_CALL = 1, FILE_CALL = 2, MAPPING = 128 << 10, COMMANDS = 512 };

static int device;

static void fail(const char *what)
{
    fprintf(stderr, "raw_client: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Commands that the next ioctl writes. */
struct commands {
    char bytes[COMMANDS];
    size_t len;
};

static void add(struct commands *commands, uint32_t command, const void *argument)
{
    memcpy(commands->bytes + commands->len, &command, sizeof command);
    commands->len += sizeof command;
    memcpy(commands->bytes + commands->len, argument, _IOC_SIZE(command));
    commands->len += _IOC_SIZE(command);
}

/* Writes the commands, then reads until a transaction or reply arrives. */
static struct binder_transaction_data receive(struct commands *commands)
{
    /* Too small for the calls by which files arrive: those use memory below the stack pointer. */
    char returns[80];

    for (;;) {
        struct binder_write_read both = {
            .write_buffer = (uintptr_t)commands->bytes,
            .write_size = commands->len,
            .read_buffer = (uintptr_t)returns,
            .read_size = sizeof returns,
        };
        if (ioctl(device, BINDER_WRITE_READ, &both) != 0)
            fail("BINDER_WRITE_READ");
        commands->len = 0;
        for (size_t at = 0; at < both.read_consumed;) {
            uint32_t code;
            struct binder_transaction_data data;
            memcpy(&code, returns + at, sizeof code);
            const char *argument = returns + at + sizeof code;
            at += sizeof code + _IOC_SIZE(code);
            switch (code) {
            case BR_TRANSACTION:
            case BR_REPLY:
                memcpy(&data, argument, sizeof data);
                return data;
            case BR_INCREFS:
                add(commands, BC_INCREFS_DONE, argument);
                break;
            case BR_ACQUIRE:
                add(commands, BC_ACQUIRE_DONE, argument);
                break;
            case BR_NOOP:
            case BR_TRANSACTION_COMPLETE:
                break;
            default:
                fprintf(stderr, "raw_client: return %#x\n", code);
                exit(1);
            }
        }
    }
}

/* The file that the data contain, and -1 if they contain none; frees the buffer. */
static int take_file(const struct binder_transaction_data *data, struct commands *commands)
{
    int fd = -1;

    if (data->offsets_size != 0) {
        uint64_t offset = *(const uint64_t *)(uintptr_t)data->data.ptr.offsets;
        const struct binder_fd_object *object = (const void *)(uintptr_t)(data->data.ptr.buffer + offset);
        if (object->hdr.type != BINDER_TYPE_FD || !(fcntl(object->fd, F_GETFD) & FD_CLOEXEC))
            fail("the object is no file, or it is not closed on exec");
        fd = object->fd;
    }
    add(commands, BC_FREE_BUFFER, &data->data.ptr.buffer);
    return fd;
}

/* Data with a file. */
struct parcel {
    struct binder_fd_object object;
    uint64_t offset;
};

static struct binder_transaction_data data_with(struct parcel *parcel, int fd)
{
    struct binder_transaction_data data = { .flags = TF_ACCEPT_FDS };

    if (fd >= 0) {
        *parcel = (struct parcel){ .object = { .hdr.type = BINDER_TYPE_FD, .fd = fd } };
        data.data_size = sizeof parcel->object;
        data.offsets_size = sizeof parcel->offset;
        data.data.ptr.buffer = (uintptr_t)&parcel->object;
        data.data.ptr.offsets = (uintptr_t)&parcel->offset;
    }
    return data;
}

static void make_pipe(int ends[2])
{
    if (pipe(ends) != 0)
        fail("pipe");
}

static void *serve(void *unused)
{
    static struct commands commands;
    static struct parcel parcel;

    add(&commands, BC_ENTER_LOOPER, "");
    for (;;) {
        struct binder_transaction_data call = receive(&commands);
        int ends[2] = { -1, -1 };
        int file = take_file(&call, &commands);
        if (file >= 0) {
            dprintf(file, "%zu-bit service", 8 * sizeof(void *));
            close(file);
            make_pipe(ends);
            dprintf(ends[1], "its reply");
            close(ends[1]);
        }
        struct binder_transaction_data reply = data_with(&parcel, ends[0]);
        add(&commands, BC_REPLY, &reply);
        /* Our end is closed before the caller reads its own. */
        struct binder_write_read write = { .write_buffer = (uintptr_t)commands.bytes, .write_size = commands.len };
        if (ioctl(device, BINDER_WRITE_READ, &write) != 0)
            fail("BINDER_WRITE_READ");
        commands.len = 0;
        close(ends[0]);
    }
    return unused;
}

static void print_file(int fd)
{
    char text[64] = "";

    if (fd < 0 || read(fd, text, sizeof text - 1) < 0)
        fail("no file");
    puts(text);
    close(fd);
}

/* Calls the context manager; returns the file in its reply. */
static int call(uint32_t code, int fd)
{
    static struct commands commands;
    struct parcel parcel;
    struct binder_transaction_data data = data_with(&parcel, fd);

    data.code = code;
    add(&commands, BC_TRANSACTION, &data);
    struct binder_transaction_data reply = receive(&commands);
    return take_file(&reply, &commands);
}

static void filter(int by_syscall)
{
    static const int allowed[] = { SYS_ioctl, SYS_write, SYS_exit_group };
    struct sock_filter code[2 * 3 + 2];
    unsigned short len = 0;

    code[len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < 3; i++) {
        code[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        code[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = { len, code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        fail("PR_SET_NO_NEW_PRIVS");
    if ((by_syscall ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)
                    : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) != 0)
        fail("a filter");
}

static void call_filtered(int by_syscall)
{
    static const char text[] = "all calls were answered\n";

    for (int i = 0; i < 40; i++) {
        if (i == 20)
            filter(by_syscall);
        if (call(EMPTY_CALL, -1) >= 0)
            fail("a file in a reply without one");
    }
    if (write(1, text, sizeof text - 1) < 0)
        fail("write");
}

int main(int argc, char **argv)
{
    struct binder_version version = { 0 };

    if (argc != 3)
        return 2;
    device = open(argv[1], O_RDWR | O_CLOEXEC);
    if (device < 0)
        fail(argv[1]);
    if (ioctl(device, BINDER_VERSION, &version) != 0 || version.protocol_version != BINDER_CURRENT_PROTOCOL_VERSION)
        fail("BINDER_VERSION");
    if (mmap(NULL, MAPPING, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, device, 0) == MAP_FAILED)
        fail("mmap");
    if (strcmp(argv[2], "serve") == 0) {
        struct flat_binder_object object = { .hdr.type = BINDER_TYPE_BINDER, .flags = FLAT_BINDER_FLAG_ACCEPTS_FDS };
        pthread_t thread;
        if (ioctl(device, BINDER_SET_CONTEXT_MGR_EXT, &object) != 0)
            fail("BINDER_SET_CONTEXT_MGR_EXT");
        /* A thread has the C library's default size of a stack. */
        if (pthread_create(&thread, NULL, serve, NULL) != 0)
            fail("pthread_create");
        pthread_join(thread, NULL);
        return 1;
    }
    if (strcmp(argv[2], "prctl") == 0 || strcmp(argv[2], "syscall") == 0) {
        call_filtered(strcmp(argv[2], "syscall") == 0);
        return 0;
    }
    if (strcmp(argv[2], "manage") == 0) {
        if (ioctl(device, BINDER_SET_CONTEXT_MGR, NULL) != 0)
            fail("BINDER_SET_CONTEXT_MGR");
        return 0;
    }
    if (call(EMPTY_CALL, -1) >= 0)
        fail("a file in a reply without one");
    int ends[2];
    make_pipe(ends);
    int file = call(FILE_CALL, ends[1]);
    close(ends[1]);
    print_file(ends[0]);
    print_file(file);
    return 0;
}
