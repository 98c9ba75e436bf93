/*
 * The list of webhooks, HOME/webhooks.yaml (docs/webhooks.md has its keys): read as YAML, mistakes
 * shown where they stand. What may be a secret is covered in what is shown.
 *
 * Thread: any; a list that was read is never changed.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/limits.h"
#include "common/status.h"
#include "hook/message.h"
#include "hook/url.h"

#define HOOK_MAX        32 /* webhooks: each has a queue and a connection */
#define HOOK_NAME       33 /* bytes of a name, with the NUL */
#define HOOK_FILE_BYTES ((size_t)64 * 1024)
#define HOOK_FILE       "webhooks.yaml" /* in the home */

struct hook {
    char name[HOOK_NAME];
    char url[HOOK_URL];     /* a secret */
    char shown[HOOK_SHOWN]; /* the part of the URL that may be shown */
    uint32_t events;        /* 1 << enum hook_event */
    enum hook_format format;
    char secret_file[LIMIT_PATH]; /* signs; "": nothing does */
    char ca_file[LIMIT_PATH];     /* "": the system's authorities */
    char jobs[LIMIT_NAME];        /* a pattern of names: ? * [a-z] */
};

struct hook_config {
    struct hook hooks[HOOK_MAX];
    size_t count;
};

/*
 * Reads the text of a list. name: of the file, in mistakes; base_dir: from where its relative paths
 * are taken. *out: free(). Errors: ST_CONFIG  errors has all mistakes; ST_NO_MEMORY
 */
MUST_CHECK enum status hook_config_parse(const char *text, size_t size, const char *name,
                                         const char *base_dir, struct hook_config **out,
                                         struct buf *errors);
/*
 * Reads a list's file; others must not be able to.
 * Errors: ST_NOT_FOUND; ST_CONFIG, ST_REFUSED, ST_INVALID, ST_IO  errors says what and what to do
 */
MUST_CHECK enum status hook_config_read(const char *path, struct hook_config **out,
                                        struct buf *errors);

/* Returns the webhook of that name; NULL: there is none. */
const struct hook *hook_config_find(const struct hook_config *config, const char *name);
/* True if the webhook wants to be told of such an event of a job of that name. */
bool hook_wants(const struct hook *hook, enum hook_event event, const char *job_name);
