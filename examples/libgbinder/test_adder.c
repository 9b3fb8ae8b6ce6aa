/* Starts the service and calls it from this process. Needs a bus with a service manager, see README.md. */

#include <gbinder.h>
#include <glib.h>
#include <signal.h>

#include "adder.h"

#define SERVICE ADDER_INTERFACE "/test"
/* Limit for the service to register, in steps of 50 ms. */
#define STEPS 200

static GBinderClient *client;

static GBinderClient *connect_to_service(void)
{
	GBinderServiceManager *manager = gbinder_servicemanager_new("/dev/binder");

	g_assert_nonnull(manager);
	for (int step = 0; step < STEPS; step++) {
		int status;
		GBinderRemoteObject *object =
			gbinder_servicemanager_get_service_sync(manager, SERVICE, &status);
		if (object)
			return gbinder_client_new(object, ADDER_INTERFACE);
		g_usleep(50 * 1000);
	}
	g_error("%s does not register", SERVICE);
}

/* Returns the exception, and on success the sum. */
static gint32 add(gint32 a, gint32 b, gint32 *sum)
{
	GBinderLocalRequest *request = gbinder_client_new_request(client);
	GBinderReader reader;
	gint32 exception;
	int status;

	gbinder_local_request_append_int32(request, a);
	gbinder_local_request_append_int32(request, b);
	GBinderRemoteReply *reply =
		gbinder_client_transact_sync_reply(client, ADDER_ADD, request, &status);
	g_assert_cmpint(status, ==, GBINDER_STATUS_OK);
	gbinder_remote_reply_init_reader(reply, &reader);
	g_assert_true(gbinder_reader_read_int32(&reader, &exception));
	if (exception == ADDER_OK)
		g_assert_true(gbinder_reader_read_int32(&reader, sum));
	gbinder_remote_reply_unref(reply);
	gbinder_local_request_unref(request);
	return exception;
}

static void numbers_are_added(void)
{
	gint32 sum;

	g_assert_cmpint(add(2, 3, &sum), ==, ADDER_OK);
	g_assert_cmpint(sum, ==, 5);
}

static void an_overflow_is_an_illegal_argument(void)
{
	gint32 sum;

	g_assert_cmpint(add(G_MAXINT32, 1, &sum), ==, ADDER_ILLEGAL_ARGUMENT);
}

int main(int argc, char **argv)
{
	char *service[] = { "./adder", SERVICE, NULL };
	GPid pid;

	g_test_init(&argc, &argv, NULL);
	g_assert_true(g_spawn_async(NULL, service, NULL, G_SPAWN_DEFAULT, NULL, NULL, &pid, NULL));
	client = connect_to_service();
	g_test_add_func("/adder/numbers_are_added", numbers_are_added);
	g_test_add_func("/adder/an_overflow_is_an_illegal_argument", an_overflow_is_an_illegal_argument);
	int failed = g_test_run();
	kill(pid, SIGTERM);
	return failed;
}
