/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of tmalloc, as an ordinary user with a limit. Prints one line per result. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tmalloc.h"

#define PIECE 4096

static void print_result(const char *what, long number)
{
	printf("%s %ld\n", what, number);
	fflush(stdout);
}

static void leases(void)
{
	tm_lease lease = tm_reserve(4 << 20, 0);

	print_result("reserved", lease != 0);
	print_result("released", tm_release(lease));
	errno = 0;
	print_result("released twice", tm_release(lease) == -1 && errno == EINVAL);
	lease = tm_reserve(1 << 20, 0);
	print_result("committed", tm_commit(lease));
	errno = 0;
	print_result("too much", tm_reserve(1 << 30, 0) == 0 && errno == ENOMEM && strlen(tm_why()) > 0);
}

static void blocks(void)
{
	char *block = tcalloc(100, 10);
	long zeros = 1;

	for (int i = 0; i < 1000; i++)
		zeros &= block[i] == 0;
	print_result("zeroed", zeros);
	memset(block, 7, 1000);
	block = trealloc(block, 1 << 20);
	print_result("kept", block && block[0] == 7 && block[999] == 7);
	tfree(block);
	tfree(NULL);
}

static void transaction(void)
{
	print_result("transaction reserved", transaction_reserve(1 << 20));
	char *block = tmalloc(512 << 10);
	memset(block, 1, 512 << 10);
	print_result("transaction committed", transaction_commit(1 << 20));
	tfree(block);
}

static void limits(unsigned long lower)
{
	uid_t uids[8];
	unsigned long bytes[8];

	print_result("limit lowered", set_mm_limit(getuid(), lower));
	int count = get_mm_limit(uids, bytes, 8);
	print_result("limits seen", count);
	print_result("limit", count > 0 && uids[0] == getuid() ? (long)bytes[0] : -1);
	errno = 0;
	print_result("another's limit", set_mm_limit(getuid() + 1, lower) == -1 && errno == EPERM);
}

/* Allocates until a refusal, in pieces that are written to. */
static void fill(void)
{
	void *last = NULL;
	long pieces = 0;

	for (;;) {
		void **piece = tmalloc(PIECE);
		if (!piece)
			break;
		memset(piece, 1, PIECE);
		*piece = last;
		last = piece;
		pieces++;
	}
	print_result("refused", errno == ENOMEM);
	print_result("bytes", pieces * PIECE);
	while (last) {
		void *next = *(void **)last;
		tfree(last);
		last = next;
	}
	void *again = tmalloc(PIECE);
	print_result("granted again", again != NULL);
	tfree(again);
}

int main(void)
{
	print_result("headroom", tm_headroom() > 0);
	leases();
	blocks();
	transaction();
	limits(16UL << 20);
	fill();
	return 0;
}
