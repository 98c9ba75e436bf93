/*
 * A table of file calls that counts those that came back, so that a task that takes long is told
 * from one that hangs; and that, once its task is given up, calls nothing any more.
 *
 * Thread: any.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "common/io.h"

struct store_watch {
    struct io io; /* what the task calls */
    const struct io *real;
    atomic_ulong calls; /* that came back */
    atomic_bool given_up;
};

/* watch must not move afterwards. real is borrowed. */
void store_watch_init(struct store_watch *watch, const struct io *real);
/* Calls that begin from now on are ST_CLOSED; files are still closed. */
void store_watch_give_up(struct store_watch *watch);
