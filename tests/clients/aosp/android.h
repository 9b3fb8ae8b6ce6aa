// What Android's service manager needs of libcutils, liblog and libselinux, without a security policy: all is permitted.
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

// The numbers of users of Android: each user has a range of them, in which those of apps and isolated processes are high.
#define AID_USER 100000
#define AID_APP 10000
#define AID_ISOLATED_START 99000
#define AID_ISOLATED_END 99999
static inline uid_t multiuser_get_app_id(uid_t uid) { return uid % AID_USER; }

#define ALOGE(...) (fprintf(stderr, "error: " __VA_ARGS__), fputc('\n', stderr))
#define ALOGI(...) (fprintf(stderr, "info: " __VA_ARGS__), fputc('\n', stderr))
#define android_errorWriteLog(tag, info) ((void)(tag))

typedef unsigned short security_class_t;
struct selabel_handle { int unused; };
union selinux_callback {
    int (*func_log)(int type, const char *format, ...);
    int (*func_audit)(void *data, security_class_t class, char *text, size_t size);
};
enum { SELINUX_CB_LOG, SELINUX_CB_AUDIT };

static inline int context_of_all(char **context) { return (*context = strdup("all")) ? 0 : -1; }
static inline int getcon(char **context) { return context_of_all(context); }
static inline int getpidcon(pid_t pid, char **context) { return (void)pid, context_of_all(context); }
static inline void freecon(char *context) { free(context); }
static inline int selinux_check_access(
    const char *source, const char *target, const char *class, const char *permission, void *audit)
{
    return (void)source, (void)target, (void)class, (void)permission, (void)audit, 0;
}
static inline int selinux_log_callback(int type, const char *format, ...) { return (void)type, (void)format, 0; }
static inline void selinux_set_callback(int type, union selinux_callback callback) { (void)type, (void)callback; }
static inline int selinux_status_open(int fallback) { return (void)fallback, 0; }
static inline int selinux_status_updated(void) { return 0; }
static inline struct selabel_handle *selinux_android_service_context_handle(void)
{
    static struct selabel_handle handle;
    return &handle;
}
static inline void selabel_close(struct selabel_handle *handle) { (void)handle; }
static inline int selabel_lookup(struct selabel_handle *handle, char **context, const char *name, int type)
{
    return (void)handle, (void)name, (void)type, context_of_all(context);
}
