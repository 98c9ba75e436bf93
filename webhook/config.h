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
#include "webhook/message.h"
#include "webhook/url.h"

#define WEBHOOK_MAX        32 /* webhooks: each has a queue and a connection */
#define WEBHOOK_NAME       33 /* bytes of a name, with the NUL */
#define WEBHOOK_FILE_BYTES ((size_t)64 * 1024)
#define WEBHOOK_FILE       "webhooks.yaml" /* in the home */

struct webhook {
    char name[WEBHOOK_NAME];
    char url[WEBHOOK_URL];     /* a secret */
    char shown[WEBHOOK_SHOWN]; /* the part of the URL that may be shown */
    uint32_t events;           /* 1 << enum webhook_event */
    enum webhook_format format;
    char secret_file[LIMIT_PATH]; /* signs; "": nothing does */
    char ca_file[LIMIT_PATH];     /* "": the system's authorities */
    char jobs[LIMIT_NAME];        /* a pattern of names: ? * [a-z] */
};

struct webhook_config {
    struct webhook hooks[WEBHOOK_MAX];
    size_t count;
};

/*
 * Reads the text of a list. name: of the file, in mistakes; base_dir: from where its relative paths
 * are taken. *out: free(). Errors: ST_CONFIG  errors has all mistakes; ST_NO_MEMORY
 */
MUST_CHECK enum status webhook_config_parse(const char *text, size_t size, const char *name,
                                            const char *base_dir, struct webhook_config **out,
                                            struct buf *errors);
/*
 * Reads a list's file; others must not be able to.
 * Errors: ST_NOT_FOUND; ST_CONFIG, ST_REFUSED, ST_INVALID, ST_IO  errors says what and what to do
 */
MUST_CHECK enum status webhook_config_read(const char *path, struct webhook_config **out,
                                           struct buf *errors);

/* Returns the webhook of that name; NULL: there is none. */
const struct webhook *webhook_config_find(const struct webhook_config *config, const char *name);
/* True if the webhook wants to be told of such an event of a job of that name. */
bool webhook_wants(const struct webhook *hook, enum webhook_event event, const char *job_name);
