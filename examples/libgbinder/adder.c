/* adder NAME: registers with the service manager and serves. */

#include <gbinder.h>
#include <glib.h>
#include <stdio.h>

#include "adder.h"

static GBinderLocalReply *on_call(GBinderLocalObject *self, GBinderRemoteRequest *request, guint code,
				  guint flags, int *status, void *data)
{
	GBinderReader reader;
	gint32 a, b, sum;

	(void)flags;
	(void)data;
	gbinder_remote_request_init_reader(request, &reader);
	if (code != ADDER_ADD || !gbinder_reader_read_int32(&reader, &a) ||
	    !gbinder_reader_read_int32(&reader, &b)) {
		*status = GBINDER_STATUS_FAILED;
		return NULL;
	}
	*status = GBINDER_STATUS_OK;
	GBinderLocalReply *reply = gbinder_local_object_new_reply(self);
	if (__builtin_add_overflow(a, b, &sum)) {
		gbinder_local_reply_append_int32(reply, ADDER_ILLEGAL_ARGUMENT);
		gbinder_local_reply_append_string16(reply, "overflow");
		/* No stack trace. */
		gbinder_local_reply_append_int32(reply, 0);
	} else {
		gbinder_local_reply_append_int32(reply, ADDER_OK);
		gbinder_local_reply_append_int32(reply, sum);
	}
	return reply;
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: adder NAME\n");
		return 2;
	}
	GBinderServiceManager *manager = gbinder_servicemanager_new("/dev/binder");
	if (!manager) {
		fprintf(stderr, "adder: no bus: run this with `headroom run`\n");
		return 1;
	}
	GBinderLocalObject *object =
		gbinder_servicemanager_new_local_object(manager, ADDER_INTERFACE, on_call, NULL);
	int status = gbinder_servicemanager_add_service_sync(manager, argv[1], object);
	if (status != GBINDER_STATUS_OK) {
		fprintf(stderr, "adder: cannot register %s: %d\n", argv[1], status);
		return 1;
	}
	g_main_loop_run(g_main_loop_new(NULL, FALSE));
	return 0;
}
