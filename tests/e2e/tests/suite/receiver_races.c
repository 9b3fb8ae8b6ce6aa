/* A receiver of files that is disturbed while it gets them.
 *
 *   receiver_races DEVICE ACTION DELAY_US PROGRAM
 *   receiver_races victim
 *
 * The main thread reads from the device, with its stack, read buffer and argument in `watched`. Once a byte arrives on
 * standard input and the delay is over, another thread acts: it executes PROGRAM (a copy of this one) as a victim, exits,
 * forks, stops the process, or changes its effective uid. The receiver exits with code 0 for a message with the code STOP.
 *
 * The victim never writes to `watched`, which has the same address there. Exit code 7: its memory was changed.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/android/binder.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { STOP = 99, MAPPING = 128 << 10, SCANS = 20, USER = 65534, OTHER = 65533, ACCEPTS_FDS = 0x17f };

/* The read buffer is too small for the daemon's own use, which takes memory below the stack then. */
static union {
	struct {
		struct binder_write_read argument;
		unsigned char returns[100];
	} read;
	unsigned char bytes[128 << 10];
} watched __attribute__((aligned(4096)));

static const char *action, *program;
static long delay_us;
static int device;

static void fail(const char *what)
{
	fprintf(stderr, "receiver_races: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static int victim(void)
{
	for (int scan = 0; scan < SCANS; scan++) {
		for (size_t at = 0; at < sizeof watched; at++)
			if (((volatile unsigned char *)watched.bytes)[at] != 0)
				return 7;
		usleep(500);
	}
	return 0;
}

static long now_us(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000L + time.tv_nsec / 1000;
}

static void *disturb(void *unused)
{
	char byte, *arguments[] = { (char *)program, "victim", NULL };

	if (read(0, &byte, 1) != 1)
		fail("standard input");
	for (long end = now_us() + delay_us; now_us() < end;)
		;
	if (strcmp(action, "execute") == 0) {
		execv(program, arguments);
		fail(program);
	} else if (strcmp(action, "exit") == 0) {
		_exit(0);
	} else if (strcmp(action, "stop") == 0) {
		kill(getpid(), SIGSTOP);
	} else if (strcmp(action, "fork") == 0) {
		pid_t child = fork();

		if (child == 0)
			_exit(0);
		waitpid(child, NULL, 0);
	} else if (strcmp(action, "uid") == 0) {
		if (setresuid(-1, OTHER, -1) != 0 || setresuid(-1, USER, -1) != 0)
			fail("setresuid");
	}
	return unused;
}

static void serve(void)
{
	static uint32_t enter = BC_ENTER_LOOPER;
	static struct {
		uint32_t word;
		binder_uintptr_t buffer;
	} __attribute__((packed)) release = { .word = BC_FREE_BUFFER };
	struct binder_write_read *argument = &watched.read.argument;

	memset(argument, 0, sizeof *argument);
	argument->write_size = sizeof enter;
	argument->write_buffer = (uintptr_t)&enter;
	for (;;) {
		argument->read_size = sizeof watched.read.returns;
		argument->read_buffer = (uintptr_t)watched.read.returns;
		argument->read_consumed = 0;
		if (ioctl(device, BINDER_WRITE_READ, argument) != 0 && errno != EINTR)
			fail("read");
		if (argument->write_consumed == argument->write_size)
			argument->write_size = argument->write_consumed = 0;
		for (size_t at = 0; at + 4 <= argument->read_consumed;) {
			struct binder_transaction_data message;
			uint32_t word;

			memcpy(&word, watched.read.returns + at, 4);
			at += 4;
			if (word == BR_TRANSACTION) {
				memcpy(&message, watched.read.returns + at, sizeof message);
				if (message.code == STOP)
					_exit(0);
				/* The next one-way message is delivered when this one is released. */
				release.buffer = message.data.ptr.buffer;
				argument->write_size = sizeof release;
				argument->write_buffer = (uintptr_t)&release;
			}
			at += _IOC_SIZE(word);
		}
	}
}

int main(int count, char **arguments)
{
	struct flat_binder_object manager = { .hdr.type = BINDER_TYPE_BINDER, .flags = ACCEPTS_FDS };
	ucontext_t context, before;
	pthread_t thread;

	if (count == 2)
		return victim();
	if (count != 5)
		return 2;
	action = arguments[2];
	delay_us = atol(arguments[3]);
	program = arguments[4];
	if (setresgid(USER, USER, USER) != 0 || setresuid(USER, USER, OTHER) != 0)
		fail("setresuid");
	prctl(PR_SET_DUMPABLE, 1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	device = open(arguments[1], O_RDWR | O_CLOEXEC);
	if (device < 0 || mmap(NULL, MAPPING, PROT_READ, MAP_PRIVATE, device, 0) == MAP_FAILED)
		fail(arguments[1]);
	/* The receiver before this one may not be released yet. */
	while (ioctl(device, BINDER_SET_CONTEXT_MGR_EXT, &manager) != 0)
		usleep(200);
	if (pthread_create(&thread, NULL, disturb, NULL) != 0 || getcontext(&context) != 0)
		fail("thread");
	/* What the daemon saves and puts back differs from what the victim expects. */
	memset(watched.bytes, 0xa5, sizeof watched);
	context.uc_stack.ss_sp = watched.bytes + 4096;
	context.uc_stack.ss_size = sizeof watched - 4096;
	context.uc_link = &before;
	makecontext(&context, serve, 0);
	puts("ready");
	fflush(stdout);
	swapcontext(&before, &context);
	return 3;
}
