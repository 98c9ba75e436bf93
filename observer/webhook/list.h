/*
 * The list of webhooks as it is in force: read when its file has changed, and not before it has
 * come to rest, as an editor may be writing it.
 *
 * Thread: one at a time.
 */
#pragma once

#include <stdbool.h>

#include "common/buf.h"
#include "common/io.h"
#include "common/log.h"
#include "webhook/config.h"

struct webhook_list {
    char path[LIMIT_PATH];
    const struct log *log;         /* borrowed */
    struct webhook_config *config; /* in force; NULL: none was good yet */
    struct io_stat is, was; /* of the file that was read last; at the last look. Zero: no file */
    bool looked;
    bool bad;   /* the last list had mistakes: it is read again, as they may lie elsewhere */
    char *said; /* about it; NULL: nothing */
};

/* Owned: config, said. */
void webhook_list_release(struct webhook_list *list);

/* Looks at the file. true: another list is in force from now on. Mistakes are logged once, and
 * again where there are others. */
bool webhook_list_look(struct webhook_list *list);
